"""Creation and control of groups by clients that need not be workers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from latchwork._base.event import Signal
from latchwork._base.validation import check_store, is_number
from latchwork.errors import Conflict, OutcomeUnknown, WaitTimeout
from latchwork.primitives import Barrier
from latchwork.primitives.waiting import Deadline, check_integer, check_member, check_name, check_text
from latchwork.store.backoff import Backoff
from latchwork.store.steps import Pause, ask, blocking, coroutine_of
from latchwork.store.store import Store, system_namespace
from latchwork.types import Entry
from latchwork.worker_group import transactions
from latchwork.worker_group.errors import GroupAlreadyRunning, WrongRun
from latchwork.worker_group.keys import INIT, GroupKeys
from latchwork.worker_group.records import ACTIVE, COMPLETED, MAX_WORKERS, RUNNING, GroupRecord, decode_epoch
from latchwork.worker_group.transactions import GroupSnapshot, GroupTxn, decode_members, decode_record_or_none

#: Default namespace of groups.
NAMESPACE = "default"


def get_group_store(store: Store, caller: str) -> Store:
    """Return the part of a store that contains all keys of worker groups: its namespace ``@workers``.

    Args:
        store: The store.
        caller: Description of the caller, for error messages.
    """
    check_store(store, caller)
    return system_namespace(store, "workers")


def resolve_group(store: Store, group: str, namespace: str) -> tuple[Store, GroupKeys]:
    """Check the names of a group and its namespace, and return the store and the keys of the group. No I/O.

    Args:
        store: The store, or a namespace of it.
        group: Name of the group.
        namespace: Namespace of the group.
    Raises:
        InvalidKey: A name cannot be part of a key.
    """
    keys = GroupKeys(check_name(namespace, "workers namespace"), check_member(group, "group"))
    return get_group_store(store, "a group of workers"), keys


def check_worker_count(workers: int) -> int:
    """Return the number of workers of a group if it is valid.

    Raises:
        ValueError: A group cannot have that many workers.
    """
    if not 1 <= check_integer(workers, "the number of workers") <= MAX_WORKERS:
        raise ValueError(f"a group has from 1 to {MAX_WORKERS} workers, not {workers}")
    return workers


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The status of a running or ended group.

    Attributes:
        name: Name of the group.
        run: ID of the run.
        state: ``RUNNING``, ``COMPLETED``, ``FAILED`` or ``TERMINATED``.
        workers: Number of workers.
        joined: Number of ranks that are taken.
        running: Number of running workers.
        completed: Number of workers that have completed.
        is_restarting: Whether all workers are about to restart after a loss.
        epoch: Number of times that all workers have restarted.
        missing: Ranks that are not taken, or whose active worker is not running; sorted.
        restarts: Number of process restarts of all workers together.
        created: Submission time in seconds since the epoch.
        ended: Time of the end; None while it runs.
        why: Reason for the end, unless the group completed.
        labels: Labels from the submitter.
    """

    name: str
    run: str
    state: str
    workers: int
    joined: int
    running: int
    completed: int
    is_restarting: bool
    epoch: int
    missing: tuple[int, ...]
    restarts: int
    created: float
    ended: float | None
    why: str
    labels: Mapping[str, str]


