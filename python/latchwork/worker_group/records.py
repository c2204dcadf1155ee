"""What is stored about a job, as records. Pure, no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal

from latchwork.checks import is_number
from latchwork.errors import BadRecord
from latchwork.records import Record
from latchwork.types import Entry

#: States of a job.
RUNNING, COMPLETED, FAILED, TERMINATED = "RUNNING", "COMPLETED", "FAILED", "TERMINATED"
#: States of a worker, besides ``COMPLETED``.
STARTED, RESTARTED, LOST, FULLY_FAILED = "STARTED", "RESTARTED", "LOST", "FULLY_FAILED"
#: A worker in one of these should have a lease.
AT_WORK = frozenset({STARTED, RESTARTED})
MOST_WORKERS = 100_000
MOST_PORT = 65_535
#: So many events of a run are kept.
KEPT_EVENTS = 1_000

EventKind = Literal[
    "joined",
    "all_joined",
    "restarted",
    "lost",
    "failed",
    "completed",
    "left",
    "faulty",
    "healthy",
    "scaled",
    "master_restarted",
    "ended",
]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says of itself, and what its job says of it.

    Attributes:
        ip: where its peers reach it.
        ports: its ports by name.
        node: the machine, rack and datacentre, for those who place work; empty if not told.
        rack: see ``node``.
        datacentre: see ``node``.
        resources: amounts by name.
        id: from 0, without gaps, the same after a restart; -1 before it has joined.
        key: who it is, the same after a restart; empty before it has joined.
        status: ``STARTED``, ``RESTARTED``, ``LOST``, ``COMPLETED`` or ``FULLY_FAILED``.
        restarts: how often its process was started again.
        executions: how often its function was run again.
        incarnation: another one for each process.
    """

    ip: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    node: str = ""
    rack: str = ""
    datacentre: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    id: int = -1
    key: str = ""
    status: str = ""
    restarts: int = 0
    executions: int = 0
    incarnation: str = ""

    def __post_init__(self) -> None:
        for name in ("ip", "node", "rack", "datacentre"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} of a worker must be text, not {getattr(self, name)!r}")
        for name, port in self.ports.items():
            if type(port) is not int or not 1 <= port <= MOST_PORT:
                raise ValueError(f"port {name!r} of a worker must be from 1 to {MOST_PORT}, not {port!r}")
        for name, amount in self.resources.items():
            if not is_number(amount, 0.0):
                raise ValueError(f"resource {name!r} of a worker must be a number of at least 0, not {amount!r}")

    @property
    def is_at_work(self) -> bool:
        """True unless it is lost, has completed or has failed."""
        return self.status in AT_WORK

    def to_bytes(self) -> bytes:
        """What to store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, entry: Entry) -> WorkerInfo:
        """What is stored.

        Raises:
            BadRecord: it is no worker.
        """
        try:
            body = Record.of(entry.value)
            ports = {name: Record(body.mapping("ports", {})).whole(name) for name in body.mapping("ports", {})}
            amounts = body.mapping("resources", {})
            return cls(
                ip=body.text("ip", ""),
                ports=ports,
                node=body.text("node", ""),
                rack=body.text("rack", ""),
                datacentre=body.text("datacentre", ""),
                resources={name: Record(amounts).number(name, least=0.0) for name in amounts},
                id=body.whole("id", least=0, most=MOST_WORKERS),
                key=body.text("key"),
                status=body.text("status"),
                restarts=body.whole("restarts", least=0),
                executions=body.whole("executions", 0, least=0),
                incarnation=body.text("incarnation"),
            )
        except ValueError as error:  # BadRecord is one
            raise BadRecord(f"key {entry.key!r} holds no worker: {error}") from None

    @classmethod
    def or_none(cls, entry: Entry) -> WorkerInfo | None:
        """What is stored; None when it is no worker."""
        try:
            return cls.of(entry)
        except BadRecord:
            return None


@dataclass(frozen=True, slots=True)
class Head:
    """How a job is.

    Attributes:
        run: names this run, and no other ever.
        n: how many workers it has.
        state: ``RUNNING``, ``COMPLETED``, ``FAILED`` or ``TERMINATED``.
        next: the next id.
        completed: how many have completed.
        events: how many things have happened.
        created: when, in seconds since the epoch, for people.
        ended: when it ended; None while it runs.
        why: why it ended, if not by completing.
        max_restarts: how often the process of one worker may be started again.
        max_executions: how often the function of one worker may be run again.
        keep_ended_s: for how long it is kept how it ended.
        labels: what its submitter wrote.
        shrinks: how often ``n`` was lowered.
    """

    run: str
    n: int
    state: str = RUNNING
    next: int = 0
    completed: int = 0
    events: int = 0
    created: float = 0.0
    ended: float | None = None
    why: str = ""
    max_restarts: int = 5
    max_executions: int = 5
    keep_ended_s: float = 604_800.0
    labels: Mapping[str, str] = field(default_factory=dict)
    shrinks: int = 0

    @property
    def is_final(self) -> bool:
        """True once the job has ended, well or not."""
        return self.state != RUNNING

    @property
    def has_all(self) -> bool:
        """True once every id is taken."""
        return self.next >= self.n

    def to_bytes(self) -> bytes:
        """What to store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, entry: Entry) -> Head:
        """What is stored.

        Raises:
            BadRecord: it is no job.
        """
        try:
            body = Record.of(entry.value)
            return cls(
                run=body.text("run"),
                n=body.whole("n", least=1, most=MOST_WORKERS),
                state=body.text("state"),
                next=body.whole("next", least=0, most=MOST_WORKERS),
                completed=body.whole("completed", least=0),
                events=body.whole("events", least=0),
                created=body.moment_s("created", 0.0),
                ended=body.moment_or_none("ended"),
                why=body.text("why", ""),
                max_restarts=body.whole("max_restarts", least=0),
                max_executions=body.whole("max_executions", least=0),
                keep_ended_s=body.duration_s("keep_ended_s", 604_800.0),
                labels=body.text_map("labels"),
                shrinks=body.whole("shrinks", 0, least=0),
            )
        except BadRecord as error:
            raise BadRecord(f"key {entry.key!r} holds no job of workers: {error}") from None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a job.

    Attributes:
        kind: what.
        n: its number, from 1, without gaps.
        id: the worker; -1 for the job as a whole.
        epoch: the epoch it happened in, or that it began.
        at: when, by the clock of who wrote it, in seconds since the epoch: for people.
        why: more about it, or empty.
    """

    kind: str
    n: int
    id: int = -1
    epoch: int = 0
    at: float = 0.0
    why: str = ""

    def to_bytes(self) -> bytes:
        """What to store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def or_none(cls, entry: Entry) -> Event | None:
        """What is stored; None when it is no event."""
        try:
            body = Record.of(entry.value)
            return cls(
                body.text("kind"),
                body.whole("n"),
                body.whole("id", -1),
                body.whole("epoch", 0),
                body.moment_s("at", 0.0),
                body.text("why", ""),
            )
        except BadRecord:
            return None


