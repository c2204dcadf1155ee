"""Transactions on a worker group, built from the state that was read. Pure, without I/O.

Every transaction checks that the group's record is unchanged, and all except those on barriers rewrite it. They are
therefore serialized. docs/design/worker-groups.md lists them and the race that each check closes.
``tests/worker_group`` has a model that fails when any one check is removed.
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
    create_restarted_member,
    decode_epoch,
    encode_epoch,
    encode_lease,
    merge_info,
)

#: Number of ranks that one transaction removes when a group is scaled down.
MAX_REMOVED = 40


@dataclass(frozen=True, slots=True)
class GroupTxn:
    """A transaction on a group.

    Attributes:
        checks: Conditions that must still hold.
        ops: Writes.
        record: Group record that it writes; None if the record is deleted or unchanged.
    """

    checks: Sequence[Check]
    ops: Sequence[Op]
    record: GroupRecord | None = None


@dataclass(frozen=True, slots=True)
class EpochState:
    """The state of an epoch as it was read, including its first and last barrier.

    Attributes:
        entry: Stored epoch.
        checks: Checks that neither barrier has changed.
        is_initialized: Whether all workers have passed the first barrier.
        has_ended: Whether all workers have passed the final barrier.
        is_healthy_recorded: Whether the event ``healthy`` was written, if it is due.
    """

    entry: Entry
    checks: tuple[Check, ...]
    is_initialized: bool
    has_ended: bool
    is_healthy_recorded: bool = True

    @property
    def number(self) -> int:
        """Number of the epoch."""
        return decode_epoch(self.entry)

    @property
    def is_healthy(self) -> bool:
        """Whether all workers are working: they have passed the first barrier, but not the final one. If a worker is
        lost then, the next epoch starts.
        """
        return self.is_initialized and not self.has_ended

    def build_checks(self) -> list[Check]:
        """Build transaction checks that the epoch, its first barrier and its last barrier have not changed."""
        return [At(self.entry), *self.checks]


@dataclass(frozen=True, slots=True)
class BarrierArrivals:
    """The checks and writes with which one worker arrives at all open barriers of an epoch.

    Attributes:
        checks: Checks that these barriers are unchanged and that no other barrier has opened.
        ops: Writes that record the arrivals.
    """

    checks: Sequence[Check]
    ops: Sequence[Op]


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The state of a group from which a transaction is built.

    Attributes:
        keys: Keys of the run.
        entry: Group record as it was read.
        now: Current time in seconds since the epoch; informational.
    """

    keys: RunKeys
    entry: Entry
    now: float

    @property
    def record(self) -> GroupRecord:
        """The decoded group record."""
        return GroupRecord.from_entry(self.entry)


@dataclass(slots=True)
class _EventLog:
    """Collects the events of one transaction and counts them in the group record."""

    keys: RunKeys
    record: GroupRecord
    now: float = 0.0
    epoch: int = 0
    ops: list[Op] = field(default_factory=list)

    def add(self, kind: str, rank: int = -1, why: str = "") -> None:
        """Add an event under the next number.

        Args:
            kind: Kind of the event; see ``GroupEvent``.
            rank: Rank of the worker; -1 if the event concerns the whole group.
            why: Reason or details, possibly empty.
        """
        number = self.record.event_count + 1
        self.record = replace(self.record, event_count=number)
        self.ops.append(
            Create(self.keys.event_key(number), GroupEvent(kind, number, rank, self.epoch, self.now, why).to_bytes())
        )
        if number > MAX_EVENTS:
            self.ops.append(Delete(self.keys.event_key(number - MAX_EVENTS)))

    def build_txn(self, checks: Iterable[Check], *ops: Op) -> GroupTxn:
        """Build a transaction with these checks and writes that also writes the group record and the events."""
        return GroupTxn(tuple(checks), (Put(self.keys.record, self.record.to_bytes()), *ops, *self.ops), self.record)


def build_create_txn(keys: RunKeys, record: GroupRecord, old: Entry | None) -> GroupTxn:
    """Build the transaction that creates a group, or a new run of a group that has ended.

    Args:
        keys: Keys of the run.
        record: Record of the group.
        old: Record of the ended run, which is replaced; None if the group does not exist.
    """
    unchanged: Check = Absent(keys.record) if old is None else At(old)
    write = Create(keys.record, record.to_bytes()) if old is None else Put(keys.record, record.to_bytes())
    return GroupTxn((unchanged,), (write, Create(keys.epoch, encode_epoch(0))), record)