class GroupHandle:
    """A handle to inspect and control one run of a group. Thread-safe.

    Attributes:
        name: Name of the group.
        run: ID of the run. After its end, the handle reports how it ended.
    """

    def __init__(self, store: Store, keys: GroupKeys, run: str) -> None:
        self.name = keys.group
        self.run = run
        self._store = store
        self._keys = keys.for_run(run)

    def __repr__(self) -> str:
        return f"<GroupHandle {self.name!r} run {self.run}>"

    @blocking
    async def status(self) -> GroupStatus:
        """Return the current status of the run.

        Raises:
            WrongRun: Nothing is stored about this run anymore.
        """
        entry = await ask(self._store.get, self._keys.record)
        record = decode_record_or_none(entry, self.run)
        return await self._read_final_status() if record is None else await self._read_status(record)

    @blocking
    async def wait(self, timeout_s: float | None = None) -> GroupStatus:
        """Wait until the run has completed, failed or been terminated, and return its status.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            WaitTimeout: The run is still in progress.
            WrongRun: Nothing is stored about this run anymore.
        """
        deadline = Deadline(self._store.clock, timeout_s)
        with self._store.watch(self._keys.record) as watch:
            try:
                while True:
                    batch = await coroutine_of(watch.next)(deadline.left_s())
                    record = decode_record_or_none(batch[-1].entry if batch else None, self.run)
                    if record is None:
                        return await self._read_final_status()
                    if record.is_final:
                        return await self._read_status(record)
            except WaitTimeout:
                raise WaitTimeout(f"group {self.name!r} is still running after {timeout_s:.3g} s") from None

    @blocking
    async def scale(self, workers: int) -> None:
        """Change the number of workers of the group.

        With more workers, new ranks can be taken. With fewer, the workers with the highest ranks are removed and get
        ``WorkerRemoved``. A barrier that waits for a removed worker is broken once its waiters see the change, even if
        this call fails after its commit.

        Args:
            workers: The new number.
        Raises:
            Conflict: The group has ended.
        """
        check_worker_count(workers)
        while True:
            snapshot = await self._snapshot()
            if snapshot is None or snapshot.record.is_final:
                raise Conflict(f"group {self.name!r} has ended and cannot be scaled; submit it again")
            current = snapshot.record.workers
            if current == workers:
                return
            if workers > current:
                await self._try_commit(transactions.build_scale_up_txn(snapshot, workers))
                continue
            next_size = max(workers, current - transactions.MAX_REMOVED)
            members = await ask(self._store.list, self._keys.members)
            await self._try_commit(transactions.build_scale_down_txn(snapshot, next_size, members))

    @blocking
    async def terminate(self, why: str = "it was terminated") -> None:
        """End the group: every worker gets ``GroupTerminated``. Idempotent.

        Args:
            why: The reason, for messages.
        """
        backoff = Backoff()
        while (snapshot := await self._snapshot()) is not None:
            if await self._try_commit(transactions.build_terminate_txn(snapshot, why)):
                break
            await Pause(self._store.clock, Signal(), backoff.next_s())
        await ask(self._store.delete_tree, self._keys.prefix)

    async def _snapshot(self) -> GroupSnapshot | None:
        entry = await ask(self._store.get, self._keys.record)
        if entry is None or decode_record_or_none(entry, self.run) is None:
            return None
        return GroupSnapshot(self._keys, entry, time.time())

    async def _try_commit(self, txn: GroupTxn) -> bool:
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            return False
        return True

    async def _read_status(self, record: GroupRecord) -> GroupStatus:
        epoch = await ask(self._store.get, self._keys.epoch)
        members = decode_members(await ask(self._store.list, self._keys.members))
        names = await ask(self._store.children, self._keys.leases)
        number = decode_epoch(epoch) if epoch is not None else 0
        is_restarting = bool(number) and record.state == RUNNING and not await self._has_begun(number)
        running = {int(name) for name in names if name.isdecimal()}
        active = {info.rank for info in members if info.status in ACTIVE}
        completed = {info.rank for info in members if info.status == COMPLETED}
        missing = () if record.is_final else tuple(sorted(set(range(record.workers)) - completed - (active & running)))
        return GroupStatus(
            name=self.name,
            run=record.run,
            state=record.state,
            workers=record.workers,
            joined=record.next_rank,
            running=len(running),
            completed=record.completed,
            is_restarting=is_restarting,
            epoch=number,
            missing=missing,
            restarts=sum(info.restarts for info in members),
            created=record.created,
            ended=record.ended,
            why=record.why,
            labels=record.labels,
        )

    async def _has_begun(self, epoch: int) -> bool:
        """Return whether all workers have passed the first barrier of an epoch."""
        name = self._keys.barrier_key(epoch, INIT)
        init = Barrier(self._store, name, parties=1, member_id="status", per_generation=True)
        return (await coroutine_of(init.check)())[0]

    async def _read_final_status(self) -> GroupStatus:
        record = decode_record_or_none(await ask(self._store.get, self._keys.group.ended), self.run)
        if record is None:
            raise WrongRun(f"run {self.run} of group {self.name!r} no longer exists, nor its final record")
        return GroupStatus(
            name=self.name,
            run=record.run,
            state=record.state,
            workers=record.workers,
            joined=record.next_rank,
            running=0,
            completed=record.completed,
            is_restarting=False,
            epoch=0,
            missing=(),
            restarts=0,
            created=record.created,
            ended=record.ended,
            why=record.why,
            labels=record.labels,
        )


