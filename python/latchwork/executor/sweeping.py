"""Removes leftovers: results of departed submitters, their tasks, expired results, and tasks that no member can run.

The oldest member sweeps at intervals. Submitter IDs are never reused, so a missing submitter is gone permanently. A
sweep that finds nothing writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from latchwork.errors import BadRecord
from latchwork.executor.finished import FinishedTasks, mark_ops
from latchwork.executor.items import TaskItem, other_copies, task_of
from latchwork.executor.keys import ANY, DETACHED, Keys, member_of
from latchwork.executor.placing import read_offer
from latchwork.executor.stored import StoredTasks, TaskLocation
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.schedules.wall_clock import WallClock
from latchwork.store import Store
from latchwork.store.steps import ask, steps_of
from latchwork.tasks import PICKLED, Blobs, Outcome, UnknownFunction
from latchwork.types import Create

_log = logging.getLogger(__name__)

#: Tasks to read at the head of the lane of all.
_LOOKED_AT = 200
#: Maximum length of a reason in a dead letter.
_MOST_WHY = 300


@dataclass(frozen=True, slots=True)
class SweptTasks:
    """The result of a sweep.

    Attributes:
        submitters: IDs of departed submitters whose leftovers were removed, sorted.
        shelves: Number of their sort keys that were removed, with all tasks.
        members: IDs of departed members whose cancellation marks were removed, sorted.
        unknown: IDs of tasks whose function no member has.
        expired: Number of detached tasks whose results have expired.
    """

    submitters: tuple[str, ...] = ()
    shelves: int = 0
    members: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    expired: int = 0


class ExecutorSweeper:
    """Removes leftovers of departed submitters and members. Thread-safe and process-safe.

    Args:
        store: The store.
        keys: The executor's keys.
        backlog: Its work queue.
        unknown_after_s: Seconds for which a task waits for a member that has its function, from the first sweep that
            finds it: the clock of its submitter may be wrong.
    """

    def __init__(self, store: Store, keys: Keys, backlog: WorkQueue, *, unknown_after_s: float) -> None:
        self._store = store
        self._keys = keys
        self._backlog = backlog
        self._unknown_after_s = unknown_after_s
        self._seen: dict[str, float] = {}  # when each of the tasks at the head of the lane of all was first seen
        self._blobs = Blobs(store, keys.data)
        self._finished = FinishedTasks(store, keys, StoredTasks(store, keys, backlog))
        self._wall_clock = WallClock(store.clock)  # a clock that is wrong for a moment removes no result

    async def sweep(self, members: Iterable[str]) -> SweptTasks:
        """Sweep once. Usually one member sweeps at a time; concurrent sweeps are safe.

        Args:
            members: IDs of the current members.
        """
        present = set(members)
        had = set(await ask(self._store.children, self._keys.results)) | await self._data_owners()
        shelves = await self._shelves()
        had |= {sid for _, _, sid in shelves}
        gone = await self._gone(had)
        for sid in sorted(gone):
            await ask(self._store.delete_tree, self._keys.results_of(sid))
            await ask(self._store.delete_tree, f"{self._keys.data}/{sid}")
        count = await self._drop(shelves, gone)
        await self._tidy_lanes(present)
        marked = set(await ask(self._store.children, self._keys.cancels)) - present
        for member in sorted(marked):
            await ask(self._store.delete_tree, self._keys.cancels_at(member))
        unknown = await self._end_unknown()
        expired = await self._finished.forget_expired(self._wall_clock.now())
        swept = SweptTasks(tuple(sorted(gone)), count, tuple(sorted(marked)), tuple(unknown), expired)
        if swept != SweptTasks():
            _log.info("executor %s: swept %s", self._keys.name, swept)
        return swept

    async def drop_of(self, sids: Iterable[str]) -> int:
        """Remove the tasks of those submitters that are gone; return the number of sort keys removed."""
        gone = await self._gone(set(sids))
        return await self._drop(await self._shelves(), gone) if gone else 0

    async def _gone(self, seen: set[str]) -> set[str]:
        """Return the submitters that are gone.

        Their leftovers were read before the submitters, so none of them is new.
        """
        seen = seen - {DETACHED}
        return seen - set(await ask(self._store.children, self._keys.subs)) if seen else set()

    async def _data_owners(self) -> set[str]:
        return set(await ask(self._store.children, self._keys.data))

    async def _shelves(self) -> list[tuple[str, str, str]]:
        """Return the lane, prefix and submitter of each sort key."""
        found = []
        for lane in await steps_of(self._backlog.partitions)():
            prefix = f"{self._lane(lane)}/items"
            for shelf in await ask(self._store.children, prefix):
                parts = shelf.split("-")
                if len(parts) == len(("priority", "time", "sid")):
                    found.append((lane, f"{prefix}/{shelf}", parts[2]))
        return found

    async def _drop(self, shelves: Iterable[tuple[str, str, str]], gone: set[str]) -> int:
        """Remove all tasks with the sort keys of departed submitters.

        Claimed tasks are removed too, because their results would be refused.
        """
        dropped = [(lane, prefix) for lane, prefix, sid in shelves if sid in gone]
        for _, prefix in dropped:
            await ask(self._store.delete_tree, prefix)
        for lane in sorted({lane for lane, _ in dropped}):
            await steps_of(self._backlog.tidy)(lane)
        return len(dropped)

    async def _tidy_lanes(self, members: Collection[str]) -> None:
        """Remove the empty lanes of departed members, from which no worker takes, and notes for departed takers."""
        for lane in await ask(self._store.children, f"{self._keys.backlog}/partitions"):  # also those without tasks
            owner = member_of(lane)
            notes = await ask(self._store.children, f"{self._lane(lane)}/removed")
            is_left = owner is not None and owner not in members
            if notes or (is_left and not await steps_of(self._backlog.items)(lane, 1)):
                await steps_of(self._backlog.tidy)(lane)

    def _lane(self, lane: str) -> str:
        """Return the prefix of a lane in the work queue."""
        return self._backlog.key(lane, "x", "x").removesuffix("/items/x/x")

    async def _end_unknown(self) -> list[str]:
        """End old tasks at the head of the lane of all whose function no member has."""
        now = self._store.clock.now()
        heads = await steps_of(self._backlog.items)(ANY, _LOOKED_AT)
        self._seen = {item.path: self._seen.get(item.path, now) for item in heads}
        old = [item for item in heads if now - self._seen[item.path] >= self._unknown_after_s]
        if not old:
            return []
        known = await self._functions()
        ended = [await self._end_if_unknown(item, known) for item in old]
        return [each for each in ended if each]

    async def _functions(self) -> set[str]:
        """Return the names of all functions that members can run."""
        found: set[str] = set()
        for entry in await ask(self._store.list, self._keys.functions):
            offer = read_offer(entry.value)
            found.update(offer.functions, [PICKLED] if offer.allow_pickle else ())
        return found

    async def _end_if_unknown(self, stored: QueueItem, known: set[str]) -> str:
        try:
            item = task_of(stored.value)
        except BadRecord:
            return ""
        if item.function in known or await steps_of(self._backlog.holder)(stored) is not None:
            return ""
        error = _unknown(item, known)
        outcome, place = Outcome.failed(error, is_final=True), TaskLocation.for_item(item, self._keys)
        told = [Create(place.result_key, outcome.to_bytes()), *mark_ops(self._keys, place, outcome)]
        large = [] if item.blob is None else self._blobs.delete_ops(item.blob)
        ops = [*told, *large, *other_copies(self._backlog, item, stored.id)]
        is_buried = await steps_of(self._backlog.bury)(stored, str(error)[:_MOST_WHY], (), ops)
        return item.id if is_buried else ""


def _unknown(item: TaskItem, known: set[str]) -> UnknownFunction:
    if item.function == PICKLED:
        return UnknownFunction("no member of the executor runs pickled functions; see allow_pickle=True of a worker")
    return UnknownFunction.for_name(item.function, known)
