"""The stored assignments of items to workers, with a copy of what the leader has read and written. No other module
writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Generic, TypeVar

from latchwork._base.decoding import encode
from latchwork.jobs.manager.rebalance import AssignmentChange, order_changes
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.chunked_set import (
    EMPTY,
    MAX_BYTES,
    MAX_OPS,
    BadManifest,
    ChunkedSet,
    ChunkNamer,
    MissingChunk,
    SetUpdate,
    commit_all,
    decode_set_entries,
    delete_chunks,
    estimate_op_bytes,
    find_orphaned_chunks,
    plan_update,
    split_into_batches,
    write_chunks,
)
from latchwork.store import Store
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Fence, Op, Put

log = logging.getLogger(__name__)

#: Number of assignments that are written together; they are in memory twice meanwhile.
_SLICE = 2_000
#: Number of workers whose keys are read together.
_LOADING = 16


@dataclass(frozen=True, slots=True)
class _StoredAssignment:
    """The stored items of one worker and job, with the version of their manifest. For a small set, only the items are
    kept in memory.
    """

    version: Hashable | None = None
    content: tuple[str, ...] | ChunkedSet = ()

    @classmethod
    def from_set(cls, version: Hashable, chunked: ChunkedSet) -> _StoredAssignment:
        """Create a stored assignment from a decoded set of items and the version of its manifest."""
        return cls(version, chunked if chunked.chunks else chunked.inline)

    @property
    def chunked(self) -> ChunkedSet:
        """The items in their stored form, as a set that may be split into chunks."""
        return ChunkedSet(inline=self.content) if isinstance(self.content, tuple) else self.content

    @property
    def items(self) -> tuple[str, ...]:
        """The items of the assignment: sorted, unique."""
        return self.content if isinstance(self.content, tuple) else self.content.items

    def unchanged_checks(self, key: str) -> list[Check]:
        """Return the transaction checks that the manifest at ``key`` is unchanged since the assignment was read. A
        manifest that did not exist needs none, because it is created.
        """
        return [] if self.version is None else [At.of(key, self.version)]

    def write_op(self, key: str, new_set: ChunkedSet) -> Op:
        """Return the operation that turns the manifest at ``key`` into that of another set.

        A new manifest is created rather than put: etcd then needs one comparison instead of two, and no read.
        """
        if not len(new_set):
            return Delete(key)
        value = new_set.encode_manifest()
        return Create(key, value) if self.version is None else Put(key, value)


_ManifestChange = tuple[str, str, _StoredAssignment, SetUpdate]
_Stored = TypeVar("_Stored")
_Shown = TypeVar("_Shown")


class _ConvertedMapping(Mapping[str, _Shown], Generic[_Stored, _Shown]):
    """A read-only view of another mapping, which converts each value when it is read."""

    def __init__(self, kept: Mapping[str, _Stored], show: Callable[[_Stored], _Shown]) -> None:
        self._kept = kept
        self._show = show

    def __getitem__(self, key: str) -> _Shown:
        return self._show(self._kept[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class AssignmentStore:
    """Reads and writes the stored assignments: which items of each job each worker should run. Not thread-safe.

    Attributes:
        writes: Number of transactions that wrote manifests, since the object was created.
        written_bytes: Bytes of keys and values written since then.
    """

    def __init__(self, store: Store, tag: str, note: Mapping[str, object] | None = None) -> None:
        """Create the object. Nothing is read.

        Args:
            store: The cluster's store.
            tag: Unique part of the names of the chunks that this leader writes.
            note: Written into ``versions/assignment`` with each change, for operators and ``latchwork why``.
        """
        self._store = store
        self._note = dict(note or {})
        self._names = ChunkNamer(tag)
        self._assignments: dict[str, dict[str, _StoredAssignment]] = {}  # by job and worker
        self._guard: Entry | None = None
        self._available: dict[str, frozenset[str]] = {}
        self._job_sets: dict[frozenset[str], frozenset[str]] = {}
        self.writes = 0
        self.written_bytes = 0

    def load(self, fence: Fence) -> None:
        """Read the whole assignment, and the jobs that each worker can run. Delete chunks that earlier leaders have
        abandoned.

        Args:
            fence: Fence of the leadership.
        Raises:
            Conflict: The fence no longer holds.
        """
        guard = self._store.get(keys.GUARD_ASSIGNMENT)
        self._assignments, self._available, lost = {}, {}, []
        workers = self._store.children(keys.WORKERS)
        with self._store.pipeline() as pipeline:  # in parts, to limit time and memory
            for begin in range(0, len(workers), _LOADING):
                some = workers[begin : begin + _LOADING]
                parts = [pipeline.list(f"{keys.WORKERS}/{worker}", recursive=True) for worker in some]
                for worker, part in zip(some, parts, strict=True):
                    lost += self._load_entries(worker, part.result())
        self._guard = guard
        if lost:
            log.warning("deleting %d chunks of assignments that no manifest names, first %s", len(lost), lost[0])
            commit_all(self._store, [fence], [Delete(key) for key in lost])

    def _load_entries(self, worker: str, entries: Iterable[Entry]) -> list[str]:
        """Decode everything that is stored about one worker, and remember it.

        Args:
            worker: ID of the worker.
            entries: The entries below the worker's key.
        Returns:
            The keys of abandoned chunks (parts of a set of items that its manifest does not name).
        """
        available = []
        below: dict[str, dict[str, Entry]] = {}
        for entry in entries:
            kind, job = (*entry.key.split("/", 4)[2:4], "", "")[:2]
            if kind == "assigned":
                below.setdefault(job, {})[entry.key] = entry
            elif kind == "available":
                available.append(job)
        if available:
            self._available[worker] = self._intern_job_set(available)
        lost = []
        for job, part in below.items():
            manifest = keys.assignment_key(worker, job)
            lost += find_orphaned_chunks(manifest, part, part.get(manifest), {self._names.tag})
            if manifest in part:
                self._remember_assignment(worker, job, _decode_assignment(manifest, part))
        return lost

    def get_assignments(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Return the stored items by job and worker, including dead workers. Workers without items are left out.

        The returned mapping reflects later writes.
        """
        return _ConvertedMapping(
            self._assignments, lambda kept: _ConvertedMapping(kept, lambda assignment: assignment.items)
        )

    def reuse_strings(self, assignments: Mapping[str, Mapping[str, tuple[str, ...]]]) -> None:
        """Replace remembered item names by the equal string objects of the given assignments, so that each string is in
        memory only once.

        Args:
            assignments: Items by job and worker.
        """
        for job, by_worker in assignments.items():
            kept = self._assignments.get(job, {})
            for worker, items in by_worker.items():
                known = kept.get(worker)
                if known is not None and known.items == items:
                    kept[worker] = _StoredAssignment.from_set(known.version, known.chunked.reuse_strings_of(items))

    def find_stored_workers(self) -> set[str]:
        """Return the IDs of all workers with stored keys, including dead ones."""
        return set(self._available).union(*self._assignments.values())

    def get_runnable_jobs(self, worker: str) -> frozenset[str]:
        """Return the jobs that a worker could run when they were last read."""
        return self._available.get(worker, frozenset())

    def load_runnable_jobs(self, worker: str) -> frozenset[str]:
        """Read from the store which jobs a worker can run, and remember them."""
        names = self._available[worker] = self._intern_job_set(self._store.children(keys.available_job_key(worker)))
        return names

    def _intern_job_set(self, jobs: Iterable[str]) -> frozenset[str]:
        """Return one shared set object for all workers that can run the same jobs, to save memory."""
        names = frozenset(map(intern, jobs))
        return self._job_sets.setdefault(names, names)

    def write(self, changes: Sequence[AssignmentChange], fence: Fence) -> None:
        """Store changes of the assignment, in one transaction if they fit.

        Otherwise the assignments that lose items are stored before those that get some, so that no item has two
        workers.

        Args:
            changes: The changes, relative to the stored assignment.
            fence: Fence of the leadership.
        Raises:
            Conflict: The fence no longer holds, or another client changed the assignment: load it again.
        """
        steps = list(changes) if self._fits_in_transaction(changes) else order_changes(changes)
        for wave in _split_repeated_changes(steps):
            for begin in range(0, len(wave), _SLICE):
                self._write_batch(wave[begin : begin + _SLICE], fence)

    def delete_empty_assignments(self, fence: Fence) -> None:
        """Delete the stored assignments that count as empty: they were damaged when they were read, and get no items.

        Args:
            fence: Fence of the leadership.
        Raises:
            Conflict: As for ``write``.
        """
        found = [
            AssignmentChange(worker, job, (), ())
            for job, by_worker in self._assignments.items()
            for worker, assignment in by_worker.items()
            if not assignment.content
        ]
        self.write(found, fence)

    def delete_worker_jobs(self, worker: str, fence: Fence) -> None:
        """Delete the stored list of the jobs that a dead worker could run.

        Args:
            worker: ID of the worker.
            fence: Fence of the leadership.
        Raises:
            Conflict: The fence no longer holds, or the worker is running again.
        """
        jobs = sorted(self._available.get(worker, ()))
        commit_all(
            self._store,
            [fence, Absent(keys.alive_key(worker))],
            [Delete(keys.available_job_key(worker, job)) for job in jobs],
        )
        self._available.pop(worker, None)

    def _fits_in_transaction(self, changes: Sequence[AssignmentChange]) -> bool:
        size = sum(sum(map(len, change.after)) + 4 * len(change.after) + 200 for change in changes)
        return len(changes) <= MAX_OPS and size <= MAX_BYTES // 2

    def _write_batch(self, wave: Iterable[AssignmentChange], fence: Fence) -> None:
        manifest_changes: list[_ManifestChange] = []
        for change in wave:
            stored = self._assignments.get(change.job, {}).get(change.worker, _StoredAssignment())
            update = plan_update(stored.chunked, change.after, self._names)
            if update is not None or (stored.version is not None and not change.after):
                manifest_changes.append((change.worker, change.job, stored, update or SetUpdate(EMPTY)))
        updates = [(keys.assignment_key(worker, job), update) for worker, job, _, update in manifest_changes]
        self.written_bytes += write_chunks(self._store, updates, [fence])
        ops = [
            stored.write_op(keys.assignment_key(worker, job), update.after)
            for worker, job, stored, update in manifest_changes
        ]
        for part in split_into_batches([estimate_op_bytes(op) for op in ops], MAX_OPS, MAX_BYTES):
            self._commit_manifests(manifest_changes[part], ops[part], fence)
        self.written_bytes += delete_chunks(self._store, updates, [fence])

    def _commit_manifests(self, manifest_changes: Sequence[_ManifestChange], ops: Sequence[Op], fence: Fence) -> None:
        checks: list[Check] = [fence, Absent(keys.GUARD_ASSIGNMENT) if self._guard is None else At(self._guard)]
        for worker, job, stored, _ in manifest_changes:
            checks += stored.unchanged_checks(keys.assignment_key(worker, job))
        note = encode({"leader": fence.token, "manifests": len(manifest_changes), **self._note})
        whole = [Put(keys.GUARD_ASSIGNMENT, note), *ops]
        done = self._store.commit(checks, whole)
        self.written_bytes += sum(map(estimate_op_bytes, whole))
        self._guard, *written = done.entries
        manifests = {entry.key: entry for entry in written}
        self.writes += 1
        for worker, job, _, update in manifest_changes:
            manifest = manifests.get(keys.assignment_key(worker, job))
            self._remember_assignment(
                worker, job, None if manifest is None else _StoredAssignment.from_set(manifest.version, update.after)
            )

    def _remember_assignment(self, worker: str, job: str, kept: _StoredAssignment | None) -> None:
        assignments = self._assignments.setdefault(intern(job), {})
        if kept is not None:
            assignments[intern(worker)] = kept
        elif assignments.pop(worker, None) is not None and not assignments:
            del self._assignments[job]


def _split_repeated_changes(changes: Sequence[AssignmentChange]) -> list[list[AssignmentChange]]:
    """Split changes into batches, in order, so that no batch changes the assignment of a worker and job twice."""
    waves: list[list[AssignmentChange]] = [[]]
    seen: set[tuple[str, str]] = set()
    for step in changes:
        if (step.worker, step.job) in seen:
            waves.append([])
            seen = set()
        seen.add((step.worker, step.job))
        waves[-1].append(step)
    return waves


def _decode_assignment(manifest: str, entries: dict[str, Entry]) -> _StoredAssignment:
    version = entries[manifest].version
    try:
        return _StoredAssignment.from_set(version, decode_set_entries(manifest, entries).chunked)
    except (BadManifest, MissingChunk) as error:
        log.error("assignment at %s is damaged and will be rewritten: %s", manifest, error)  # noqa: TRY400 - no stack needed
        return _StoredAssignment(version)
