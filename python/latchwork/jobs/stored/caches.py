"""Caches of sets that a mirror keeps up to date: the work pools for the leader, and the assignments of one worker."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from latchwork._base.interrupts import mutex
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.chunked_set import ChunkedSet, decode_or_read_set, read_set
from latchwork.store import Mirror, Store
from latchwork.store.steps import run
from latchwork.types import Change


class PoolCache:
    """Caches all work pools of a cluster. Not thread-safe. The creator closes the mirror."""

    def __init__(self, store: Store, mirror: Mirror) -> None:
        """Create an empty cache.

        Args:
            store: The cluster's store.
            mirror: Mirror of the work pools; its values are not used.
        """
        self._store = store
        self._mirror = mirror
        self._known: dict[str, _CachedPool] = {}

    def read_pools(self) -> dict[str, tuple[str, ...]]:
        """Return the sorted items of each job. Only pools that have changed are read from the store.

        The tuple of an unchanged pool stays the same object.

        Raises:
            LatchworkError: A changed pool could not be read.
        """
        pools = {}
        for job in {key.split("/", 2)[1] for key in self._mirror if key.count("/") == 1}:
            manifest = self._mirror.get(keys.work_pool_key(job))
            if manifest is None:
                continue
            known = self._known.get(job)
            if known is None or known.version != manifest.version:
                known = self._known[job] = self._read(job, manifest.version, known or _NOTHING)
            pools[job] = known.items
        for job in self._known.keys() - pools.keys():
            del self._known[job]
        return pools

    def list_chunk_keys(self) -> dict[str, list[str]]:
        """Return the keys of all stored chunks (parts of work pools) by job, including abandoned ones that no manifest
        names.
        """
        found: dict[str, list[str]] = {}
        for key in self._mirror:
            of_job = found.setdefault(key.split("/")[1], [])
            if key.count("/") > 1:
                of_job.append(key)
        return found

    def _read(self, job: str, version: object, before: _CachedPool) -> _CachedPool:
        stored = read_set(self._store, keys.work_pool_key(job), before.find_chunk_items)
        items = before.reuse_item_strings(stored.chunked)
        ends = [0, *accumulate(len(chunk.items) for chunk in stored.chunked.chunks)]
        spans = dict(zip(stored.chunked.chunk_names(), pairwise(ends), strict=True))
        return _CachedPool(version if stored.manifest is None else stored.manifest.version, items, spans)


@dataclass(frozen=True, slots=True)
class _CachedPool:
    """A work pool at one version of its manifest: its sorted items, and the range of each chunk."""

    version: object
    items: tuple[str, ...]
    spans: dict[str, tuple[int, int]]

    def find_chunk_items(self, name: str) -> tuple[str, ...] | None:
        """Return the items of a stored chunk by its name; None if this pool does not contain the chunk."""
        span = self.spans.get(name)
        return None if span is None else self.items[slice(*span)]

    def reuse_item_strings(self, chunked: ChunkedSet) -> tuple[str, ...]:
        """Return the items of a newer version of the pool. Items that this version contains too are returned as its
        string objects.

        This avoids a second copy of each string in memory.

        Args:
            chunked: The newer version.
        """
        if not chunked.chunks:
            return tuple(reuse_string(self.items, item) for item in chunked.inline)
        found: list[str] = []
        for chunk in chunked.chunks:
            is_known = chunk.name in self.spans
            found += chunk.items if is_known else [reuse_string(self.items, item) for item in chunk.items]
        return tuple(found)


def reuse_string(items: tuple[str, ...], item: str) -> str:
    """Find the string in a sorted tuple that equals an item, and return it. If there is none, return the item itself.

    This avoids a second copy of the string in memory.
    """
    at = bisect_left(items, item)
    return items[at] if at < len(items) and items[at] == item else item


_NOTHING = _CachedPool(None, (), {})


def describe_damaged_assignment(node_id: str, job_id: str, damage: str) -> str:
    """Return a sentence for people about damaged stored items of a node.

    Args:
        node_id: ID of the node to which the items are assigned.
        job_id: ID of the job.
        damage: Why the items are not readable in full.
    """
    return (
        f"the assignment of node {node_id} in job {job_id} is damaged in the store ({damage}), and its items do not "
        "run there; the manager writes it again within seconds; if that does not help, find out which program "
        "overwrites it"
    )


class AssignmentCache:
    """Caches the items that one worker should run, by job. Used by one thread at a time; the creator closes it."""

    def __init__(self, store: Store, node_id: str, on_change: Callable[[], None]) -> None:
        """Start to follow the items that are assigned to a worker. ``wait_ready`` waits until they are known.

        Args:
            store: The cluster's store.
            node_id: ID of the worker's node.
            on_change: Called in a callback thread when something may have changed. It must not block.
        """
        self._store = store
        self._node_id = node_id
        self._prefix = f"{keys.assignment_key(node_id)}/"
        self._on_change = on_change
        self._decoded: dict[str, tuple[object, tuple[str, ...]]] = {}
        self._damage: dict[str, str] = {}
        self._mutex = mutex()
        self._changed: set[str] = set()
        self._mirror: Mirror = store.mirror(keys.assignment_key(node_id), wait=False)
        self._mirror.on_change(self._on_items_changed)

    def wait_ready(self) -> None:
        """Wait until the worker's items have been read for the first time.

        Raises:
            Unavailable: The store did not answer in time.
        """
        run(self._store.ready(self._mirror))
        with self._mutex:
            self._changed |= self._find_jobs(self._mirror)

    def read_items(self, jobs: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the sorted items of each of these jobs that this worker should run. Jobs without items are left out.

        The tuple of an unchanged job stays the same object.

        Args:
            jobs: IDs of the jobs.
        Raises:
            LatchworkError: Changed items could not be read.
        """
        with self._mutex:
            changed = self._changed.intersection(jobs)
            self._changed -= changed
        try:
            for job in sorted(changed):
                self._update_items(job)
                changed.discard(job)
        finally:  # changed items that were not read are read next time
            with self._mutex:
                self._changed |= changed
        return {job: self._decoded[job][1] for job in jobs if job in self._decoded}

    def list_damaged(self) -> dict[str, str]:
        """Return why stored items are not readable in full, by job. Thread-safe."""
        with self._mutex:
            return dict(self._damage)

    def close(self) -> None:
        """Stop watching the assigned items. Idempotent."""
        self._mirror.close()

    def _on_items_changed(self, batch: Iterable[Change]) -> None:
        changed = self._find_jobs(change.key for change in batch)
        with self._mutex:
            self._changed |= changed
        self._on_change()

    def _find_jobs(self, found: Iterable[str]) -> set[str]:
        return {key[len(self._prefix) :].partition("/")[0] for key in found}

    def _update_items(self, job: str) -> None:
        key = keys.assignment_key(self._node_id, job)
        manifest = self._mirror.get(key)
        if manifest is None:
            self._decoded.pop(job, None)
            self._record_damage(job, "")
            return
        known = self._decoded.get(job)
        if known is None or known[0] != manifest.version:
            stored = decode_or_read_set(self._store, key, self._mirror)
            self._decoded[job] = (manifest.version, stored.chunked.items)
            self._record_damage(job, stored.damage)

    def _record_damage(self, job: str, damage: str) -> None:
        with self._mutex:
            self._damage.pop(job, None)
            if damage:
                self._damage[job] = damage
