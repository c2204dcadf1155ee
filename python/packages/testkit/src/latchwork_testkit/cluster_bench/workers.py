"""The bench process with many workers, which register, watch and decode their shares as real workers do, and run
nothing.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from latchwork.jobs.node import Registration
from latchwork.jobs.stored import Member, MemberOptions, WorkerShares, cluster_store
from latchwork.jobs.worker import ItemLocks, LockScheduler, LockWork
from latchwork.store import connect
from latchwork_testkit.cluster_bench.model import (
    BenchOptions,
    Die,
    Holdings,
    Lock,
    Locked,
    Progress,
    Ready,
    Unlock,
    digest,
)

if TYPE_CHECKING:
    from latchwork.store import Session, Store
    from latchwork_testkit.cluster_bench.processes import BenchConnection

_REGISTERING = 8
_LOCKING = 4
_REPORT_EVERY_S = 0.01
SESSION_TTL_S = 30.0
#: As a node has it by default.
LOCK_TTL_S = 10.0


class BenchWorkers:
    """The workers of one process. Thread-safe."""

    def __init__(self, store: Store, options: BenchOptions, workers: list[str]) -> None:
        self._store = store
        self._jobs = options.job_ids()
        self._workers = workers
        self._dying = set(options.dying_workers())
        self._locking = set(options.locking_workers())
        self._locks: list[ItemLocks] = []
        self._sessions: dict[str, Session] = {}
        self._shares: dict[str, _Share] = {}
        self._changed = threading.Event()
        self._mutex = threading.Lock()
        self._at, self._decoded = 0.0, 0

    def register(self, connection: BenchConnection) -> None:
        """Register all workers, several at a time."""
        shared = self._store.open_session(SESSION_TTL_S)
        own = {worker: self._store.open_session(SESSION_TTL_S) for worker in self._workers if worker in self._dying}
        self._sessions = own
        with ThreadPoolExecutor(_REGISTERING, thread_name_prefix="bench-register") as pool:
            work = [(worker, own.get(worker, shared)) for worker in self._workers]
            for done, _ in enumerate(pool.map(lambda each: self._register(*each), work), 1):
                if done % 50 == 0:
                    connection.send(Progress(done))

    def follow(self) -> None:
        """Watch the shares of all workers."""
        for worker in self._workers:
            share = self._shares[worker] = _Share()
            share.source = WorkerShares(self._store, worker, partial(self._update, share))
            self._update(share)

    def lock(self) -> int:
        """Let some workers acquire the locks of all their items, each with its own lock owner. Return the number of
        locks.
        """
        mine = [worker for worker in self._workers if worker in self._locking]
        with ThreadPoolExecutor(_LOCKING, thread_name_prefix="bench-lock") as pool:
            return sum(pool.map(self._lock_all, mine))

    def unlock(self) -> None:
        """Release the locks."""
        with ThreadPoolExecutor(_LOCKING, thread_name_prefix="bench-lock") as pool:
            done = [pool.submit(locks.close, release=True) for locks in self._locks]
        self._locks.clear()
        for each in done:
            each.result()

    def die(self, worker: str) -> None:
        """End a worker. Its items have no owner until the manager reassigns them."""
        share = self._shares.pop(worker)
        assert share.source is not None
        share.source.close()
        self._sessions.pop(worker).close()
        self._changed.set()

    def wait(self, timeout_s: float) -> Holdings | None:
        """Wait until the items have changed, and return them; None after the timeout."""
        if not self._changed.wait(timeout_s):
            return None
        self._changed.clear()
        with self._mutex:
            shares = list(self._shares.values())
            items, total = sum(share.items for share in shares), sum(share.digest for share in shares)
            return Holdings(self._at, items, total, self._decoded)

    def _register(self, worker: str, session: Session) -> None:
        member = Member.of_this_process(MemberOptions(worker, session.ttl_s), since=time.time(), ttl_s=session.ttl_s)
        registration = Registration(self._store, session, member)
        if registration.try_join() is not None:
            raise RuntimeError(f"worker {worker} is there already; the bench needs a root of its own")
        registration.register_jobs(self._jobs)
        registration.become_ready()

    def _lock_all(self, worker: str) -> int:
        locks = ItemLocks(self._store, worker, LOCK_TTL_S, lambda: None)
        self._locks.append(locks)
        locks.start()
        wanted = self._shares[worker].items_by_job()
        works = [LockWork(locks, job, (), items) for job, items in wanted.items()]
        LockScheduler().acquire(works, lambda _: True)
        held = sum(map(len, locks.held().values()))
        if held != sum(map(len, wanted.values())):
            raise RuntimeError(f"worker {worker} got {held} of its {sum(map(len, wanted.values()))} locks")
        return held

    def _update(self, share: _Share) -> None:
        if share.source is None:  # told before it was set: it is looked at once it is
            return
        with share.mutex:
            changed = share.update(self._jobs)
        if changed:
            with self._mutex:
                self._decoded += changed
                self._at = max(self._at, time.monotonic())
            self._changed.set()


class _Share:
    """The items of one worker. ``mutex`` is held while they are updated."""

    def __init__(self) -> None:
        self.source: WorkerShares | None = None
        self.mutex = threading.Lock()
        self.items = 0
        self.digest = 0
        self._seen: dict[str, tuple[tuple[str, ...], int]] = {}

    def items_by_job(self) -> dict[str, tuple[str, ...]]:
        """Return the items by job."""
        with self.mutex:
            return {job: items for job, (items, _) in self._seen.items()}

    def update(self, jobs: list[str]) -> int:
        """Apply the changes of the stored share, and return the number of changed jobs."""
        assert self.source is not None
        now = self.source.of(jobs)
        changed = [job for job, items in now.items() if self._seen.get(job, (None, 0))[0] is not items]
        gone = [job for job in self._seen if job not in now]
        for job in (*changed, *gone):
            before, added = self._seen.pop(job, ((), 0))
            self.items -= len(before)
            self.digest -= added
        for job in changed:
            added = digest(now[job])
            self._seen[job] = (now[job], added)
            self.items += len(now[job])
            self.digest += added
        return len(changed) + len(gone)


def run(connection: BenchConnection, options: BenchOptions, namespace: str, workers: list[str]) -> None:
    """Run the process: register the workers, watch their shares, and execute commands until the bench ends."""
    with connect(options.url) as root:
        bench_workers = BenchWorkers(cluster_store(root, namespace), options, workers)
        bench_workers.register(connection)
        bench_workers.follow()
        connection.send(Ready(time.monotonic()))
        while True:
            if connection.poll(_REPORT_EVERY_S):
                command = connection.recv()
                if command is None:
                    return
                _execute(bench_workers, command, connection)
                connection.send(Ready(time.monotonic()))
            changed = bench_workers.wait(0.0)
            if changed is not None:
                connection.send(changed)


def _execute(bench_workers: BenchWorkers, command: Die | Lock | Unlock, connection: BenchConnection) -> None:
    if isinstance(command, Lock):
        connection.send(Locked(bench_workers.lock()))
    elif isinstance(command, Unlock):
        bench_workers.unlock()
    else:
        bench_workers.die(command.worker)
        connection.send(bench_workers.wait(0.0))
