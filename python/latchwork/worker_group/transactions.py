"""What each transaction on a group checks and writes, from the state that was read. Pure, no I/O.

Every one checks the group's record as it was read, and all but those on a barrier write it, so that they are one after the
other. docs/design/0023 has the table, and which race each check closes; ``tests/worker_group`` has a model that fails
without any one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from latchwork.errors import BadRecord
from latchwork.store.session import Session
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Fence, Op, Put
from latchwork.worker_group.keys import RunKeys
from latchwork.worker_group.records import (
    COMPLETED,
    FAILED,
    FULLY_FAILED,
    LOST,
    MAX_EVENTS,
    TERMINATED,
    GroupEvent,
    GroupRecord,
    WorkerInfo,
    encode_epoch,
    encode_lease,
    read_epoch,
    restarted_member,
    with_info,
)

#: So many ids are removed in one transaction when a group is scaled down.
MOST_REMOVED = 40


@dataclass(frozen=True, slots=True)
class GroupTxn:
    """One transaction.

    Attributes:
        checks: what must still be as it was read.
        ops: what is written.
        record: the record that is written; None when it is deleted, or left as it is.
    """

    checks: Sequence[Check]
    ops: Sequence[Op]
    record: GroupRecord | None = None


@dataclass(frozen=True, slots=True)
class EpochState:
    """An epoch: its key as it was read, and whether its first and its last barrier have passed.

    Attributes:
        entry: the epoch as it was read.
        checks: that neither barrier has changed.
        is_initialized: whether the init barrier has passed.
        is_over: whether the final barrier has.
        is_healthy_recorded: whether it was told that everybody was at the start line.
    """

    entry: Entry
    checks: tuple[Check, ...]
    is_initialized: bool
    has_ended: bool
    is_healthy_recorded: bool = True

    @property
    def number(self) -> int:
        """Of the epoch."""
        return read_epoch(self.entry)

    @property
    def is_healthy(self) -> bool:
        """True while the loss of a worker sends all back to the start."""
        return self.is_initialized and not self.has_ended

    def all_checks(self) -> list[Check]:
        """That nothing of it has changed."""
        return [At(self.entry), *self.checks]


@dataclass(frozen=True, slots=True)
class BarrierArrivals:
    """The arrivals of one worker at all open barriers of an epoch.

    Attributes:
        checks: that these barriers are as they were read, and that no other one was opened since.
        ops: the arrivals.
    """

    checks: Sequence[Check]
    ops: Sequence[Op]


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """What every transaction begins with.

    Attributes:
        keys: of the run.
        entry: the record as it was read.
        now: in seconds since the epoch, for people.
    """

    keys: RunKeys
    entry: Entry
    now: float

    @property
    def record(self) -> GroupRecord:
        """The record."""
        return GroupRecord.of(self.entry)


@dataclass(slots=True)
class _EventLog:
    """Events that a transaction adds, and the record that counts them."""

    keys: RunKeys
    record: GroupRecord
    now: float = 0.0
    epoch: int = 0
    ops: list[Op] = field(default_factory=list)

    def add(self, kind: str, number: int = -1, why: str = "") -> None:
        n = self.record.event_count + 1
        self.record = replace(self.record, event_count=n)
        self.ops.append(Create(self.keys.event(n), GroupEvent(kind, n, number, self.epoch, self.now, why).to_bytes()))
        if n > MAX_EVENTS:
            self.ops.append(Delete(self.keys.event(n - MAX_EVENTS)))

    def txn(self, checks: Iterable[Check], *ops: Op) -> GroupTxn:
        return GroupTxn(tuple(checks), (Put(self.keys.record, self.record.to_bytes()), *ops, *self.ops), self.record)


def create_group(keys: RunKeys, record: GroupRecord, old: Entry | None) -> GroupTxn:
    """A new run; of the one before nobody lives."""
    free: Check = Absent(keys.record) if old is None else At(old)
    write = Create(keys.record, record.to_bytes()) if old is None else Put(keys.record, record.to_bytes())
    return GroupTxn((free,), (write, Create(keys.epoch, encode_epoch(0))), record)


def join(snapshot: GroupSnapshot, info: WorkerInfo, session: Session, ticket: Sequence[str] = ()) -> GroupTxn:
    """A worker that nobody knows gets the next id, which its info has; its ticket, if any, goes."""
    keys, entry = snapshot.keys, snapshot.entry
    record = snapshot.record
    log = _EventLog(keys, replace(record, next_rank=info.rank + 1), snapshot.now)
    log.add("joined", info.rank)
    if log.record.is_full:
        log.add("all_joined")
    return log.txn(
        [At(entry), Absent(keys.member(info.key))],
        Create(keys.member(info.key), info.to_bytes()),
        Create(keys.lease(info.rank), encode_lease(info), session),
        *map(Delete, ticket),
    )


def rejoin(
    snapshot: GroupSnapshot, member: Entry, info: WorkerInfo, session: Session, epoch_state: EpochState
) -> GroupTxn:
    """A worker comes back with its id, and a run that was on begins again. ``info`` has the new incarnation."""
    keys, entry = snapshot.keys, snapshot.entry
    old = WorkerInfo.of(member)
    new = restarted_member(old, info, info.incarnation)
    log = _EventLog(keys, snapshot.record, snapshot.now, epoch_state.number)
    ops: list[Op] = []
    if old.status == COMPLETED:
        new = replace(old, incarnation=info.incarnation)
    else:
        ops = _healthy_if_missing(log, epoch_state)
        log.add("restarted", old.rank)
        ops += _fault(log, epoch_state)
    return log.txn(
        [At(entry), At(member), *epoch_state.all_checks()],
        Put(keys.member(old.key), new.to_bytes()),
        Put(keys.lease(old.rank), encode_lease(new), session),
        *ops,
    )


def fail_restarts(snapshot: GroupSnapshot, member: Entry, why: str) -> GroupTxn:
    """A worker that may not come back again: its group has failed."""
    keys, entry = snapshot.keys, snapshot.entry
    old = WorkerInfo.of(member)
    log = _failure_lock(snapshot, old.rank, why)
    return log.txn([At(entry), At(member)], Put(keys.member(old.key), replace(old, status=FULLY_FAILED).to_bytes()))


def mark_lost(snapshot: GroupSnapshot, member: Entry, epoch_state: EpochState) -> GroupTxn:
    """A worker has no lease any more."""
    keys, entry = snapshot.keys, snapshot.entry
    old = WorkerInfo.of(member)
    log = _EventLog(keys, snapshot.record, snapshot.now, epoch_state.number)
    ops = _healthy_if_missing(log, epoch_state)
    log.add("lost", old.rank)
    ops += _fault(log, epoch_state)
    return log.txn(
        [At(entry), Absent(keys.lease(old.rank)), At(member), *epoch_state.all_checks()],
        Put(keys.member(old.key), replace(old, status=LOST).to_bytes()),
        *ops,
    )


def _fault(log: _EventLog, epoch_state: EpochState) -> list[Op]:
    if not epoch_state.is_healthy:
        return []
    log.epoch += 1
    log.add("faulty")
    return [Put(log.keys.epoch, encode_epoch(log.epoch))]


def _healthy_if_missing(log: _EventLog, epoch_state: EpochState) -> list[Op]:
    """That all had begun is told before the fault, if whose turn it was is lost before it did."""
    if epoch_state.is_healthy_recorded or not epoch_state.is_healthy:
        return []
    log.add("healthy")
    return [Create(log.keys.healthy(log.epoch), b"")]


def complete(snapshot: GroupSnapshot, member: Entry, fence: Fence, epoch: int, arrivals: BarrierArrivals) -> GroupTxn:
    """A worker has done its part, and arrives at the barriers that wait for it; the last one completes the group."""
    keys, entry = snapshot.keys, snapshot.entry
    info, record = WorkerInfo.of(member), snapshot.record
    done = record.completed + 1
    log = _EventLog(keys, replace(record, completed=done), snapshot.now, epoch)
    log.add("completed", info.rank)
    if done >= record.workers:
        log.record = replace(log.record, state=COMPLETED, ended=snapshot.now)
        log.add("ended")
    return log.txn(
        [fence, At(entry), At(member), *arrivals.checks],
        Put(keys.member(info.key), replace(info, status=COMPLETED).to_bytes()),
        *arrivals.ops,
    )


def fail(snapshot: GroupSnapshot, member: Entry, fence: Fence, why: str) -> GroupTxn:
    """A worker has failed for good, and its group with it."""
    keys, entry = snapshot.keys, snapshot.entry
    info = WorkerInfo.of(member)
    log = _failure_lock(snapshot, info.rank, why)
    return log.txn(
        [fence, At(entry), At(member)], Put(keys.member(info.key), replace(info, status=FULLY_FAILED).to_bytes())
    )


def _failure_lock(snapshot: GroupSnapshot, number: int, why: str) -> _EventLog:
    log = _EventLog(snapshot.keys, snapshot.record, snapshot.now)
    log.add("failed", number, why)
    if not log.record.is_final:
        log.record = replace(log.record, state=FAILED, ended=snapshot.now, why=why)
        log.add("ended", why=why)
    return log


def count_execution(keys: RunKeys, member: Entry, fence: Fence) -> GroupTxn:
    """A worker runs its function once more."""
    info = WorkerInfo.of(member)
    more = replace(info, executions=info.executions + 1)
    return GroupTxn((fence, At(member)), (Put(keys.member(info.key), more.to_bytes()),))


def update_info(keys: RunKeys, member: Entry, info: WorkerInfo, fence: Fence) -> GroupTxn:
    """A worker says something else of itself."""
    return GroupTxn(
        (fence, At(member)), (Put(keys.member(info.key), with_info(WorkerInfo.of(member), info).to_bytes()),)
    )


def mark_healthy(snapshot: GroupSnapshot, fence: Fence, epoch: int) -> GroupTxn:
    """Everybody is at the start line: told once in an epoch, by who passed first."""
    keys, entry = snapshot.keys, snapshot.entry
    log = _EventLog(keys, snapshot.record, snapshot.now, epoch)
    log.add("healthy")
    told = keys.healthy(epoch)
    return log.txn([fence, At(entry), Absent(told)], Create(told, b""))


def leave(snapshot: GroupSnapshot, number: int, live: Sequence[str], fence: Fence) -> GroupTxn:
    """A worker leaves; the last one of a group that has ended removes it. ``live`` was read after the record."""
    keys, entry = snapshot.keys, snapshot.entry
    record, mine = snapshot.record, keys.lease(number)
    if record.is_final and list(live) == [mine]:
        gone = Put(keys.group.ended, record.to_bytes())
        return GroupTxn((fence, At(entry)), (Delete(mine), Delete(keys.record), gone))
    log = _EventLog(keys, record, snapshot.now)
    log.add("left", number)
    return log.txn([fence, At(entry)], Delete(mine))


def end_group(snapshot: GroupSnapshot, state: str, why: str) -> GroupTxn:
    """The group is no more: an operator ended it, or nobody is left in it."""
    keys, entry = snapshot.keys, snapshot.entry
    record = snapshot.record
    if not record.is_final:
        record = replace(record, state=state, ended=snapshot.now, why=why)
    return GroupTxn((At(entry),), (Delete(keys.record), Put(keys.group.ended, record.to_bytes())))


def terminate(snapshot: GroupSnapshot, why: str) -> GroupTxn:
    """An operator ends the group."""
    return end_group(snapshot, TERMINATED, why)


def scale_up(snapshot: GroupSnapshot, n: int) -> GroupTxn:
    """The group gets more ids."""
    keys, entry = snapshot.keys, snapshot.entry
    log = _EventLog(keys, replace(snapshot.record, workers=n), snapshot.now)
    log.add("scaled", why=f"to {n}")
    return log.txn([At(entry)])


def scale_down(snapshot: GroupSnapshot, n: int, members: Sequence[Entry]) -> GroupTxn:
    """The group loses its highest ids, at most ``MOST_REMOVED``: of these members, which were read after the record."""
    keys, entry = snapshot.keys, snapshot.entry
    record = snapshot.record
    gone = [info for member in members if (info := WorkerInfo.or_none(member)) is not None and info.rank >= n]
    done = sum(info.status == COMPLETED for info in gone)
    fewer = replace(
        record,
        workers=n,
        next_rank=min(record.next_rank, n),
        completed=record.completed - done,
        shrinks=record.shrinks + 1,
    )
    log = _EventLog(keys, fewer, snapshot.now)
    log.add("scaled", why=f"to {n}")
    ops = [op for info in gone for op in (Delete(keys.lease(info.rank)), Delete(keys.member(info.key)))]
    if log.record.completed >= n and not log.record.is_final:
        log.record = replace(log.record, state=COMPLETED, ended=snapshot.now)
        log.add("ended")
    return log.txn([At(entry)], *ops)


def record_first_master(snapshot: GroupSnapshot, term: Fence, seen: str) -> GroupTxn:
    """The run has its first master: who becomes it later is told as a restart."""
    return GroupTxn((term, At(snapshot.entry)), (Put(seen, snapshot.record.run.encode()),))


def record_new_master(snapshot: GroupSnapshot, term: Fence) -> GroupTxn:
    """Another process has become the master."""
    keys, entry = snapshot.keys, snapshot.entry
    log = _EventLog(keys, snapshot.record, snapshot.now)
    log.add("master_restarted")
    return log.txn([term, At(entry)])


def read_members(entries: Iterable[Entry]) -> list[WorkerInfo]:
    """The workers, by id; records that are none are left out."""
    found = (WorkerInfo.or_none(entry) for entry in entries)
    return sorted((info for info in found if info is not None), key=lambda info: info.rank)


def record_or_none(entry: Entry | None, run: str = "") -> GroupRecord | None:
    """The record of a group, if there is one of this run; None also for a record that is none."""
    if entry is None:
        return None
    try:
        record = GroupRecord.of(entry)
    except BadRecord:
        return None
    return record if not run or record.run == run else None