def build_join_txn(snapshot: GroupSnapshot, info: WorkerInfo, session: Session, ticket: Sequence[str] = ()) -> GroupTxn:
    """Build the transaction that adds a new worker to the group.

    Args:
        snapshot: Current state of the group.
        info: Record of the new worker, with its rank.
        session: Session that its lease is bound to.
        ticket: Key of its ticket in the join queue, to be deleted, if it has one.
    """
    keys, entry = snapshot.keys, snapshot.entry
    record = snapshot.record
    log = _EventLog(keys, replace(record, next_rank=info.rank + 1), snapshot.now)
    log.add("joined", info.rank)
    if log.record.is_full:
        log.add("all_joined")
    return log.build_txn(
        [At(entry), Absent(keys.member_key(info.key))],
        Create(keys.member_key(info.key), info.to_bytes()),
        Create(keys.lease_key(info.rank), encode_lease(info), session),
        *map(Delete, ticket),
    )


def build_rejoin_txn(
    snapshot: GroupSnapshot, member: Entry, info: WorkerInfo, session: Session, epoch_state: EpochState
) -> GroupTxn:
    """Build the transaction that lets a restarted worker join with its previous rank.

    If all workers of the group were working, the transaction also starts the next epoch, in which all workers restart.

    Args:
        snapshot: Current state of the group.
        member: Stored record of the worker.
        info: Its new information, with the ID of its new process.
        session: Session that its lease is bound to.
        epoch_state: State of the current epoch.
    """
    keys, entry = snapshot.keys, snapshot.entry
    old = WorkerInfo.from_entry(member)
    new = create_restarted_member(old, info, info.incarnation)
    log = _EventLog(keys, snapshot.record, snapshot.now, epoch_state.number)
    ops: list[Op] = []
    if old.status == COMPLETED:
        new = replace(old, incarnation=info.incarnation)
    else:
        ops = _record_healthy_if_missing(log, epoch_state)
        log.add("restarted", old.rank)
        ops += _start_next_epoch(log, epoch_state)
    return log.build_txn(
        [At(entry), At(member), *epoch_state.build_checks()],
        Put(keys.member_key(old.key), new.to_bytes()),
        Put(keys.lease_key(old.rank), encode_lease(new), session),
        *ops,
    )


def build_restarts_exceeded_txn(snapshot: GroupSnapshot, member: Entry, why: str) -> GroupTxn:
    """Build the transaction that fails the group because a worker was restarted too often.

    Args:
        snapshot: Current state of the group.
        member: Stored record of the worker.
        why: The reason.
    """
    keys, entry = snapshot.keys, snapshot.entry
    old = WorkerInfo.from_entry(member)
    log = _log_failure(snapshot, old.rank, why)
    return log.build_txn(
        [At(entry), At(member)], Put(keys.member_key(old.key), replace(old, status=FULLY_FAILED).to_bytes())
    )


def build_mark_lost_txn(snapshot: GroupSnapshot, member: Entry, epoch_state: EpochState) -> GroupTxn:
    """Build the transaction that marks a worker without a lease as lost.

    If all workers of the group were working, the transaction also starts the next epoch, in which all workers restart.

    Args:
        snapshot: Current state of the group.
        member: Stored record of the worker.
        epoch_state: State of the current epoch.
    """
    keys, entry = snapshot.keys, snapshot.entry
    old = WorkerInfo.from_entry(member)
    log = _EventLog(keys, snapshot.record, snapshot.now, epoch_state.number)
    ops = _record_healthy_if_missing(log, epoch_state)
    log.add("lost", old.rank)
    ops += _start_next_epoch(log, epoch_state)
    return log.build_txn(
        [At(entry), Absent(keys.lease_key(old.rank)), At(member), *epoch_state.build_checks()],
        Put(keys.member_key(old.key), replace(old, status=LOST).to_bytes()),
        *ops,
    )


def _start_next_epoch(log: _EventLog, epoch_state: EpochState) -> list[Op]:
    """Return the write that starts the next epoch, and log the event ``faulty``. If no epoch is in progress, do
    nothing.

    Args:
        log: Events of the transaction.
        epoch_state: State of the current epoch.
    Returns:
        The write, as a list; empty if no epoch is in progress.
    """
    if not epoch_state.is_healthy:
        return []
    log.epoch += 1
    log.add("faulty")
    return [Put(log.keys.epoch, encode_epoch(log.epoch))]


