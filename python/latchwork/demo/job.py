"""The job of the demo: counts one item after the other and records every start and every result.

A result is written once, in a transaction that checks that this node still holds the lock of the item, and that no
other node has started the item since. A killed process leaves a start without a result.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from latchwork._base.decoding import encode
from latchwork.clock import SYSTEM_CLOCK
from latchwork.demo import records
from latchwork.demo.corpus import Items, count_files
from latchwork.errors import Conflict
from latchwork.jobs import FixedDelay, Job, JobContext, Threads
from latchwork.types import Absent, At, Create, Entry, Put

JOB_ID = "standard-library"

_log = logging.getLogger(__name__)
#: Items whose records are read in one call.
_BATCH = 500


class CountJob(Job):
    """Counts the items of the assignment that have no result yet, interrupted ones first."""

    id = JOB_ID
    schedule = FixedDelay(0.2)
    initial_delay_s = 0.0
    threads = Threads.whole()

    def __init__(self, items: Items, pace_s: float) -> None:
        """Create the job. Each item takes at least ``pace_s`` seconds, so that people can watch."""
        super().__init__()
        self._items = items
        self._pace_s = pace_s
        self._stored_items: tuple[str, ...] | None = None

    def work_pool(self) -> Iterable[str]:
        """Return the work items of the job: the names of all modules and packages whose lines are counted."""
        return list(self._items)

    def run(self, context: JobContext) -> None:
        """Count the items of this run that have no result yet, until the run has to stop."""
        self._store_assignment(context)
        for item in self._list_uncounted_items(context):
            if context.should_stop:
                break
            self._count(context, item)
        self._tell_idle(context)

    def _list_uncounted_items(self, context: JobContext) -> list[str]:
        """Return the items of this run that have no result yet: interrupted ones first, then by name."""
        done = _find_items_with_record(context, records.RESULTS)
        begun = _find_items_with_record(context, records.STARTS)
        return sorted(set(context.items) - done, key=lambda item: (item not in begun, item))

    def _count(self, context: JobContext, item: str) -> None:
        began_s = SYSTEM_CLOCK.now()
        try:
            start = self._record_start(context, item, began_s)
            counts = count_files(self._items[item])
            context.wait_for_stop(began_s + self._pace_s - SYSTEM_CLOCK.now())
            result = records.Result(context.node_id, os.getpid(), counts)
            create = Create(f"{records.RESULTS}/{item}", encode(result))
            context.store.commit([context.fence(item), At(start)], [create])
        except Conflict as error:
            _log.warning("item %s: another process has it, what was counted here is dropped: %s", item, error)

    def _record_start(self, context: JobContext, item: str, at_s: float) -> Entry:
        """Store that this process starts to count an item.

        Returns:
            The entry that stores all starts of the item.
        Raises:
            Conflict: This process no longer holds the item's lock.
        """
        key = f"{records.STARTS}/{item}"
        before = context.store.get(key)
        begun = [*records.decode_starts(before), records.Start(context.node_id, os.getpid(), at_s)]
        running = encode(records.Running(item, os.getpid()))
        ops = [Put(key, encode(begun)), Put(f"{records.RUNNING}/{context.node_id}", running)]
        checks = [context.fence(item), Absent(key) if before is None else At(before)]
        return context.store.commit(checks, ops).entries[0]

    def _tell_idle(self, context: JobContext) -> None:
        key = f"{records.RUNNING}/{context.node_id}"
        if records.decode_running(context.store.get(key)).item is not None:
            context.store.put(key, encode(records.Running(None, os.getpid())))

    def _store_assignment(self, context: JobContext) -> None:
        if context.items == self._stored_items:
            return
        assignment = records.AssignmentRecord(context.node_id, SYSTEM_CLOCK.now(), context.items)
        context.store.create(f"{records.ASSIGNED}/{context.node_id}/r", encode(assignment), sequential=True)
        self._stored_items = context.items


def _find_items_with_record(context: JobContext, prefix: str) -> set[str]:
    """Return the items of this run for which the key ``<prefix>/<item>`` exists."""
    found: set[str] = set()
    for begin in range(0, len(context.items), _BATCH):
        part = context.items[begin : begin + _BATCH]
        entries = context.store.get_many([f"{prefix}/{item}" for item in part])
        found.update(item for item, entry in zip(part, entries) if entry is not None)  # noqa: B905 - one answer per key
    return found