def live_body(info: WorkerInfo) -> bytes:
    """The value of a worker's lease."""
    return json.dumps({"key": info.key, "incarnation": info.incarnation}).encode()


def read_incarnation(entry: Entry) -> str:
    """Whose lease it is; empty when that cannot be read."""
    return Record.or_empty(entry.value).text("incarnation", "")


def read_key(entry: Entry) -> str:
    """The key of the worker whose lease it is; empty when that cannot be read."""
    return Record.or_empty(entry.value).text("key", "")


def epoch_body(number: int) -> bytes:
    """The value of the epoch."""
    return json.dumps({"epoch": number}).encode()


def read_epoch(entry: Entry) -> int:
    """The number of an epoch.

    Raises:
        BadRecord: it is none.
    """
    try:
        return Record.of(entry.value).whole("epoch", least=0)
    except BadRecord as error:
        raise BadRecord(f"key {entry.key!r} holds no epoch: {error}") from None


def joined_as(info: WorkerInfo, number: int, key: str, incarnation: str) -> WorkerInfo:
    """A worker that has just joined."""
    return replace(info, id=number, key=key, status=STARTED, restarts=0, executions=0, incarnation=incarnation)


def restarted_as(old: WorkerInfo, info: WorkerInfo, incarnation: str) -> WorkerInfo:
    """A worker that has come back."""
    return replace(told_as(old, info), status=RESTARTED, restarts=old.restarts + 1, incarnation=incarnation)


def told_as(old: WorkerInfo, info: WorkerInfo) -> WorkerInfo:
    """A worker that says something else of itself."""
    return replace(old, **{each.name: getattr(info, each.name) for each in fields(info) if each.name in _OWN})


#: What a worker says of itself.
_OWN = frozenset({"ip", "ports", "node", "rack", "datacentre", "resources"})


def shown(numbers: Sequence[object]) -> str:
    """The first of many, for messages."""
    more = f", and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return ", ".join(map(str, numbers[:10])) + more
