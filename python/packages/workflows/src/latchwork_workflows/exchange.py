"""What masters and workers write for each other: the spec of an attempt, who runs it, and how it ended. No I/O.

An item holds a spec of up to ``INLINE_BYTES`` as it is. Of a larger one it holds the head, by which workers decide
whether they take it; the rest is in a key of its own, written and deleted in the same transactions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from latchwork.errors import BadRecord, ValueTooLarge
from latchwork.spi import Count, Decoder, Positive, Seconds, Timestamp, Whole, encode, short
from latchwork_workflows.keys import x_of
from latchwork_workflows.state import Outcome

#: An item holds so many bytes.
INLINE_BYTES = 4_000
#: The rest of a spec has so many at most.
MOST_BODY_BYTES = 900_000
#: A result has so many at most: sixteen fit into one transaction.
MOST_RESULT_BYTES = 64_000
#: So much of an error is kept.
MOST_ERROR = 4_000
_CacheKey = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Head(Struct, frozen=True):
    """What decides who takes an attempt, and names it.

    Attributes:
        shard: whose master is told.
        task: the id of the task's row.
        n: the number of the attempt.
        instance: id of the instance.
        code: of the workflow.
        version: of the workflow.
        workflow: ``project.name``.
        name: of the task.
        type: its type, such as ``shell``.
        tenant: the user of the machine that it runs as; None: the worker's.
        timeout_s: seconds after which the worker ends it; None: never.
        has_body: the rest stands in a key of its own.
        project: of the workflow, whose secrets it may have; a name alone does not say it.
        cache_key: by which its outputs are kept for others, see ``definitions.caching``; None: they are not.
    """

    shard: Annotated[int, Meta(ge=0, le=255)]
    task: Positive
    n: Positive
    instance: Positive
    code: Positive
    version: Positive
    workflow: str
    name: str
    type: str
    tenant: str | None = None
    timeout_s: Seconds | None = None
    has_body: bool = False
    cache_key: _CacheKey | None = None
    project: str = ""

    @property
    def x(self) -> str:
        """What the attempt is called in keys."""
        return x_of(self.task, self.n)

    @classmethod
    def of(cls, value: bytes) -> Head:
        """The head in an item.

        Raises:
            BadRecord: there is none.
        """
        return _HEAD.decode(value)


class SpecBody(Struct, frozen=True, omit_defaults=True):
    """The rest of a spec as it is stored; see ``Spec``."""

    params: Mapping[str, Any]
    env: Mapping[str, str]
    values: Mapping[str, Any]
    schedule_time: Timestamp
    tz: str
    connections: Mapping[str, Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for name, each in self.connections.items():
            if "url" not in each:
                raise ValueError(f"connection {short(name)} of a spec has no URL")


@dataclass(frozen=True, slots=True)
class Spec:
    """All that a worker has to know of an attempt.

    Attributes:
        head: what names it.
        params: as the definition has them; the worker fills in ``${name}``, in one pass with its secrets.
        env: environment variables, likewise.
        values: what ``${name}`` stands for, but for secrets.
        schedule_time: what ``${time:...}`` starts from, in seconds since the epoch.
        tz: name of the time zone that it is told in.
        connections: stored connections that it names, by name: ``url``, and ``secret``, the name of the password. No
            value can be one: what a task puts out never says where a password goes.
    """

    head: Head
    params: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    schedule_time: float = 0.0
    tz: str = "UTC"
    connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_bytes(self) -> tuple[bytes, bytes | None]:
        """What to store in the item, and what in the key of its own, if it is large.

        Raises:
            ValueTooLarge: it is larger than anything that can be stored.
        """
        head = {name: each for name, each in asdict(self.head).items() if each is not None and name != "has_body"}
        body = SpecBody(self.params, self.env, self.values, self.schedule_time, self.tz, self.connections)
        whole = encode({**head, **asdict(body)})
        if len(whole) <= INLINE_BYTES:
            return whole, None
        rest = encode(body)
        if len(rest) > MOST_BODY_BYTES:
            raise ValueTooLarge(
                f"task {self.head.name!r} would get {len(rest):,} bytes of parameters and outputs, at most "
                f"{MOST_BODY_BYTES:,}; hand large things over in files"
            )
        return encode({**head, "has_body": True}), rest

    @classmethod
    def of(cls, value: bytes, body: bytes | None = None) -> Spec:
        """The spec in an item, and in the key of its own.

        Raises:
            BadRecord: there is none.
        """
        head = _HEAD.decode(value)
        if head.has_body and body is None:
            raise BadRecord(f"the rest of the spec of attempt {head.x} is missing")
        found = _BODY.decode(value if body is None or not head.has_body else body)
        return cls(head, found.params, found.env, found.values, found.schedule_time, found.tz, found.connections)


class Running(Struct, frozen=True):
    """Who runs an attempt.

    Attributes:
        worker: name of the worker.
        host: where it is.
        since: when it took it, in seconds since the epoch by its own clock.
        given_back: why the one that had it before gave it back; empty if it died, or if this is the first.
    """

    worker: str
    host: str
    since: Timestamp
    given_back: str = ""

    def to_bytes(self) -> bytes:
        """What to store."""
        return encode(self)

    @classmethod
    def of(cls, value: bytes) -> Running:
        """What is stored; of what nobody of ours wrote, harmless defaults."""
        found = _RUNNING.find(value) or cls("?", "?", 0.0)
        return cls(found.worker[:200], found.host[:200], found.since, found.given_back[:200])


def cancel_of(at: float) -> bytes:
    """What a cancel says: when it was sent, in seconds since the epoch."""
    return b"%d" % at


def cancel_sent_at(value: bytes) -> float:
    """When a cancel was sent; 0 if it does not say that."""
    return float(value) if re.fullmatch(rb"\d{1,11}", value) else 0.0


class Result(Struct, frozen=True):
    """How an attempt ended.

    Attributes:
        outcome: in a word.
        claim: the token of the claim that it ran under.
        worker: name of the worker.
        host: where that is.
        started_at: when the worker took it, in seconds since the epoch by its own clock.
        ended_at: when it ended.
        pid: of its process; None if there was none.
        exit_code: of its process; negative: the signal that ended it; None if there was none.
        outputs: named values for tasks behind it.
        error: what a person should read first; empty unless it failed.
        log_ref: where its log is; empty if it has none.
        cache_key: of what the worker was given, as that has it: what was changed since then is another key.
    """

    outcome: Outcome
    claim: Count
    worker: str
    host: str
    started_at: Timestamp
    ended_at: Timestamp
    pid: Whole | None = None
    exit_code: Whole | None = None
    outputs: Mapping[str, Any] = {}
    error: str = ""
    log_ref: str = ""
    cache_key: _CacheKey | None = None

    def to_bytes(self) -> bytes:
        """What to store.

        Raises:
            ValueTooLarge: its outputs are too large; end it as a failure that says so.
        """
        value = encode(replace(self, error=self.error[:MOST_ERROR]))
        if len(value) > MOST_RESULT_BYTES:
            raise ValueTooLarge(
                f"the outputs make a result of {len(value):,} bytes, at most {MOST_RESULT_BYTES:,}; write large ones "
                "to files, and hand over their names"
            )
        return value

    @classmethod
    def of(cls, value: bytes) -> Result:
        """What is stored.

        Raises:
            BadRecord: it is no result.
        """
        found = _RESULT.decode(value)
        return replace(
            found,
            worker=found.worker[:200],
            host=found.host[:200],
            error=found.error[:MOST_ERROR],
            log_ref=found.log_ref[:400],
        )


_HEAD: Decoder[Head] = Decoder(Head, "the head of a spec")
_BODY: Decoder[SpecBody] = Decoder(SpecBody, "the rest of a spec")
_RUNNING: Decoder[Running] = Decoder(Running, "who runs an attempt")
_RESULT: Decoder[Result] = Decoder(Result, "a result of an attempt")
