"""What masters and workers write for each other: the spec of an attempt, who runs it, and how it ended. No I/O.

An item holds a spec of up to ``INLINE_BYTES`` as it is. Of a larger one it holds the head, by which workers decide
whether they take it; the rest is in a key of its own, written and deleted in the same transactions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from latchwork.errors import BadRecord, ValueTooLarge
from latchwork.records import Record, short
from latchwork.workflows.keys import x_of
from latchwork.workflows.state import Outcome

#: An item holds so many bytes.
INLINE_BYTES = 4_000
#: The rest of a spec has so many at most.
MOST_BODY_BYTES = 900_000
#: A result has so many at most: sixteen fit into one transaction.
MOST_RESULT_BYTES = 64_000
#: So much of an error is kept.
MOST_ERROR = 4_000


@dataclass(frozen=True, slots=True)
class Head:
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

    shard: int
    task: int
    n: int
    instance: int
    code: int
    version: int
    workflow: str
    name: str
    type: str
    tenant: str | None = None
    timeout_s: float | None = None
    has_body: bool = False
    cache_key: str | None = None
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
        return _head(Record.of(value))


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
        head = {name: each for name, each in _flat(self.head).items() if each is not None and name != "has_body"}
        body: dict[str, Any] = {
            "params": self.params,
            "env": self.env,
            "values": self.values,
            "schedule_time": self.schedule_time,
            "tz": self.tz,
        }
        if self.connections:
            body["connections"] = self.connections
        whole = _bytes({**head, **body})
        if len(whole) <= INLINE_BYTES:
            return whole, None
        rest = _bytes(body)
        if len(rest) > MOST_BODY_BYTES:
            raise ValueTooLarge(
                f"task {self.head.name!r} would get {len(rest):,} bytes of parameters and outputs, at most "
                f"{MOST_BODY_BYTES:,}; hand large things over in files"
            )
        return _bytes({**head, "has_body": True}), rest

    @classmethod
    def of(cls, value: bytes, body: bytes | None = None) -> Spec:
        """The spec in an item, and in the key of its own.

        Raises:
            BadRecord: there is none.
        """
        record = Record.of(value)
        head = _head(record)
        if head.has_body:
            if body is None:
                raise BadRecord(f"the rest of the spec of attempt {head.x} is missing")
            record = Record.of(body)
        return cls(
            head,
            record.mapping("params"),
            record.text_map("env"),
            record.mapping("values"),
            record.moment_s("schedule_time"),
            record.text("tz", "UTC"),
            _connections(record),
        )


@dataclass(frozen=True, slots=True)
class Running:
    """Who runs an attempt.

    Attributes:
        worker: name of the worker.
        host: where it is.
        since: when it took it, in seconds since the epoch by its own clock.
        given_back: why the one that had it before gave it back; empty if it died, or if this is the first.
    """

    worker: str
    host: str
    since: float
    given_back: str = ""

    def to_bytes(self) -> bytes:
        """What to store."""
        return _bytes(_flat(self))

    @classmethod
    def of(cls, value: bytes) -> Running:
        """What is stored; of what nobody of ours wrote, harmless defaults."""
        record = Record.or_empty(value)
        worker, host = record.text("worker", "?")[:200], record.text("host", "?")[:200]
        return cls(worker, host, record.moment_s("since", 0.0), record.text("given_back", "")[:200])


def cancel_of(at: float) -> bytes:
    """What a cancel says: when it was sent, in seconds since the epoch."""
    return b"%d" % at


def cancel_sent_at(value: bytes) -> float:
    """When a cancel was sent; 0 if it does not say that."""
    return float(value) if re.fullmatch(rb"\d{1,11}", value) else 0.0


@dataclass(frozen=True, slots=True)
class Result:
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
    claim: int
    worker: str
    host: str
    started_at: float
    ended_at: float
    pid: int | None = None
    exit_code: int | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    log_ref: str = ""
    cache_key: str | None = None

    def to_bytes(self) -> bytes:
        """What to store.

        Raises:
            ValueTooLarge: its outputs are too large; end it as a failure that says so.
        """
        value = _bytes({**_flat(self), "outcome": self.outcome.value, "error": self.error[:MOST_ERROR]})
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
        record = Record.of(value)
        try:
            outcome = Outcome(record.text("outcome"))
        except ValueError as error:
            raise BadRecord(str(error)) from None
        return cls(
            outcome,
            record.whole("claim", least=0),
            record.text("worker")[:200],
            record.text("host")[:200],
            record.moment_s("started_at"),
            record.moment_s("ended_at"),
            record.whole("pid") if record.has("pid") else None,
            record.whole("exit_code") if record.has("exit_code") else None,
            record.mapping("outputs", {}),
            record.text("error", "")[:MOST_ERROR],
            record.text("log_ref", "")[:400],
            _cache_key(record),
        )


def _head(record: Record) -> Head:
    return Head(
        record.whole("shard", least=0, most=255),
        record.whole("task", least=1),
        record.whole("n", least=1),
        record.whole("instance", least=1),
        record.whole("code", least=1),
        record.whole("version", least=1),
        record.text("workflow"),
        record.text("name"),
        record.text("type"),
        record.text("tenant") if record.has("tenant") else None,
        record.duration_s("timeout_s") if record.has("timeout_s") else None,
        record.body.get("has_body") is True,
        _cache_key(record),
        record.text("project", ""),
    )


def _connections(record: Record) -> dict[str, Mapping[str, str]]:
    found: dict[str, Mapping[str, str]] = {}
    for name, each in record.mapping("connections", {}).items():
        if not isinstance(each, dict) or not all(isinstance(part, str) for part in each.values()) or "url" not in each:
            raise BadRecord(f"connection {short(name)} of a spec is no URL with the name of a secret")
        found[name] = each
    return found


def _cache_key(record: Record) -> str | None:
    found = record.body.get("cache_key")
    return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{64}", found) else None


def _flat(record: Head | Running | Result) -> dict[str, Any]:
    """Its fields, as they are: ``asdict`` copies what is in them."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _bytes(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
