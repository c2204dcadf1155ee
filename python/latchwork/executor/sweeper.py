"""Removal of leftovers: results and tasks of departed submitters, expired results, and tasks that no member can run.

The oldest member sweeps at intervals. Submitter IDs are never reused, so a missing submitter is gone permanently. A
sweep that finds nothing writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from latchwork.errors import BadRecord
from latchwork.executor.finished import FinishedTasks, create_finished_ops
from latchwork.executor.items import TaskItem, delete_copies_ops, parse_task
from latchwork.executor.keys import ANY, DETACHED, Keys, partition_member
from latchwork.executor.placement import decode_member_functions
from latchwork.executor.stored import StoredTasks, TaskLocation
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.schedules.wall_clock import WallClock
from latchwork.store import Store
from latchwork.store.steps import ask, coroutine_of
from latchwork.tasks import PICKLED, Blobs, Outcome, UnknownFunction
from latchwork.types import Create

_log = logging.getLogger(__name__)

#: Tasks to read at the head of the shared partition.
_HEAD = 200
#: Maximum length of a reason in a dead letter.
_MOST_WHY = 300


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The tasks and keys that a sweep has removed.

    Attributes:
        submitters: IDs of departed submitters whose leftovers were removed, sorted.
        sort_keys: Number of their sort keys that were removed, with all tasks.
        members: IDs of departed members whose cancellation marks were removed, sorted.
        unknown: IDs of tasks whose function no member has.
        expired: Number of detached tasks whose results have expired.
    """

    submitters: tuple[str, ...] = ()
    sort_keys: int = 0
    members: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    expired: int = 0


