"""One run of an attempt: what is known of it from its claim to its end, and how its end is told. No I/O."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from latchwork.errors import ValueTooLarge
from latchwork.primitives import QueueClaim
from latchwork.tasks.children import ChildEnd
from latchwork_workflows.exchange import Head, Result
from latchwork_workflows.keys import log_ref
from latchwork_workflows.state import Outcome


@dataclass(eq=False)
class Attempt:
    """A run of an attempt on this worker.

    Attributes:
        claim: by which it is ours.
        head: what names it.
        token: of the claim; it grows with each, whoever has it.
        since: when it was taken, in seconds since the epoch.
        is_cancelled: it is to be ended for good.
        is_cut_off: it is to be ended because the store is out of reach.
        pid: of its process; None while there is none.
        result: how it ended; None while it has not.
    """

    claim: QueueClaim
    head: Head
    token: int
    since: float = field(default_factory=time.time)
    is_cancelled: bool = False
    is_cut_off: bool = False
    pid: int | None = None
    result: Result | None = None

    @property
    def x(self) -> str:
        """What it is called in keys."""
        return self.head.x

    @property
    def log_ref(self) -> str:
        """Where its log is."""
        return log_ref(self.head.code, self.head.instance, self.x, self.token)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, before it is known as whose.

    Attributes:
        outcome: in a word.
        error: what a person should read first.
        exit_code: of its process; negative: the signal that ended it.
        outputs: for tasks behind it.
    """

    outcome: Outcome
    error: str = ""
    exit_code: int | None = None
    outputs: dict[str, Any] = field(default_factory=dict)


def result_of(attempt: Attempt, ending: Ending, worker: str, host: str, *, has_log: bool) -> Result:
    """What is told of a run; of one with too many outputs, that it failed."""
    result = Result(
        ending.outcome,
        attempt.token,
        worker,
        host,
        attempt.since,
        max(attempt.since, time.time()),
        attempt.pid,
        ending.exit_code,
        ending.outputs,
        ending.error,
        attempt.log_ref if has_log else "",
        attempt.head.cache_key,
    )
    try:
        result.to_bytes()
    except ValueTooLarge as error:
        return result_of(attempt, Ending(Outcome.FAILURE, str(error), ending.exit_code), worker, host, has_log=has_log)
    return result


def code_of(end: ChildEnd) -> int | None:
    """One number for how a process ended: its code, or the signal as a negative one."""
    return -end.signal if end.signal is not None else end.code


def failure_of(end: ChildEnd, last_line: str) -> str:
    """What a person should read first of a process that failed."""
    text = str(end)
    if end.why == "exited" and end.signal == 9:
        text += ", which nobody here sent: the machine may have been out of memory"
    return f"{text}: {last_line}" if last_line else text
