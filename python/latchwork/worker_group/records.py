"""What is stored about a group, as records. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Seconds, Timestamp, Whole, encode
from latchwork.checks import is_number
from latchwork.errors import BadRecord
from latchwork.types import Entry

#: States of a group.
RUNNING, COMPLETED, FAILED, TERMINATED = "RUNNING", "COMPLETED", "FAILED", "TERMINATED"
#: States of a worker, besides ``COMPLETED``.
STARTED, RESTARTED, LOST, FULLY_FAILED = "STARTED", "RESTARTED", "LOST", "FULLY_FAILED"
#: A worker in one of these should have a lease.
ACTIVE = frozenset({STARTED, RESTARTED})
MAX_WORKERS = 100_000
MAX_PORT = 65_535
#: So many events of a run are kept.
MAX_EVENTS = 1_000


class WorkerInfo(Struct, frozen=True):
    """What a worker says of itself, and what its group says of it.

    Attributes:
        ip: where its peers reach it.
        ports: its ports by name.
        node: the machine, rack and datacenter, for those who place work; empty if not told.
        rack: see ``node``.
        datacenter: see ``node``.
        resources: amounts by name.
        id: from 0, without gaps, the same after a restart; -1 before it has joined.
        key: who it is, the same after a restart; empty before it has joined.
        status: ``STARTED``, ``RESTARTED``, ``LOST``, ``COMPLETED`` or ``FULLY_FAILED``.
        restarts: how often its process was started again.
        executions: how often its function was run again.
        incarnation: another one for each process.
    """

    ip: str = ""
    ports: Mapping[str, int] = {}
    node: str = ""
    rack: str = ""
    datacenter: str = ""
    resources: Mapping[str, float] = {}
    rank: Annotated[int, Meta(ge=-1, le=MAX_WORKERS)] = -1
    key: str = ""
    status: str = ""
    restarts: Count = 0
    executions: Count = 0
    incarnation: str = ""

    def __post_init__(self) -> None:
        for name in ("ip", "node", "rack", "datacenter"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} of a worker must be text, not {getattr(self, name)!r}")
        for name, port in self.ports.items():
            if type(port) is not int or not 1 <= port <= MAX_PORT:
                raise ValueError(f"port {name!r} of a worker must be from 1 to {MAX_PORT}, not {port!r}")
        for name, amount in self.resources.items():
            if not is_number(amount, 0.0):
                raise ValueError(f"resource {name!r} of a worker must be a number of at least 0, not {amount!r}")

    @property
    def is_active(self) -> bool:
        """True unless it is lost, has completed or has failed."""
        return self.status in ACTIVE

    def to_bytes(self) -> bytes:
        """What to store."""
        return encode(self)

    @classmethod
    def of(cls, entry: Entry) -> WorkerInfo:
        """What is stored.

        Raises:
            BadRecord: it is no worker.
        """
        info = _WORKER.decode_entry(entry)
        if info.rank < 0:
            raise BadRecord(f"key {entry.key!r} holds a worker without an id")
        return info

    @classmethod
    def or_none(cls, entry: Entry) -> WorkerInfo | None:
        """What is stored; None when it is no worker."""
        try:
            return cls.of(entry)
        except BadRecord:
            return None


class GroupRecord(Struct, frozen=True):
    """How a group is.

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
    workers: Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
    state: str = RUNNING
    next_rank: Annotated[int, Meta(ge=0, le=MAX_WORKERS)] = 0
    completed: Count = 0
    event_count: Count = 0
    created: Timestamp = 0.0
    ended: Timestamp | None = None
    why: str = ""
    max_restarts: Count = 5
    max_executions: Count = 5
    keep_ended_s: Seconds = 604_800.0
    labels: Mapping[str, str] = {}
    shrinks: Count = 0

    @property
    def is_final(self) -> bool:
        """True once the group has ended, well or not."""
        return self.state != RUNNING

    @property
    def is_full(self) -> bool:
        """True once every id is taken."""
        return self.next_rank >= self.workers

    def to_bytes(self) -> bytes:
        """What to store."""
        return encode(self)

    @classmethod
    def of(cls, entry: Entry) -> GroupRecord:
        """What is stored.

        Raises:
            BadRecord: it is no group.
        """
        return _HEAD.decode_entry(entry)