@blocking
async def submit(
    store: Store,
    group: str,
    workers: int,
    *,
    namespace: str = NAMESPACE,
    max_restarts: int = 5,
    max_executions: int = 5,
    keep_ended_s: float = 604_800.0,
    labels: Mapping[str, str] | None = None,
    replace: bool = False,
) -> GroupHandle:
    """Create a group that workers can join. Replaces an earlier run that has ended and has no running workers.

    A group that was submitted but that no worker has joined yet is not replaced: its workers may be about to join.

    Args:
        store: The store, or a namespace of it.
        group: Name of the group: one segment of a key.
        workers: Number of workers, from 1 to 100,000.
        namespace: Namespace of the group; groups of different namespaces may have the same name.
        max_restarts: Restarts of one worker's process before the group fails.
        max_executions: Repeated executions of one worker's function before the group fails.
        keep_ended_s: Seconds for which the final record is kept.
        labels: Labels to show with the group.
        replace: Also replace a group that was submitted but that no worker has joined yet.
    Returns:
        A handle to the new run.
    Raises:
        GroupAlreadyRunning: It has running workers, or it was submitted and no worker has joined yet.
        InvalidKey, ValueError: A name or a number is invalid.
    """
    store, keys = resolve_group(store, group, namespace)
    record = GroupRecord(
        uuid.uuid4().hex[:12],
        check_worker_count(workers),
        created=time.time(),
        max_restarts=_check_limit(max_restarts, "max_restarts"),
        max_executions=_check_limit(max_executions, "max_executions"),
        keep_ended_s=_check_duration(keep_ended_s, "keep_ended_s"),
        labels=_check_labels(labels or {}),
    )
    return await _submit(store, keys, record, replace_unjoined=replace)


async def _submit(store: Store, keys: GroupKeys, record: GroupRecord, *, replace_unjoined: bool = False) -> GroupHandle:
    """Create a group with this record, and delete the keys of an earlier run.

    Args:
        store: Store of the group.
        keys: Keys of the group.
        record: Record of the new run.
        replace_unjoined: Whether to also replace a group that no worker has joined yet.
    Returns:
        A handle to the new run.
    Raises:
        GroupAlreadyRunning: The group exists and cannot be replaced.
    """
    run = keys.for_run(record.run)
    first_entry = await ask(store.get, keys.record)
    entry: Entry | None = first_entry
    while True:
        old = decode_record_or_none(entry)
        if entry is not None:
            await _refuse_running(store, keys, entry, first_entry, replace_unjoined=replace_unjoined)
        txn = transactions.build_create_txn(run, record, entry)
        try:
            await ask(store.commit, txn.checks, txn.ops)
        except (Conflict, OutcomeUnknown) as error:
            entry = await ask(store.get, keys.record)
            if decode_record_or_none(entry, record.run) is None:
                if isinstance(error, OutcomeUnknown):
                    raise
                continue
        if old is not None:
            await ask(store.delete_tree, keys.for_run(old.run).prefix)
        return GroupHandle(store, keys, record.run)


async def _refuse_running(
    store: Store, keys: GroupKeys, entry: Entry, first_entry: Entry | None, *, replace_unjoined: bool
) -> None:
    """Raise an error if a stored group must not be replaced.

    Args:
        store: Store of the group.
        keys: Keys of the group.
        entry: The stored record of the group.
        first_entry: The record as it was when this client began to submit; None if there was none.
        replace_unjoined: Whether a group that no worker has joined yet may be replaced.
    Raises:
        GroupAlreadyRunning: The group must not be replaced.
    """
    record, before = GroupRecord.from_entry(entry), decode_record_or_none(first_entry)
    names = await ask(store.children, keys.for_run(record.run).leases)
    running_ranks = sorted(int(name) for name in names if name.isdecimal())
    if running_ranks:
        shown = ", ".join(map(str, running_ranks[:10])) + (", ..." if len(running_ranks) > 10 else "")
        raise GroupAlreadyRunning(
            f"group {keys.group!r} is already running: run {record.run} has running workers {shown}; "
            "terminate it, or use another name",
            record.run,
            running_ranks,
        )
    if before is None or before.run != record.run:
        raise GroupAlreadyRunning(
            f"group {keys.group!r} was just submitted by another client: run {record.run}", record.run
        )
    if not (replace_unjoined or record.next_rank or record.is_final):
        raise GroupAlreadyRunning(
            f"group {keys.group!r} was already submitted and no worker has joined yet: run {record.run}; "
            "let its workers join, terminate it, or pass replace=True",
            record.run,
        )


@blocking
async def find(store: Store, group: str, *, namespace: str = NAMESPACE) -> GroupHandle | None:
    """Return a handle to the current run of a group, or None if there is none.

    A run is current until its last worker has left.

    Args:
        store: The store, or a namespace of it.
        group: Name of the group.
        namespace: Namespace of the group.
    Raises:
        BadRecord: The group's record is unreadable.
    """
    store, keys = resolve_group(store, group, namespace)
    entry = await ask(store.get, keys.record)
    return None if entry is None else GroupHandle(store, keys, GroupRecord.from_entry(entry).run)


def _check_limit(value: int, what: str) -> int:
    if check_integer(value, what) < 0:
        raise ValueError(f"{what} must be at least 0, not {value}")
    return value


def _check_duration(value: float, what: str) -> float:
    if not is_number(value, 0.0):
        raise ValueError(f"{what} must be a number of at least 0 seconds, not {value!r}")
    return float(value)


def _check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        check_text(name, "a label's name")
        check_text(value, f"label {name!r}")
    return dict(labels)