class ExecutorSweeper:
    """Removes leftovers of departed submitters and members. Thread-safe. Several processes may sweep at the same time.

    Args:
        store: The store.
        keys: The executor's keys.
        backlog: Its work queue.
        unknown_after_s: Seconds for which a task waits for a member that has its function. They count from the first
            sweep that finds the task, because the clock of its submitter may be wrong.
    """

    def __init__(self, store: Store, keys: Keys, backlog: WorkQueue, *, unknown_after_s: float) -> None:
        self._store = store
        self._keys = keys
        self._backlog = backlog
        self._unknown_after_s = unknown_after_s
        self._seen: dict[str, float] = {}  # when each of the tasks at the head of the shared partition was first seen
        self._blobs = Blobs(store, keys.data)
        self._finished = FinishedTasks(store, keys, StoredTasks(store, keys, backlog))
        self._wall_clock = WallClock(store.clock)  # a clock that is wrong for a moment removes no result

    async def sweep(self, members: Iterable[str]) -> SweepResult:
        """Remove all leftovers once.

        Usually one member sweeps at a time, but concurrent sweeps are safe.

        Args:
            members: IDs of the current members.
        Returns:
            The removed tasks and keys.
        """
        present = set(members)
        found_ids = set(await ask(self._store.children, self._keys.results))
        found_ids.update(await ask(self._store.children, self._keys.data))
        sort_keys = await self._list_sort_keys()
        found_ids |= {submitter_id for _, _, submitter_id in sort_keys}
        gone = await self._filter_departed(found_ids)
        for submitter_id in sorted(gone):
            await ask(self._store.delete_tree, self._keys.results_prefix(submitter_id))
            await ask(self._store.delete_tree, f"{self._keys.data}/{submitter_id}")
        count = await self._remove_tasks(sort_keys, gone)
        await self._tidy_partitions(present)
        marked = set(await ask(self._store.children, self._keys.cancels)) - present
        for member in sorted(marked):
            await ask(self._store.delete_tree, self._keys.cancel_prefix(member))
        unknown = await self._fail_unknown_functions()
        expired = await self._finished.delete_expired(self._wall_clock.now())
        swept = SweepResult(tuple(sorted(gone)), count, tuple(sorted(marked)), tuple(unknown), expired)
        if swept != SweepResult():
            _log.info("executor %s: removed %s", self._keys.name, swept)
        return swept

    async def remove_tasks_of_departed(self, submitter_ids: Iterable[str]) -> int:
        """Remove the queued tasks of those submitters that are no longer running.

        Returns:
            The number of removed sort keys. Tasks with the same sort key are removed together.
        """
        gone = await self._filter_departed(set(submitter_ids))
        return await self._remove_tasks(await self._list_sort_keys(), gone) if gone else 0

    async def _filter_departed(self, seen: set[str]) -> set[str]:
        """Return those of the given submitters that are no longer running.

        Args:
            seen: IDs of submitters. They were read before this call, so each of them has started already.
        """
        seen = seen - {DETACHED}
        return seen - set(await ask(self._store.children, self._keys.submitters)) if seen else set()

    async def _list_sort_keys(self) -> list[tuple[str, str, str]]:
        """Return the partition, the key prefix and the submitter of each sort key in the queue. Tasks are grouped by
        sort key.
        """
        found = []
        for partition in await coroutine_of(self._backlog.partitions)():
            prefix = f"{self._partition_prefix(partition)}/items"
            for sort_key in await ask(self._store.children, prefix):
                parts = sort_key.split("-")
                if len(parts) == len(("priority", "time", "sid")):
                    found.append((partition, f"{prefix}/{sort_key}", parts[2]))
        return found

    async def _remove_tasks(self, sort_keys: Iterable[tuple[str, str, str]], gone: set[str]) -> int:
        """Remove all tasks of departed submitters, claimed or not. Results of claimed tasks would be refused.

        Args:
            sort_keys: Partition, key prefix and submitter of each sort key, by which tasks are grouped.
            gone: IDs of the departed submitters.
        Returns:
            The number of removed sort keys.
        """
        dropped = [(partition, prefix) for partition, prefix, submitter_id in sort_keys if submitter_id in gone]
        for _, prefix in dropped:
            await ask(self._store.delete_tree, prefix)
        for partition in sorted({partition for partition, _ in dropped}):
            await coroutine_of(self._backlog.clean_index)(partition)
        return len(dropped)

    async def _tidy_partitions(self, members: Collection[str]) -> None:
        """Remove the empty partitions of members that have left, and the keys that their workers left while they waited
        for tasks.
        """
        for partition in await ask(
            self._store.children, f"{self._keys.backlog}/partitions"
        ):  # also those without tasks
            owner = partition_member(partition)
            notes = await ask(self._store.children, f"{self._partition_prefix(partition)}/removed")
            is_left = owner is not None and owner not in members
            if notes or (is_left and not await coroutine_of(self._backlog.items)(partition, 1)):
                await coroutine_of(self._backlog.clean_index)(partition)

    def _partition_prefix(self, partition: str) -> str:
        """Return the key prefix of a partition of the work queue."""
        return self._backlog.key(partition, "x", "x").removesuffix("/items/x/x")

    async def _fail_unknown_functions(self) -> list[str]:
        """Fail tasks that have waited too long in the shared partition, because no member has their function.

        Returns:
            The IDs of these tasks.
        """
        now = self._store.clock.now()
        heads = await coroutine_of(self._backlog.items)(ANY, _HEAD)
        self._seen = {item.path: self._seen.get(item.path, now) for item in heads}
        old = [item for item in heads if now - self._seen[item.path] >= self._unknown_after_s]
        if not old:
            return []
        known = await self._known_functions()
        ended = [await self._end_if_unknown(item, known) for item in old]
        return [each for each in ended if each]

    async def _known_functions(self) -> set[str]:
        """Return the names of all functions that members can run."""
        found: set[str] = set()
        for entry in await ask(self._store.list, self._keys.functions):
            offer = decode_member_functions(entry.value)
            found.update(offer.functions, [PICKLED] if offer.allow_pickle else ())
        return found

    async def _end_if_unknown(self, stored: QueueItem, known: set[str]) -> str:
        try:
            item = parse_task(stored.value)
        except BadRecord:
            return ""
        if item.function in known or await coroutine_of(self._backlog.holder)(stored) is not None:
            return ""
        error = _unknown(item, known)
        outcome, location = Outcome.from_exception(error, is_final=True), TaskLocation.from_item(item, self._keys)
        outcome_ops = [
            Create(location.result_key, outcome.to_bytes()),
            *create_finished_ops(self._keys, location, outcome),
        ]
        large = [] if item.blob is None else self._blobs.delete_ops(item.blob)
        ops = [*outcome_ops, *large, *delete_copies_ops(self._backlog, item, stored.id)]
        is_dead_lettered = await coroutine_of(self._backlog.move_to_dead_letters)(
            stored, str(error)[:_MOST_WHY], (), ops
        )
        return item.id if is_dead_lettered else ""


def _unknown(item: TaskItem, known: set[str]) -> UnknownFunction:
    if item.function == PICKLED:
        return UnknownFunction("no member of the executor runs pickled functions; see allow_pickle=True of a worker")
    return UnknownFunction.for_name(item.function, known)
