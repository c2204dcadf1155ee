"""A task is cancelled at each of its awaits, one after the other; whatever it was about is had by nobody afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from latchwork import aio
from latchwork.primitives.queue.items import get_holder_id
from latchwork.store.driving.loop import CoroutineRunner

PATIENCE_S = 30.0


class Cancelling:
    """Cancels the current task when the calls of ours in it are about to wait for the n-th time."""

    def __init__(self, at):
        self.at = at
        self.count = 0
        self.task = None

    async def run(self, play):
        self.task = asyncio.create_task(play)
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        return self.count >= self.at

    def waits(self):
        if asyncio.current_task() is self.task:
            self.count += 1
            if self.count == self.at:
                self.task.cancel()


async def lock(store, name):
    async with aio.Lock(store, name):
        pass


async def waiting_lock(store, name):
    mine = aio.Lock(store, name, label="first")
    await mine.acquire()
    other = asyncio.create_task(lock(store, name))
    try:
        while not await mine.waiters():
            await asyncio.sleep(0.005)
        await mine.release()
        await other
    finally:
        other.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await other
        await mine.close()


async def semaphore(store, name):
    async with aio.Semaphore(store, name, leases=1):
        pass


async def read(store, name):
    async with aio.ReadWriteLock(store, name).read:
        pass


async def downgrade(store, name):
    both = aio.ReadWriteLock(store, name)
    async with both.write:
        await both.downgrade()


async def election(store, name):
    async with await aio.Election(store, name, node_id="n1").campaign(b"here", timeout_s=20.0):
        pass


async def latch(store, name):
    async with aio.LeaderLatch(store, name, node_id="n1") as leader:
        await leader.wait(20.0)


async def persistent(store, name):
    async with aio.PersistentLock(store, name, ttl_s=20.0):
        pass


async def once(store, name):
    async def work(_work):
        await asyncio.sleep(0)
        return b"done"

    await aio.Once(store, name).run(work)


async def take(store, name):
    queue = aio.Queue(store, name)
    await queue.put(b"item")
    async with await queue.take(20.0) as claim:
        assert claim.value == b"item"


async def backlog_told(store, name):
    """One waits and is told; then it takes that."""
    backlog = aio.WorkQueue(store, name)
    waiting = asyncio.create_task(backlog.wait_items("any", 20.0))
    try:
        while not await backlog.waiting_consumers("any"):
            await asyncio.sleep(0.005)
        await backlog.put("any", "s", "1", b"item")
        for claim in await backlog.take_items(await waiting or await backlog.items("any")):
            async with claim:
                pass
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        backlog.close()


async def barrier(store, name):
    await aio.Barrier(store, name, parties=1, member_id="m1").wait(20.0)


async def limiter(store, name):
    await aio.RateLimiter(store, name, permits=1000, interval_s=1.0).acquire()


async def group(store, name):
    async with aio.Group(store, name, member_id="m1") as members:
        await members.wait(20.0)


PLAYS = (
    lock,
    waiting_lock,
    semaphore,
    read,
    downgrade,
    election,
    latch,
    persistent,
    once,
    take,
    backlog_told,
    barrier,
    limiter,
    group,
)


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_a_call_that_is_cancelled_at_any_await_leaves_nothing_behind(store, backend_url, monkeypatch, play):
    cancelling = Cancelling(0)
    interruptible = CoroutineRunner._wait_or_cancel

    async def counted(self, waiter):
        cancelling.waits()
        return await interruptible(self, waiter)

    monkeypatch.setattr(CoroutineRunner, "_wait_or_cancel", counted)

    async def all_of_them():
        nonlocal cancelling
        async with aio.connect(backend_url, session_ttl_s=20.0) as mine:
            await mine.session
            for at in range(1, 100):
                cancelling = Cancelling(at)
                name = f"{play.__name__}-{at}"
                was_cancelled = await cancelling.run(play(mine, name))
                await asyncio.to_thread(nothing_left, store, name)
                if not was_cancelled:
                    return at
        raise AssertionError

    assert asyncio.run(all_of_them()) > 1


def is_idle_holder(key, named):
    """Whether this is a taker of a queue without claims, which its next take uses."""
    return "/holders/" in key and key.rpartition("/")[2] not in named


def nothing_left(store, name):
    """No key of a session, nobody holds or waits: at once, or in a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = store.list(name, recursive=True)
        named = {get_holder_id(entry) for entry in found if "/items/" in entry.key}
        bound = [entry.key for entry in found if entry.owner is not None and not is_idle_holder(entry.key, named)]
        lock = store.get(f"@locks/locks/{name}")
        if not bound and (lock is None or b'"owner":null' in lock.value):
            return
        assert time.monotonic() < deadline, f"left behind: {bound} {lock}"
        time.sleep(0.01)


@pytest.mark.parametrize("last_call", ["enter", "leave"])
def test_a_round_of_a_double_barrier_whose_members_were_cancelled_ends(backend_url, last_call):
    async def enter_after_others():
        async with aio.connect(backend_url) as store:
            members = [aio.DoubleBarrier(store, "rounds", parties=2, member_id=name) for name in "abcd"]
            if last_call == "leave":
                await asyncio.gather(*(member.enter() for member in members[:2]))
            calls = [asyncio.create_task(getattr(members[0], last_call)())]
            while await members[0].members() != (["a"] if last_call == "enter" else ["b"]):
                await asyncio.sleep(0.005)
            calls[0].cancel()
            await asyncio.wait(calls)
            while await members[2].round() == 0:
                await asyncio.sleep(0.005)
            return await asyncio.gather(*(member.enter(PATIENCE_S) for member in members[2:]))

    assert asyncio.run(asyncio.wait_for(enter_after_others(), PATIENCE_S)) == [1, 1]
