"""Stored records of worker groups and their encoding. Pure, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Record, Seconds, Timestamp, Whole, encode
from latchwork._base.validation import is_number
from latchwork.errors import BadRecord
from latchwork.types import Entry

#: States of a group.
RUNNING, COMPLETED, FAILED, TERMINATED = "RUNNING", "COMPLETED", "FAILED", "TERMINATED"
#: States of a worker, besides ``COMPLETED``.
STARTED, RESTARTED, LOST, FULLY_FAILED = "STARTED", "RESTARTED", "LOST", "FULLY_FAILED"
#: States in which a worker must have a lease.
ACTIVE = frozenset({STARTED, RESTARTED})
MAX_WORKERS = 100_000
MAX_PORT = 65_535
#: Number of events that are kept for a run.
MAX_EVENTS = 1_000


class WorkerInfo(Record, frozen=True):
    """The stored record of a worker: information that it publishes, and its state in the group.

    Attributes:
        ip: IP address at which other workers reach it.
        ports: Port numbers by name.
        node: Machine that it runs on, for placement; empty if unknown.
        rack: Rack of the machine.
        datacenter: Datacenter of the machine.
        resources: Amounts of resources by name.
        rank: Rank from 0, without gaps, kept over restarts; -1 before it has joined.
        key: Name that identifies the worker over restarts; empty before it has joined.
        status: ``STARTED``, ``RESTARTED``, ``LOST``, ``COMPLETED`` or ``FULLY_FAILED``.
        restarts: Number of times its process was restarted.
        executions: Number of times its function was run again.
        incarnation: ID of the current process, different after each restart.
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
        """Whether the worker is neither lost nor completed nor failed."""
        return self.status in ACTIVE

    @classmethod
    def from_entry(cls, entry: Entry) -> WorkerInfo:
        """Decode the stored record of a worker.

        Raises:
            BadRecord: The entry does not hold a worker.
        """
        info = _WORKER.decode_entry(entry)
        if info.rank < 0:
            raise BadRecord(f"key {entry.key!r} holds a worker without a rank")
        return info

    @classmethod
    def decode_or_none(cls, entry: Entry) -> WorkerInfo | None:
        """Decode the stored record of a worker. Return None if the entry does not contain one."""
        try:
            return cls.from_entry(entry)
        except BadRecord:
            return None


class GroupRecord(Record, frozen=True):
    """The stored record of a group.

    Attributes:
        run: ID of the current run, unique among all runs.
        workers: Number of workers.
        state: ``RUNNING``, ``COMPLETED``, ``FAILED`` or ``TERMINATED``.
        next_rank: Rank of the next worker that joins.
        completed: Number of workers that have completed.
        event_count: Number of events so far.
        created: Creation time in seconds since the epoch; informational.
        ended: Time of its end; None while it runs.
        why: Reason for its end, unless it completed.
        max_restarts: Maximum number of restarts of one worker's process.
        max_executions: Maximum number of repeated executions of one worker's function.
        keep_ended_s: Seconds for which the final record is kept.
        labels: Labels from the submitter.
        shrinks: Number of times the group was scaled down.
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
        """Whether the group has completed, failed or been terminated."""
        return self.state != RUNNING

    @property
    def is_full(self) -> bool:
        """Whether every rank is taken."""
        return self.next_rank >= self.workers

    @classmethod
    def from_entry(cls, entry: Entry) -> GroupRecord:
        """Decode the stored record of a group.

        Raises:
            BadRecord: The entry does not hold a group.
        """
        return _GROUP.decode_entry(entry)


class GroupEvent(Record, frozen=True):
    """An event of a group, such as the loss of a worker.

    Attributes:
        kind: ``joined``, ``all_joined``, ``restarted``, ``lost``, ``failed``, ``completed``, ``left``, ``faulty``,
            ``healthy``, ``scaled``, ``master_restarted`` or ``ended``.
        number: Sequence number from 1, without gaps.
        rank: Rank of the worker; -1 if the event concerns the whole group.
        epoch: Epoch in which it happened, or that it started.
        at: Time in seconds since the epoch, by the writer's clock; informational.
        why: Reason or details, possibly empty.
    """

    kind: str
    number: Whole
    rank: Whole = -1
    epoch: Whole = 0
    at: Timestamp = 0.0
    why: str = ""

    @classmethod
    def decode_or_none(cls, entry: Entry) -> GroupEvent | None:
        """Decode a stored event. Return None if the entry does not contain one."""
        return _EVENT.find(entry.value)


class WorkerLease(Struct, frozen=True):
    """The value of a lease: the key of its worker and the ID of the worker's process. A lease ends with the worker's
    session.
    """

    key: str = ""
    incarnation: str = ""


class StoredEpoch(Struct, frozen=True):
    """The stored number of an epoch: the number of times that all workers have restarted."""

    epoch: Count


_WORKER: Decoder[WorkerInfo] = Decoder(WorkerInfo, "a worker")
_GROUP: Decoder[GroupRecord] = Decoder(GroupRecord, "a group of workers")
_EVENT: Decoder[GroupEvent] = Decoder(GroupEvent, "an event")
_LEASE: Decoder[WorkerLease] = Decoder(WorkerLease, "the lease of a worker")
_EPOCH: Decoder[StoredEpoch] = Decoder(StoredEpoch, "an epoch")


def encode_lease(info: WorkerInfo) -> bytes:
    """Return the value of a worker's lease."""
    return encode(WorkerLease(info.key, info.incarnation))


