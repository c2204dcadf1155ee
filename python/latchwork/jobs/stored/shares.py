"""A worker's share of the work items, as it is stored: followed by a watch, decoded when a head has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from latchwork.interrupts import mutex
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.packed_store import from_entries_or_read
from latchwork.store import Mirror, Store
from latchwork.types import Change


class WorkerShares:
    """The items of one worker, by job. One thread asks at a time; whoever made it closes it."""

    def __init__(self, store: Store, node_id: str, on_change: Callable[[], None]) -> None:
        """Begin to follow, and wait for the first state.

        Args:
            store: the cluster's store.
            node_id: the worker's node.
            on_change: called when something may have changed, on a thread for callbacks; must not block.
        Raises:
            Unavailable: the first state did not come in time.
        """
        self._store = store
        self._node_id = node_id
        self._prefix = f"{keys.assigned(node_id)}/"
        self._on_change = on_change
        self._decoded: dict[str, tuple[object, tuple[str, ...]]] = {}
        self._mutex = mutex()
        self._mirror: Mirror = store.mirror(keys.assigned(node_id))
        self._changed = self._jobs_of(self._mirror)
        self._mirror.on_change(self._note)

    def of(self, jobs: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Job to sorted items, of those of the jobs that it has a share of; the same tuple while nothing changed."""
        with self._mutex:
            changed = self._changed.intersection(jobs)
            self._changed -= changed
        try:
            for job in sorted(changed):
                self._look(job)
                changed.discard(job)
        finally:  # what could not be read is looked at again the next time
            with self._mutex:
                self._changed |= changed
        return {job: self._decoded[job][1] for job in jobs if job in self._decoded}

    def close(self) -> None:
        """Follow it no longer. Twice is fine."""
        self._mirror.close()

    def _note(self, batch: Iterable[Change]) -> None:
        changed = self._jobs_of(change.key for change in batch)
        with self._mutex:
            self._changed |= changed
        self._on_change()

    def _jobs_of(self, found: Iterable[str]) -> set[str]:
        return {key[len(self._prefix) :].partition("/")[0] for key in found}

    def _look(self, job: str) -> None:
        key = keys.assigned(self._node_id, job)
        head = self._mirror.get(key)
        if head is None:
            self._decoded.pop(job, None)
            return
        known = self._decoded.get(job)
        if known is None or known[0] != head.version:
            self._decoded[job] = (head.version, from_entries_or_read(self._store, key, self._mirror).packed.items)
