"""Removal of leftover keys of ended groups.

The watcher of the first running worker of each group sweeps its namespace at intervals. It never removes a group that
is running, because the group's workers may still have to start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from latchwork.errors import Conflict
from latchwork.primitives.waiting import check_name
from latchwork.schedules import WallClock
from latchwork.store.steps import ask, blocking, coroutine_of
from latchwork.store.store import Store
from latchwork.worker_group import transactions
from latchwork.worker_group.keys import GroupKeys
from latchwork.worker_group.submission import NAMESPACE, get_group_store
from latchwork.worker_group.transactions import GroupSnapshot, decode_record_or_none

#: Seconds without running workers after which a sweeper removes a running group.
ABANDON_S = 600.0


@dataclass(slots=True)
class GroupSweepResult:
    """The groups and runs whose keys a sweep has removed.

    Attributes:
        groups: Names of groups without workers.
        runs: Ended runs with leftover keys, as ``group/run``.
        ended: Names of groups whose final records had expired.
    """

    groups: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


class GroupSweeper:
    """Removes ended and abandoned groups when it is called repeatedly. Not thread-safe.

    It remembers for how long it has observed that a group has no workers.

    Args:
        store: The store, or a namespace of it.
        namespace: Namespace of the groups.
        abandon_s: Seconds without workers, as observed by this object, after which a running group is removed.
    """

    def __init__(self, store: Store, *, namespace: str = NAMESPACE, abandon_s: float = ABANDON_S) -> None:
        self._store = get_group_store(store, "sweep")
        self._namespace = check_name(namespace, "workers namespace")
        self._abandon_s = abandon_s
        #: When each group was first seen without workers: by group, run and token of its record.
        self._empty_since: dict[tuple[str, str, int], float] = {}
        self._wall_clock = WallClock(self._store.clock)  # a clock that is wrong for a moment removes nothing

    @blocking
    async def sweep(self) -> GroupSweepResult:
        """Check every group once, and remove keys that no worker uses.

        Returns:
            The removed groups and runs.
        """
        result = GroupSweepResult()
        groups = await ask(self._store.children, f"{self._namespace}/groups")
        # Runs first, records second: a run that no record names afterwards can never be used again.
        runs = {group: await ask(self._store.children, GroupKeys(self._namespace, group).runs) for group in groups}
        before, self._empty_since = self._empty_since, {}
        for group in groups:
            await self._sweep_group(GroupKeys(self._namespace, group), runs[group], before, result)
        for group in await ask(self._store.children, f"{self._namespace}/ended"):
            if await self._delete_final_record(GroupKeys(self._namespace, group)):
                result.ended.append(group)
        return result

    async def _sweep_group(
        self, keys: GroupKeys, runs: list[str], before: dict[tuple[str, str, int], float], result: GroupSweepResult
    ) -> None:
        """Delete the keys of old runs of a group. Delete the group if it has ended or was abandoned.

        Args:
            keys: Keys of the group.
            runs: IDs of its stored runs, listed before its record was read.
            before: When each group was first seen without workers, according to the previous sweep.
            result: Gets the names of what was removed.
        """
        entry = await ask(self._store.get, keys.record)
        record = decode_record_or_none(entry)
        if entry is not None and record is None:
            return  # unreadable, so it may belong to someone else
        current_run = record.run if record is not None else ""
        for run in runs:
            if run != current_run:
                await ask(self._store.delete_tree, keys.for_run(run).prefix)
                result.runs.append(f"{keys.group}/{run}")
        if entry is None or record is None or await ask(self._store.children, keys.for_run(record.run).leases):
            return
        if not record.is_final:
            group_state = (keys.group, record.run, entry.token)
            now = self._store.clock.now()
            self._empty_since[group_state] = before.get(group_state, now)
            if now - self._empty_since[group_state] < self._abandon_s:
                return
        snapshot = GroupSnapshot(keys.for_run(record.run), entry, time.time())
        txn = transactions.build_terminate_txn(snapshot, "no worker was left in it")
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            return
        await ask(self._store.delete_tree, snapshot.keys.prefix)
        result.groups.append(keys.group)

    async def _delete_final_record(self, keys: GroupKeys) -> bool:
        """Delete the final record of an ended group if its retention time has passed.

        Args:
            keys: Keys of the group.
        Returns:
            Whether the record was deleted.
        """
        entry = await ask(self._store.get, keys.ended)
        record = decode_record_or_none(entry)
        if entry is None or record is None or self._wall_clock.now() - (record.ended or 0.0) < record.keep_ended_s:
            return False
        deleted: bool = await ask(self._store.delete, keys.ended, version=entry.version)
        return deleted


@blocking
async def sweep(store: Store, *, namespace: str = NAMESPACE) -> GroupSweepResult:
    """Remove leftover keys of ended groups once.

    Args:
        store: The store, or a namespace of it.
        namespace: Namespace of the groups.
    Returns:
        The removed groups and runs.
    """
    return await coroutine_of(GroupSweeper(store, namespace=namespace).sweep)()
