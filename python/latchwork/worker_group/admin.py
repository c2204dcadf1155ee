"""Inspection of groups, workers and barriers, and cleanup of what ended groups left behind."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from latchwork.errors import BadRecord, Conflict
from latchwork.primitives.barrier import BarrierState, barrier_state
from latchwork.primitives.waiting import check_name
from latchwork.store.steps import ask, driven, steps_of
from latchwork.store.store import Store
from latchwork.worker_group import transactions
from latchwork.worker_group.keys import GroupKeys
from latchwork.worker_group.master import MasterInfo, find_master
from latchwork.worker_group.records import GroupEvent, GroupRecord, WorkerInfo
from latchwork.worker_group.submission import NAMESPACE, GroupHandle, GroupStatus, group_store, resolve_group
from latchwork.worker_group.transactions import GroupSnapshot, read_members, record_or_none

#: Seconds without running workers after which a sweeper removes a running group.
ABANDON_S = 600.0


@dataclass(slots=True)
class SweepResult:
    """The keys that a sweep has removed.

    Attributes:
        groups: Names of groups without workers.
        runs: Remains of ended runs, as ``group/run``.
        ended: Names of groups whose final records had expired.
    """

    groups: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


class GroupSweeper:
    """Removes ended and abandoned groups when called repeatedly. Not thread-safe.

    It remembers since when it has seen no worker in each group.

    Args:
        store: The store, or a namespace of it.
        namespace: Namespace of the groups.
        abandon_s: Seconds without workers, as observed by this object, after which a running group is removed.
    """

    def __init__(self, store: Store, *, namespace: str = NAMESPACE, abandon_s: float = ABANDON_S) -> None:
        self._store = group_store(store, "sweep")
        self._namespace = check_name(namespace, "workers namespace")
        self._abandon_s = abandon_s
        self._since: dict[tuple[str, str, int], float] = {}

    @driven
    async def sweep(self) -> SweepResult:
        """Check every group once, remove what no worker uses, and return what was removed."""
        swept = SweepResult()
        groups = await ask(self._store.children, f"{self._namespace}/groups")
        # Runs first, records second: a run that no record names afterwards can never be used again.
        runs = {group: await ask(self._store.children, GroupKeys(self._namespace, group).runs) for group in groups}
        before, self._since = self._since, {}
        for group in groups:
            await self._look(GroupKeys(self._namespace, group), runs[group], before, swept)
        for group in await ask(self._store.children, f"{self._namespace}/ended"):
            if await self._forget(GroupKeys(self._namespace, group)):
                swept.ended.append(group)
        return swept

    async def _look(
        self, keys: GroupKeys, runs: list[str], before: dict[tuple[str, str, int], float], swept: SweepResult
    ) -> None:
        entry = await ask(self._store.get, keys.record)
        record = record_or_none(entry)
        if entry is not None and record is None:
            return  # unreadable, so it may belong to someone else
        named = record.run if record is not None else ""
        for run in runs:
            if run != named:
                await ask(self._store.delete_tree, keys.for_run(run).prefix)
                swept.runs.append(f"{keys.group}/{run}")
        if entry is None or record is None or await ask(self._store.children, keys.for_run(record.run).leases):
            return
        if not record.is_final:
            seen = (keys.group, record.run, entry.token)
            now = self._store.clock.now()
            self._since[seen] = before.get(seen, now)
            if now - self._since[seen] < self._abandon_s:
                return
        snapshot = GroupSnapshot(keys.for_run(record.run), entry, time.time())
        txn = transactions.terminate(snapshot, "no worker was left in it")
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            return
        await ask(self._store.delete_tree, snapshot.keys.prefix)
        swept.groups.append(keys.group)

    async def _forget(self, keys: GroupKeys) -> bool:
        """Delete the final record of a group if it has been kept long enough."""
        entry = await ask(self._store.get, keys.ended)
        record = record_or_none(entry)
        if entry is None or record is None or time.time() - (record.ended or 0.0) < record.keep_ended_s:
            return False
        deleted: bool = await ask(self._store.delete, keys.ended, version=entry.version)
        return deleted


@driven
async def sweep(store: Store, *, namespace: str = NAMESPACE) -> SweepResult:
    """Remove the remains of ended groups once, and return what was removed."""
    return await steps_of(GroupSweeper(store, namespace=namespace).sweep)()


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group with all of its workers and barriers.

    Attributes:
        status: Status of the group.
        workers: Records of the workers, sorted by rank.
        live: Ranks of the running workers, sorted.
        barriers: Names and states of the barriers of the current epoch that were used.
        master: Master of the group, or None.
    """

    status: GroupStatus
    workers: tuple[WorkerInfo, ...]
    live: tuple[int, ...]
    barriers: tuple[tuple[str, BarrierState], ...]
    master: MasterInfo | None


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """All groups of a namespace.

    Attributes:
        groups: Status of each group with a current run, sorted by name.
        ended: Final record of the last run of all other groups, sorted by name.
    """

    groups: tuple[GroupStatus, ...]
    ended: tuple[tuple[str, GroupRecord], ...]


def inspect(store: Store, *, namespace: str = NAMESPACE) -> GroupOverview:
    """Return an overview of all groups of a namespace."""
    store = group_store(store, "inspection")
    check_name(namespace, "workers namespace")
    groups, ended = [], []
    for group in store.children(f"{namespace}/groups"):
        keys = GroupKeys(namespace, group)
        record = record_or_none(store.get(keys.record))
        if record is not None:
            groups.append(GroupHandle(store, keys, record.run).status())
    there = {status.name for status in groups}
    for group in store.children(f"{namespace}/ended"):
        record = record_or_none(store.get(GroupKeys(namespace, group).ended))
        if record is not None and group not in there:
            ended.append((group, record))
    return GroupOverview(tuple(groups), tuple(ended))


def inspect_group(store: Store, group: str, *, namespace: str = NAMESPACE) -> GroupDetails | None:
    """Return the details of a group, or None if it has no current run."""
    store, keys = resolve_group(store, group, namespace)
    record = record_or_none(store.get(keys.record))
    if record is None:
        return None
    run = keys.for_run(record.run)
    status = GroupHandle(store, keys, record.run).status()
    live = tuple(sorted(int(name) for name in store.children(run.leases) if name.isdecimal()))
    barriers = []
    for name in store.children(run.barriers(status.epoch)):
        state = _barrier(store, run.barrier(status.epoch, name))
        if state is not None:
            barriers.append((name, state))
    members = tuple(read_members(store.list(run.members)))
    return GroupDetails(status, members, live, tuple(barriers), find_master(store, group, namespace=namespace))


def _barrier(store: Store, name: str) -> BarrierState | None:
    try:
        return barrier_state(store, name)
    except BadRecord:
        return None


def list_events(store: Store, group: str, after: int = 0, *, namespace: str = NAMESPACE) -> list[GroupEvent]:
    """Return the events of a group's current run after event number `after`, in order. The last 1,000 are kept."""
    store, keys = resolve_group(store, group, namespace)
    record = record_or_none(store.get(keys.record))
    if record is None:
        return []
    run = keys.for_run(record.run)
    entries = store.list(run.events, start_after=run.event(after))
    found = (GroupEvent.or_none(entry) for entry in entries)
    return [event for event in found if event is not None]