def _record_healthy_if_missing(log: _EventLog, epoch_state: EpochState) -> list[Op]:
    """If the event ``healthy`` of the current epoch was not stored, return the write that stores it, and log the event.

    It is missing if the worker that had to store it was lost first.

    Args:
        log: Events of the transaction.
        epoch_state: State of the current epoch.
    Returns:
        The write, as a list; empty if the event is not missing.
    """
    if epoch_state.is_healthy_recorded or not epoch_state.is_healthy:
        return []
    log.add("healthy")
    return [Create(log.keys.healthy_key(log.epoch), b"")]


def build_complete_txn(
    snapshot: GroupSnapshot, member: Entry, fence: Fence, epoch: int, arrivals: BarrierArrivals
) -> GroupTxn:
    """Build the transaction that records a worker as completed, and lets it arrive at all open barriers.

    If all other workers have completed, it also completes the group.

    Args:
        snapshot: Current state of the group.
        member: Stored record of the worker.
        fence: Fence of the worker.
        epoch: Number of its epoch.
        arrivals: Its arrivals at the open barriers.
    """
    keys, entry = snapshot.keys, snapshot.entry
    info, record = WorkerInfo.from_entry(member), snapshot.record
    completed = record.completed + 1
    log = _EventLog(keys, replace(record, completed=completed), snapshot.now, epoch)
    log.add("completed", info.rank)
    if completed >= record.workers:
        log.record = replace(log.record, state=COMPLETED, ended=snapshot.now)
        log.add("ended")
    return log.build_txn(
        [fence, At(entry), At(member), *arrivals.checks],
        Put(keys.member_key(info.key), replace(info, status=COMPLETED).to_bytes()),
        *arrivals.ops,
    )


def build_fail_txn(snapshot: GroupSnapshot, member: Entry, fence: Fence, why: str) -> GroupTxn:
    """Build the transaction that fails a worker permanently, and the group with it.

    Args:
        snapshot: Current state of the group.
        member: Stored record of the worker.
        fence: Fence of the worker.
        why: The reason.
    """
    keys, entry = snapshot.keys, snapshot.entry
    info = WorkerInfo.from_entry(member)
    log = _log_failure(snapshot, info.rank, why)
    return log.build_txn(
        [fence, At(entry), At(member)], Put(keys.member_key(info.key), replace(info, status=FULLY_FAILED).to_bytes())
    )


def _log_failure(snapshot: GroupSnapshot, rank: int, why: str) -> _EventLog:
    log = _EventLog(snapshot.keys, snapshot.record, snapshot.now)
    log.add("failed", rank, why)
    if not log.record.is_final:
        log.record = replace(log.record, state=FAILED, ended=snapshot.now, why=why)
        log.add("ended", why=why)
    return log


def build_count_execution_txn(keys: RunKeys, member: Entry, fence: Fence) -> GroupTxn:
    """Build the transaction that counts another execution of a worker's function.

    Args:
        keys: Keys of the run.
        member: Stored record of the worker.
        fence: Fence of the worker.
    """
    info = WorkerInfo.from_entry(member)
    counted = replace(info, executions=info.executions + 1)
    return GroupTxn((fence, At(member)), (Put(keys.member_key(info.key), counted.to_bytes()),))


def build_update_info_txn(keys: RunKeys, member: Entry, info: WorkerInfo, fence: Fence) -> GroupTxn:
    """Build the transaction that replaces the information that a worker has published about itself.

    Args:
        keys: Keys of the run.
        member: Stored record of the worker.
        info: The new information.
        fence: Fence of the worker.
    """
    return GroupTxn(
        (fence, At(member)),
        (Put(keys.member_key(info.key), merge_info(WorkerInfo.from_entry(member), info).to_bytes()),),
    )


def build_mark_healthy_txn(snapshot: GroupSnapshot, fence: Fence, epoch: int) -> GroupTxn:
    """Build the transaction that stores the event ``healthy`` of an epoch, once.

    Args:
        snapshot: Current state of the group.
        fence: Fence of the worker that stores it.
        epoch: Number of the epoch.
    """
    keys, entry = snapshot.keys, snapshot.entry
    log = _EventLog(keys, snapshot.record, snapshot.now, epoch)
    log.add("healthy")
    mark = keys.healthy_key(epoch)
    return log.build_txn([fence, At(entry), Absent(mark)], Create(mark, b""))


