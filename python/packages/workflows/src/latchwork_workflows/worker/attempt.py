"""One attempt: its result and its outputs."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from latchwork.errors import BadRecord, ValueTooLarge
from latchwork.primitives import QueueClaim
from latchwork.spi import read_json, short
from latchwork.tasks.children import ChildEnd
from latchwork_workflows.keys import build_log_ref
from latchwork_workflows.messages import AttemptResult, TaskHead
from latchwork_workflows.state import Outcome


@dataclass(eq=False)
class ActiveAttempt:
    """An attempt that runs on this worker.

    Attributes:
        claim: Our claim of its item.
        head: Identifies the attempt.
        token: Token of the claim. It grows with each claim, by any worker.
        claimed_at: Time of the claim, in seconds since the epoch.
        is_cancelled: It must be ended and not run again.
        is_disconnected: It must be ended because the store is out of reach.
        pid: ID of its process. None while there is none.
        result: Its result. None until it has ended.
    """

    claim: QueueClaim
    head: TaskHead
    token: int
    claimed_at: float = field(default_factory=time.time)
    is_cancelled: bool = False
    is_disconnected: bool = False
    pid: int | None = None
    result: AttemptResult | None = None

    @property
    def attempt_key(self) -> str:
        """The name of the attempt in keys."""
        return self.head.attempt_key

    @property
    def log_ref(self) -> str:
        """The reference of the attempt's log in the log store."""
        return build_log_ref(self.head.code, self.head.run_id, self.attempt_key, self.token)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How the process of an attempt ended.

    Attributes:
        outcome: Outcome of the run.
        error: Error message. The most important part comes first.
        exit_code: Exit code of its process. Negative: the signal that ended it.
        outputs: Outputs for downstream tasks.
    """

    outcome: Outcome
    error: str = ""
    exit_code: int | None = None
    outputs: dict[str, Any] = field(default_factory=dict)


def build_result(attempt: ActiveAttempt, ending: RunOutcome, worker: str, host: str, *, has_log: bool) -> AttemptResult:
    """Build the result of an attempt that the worker reports to the master.

    If the outputs are too large, the result is a failure.

    Args:
        attempt: The attempt.
        ending: How its process ended.
        worker: Name of the worker.
        host: Name of the machine.
        has_log: Whether anything was written to its log.
    """
    result = AttemptResult(
        ending.outcome,
        attempt.token,
        worker,
        host,
        attempt.claimed_at,
        max(attempt.claimed_at, time.time()),
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
        return build_result(
            attempt, RunOutcome(Outcome.FAILURE, str(error), ending.exit_code), worker, host, has_log=has_log
        )
    return result


def get_exit_code(end: ChildEnd) -> int | None:
    """Return the exit code of a process that has ended.

    If a signal ended it, this is the negative number of the signal.
    """
    return -end.signal if end.signal is not None else end.code


def build_failure_message(end: ChildEnd, last_line: str) -> str:
    """Return the error message for a process that failed: its exit code or signal, and its last line of output."""
    text = str(end)
    if end.why == "exited" and end.signal == 9:
        text += ", not sent by this worker: the machine may be out of memory"
    return f"{text}: {last_line}" if last_line else text


#: Maximum number of bytes of outputs that are read. A result holds less.
MAX_BYTES = 64_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", re.ASCII)
_JSON = "#json "
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


class BadOutput(ValueError):
    """The outputs of a task cannot be used."""


def parse_outputs(data: bytes) -> dict[str, Any]:
    """Parse the output file of a task, and return the outputs by name. If a name occurs twice, the last value counts.

    Raises:
        BadOutput: The file is invalid. The message names the line and how to fix it.
    """
    if len(data) > MAX_BYTES:
        raise BadOutput(
            f"$LATCHWORK_OUTPUT has more than {MAX_BYTES:,} bytes; write large values to files and pass their names"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadOutput(f"$LATCHWORK_OUTPUT is not UTF-8 text: {error}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]  # text may contain other line ends of Unicode
    found: dict[str, Any] = {}
    at = 0
    while at < len(lines):
        line, number = lines[at], at + 1
        at += 1
        if line.startswith(_JSON):
            found.update(_parse_json(line[len(_JSON) :], number))
        elif line.strip() and not line.startswith("#"):
            name, value, at = _parse_line(lines, line, at)
            if _NAME.fullmatch(name) is None:
                raise BadOutput(f"line {number} of $LATCHWORK_OUTPUT, {short(line)}, is not name=value")
            found[name] = value
    return found


def _parse_line(lines: list[str], line: str, at: int) -> tuple[str, Any, int]:
    name, is_equal, value = line.partition("=")
    before, is_block, mark = line.partition("<<")
    if not is_block or (is_equal and len(before) > len(name)):
        return (name.strip() if is_equal else ""), _parse_value(value), at
    mark = mark.strip()
    if mark not in lines[at:]:
        raise BadOutput(
            f"line {at} of $LATCHWORK_OUTPUT starts a value that ends at a line {short(mark)}, which is missing"
        )
    end = lines.index(mark, at)
    return before.strip(), "\n".join(lines[at:end]), end + 1


def _parse_value(text: str) -> Any:
    """Parse the value of an output: a number or a list if the text is one, otherwise the text itself.

    A number that JSON would write differently, such as the version ``3.10``, stays text. No digit is lost.
    """
    given = text.strip()
    is_number = _NUMBER.fullmatch(given) is not None
    if is_number or given.startswith("["):
        with suppress(BadRecord):
            value = read_json(given.encode())
            if not is_number or (json.dumps(value) == given and abs(value) < 2**63):
                return value
    return text


def _parse_json(text: str, number: int) -> dict[str, Any]:
    try:
        value = read_json(text.encode())
    except BadRecord as error:
        raise BadOutput(f"line {number} of $LATCHWORK_OUTPUT: {error}") from None
    if not isinstance(value, dict):
        raise BadOutput(f"line {number} of $LATCHWORK_OUTPUT has {short(value)} after #json; write an object")
    return value
