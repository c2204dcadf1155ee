"""A process of the cluster bench with many workers. They register and read their assigned items as real workers do, but
run no jobs.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from latchwork.jobs.node import Registration
from latchwork.jobs.stored import AssignmentCache, MemberOptions, NodeRecord, cluster_store
from latchwork.jobs.worker import ItemLocks, LockBatches, LockScheduler
from latchwork.store import connect
from latchwork_testkit.cluster_bench.model import (
    AcquireLocks,
    BenchOptions,
    EndWorker,
    ItemsHeld,
    LocksHeld,
    Progress,
    Ready,
    ReleaseLocks,
    compute_checksum,
)

if TYPE_CHECKING:
    from latchwork.store import Session, Store
    from latchwork_testkit.cluster_bench.processes import BenchConnection

_REGISTER_THREADS = 8
_LOCK_THREADS = 4
_REPORT_EVERY_S = 0.01
SESSION_TTL_S = 30.0
#: The default of a job node.
LOCK_TTL_S = 10.0


class BenchWorkers:
    """The workers of one process. Thread-safe.

    Args:
        store: Store of the cluster.
        options: Size of the cluster.
        workers: IDs of the workers.
    """

    def __init__(self, store: Store, options: BenchOptions, workers: list[str]) -> None:
        self._store = store
        self._job_ids = options.job_ids()
        self._workers = workers
        self._dying_workers = set(options.dying_workers())
        self._locking_workers = set(options.locking_workers())
        self._item_locks: list[ItemLocks] = []
        self._sessions: dict[str, Session] = {}
        self._assignments: dict[str, _WatchedAssignment] = {}
        self._changed = threading.Event()
        self._mutex = threading.Lock()
        self._decoded_at, self._decoded_assignments = 0.0, 0

    def register(self, connection: BenchConnection) -> None:
        """Register all workers with a few threads, and report the progress.

        Args:
            connection: Connection to the process that runs the benchmark.
        Raises:
            RuntimeError: Another process has registered a worker of this name.
        """
        shared = self._store.open_session(SESSION_TTL_S)
        own = {
            worker: self._store.open_session(SESSION_TTL_S) for worker in self._workers if worker in self._dying_workers
        }
        self._sessions = own
        with ThreadPoolExecutor(_REGISTER_THREADS, thread_name_prefix="bench-register") as pool:
            work = [(worker, own.get(worker, shared)) for worker in self._workers]
            for done, _ in enumerate(pool.map(lambda each: self._register(*each), work), 1):
                if done % 50 == 0:
                    connection.send(Progress(done))

    def watch_assignments(self) -> None:
        """Watch the items that are assigned to each worker."""
        for worker in self._workers:
            assignment = self._assignments[worker] = _WatchedAssignment()
            assignment.stored = AssignmentCache(self._store, worker, partial(self._apply_change, assignment))
            assignment.stored.wait_ready()
            self._apply_change(assignment)

    def acquire_locks(self) -> int:
        """Acquire the locks of all items of some workers, which the options choose. Each of them has its own lock
        owner.

        Returns:
            The number of locks that are now held.
        Raises:
            RuntimeError: A worker did not get all of its locks.
        """
        workers = [worker for worker in self._workers if worker in self._locking_workers]
        with ThreadPoolExecutor(_LOCK_THREADS, thread_name_prefix="bench-lock") as pool:
            return sum(pool.map(self._acquire_locks_of, workers))

    def release_locks(self) -> None:
        """Release all locks that `acquire_locks` acquired."""
        with ThreadPoolExecutor(_LOCK_THREADS, thread_name_prefix="bench-lock") as pool:
            releases = [pool.submit(locks.close, release=True) for locks in self._item_locks]
        self._item_locks.clear()
        for release in releases:
            release.result()

    def end_worker(self, worker: str) -> None:
        """End a worker and its session. Its items have no owner until the manager assigns them to other workers."""
        assignment = self._assignments.pop(worker)
        assert assignment.stored is not None
        assignment.stored.close()
        self._sessions.pop(worker).close()
        self._changed.set()

    def wait_for_change(self, timeout_s: float) -> ItemsHeld | None:
        """Wait until the assignment of a worker changes, and return the number of items of all workers together.

        Args:
            timeout_s: Seconds to wait.
        Returns:
            The items, or None if nothing changed in this time.
        """
        if not self._changed.wait(timeout_s):
            return None
        self._changed.clear()
        with self._mutex:
            assignments = list(self._assignments.values())
            items, total = (
                sum(assignment.items for assignment in assignments),
                sum(assignment.checksum for assignment in assignments),
            )
            return ItemsHeld(self._decoded_at, items, total, self._decoded_assignments)

    def _register(self, worker: str, session: Session) -> None:
        member = NodeRecord.of_this_process(
            MemberOptions(worker, session.ttl_s), since=time.time(), ttl_s=session.ttl_s
        )
        registration = Registration(self._store, session, member, self._job_ids)
        if registration.try_join() is not None:
            raise RuntimeError(f"worker {worker} is already registered; give the bench a root that nothing else uses")
        registration.store_available_jobs()
        registration.mark_ready()

    def _acquire_locks_of(self, worker: str) -> int:
        locks = ItemLocks(self._store, worker, LOCK_TTL_S, lambda: None)
        self._item_locks.append(locks)
        locks.start()
        wanted = self._assignments[worker].items_by_job()
        works = [LockBatches(locks, job, (), items) for job, items in wanted.items()]
        LockScheduler().process_batches(works, lambda _: True)
        held = sum(map(len, locks.get_held_locks().values()))
        if held != sum(map(len, wanted.values())):
            raise RuntimeError(f"worker {worker} got {held} of its {sum(map(len, wanted.values()))} locks")
        return held

    def _apply_change(self, assignment: _WatchedAssignment) -> None:
        if assignment.stored is None:  # called before `watch_assignments` set it, which then applies the change itself
            return
        with assignment.mutex:
            changed = assignment.refresh(self._job_ids)
        if changed:
            with self._mutex:
                self._decoded_assignments += changed
                self._decoded_at = max(self._decoded_at, time.monotonic())
            self._changed.set()


class _WatchedAssignment:
    """The items assigned to one worker, as last decoded. Hold `mutex` to update them."""

    def __init__(self) -> None:
        self.stored: AssignmentCache | None = None
        self.mutex = threading.Lock()
        self.items = 0
        self.checksum = 0
        self._known: dict[str, tuple[tuple[str, ...], int]] = {}  # items of each job, and their checksum

    def items_by_job(self) -> dict[str, tuple[str, ...]]:
        """Return the items that are assigned to the worker, by job."""
        with self.mutex:
            return {job: items for job, (items, _) in self._known.items()}

    def refresh(self, jobs: list[str]) -> int:
        """Decode the stored assignment of this worker, and update the items, their number and their checksum.

        Args:
            jobs: IDs of the jobs.
        Returns:
            The number of jobs whose items changed.
        """
        assert self.stored is not None
        current = self.stored.read_items(jobs)
        changed = [job for job, items in current.items() if self._known.get(job, (None, 0))[0] is not items]
        removed = [job for job in self._known if job not in current]
        for job in (*changed, *removed):
            items, items_checksum = self._known.pop(job, ((), 0))
            self.items -= len(items)
            self.checksum -= items_checksum
        for job in changed:
            items_checksum = compute_checksum(current[job])
            self._known[job] = (current[job], items_checksum)
            self.items += len(current[job])
            self.checksum += items_checksum
        return len(changed) + len(removed)


def run_workers(connection: BenchConnection, options: BenchOptions, namespace: str, workers: list[str]) -> None:
    """Run workers in this process, and execute commands until the connection closes.

    Sends `Ready` after the registration and after each command, and `ItemsHeld` when the items of the workers change.

    Args:
        connection: Connection to the process that runs the benchmark.
        options: Size of the cluster and URL of the store.
        namespace: Namespace of the keys of the cluster.
        workers: IDs of the workers of this process.
    """
    with connect(options.url) as root:
        bench_workers = BenchWorkers(cluster_store(root, namespace), options, workers)
        bench_workers.register(connection)
        bench_workers.watch_assignments()
        connection.send(Ready(time.monotonic()))
        while True:
            if connection.poll(_REPORT_EVERY_S):
                command = connection.recv()
                if command is None:
                    return
                _execute_command(bench_workers, command, connection)
                connection.send(Ready(time.monotonic()))
            changed = bench_workers.wait_for_change(0.0)
            if changed is not None:
                connection.send(changed)


def _execute_command(
    bench_workers: BenchWorkers, command: EndWorker | AcquireLocks | ReleaseLocks, connection: BenchConnection
) -> None:
    if isinstance(command, AcquireLocks):
        connection.send(LocksHeld(bench_workers.acquire_locks()))
    elif isinstance(command, ReleaseLocks):
        bench_workers.release_locks()
    else:
        bench_workers.end_worker(command.worker)
        connection.send(bench_workers.wait_for_change(0.0))