def build_leave_txn(snapshot: GroupSnapshot, rank: int, lease_keys: Sequence[str], fence: Fence) -> GroupTxn:
    """Build the transaction that removes a worker's lease. If it is the last lease of an ended group, the group is
    removed.

    Args:
        snapshot: Current state of the group.
        rank: Rank of the leaving worker.
        lease_keys: Keys of the leases of all running workers, listed after the group record was read.
        fence: Fence of the leaving worker.
    """
    keys, entry = snapshot.keys, snapshot.entry
    record, own_lease_key = snapshot.record, keys.lease_key(rank)
    if record.is_final and list(lease_keys) == [own_lease_key]:
        keep_final = Put(keys.group.ended, record.to_bytes())
        return GroupTxn((fence, At(entry)), (Delete(own_lease_key), Delete(keys.record), keep_final))
    log = _EventLog(keys, record, snapshot.now)
    log.add("left", rank)
    return log.build_txn([fence, At(entry)], Delete(own_lease_key))


def build_terminate_txn(snapshot: GroupSnapshot, why: str) -> GroupTxn:
    """Build the transaction that terminates a group and keeps its final record.

    Args:
        snapshot: Current state of the group.
        why: The reason.
    """
    keys, entry = snapshot.keys, snapshot.entry
    record = snapshot.record
    if not record.is_final:
        record = replace(record, state=TERMINATED, ended=snapshot.now, why=why)
    return GroupTxn((At(entry),), (Delete(keys.record), Put(keys.group.ended, record.to_bytes())))


def build_scale_up_txn(snapshot: GroupSnapshot, workers: int) -> GroupTxn:
    """Build the transaction that raises the number of workers of a group.

    Args:
        snapshot: Current state of the group.
        workers: New number of workers.
    """
    keys, entry = snapshot.keys, snapshot.entry
    log = _EventLog(keys, replace(snapshot.record, workers=workers), snapshot.now)
    log.add("scaled", why=f"to {workers}")
    return log.build_txn([At(entry)])


def build_scale_down_txn(snapshot: GroupSnapshot, workers: int, members: Sequence[Entry]) -> GroupTxn:
    """Build the transaction that lowers the number of workers of a group. The workers with the highest ranks are
    removed.

    Args:
        snapshot: Current state of the group.
        workers: New number of workers, at most `MAX_REMOVED` fewer.
        members: Workers' records, listed after the group record was read.
    """
    keys, entry = snapshot.keys, snapshot.entry
    record = snapshot.record
    decoded = (WorkerInfo.decode_or_none(member) for member in members)
    removed = [info for info in decoded if info is not None and info.rank >= workers]
    smaller = replace(
        record,
        workers=workers,
        next_rank=min(record.next_rank, workers),
        completed=record.completed - sum(info.status == COMPLETED for info in removed),
        shrinks=record.shrinks + 1,
    )
    log = _EventLog(keys, smaller, snapshot.now)
    log.add("scaled", why=f"to {workers}")
    ops = [op for info in removed for op in (Delete(keys.lease_key(info.rank)), Delete(keys.member_key(info.key)))]
    if log.record.completed >= workers and not log.record.is_final:
        log.record = replace(log.record, state=COMPLETED, ended=snapshot.now)
        log.add("ended")
    return log.build_txn([At(entry)], *ops)


def build_first_master_txn(snapshot: GroupSnapshot, master_fence: Fence, last_run_key: str) -> GroupTxn:
    """Build the transaction that stores that the run has had a master. The next master then counts as a restart.

    Args:
        snapshot: Current state of the group.
        master_fence: Fence of the master.
        last_run_key: Key that holds the ID of the last run that had a master.
    """
    return GroupTxn((master_fence, At(snapshot.entry)), (Put(last_run_key, snapshot.record.run.encode()),))


def build_new_master_txn(snapshot: GroupSnapshot, master_fence: Fence) -> GroupTxn:
    """Build the transaction that stores that another process has become the master: the event ``master_restarted``.

    Args:
        snapshot: Current state of the group.
        master_fence: Fence of the master.
    """
    keys, entry = snapshot.keys, snapshot.entry
    log = _EventLog(keys, snapshot.record, snapshot.now)
    log.add("master_restarted")
    return log.build_txn([master_fence, At(entry)])


def decode_members(entries: Iterable[Entry]) -> list[WorkerInfo]:
    """Decode the records of workers, and sort them by rank. Unreadable records are left out."""
    found = (WorkerInfo.decode_or_none(entry) for entry in entries)
    return sorted((info for info in found if info is not None), key=lambda info: info.rank)


def decode_record_or_none(entry: Entry | None, run: str = "") -> GroupRecord | None:
    """Decode a group's record. Return None if it is missing, unreadable, or belongs to another run.

    Args:
        entry: Entry of the record; None if it does not exist.
        run: ID of the run; empty for any run.
    """
    if entry is None:
        return None
    try:
        record = GroupRecord.from_entry(entry)
    except BadRecord:
        return None
    return record if not run or record.run == run else None