def decode_incarnation(lease: Entry) -> str:
    """Return the ID of the worker process that holds a lease. Empty if the lease is unreadable."""
    return (_LEASE.find(lease.value) or WorkerLease()).incarnation


def decode_worker_key(lease: Entry) -> str:
    """Return the key that identifies the worker that holds a lease. Empty if the lease is unreadable."""
    return (_LEASE.find(lease.value) or WorkerLease()).key


def encode_epoch(number: int) -> bytes:
    """Return the stored value of an epoch number."""
    return encode(StoredEpoch(number))


def decode_epoch(entry: Entry) -> int:
    """Return the number of a stored epoch.

    Raises:
        BadRecord: The entry does not hold an epoch.
    """
    return _EPOCH.decode_entry(entry).epoch


def create_member(info: WorkerInfo, rank: int, key: str, incarnation: str) -> WorkerInfo:
    """Return the record of a worker that joins for the first time.

    Args:
        info: Information that the worker publishes.
        rank: Its rank.
        key: Key that identifies it over restarts.
        incarnation: ID of its process.
    """
    return replace(info, rank=rank, key=key, status=STARTED, restarts=0, executions=0, incarnation=incarnation)


def create_restarted_member(old: WorkerInfo, info: WorkerInfo, incarnation: str) -> WorkerInfo:
    """Create the record of a worker that rejoins after a restart, with its number of restarts increased by one.

    Args:
        old: Its stored record.
        info: Information that it publishes now.
        incarnation: ID of its new process.
    """
    return replace(merge_info(old, info), status=RESTARTED, restarts=old.restarts + 1, incarnation=incarnation)


def merge_info(old: WorkerInfo, info: WorkerInfo) -> WorkerInfo:
    """Return a worker's record with new values for the fields that the worker publishes about itself.

    Args:
        old: The stored record.
        info: The new values. Its rank, status and counters are ignored.
    """
    return replace(old, **{name: getattr(info, name) for name in _PUBLISHED_FIELDS})


#: Fields that a worker sets itself.
_PUBLISHED_FIELDS = ("ip", "ports", "node", "rack", "datacenter", "resources")


def format_first_values(values: Sequence[object]) -> str:
    """Format values for an error message: the first ten, and the number of further ones.

    Args:
        values: The values.
    """
    more = f", and {len(values) - 10} more" if len(values) > 10 else ""
    return ", ".join(map(str, values[:10])) + more
