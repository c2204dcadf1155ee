"""Messages between masters and workers: the spec of an attempt, its worker, and its result. No I/O.

An item contains a spec of up to ``INLINE_BYTES``. For a larger spec, the item contains only the head, by which workers
decide whether to take it. The rest is in a separate key, written and deleted in the same transactions.
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
from latchwork_workflows.keys import format_attempt_key
from latchwork_workflows.state import Outcome

#: The maximum size of a spec inside an item, in bytes.
INLINE_BYTES = 4_000
#: The maximum size of the rest of a spec, in bytes.
MAX_BODY_BYTES = 900_000
#: The maximum size of a result, in bytes. Sixteen fit into one transaction.
MAX_RESULT_BYTES = 64_000
#: The maximum length of a stored error.
MAX_ERROR = 4_000
_CacheKey = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class TaskHead(Struct, frozen=True):
    """The part of a task spec that identifies the attempt and decides which workers can run it."""

    shard: Annotated[int, Meta(ge=0, le=255)]
    task: Positive
    n: Positive
    run_id: Positive
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
    def attempt_key(self) -> str:
        """The attempt as part of store keys: ``<task ID>.<attempt number>``."""
        return format_attempt_key(self.task, self.n)

    @classmethod
    def from_bytes(cls, value: bytes) -> TaskHead:
        """Parse only the header fields of a queue item's value, and not the parameters of the task.

        Raises:
            BadRecord: The value contains no valid header.
        """
        return _HEAD.decode(value)


class TaskMessageBody(Struct, frozen=True, omit_defaults=True):
    """The stored fields of a ``TaskMessage`` that its ``TaskHead`` does not have."""

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
class TaskMessage:
    """Everything that a worker needs to run an attempt.

    Attributes:
        head: Identifies the attempt.
        params: As in the definition. The worker fills in ``${name}``, together with its secrets.
        env: Environment variables, likewise.
        values: The values of ``${name}``, except secrets.
        schedule_time: The base of ``${time:...}``, in seconds since the epoch.
        tz: The name of the time zone for formatting times.
        connections: The stored connections that it names, by name: ``url``, and ``secret``, the name of the password.
            Kept apart from values, so outputs of tasks cannot decide where a password is sent.
    """

    head: TaskHead
    params: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    schedule_time: float = 0.0
    tz: str = "UTC"
    connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_bytes(self) -> tuple[bytes, bytes | None]:
        """Serialize the task spec.

        Returns:
            The value of the queue item, and the value of a separate key if the spec is large.
        Raises:
            ValueTooLarge: The spec is too large to be stored.
        """
        head = {name: each for name, each in asdict(self.head).items() if each is not None and name != "has_body"}
        body = TaskMessageBody(self.params, self.env, self.values, self.schedule_time, self.tz, self.connections)
        whole = encode({**head, **asdict(body)})
        if len(whole) <= INLINE_BYTES:
            return whole, None
        rest = encode(body)
        if len(rest) > MAX_BODY_BYTES:
            raise ValueTooLarge(
                f"task {self.head.name!r} would get {len(rest):,} bytes of parameters and outputs, at most "
                f"{MAX_BODY_BYTES:,}; write large values to files and pass their names"
            )
        return encode({**head, "has_body": True}), rest

    @classmethod
    def from_bytes(cls, value: bytes, body: bytes | None = None) -> TaskMessage:
        """Parse a task spec from the value of its queue item and of its separate key, if any.

        Raises:
            BadRecord: The bytes contain no valid spec.
        """
        head = _HEAD.decode(value)
        if head.has_body and body is None:
            raise BadRecord(f"the rest of the spec of attempt {head.attempt_key} is missing")
        found = _BODY.decode(value if body is None or not head.has_body else body)
        return cls(head, found.params, found.env, found.values, found.schedule_time, found.tz, found.connections)


class RunningRecord(Struct, frozen=True):
    """The worker of an attempt.

    Attributes:
        worker: The name of the worker.
        host: The host of the worker.
        claimed_at: When it claimed the attempt, in seconds since the epoch by its clock.
        release_reason: Why the previous worker released the attempt. Empty if that worker died, or for the first one.
    """

    worker: str
    host: str
    claimed_at: Timestamp
    release_reason: str = ""

    def to_bytes(self) -> bytes:
        """Serialize the record for the store."""
        return encode(self)

    @classmethod
    def from_bytes(cls, value: bytes) -> RunningRecord:
        """Parse a stored record. Invalid bytes result in default values."""
        found = _RUNNING.find(value) or cls("?", "?", 0.0)
        return cls(found.worker[:200], found.host[:200], found.claimed_at, found.release_reason[:200])


def encode_cancel_request(at: float) -> bytes:
    """Return the value of a cancel request, which contains its time in seconds since the epoch."""
    return b"%d" % at


def decode_cancel_time(value: bytes) -> float:
    """Return the time of a cancel request in seconds since the epoch, or 0 if the value has no time."""
    return float(value) if re.fullmatch(rb"\d{1,11}", value) else 0.0


class AttemptResult(Struct, frozen=True):
    """The result of an attempt.

    Attributes:
        outcome: The outcome, one word.
        claim: The token of its claim.
        worker: The name of the worker.
        host: The host of the worker.
        started_at: When the worker claimed it, in seconds since the epoch by its clock.
        ended_at: When it ended.
        pid: The process ID. None if there was no process.
        exit_code: The exit code of the process. Negative: the signal that ended it. None if there was no process.
        outputs: Named values for later tasks.
        error: The error message for users. Empty unless it failed.
        log_ref: The reference of its log. Empty if it has none.
        cache_key: The cache key from the spec that the worker got. Later changes of the definition give another key.
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
        """Serialize the result for the store.

        Raises:
            ValueTooLarge: The outputs are too large. The caller must report the attempt as a failure instead.
        """
        value = encode(replace(self, error=self.error[:MAX_ERROR]))
        if len(value) > MAX_RESULT_BYTES:
            raise ValueTooLarge(
                f"the outputs make a result of {len(value):,} bytes, at most {MAX_RESULT_BYTES:,}; write large "
                "ones to files and pass their names"
            )
        return value

    @classmethod
    def from_bytes(cls, value: bytes) -> AttemptResult:
        """Parse a stored result.

        Raises:
            BadRecord: The bytes are not a valid result.
        """
        found = _RESULT.decode(value)
        return replace(
            found,
            worker=found.worker[:200],
            host=found.host[:200],
            error=found.error[:MAX_ERROR],
            log_ref=found.log_ref[:400],
        )


_HEAD: Decoder[TaskHead] = Decoder(TaskHead, "the head of a spec")
_BODY: Decoder[TaskMessageBody] = Decoder(TaskMessageBody, "the rest of a spec")
_RUNNING: Decoder[RunningRecord] = Decoder(RunningRecord, "who runs an attempt")
_RESULT: Decoder[AttemptResult] = Decoder(AttemptResult, "a result of an attempt")
