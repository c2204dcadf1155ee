"""The load of a soak: names that are used once, nodes and submitters that come and go, calls that are cancelled.

Whoever uses a name removes what the reference says stays of it, so nothing may pile up: not in the store, not here.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Self

import latchwork
from latchwork import Create, Store, WaitTimeout, aio, forget
from latchwork.executor import Executor, ExecutorWorker
from latchwork.jobs import Cron, FixedDelay, Job, JobManager, inspect
from latchwork.jobs.stored import cluster_store
from latchwork.plans import Plans, PlanWorker
from latchwork.primitives import (
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    Group,
    LeaderLatch,
    Lock,
    Once,
    PersistentLock,
    Queue,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    Sequence,
    WorkQueue,
    forget_free_locks,
)
from latchwork.tasks import Functions
from latchwork.worker_group import GroupWorker, submit, sweep

WAIT_S = 60.0
TTL_S = 10.0
WORK = Functions()


@WORK.task(name="soak.add")
def add(one: int, other: int) -> int:
    return one + other


@WORK.task(name="soak.fail")
def fail(number: int) -> None:
    raise ValueError(str(number))


@WORK.task(name="soak.big")
def big(size: int) -> bytes:
    return bytes(size)


def locks(store: Store, name: str) -> None:
    with Lock(store, f"{name}/lock"), contextlib.suppress(WaitTimeout):
        Lock(store, f"{name}/lock").acquire(timeout_s=0.02)
    both = ReadWriteLock(store, f"{name}/both")
    with both.read:
        pass
    with both.write:
        pass
    with Semaphore(store, f"{name}/semaphore", leases=2):
        pass
    forget(store, f"{name}/semaphore")
    with PersistentLock(store, f"{name}-persistent", ttl_s=TTL_S):
        pass
    forget(store, f"{name}-persistent")


def leaders(store: Store, name: str) -> None:
    election = Election(store, f"{name}/election", node_id="n1")
    with election.campaign(b"v", timeout_s=WAIT_S) as term:
        term.proclaim(b"w")
    with LeaderLatch(store, f"{name}/latch", node_id="n1") as latch:
        latch.wait(timeout_s=WAIT_S)


def numbers(store: Store, name: str) -> None:
    Counter(store, f"{name}/counter").add(2)
    Sequence(store, f"{name}/sequence").take(lambda number: [Create(f"{name}/record-{number}", b"x")])
    store.delete(f"{name}/record-1")
    store.delete(f"{name}/record-0")
    with RateLimiter(store, f"{name}/rate", permits=100, interval_s=0.5) as limiter:
        limiter.acquire(timeout_s=WAIT_S)
    Once(store, f"{name}/once").run(lambda _work: b"done", timeout_s=WAIT_S)
    for each in ("counter", "sequence", "rate", "once"):
        forget(store, f"{name}/{each}")


def meetings(store: Store, name: str) -> None:
    barrier = Barrier(store, f"{name}/barrier", parties=1, member_id="n1")
    barrier.wait(timeout_s=WAIT_S)
    barrier.close()
    with DoubleBarrier(store, f"{name}/double", parties=1, member_id="n1", timeout_s=WAIT_S):
        pass
    with Group(store, f"{name}/group", member_id="n1") as group:
        group.wait(timeout_s=WAIT_S)
    for each in ("barrier", "double", "group"):
        forget(store, f"{name}/{each}")
    submit(store, name, 1, keep_ended_s=0.0)
    with GroupWorker(store, name, key="n1") as worker:
        worker.run(lambda _worker: None)
    sweep(store)


def queues(store: Store, name: str) -> None:
    session = store.open_session(TTL_S)  # a taker leaves a key until its session ends
    queue = Queue(store, f"{name}/queue", session=session)
    for value in (b"x", b"y" * 6000):
        queue.put(value)
        with queue.take(timeout_s=WAIT_S):
            pass
    queue.close()
    work = WorkQueue(store, f"{name}/work", session=session)
    work.put("any", "s1", "i1", b"z" * 5000)
    for claim in work.try_take(["any"]):
        with claim:
            pass
    work.close()
    session.close()
    for each in ("queue", "work"):
        forget(store, f"{name}/{each}")


def keys(store: Store, name: str) -> None:
    session = store.open_session(TTL_S)
    store.put(f"{name}/bound", b"", session=session)
    session.close()
    with store.watch(name) as watch, store.mirror(name) as mirror:
        watch.next(timeout_s=WAIT_S)
        store.put(f"{name}/a/b", b"x")
        mirror.wait_until(lambda state: f"{name}/a/b" in state, WAIT_S)
    store.delete(store.create("soak-sequential/t", b"", sequential=True).key)  # a number stays for each parent
    store.delete_tree(name)


PRIMITIVES = (locks, leaders, numbers, meetings, queues, keys)


class Churn:
    """Threads that use one store until ``end``; ``counts`` has what each did and ``errors`` what went wrong."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.counts: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []
        self._ending = threading.Event()
        self._random = random.Random(5)
        self._threads = [
            threading.Thread(target=self._repeat, args=(each, pause_s), name=f"soak-{each.__name__}")
            for each, pause_s in ((self.primitives, 0.05), (self.loops, 0.2), (self.executor, 0.2), (self.jobs, 0.3))
        ]
        self._threads.append(threading.Thread(target=self._repeat, args=(self.opens, 0.2), name="soak-opens"))

    def __enter__(self) -> Self:
        self.store = latchwork.connect(self.url, session_ttl_s=TTL_S)
        steady = [
            Job("steady", work_pool=self._pool, run=lambda _c: None, schedule=FixedDelay(1.0), pool_check_period_s=1.0),
            Job("cron", work_pool=["a", "b"], run=lambda _c: None, schedule=Cron("*/2 * * * * *")),
        ]
        self._stack = contextlib.ExitStack()
        enter = self._stack.enter_context
        enter(self.store)
        enter(ExecutorWorker(self.store, functions=WORK, node_id="r0", slots=2, session_ttl_s=TTL_S))
        enter(PlanWorker(self.store, functions=WORK, slots=2, session_ttl_s=TTL_S))
        self._submitter = enter(Executor(self.store, functions=WORK, session_ttl_s=TTL_S))
        enter(JobManager(self.store, "n0", steady, **self._cluster))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._stack.close()

    def end(self) -> None:
        """Stop the churn, and wait for what is under way. The store and what stays open remain usable."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, call: Callable[[int], None], pause_s: float) -> None:
        number = 0
        while not self._ending.wait(pause_s):
            number += 1
            try:
                call(number)
                self.counts[call.__name__] += 1
            except Exception as error:
                self.errors.append(f"{call.__name__}: {type(error).__name__}: {error}")

    def _pool(self) -> list[str]:
        return [f"item-{int(time.monotonic())}-{number}" for number in range(3)]

    @property
    def _cluster(self) -> dict[str, float]:
        return {
            "session_ttl_s": TTL_S,
            "lock_ttl_s": TTL_S,
            "cleanup_period_s": 5,
            "sweep_period_s": 5,
            "outcome_keep_s": 5,
        }

    def primitives(self, number: int) -> None:
        """A primitive of a name that was never used and never will be again."""
        kind = PRIMITIVES[number % len(PRIMITIVES)]
        kind(self.store, f"soak-{kind.__name__}-{number}")
        self.counts[kind.__name__] += 1

    def loops(self, number: int) -> None:
        """Asyncio twins, cancelled anywhere."""
        asyncio.run(self._twins(number))

    async def _twins(self, number: int) -> None:
        async def cut_off(call: Callable[[], object]) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._random.choice([0.002, 0.01, 0.05, 5.0])):
                    await call()  # type: ignore[misc]

        async with aio.connect(self.url, session_ttl_s=TTL_S) as store:

            async def lock() -> None:
                async with aio.Lock(store, f"soak-twin-{number}"):
                    await asyncio.sleep(0.01)

            async def latch() -> None:
                async with aio.LeaderLatch(store, f"soak-twin-latch-{number}", node_id="n") as mine:
                    await mine.wait(timeout_s=WAIT_S)

            async def semaphore() -> None:
                async with aio.Semaphore(store, "soak-twin-semaphore", leases=2):
                    await asyncio.sleep(0.01)

            await asyncio.gather(*(cut_off(call) for call in (lock, latch, semaphore) for _ in range(2)))

    def executor(self, number: int) -> None:
        """Tasks, detached ones and plans; workers and submitters that come and go."""
        pool = self._submitter
        some = [pool.submit(add, number, other) for other in range(10)]
        bad, large = pool.submit(fail, number), pool.submit(big, 1_500_000 if number % 5 == 0 else 20_000)
        pool.submit(add, 0, 0).cancel()
        for future in [*some, large]:
            future.result(timeout=WAIT_S)
        bad.exception(timeout=WAIT_S)
        detached = pool.detached(add, number, 1, id=f"d{number}")
        detached.result(timeout_s=WAIT_S)
        detached.forget()
        with Plans(self.store, functions=WORK).new(f"p{number}") as plan:
            added = [plan.add(add, number, other) for other in range(3)]
            plan.add(add, added[0], added[1])
        plan.handle.wait(timeout_s=WAIT_S)
        plan.handle.remove()
        if number % 3 == 0:
            with (
                ExecutorWorker(self.store, functions=WORK, node_id=f"r{number}", session_ttl_s=TTL_S),
                Executor(self.store, functions=WORK, session_ttl_s=TTL_S) as other_pool,
            ):
                other_pool.submit(add, 1, 2).result(timeout=WAIT_S)

    def jobs(self, number: int) -> None:
        """A node with a job of its own joins, works and leaves."""
        job = Job(
            f"j{number}", work_pool=["a", "b"], run=lambda _c: None, schedule=FixedDelay(0.2), initial_delay_s=0.0
        )
        with JobManager(self.url, f"in-{number}", job, **self._cluster):
            self._ending.wait(0.5)
            inspect(self.store)
        forget_free_locks(cluster_store(self.store))  # a node does so ten minutes later

    def opens(self, _number: int) -> None:
        """A store is opened and closed with all that hangs on it."""
        with latchwork.connect(self.url, session_ttl_s=TTL_S) as store:
            store.put("soak-open", b"", session=store.session)
            store.open_session(TTL_S)
            store.watch("soak-open")
            store.mirror("soak-open")