class GroupEvent(Struct, frozen=True):
    """Something that happened in a group.

    Attributes:
        kind: ``joined``, ``all_joined``, ``restarted``, ``lost``, ``failed``, ``completed``, ``left``, ``faulty``,
            ``healthy``, ``scaled``, ``master_restarted`` or ``ended``.
        n: its number, from 1, without gaps.
        id: the worker; -1 for the group as a whole.
        epoch: the epoch it happened in, or that it began.
        at: when, by the clock of who wrote it, in seconds since the epoch: for people.
        why: more about it, or empty.
    """

    kind: str
    number: Whole
    rank: Whole = -1
    epoch: Whole = 0
    at: Timestamp = 0.0
    why: str = ""

    def to_bytes(self) -> bytes:
        """What to store."""
        return encode(self)

    @classmethod
    def or_none(cls, entry: Entry) -> GroupEvent | None:
        """What is stored; None when it is no event."""
        return _EVENT.find(entry.value)


class WorkerLease(Struct, frozen=True):
    """What the key says that lives as long as a worker: its key and its incarnation."""

    key: str = ""
    incarnation: str = ""


class StoredEpoch(Struct, frozen=True):
    """The number of an epoch as it is stored."""

    epoch: Count


_WORKER: Decoder[WorkerInfo] = Decoder(WorkerInfo, "a worker")
_HEAD: Decoder[GroupRecord] = Decoder(GroupRecord, "a group of workers")
_EVENT: Decoder[GroupEvent] = Decoder(GroupEvent, "an event")
_LEASE: Decoder[WorkerLease] = Decoder(WorkerLease, "the lease of a worker")
_EPOCH: Decoder[StoredEpoch] = Decoder(StoredEpoch, "an epoch")


def encode_lease(info: WorkerInfo) -> bytes:
    """The value of a worker's lease."""
    return encode(WorkerLease(info.key, info.incarnation))


def read_incarnation(entry: Entry) -> str:
    """Whose lease it is; empty when that cannot be read."""
    return (_LEASE.find(entry.value) or WorkerLease()).incarnation


def read_key(entry: Entry) -> str:
    """The key of the worker whose lease it is; empty when that cannot be read."""
    return (_LEASE.find(entry.value) or WorkerLease()).key


def encode_epoch(number: int) -> bytes:
    """The value of the epoch."""
    return encode(StoredEpoch(number))


def read_epoch(entry: Entry) -> int:
    """The number of an epoch.

    Raises:
        BadRecord: it is none.
    """
    return _EPOCH.decode_entry(entry).epoch


def new_member(info: WorkerInfo, rank: int, key: str, incarnation: str) -> WorkerInfo:
    """A worker that has just joined."""
    return replace(info, rank=rank, key=key, status=STARTED, restarts=0, executions=0, incarnation=incarnation)


def restarted_member(old: WorkerInfo, info: WorkerInfo, incarnation: str) -> WorkerInfo:
    """A worker that has come back."""
    return replace(with_info(old, info), status=RESTARTED, restarts=old.restarts + 1, incarnation=incarnation)


def with_info(old: WorkerInfo, info: WorkerInfo) -> WorkerInfo:
    """A worker that says something else of itself."""
    return replace(old, **{name: getattr(info, name) for name in _OWN})


#: What a worker says of itself.
_OWN = ("ip", "ports", "node", "rack", "datacenter", "resources")


def summarize(numbers: Sequence[object]) -> str:
    """The first of many, for messages."""
    more = f", and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return ", ".join(map(str, numbers[:10])) + more
