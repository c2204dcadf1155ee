"""A process with many workers: registered as real ones, following and decoding their shares as real ones; no runs."""

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
    from latchwork_testkit.cluster_bench.line import Line

_REGISTERING = 8
_LOCKING = 4
_TELL_EVERY_S = 0.01
SESSION_TTL_S = 30.0
#: As a node has it by default.
LOCK_TTL_S = 10.0


class Crew:
    """The workers of one process. Safe to share between the threads of callbacks."""

    def __init__(self, store: Store, options: BenchOptions, workers: list[str]) -> None:
        self._store = store
        self._jobs = options.job_ids()
        self._workers = workers
        self._mortal = set(options.mortal())
        self._lockers = set(options.lockers())
        self._locks: list[ItemLocks] = []
        self._sessions: dict[str, Session] = {}
        self._shares: dict[str, _Share] = {}
        self._changed = threading.Event()
        self._mutex = threading.Lock()
        self._at, self._decoded = 0.0, 0

    def register(self, tell: Line) -> None:
        """Register all of them, some at a time."""
        shared = self._store.open_session(SESSION_TTL_S)
        own = {worker: self._store.open_session(SESSION_TTL_S) for worker in self._workers if worker in self._mortal}
        self._sessions = own
        with ThreadPoolExecutor(_REGISTERING, thread_name_prefix="bench-register") as pool:
            work = [(worker, own.get(worker, shared)) for worker in self._workers]
            for done, _ in enumerate(pool.map(lambda each: self._register(*each), work), 1):
                if done % 50 == 0:
                    tell.send(Progress(done))

    def follow(self) -> None:
        """Follow the shares of all of them."""
        for worker in self._workers:
            share = self._shares[worker] = _Share()
            share.source = WorkerShares(self._store, worker, partial(self._look, share))
            self._look(share)

    def lock(self) -> int:
        """Have some workers take the locks of all their items, each under an owner of its own; return how many."""
        mine = [worker for worker in self._workers if worker in self._lockers]
        with ThreadPoolExecutor(_LOCKING, thread_name_prefix="bench-lock") as pool:
            return sum(pool.map(self._lock_all, mine))

    def unlock(self) -> None:
        """Give the locks back."""
        with ThreadPoolExecutor(_LOCKING, thread_name_prefix="bench-lock") as pool:
            done = [pool.submit(locks.close, release=True) for locks in self._locks]
        self._locks.clear()
        for each in done:
            each.result()

    def die(self, worker: str) -> None:
        """End one; its share is nobody's from now on."""
        share = self._shares.pop(worker)
        assert share.source is not None
        share.source.close()
        self._sessions.pop(worker).close()
        self._changed.set()

    def wait(self, timeout_s: float) -> Holdings | None:
        """The items of all of them once they have changed; None when they did not in this time."""
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
        wanted = self._shares[worker].now()
        works = [LockWork(locks, job, (), items) for job, items in wanted.items()]
        LockScheduler().acquire(works, lambda _: True)
        held = sum(map(len, locks.held().values()))
        if held != sum(map(len, wanted.values())):
            raise RuntimeError(f"worker {worker} got {held} of its {sum(map(len, wanted.values()))} locks")
        return held

    def _look(self, share: _Share) -> None:
        if share.source is None:  # told before it was set: it is looked at once it is
            return
        with share.mutex:
            news = share.look(self._jobs)
        if news:
            with self._mutex:
                self._decoded += news
                self._at = max(self._at, time.monotonic())
            self._changed.set()


class _Share:
    """The items of one worker; ``mutex`` is held while it is looked at."""

    def __init__(self) -> None:
        self.source: WorkerShares | None = None
        self.mutex = threading.Lock()
        self.items = 0
        self.digest = 0
        self._seen: dict[str, tuple[tuple[str, ...], int]] = {}

    def now(self) -> dict[str, tuple[str, ...]]:
        """Job to items."""
        with self.mutex:
            return {job: items for job, (items, _) in self._seen.items()}

    def look(self, jobs: list[str]) -> int:
        """Take in what changed; of how many jobs."""
        assert self.source is not None
        now = self.source.of(jobs)
        news = [job for job, items in now.items() if self._seen.get(job, (None, 0))[0] is not items]
        gone = [job for job in self._seen if job not in now]
        for job in (*news, *gone):
            before, added = self._seen.pop(job, ((), 0))
            self.items -= len(before)
            self.digest -= added
        for job in news:
            added = digest(now[job])
            self._seen[job] = (now[job], added)
            self.items += len(now[job])
            self.digest += added
        return len(news) + len(gone)


def run(tell: Line, options: BenchOptions, namespace: str, workers: list[str]) -> None:
    """The process: registers, then follows, and does as it is told until it is told to end."""
    with connect(options.url) as root:
        crew = Crew(cluster_store(root, namespace), options, workers)
        crew.register(tell)
        crew.follow()
        tell.send(Ready(time.monotonic()))
        while True:
            if tell.poll(_TELL_EVERY_S):
                order = tell.recv()
                if order is None:
                    return
                _do(crew, order, tell)
                tell.send(Ready(time.monotonic()))
            news = crew.wait(0.0)
            if news is not None:
                tell.send(news)


def _do(crew: Crew, order: Die | Lock | Unlock, tell: Line) -> None:
    if isinstance(order, Lock):
        tell.send(Locked(crew.lock()))
    elif isinstance(order, Unlock):
        crew.unlock()
    else:
        crew.die(order.worker)
        tell.send(crew.wait(0.0))
