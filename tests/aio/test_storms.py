"""Storms of calls that end early at random: no threads pile up, some calls get through, and it is usable after."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from latchwork import aio
from latchwork.errors import BarrierBroken

ROUNDS = 4
WIDTH = 40
#: Calls that have to get through.
ENOUGH = 5
#: Seconds until a call is cancelled, at most. Doubled, up to the longest, until enough have got through: they compete
#: with each other, and how long one takes depends on the machine.
SPAN_S = 0.2
LONGEST_SPAN_S = 30.0
#: What a storm left behind would be in the way for as long as its session, which its store renews.
TTL_S = 30.0
#: Seconds within which the primitive has to be usable after the storm.
USABLE_S = TTL_S / 3


async def lock(store):
    async with aio.Lock(store, "lock"):
        await asyncio.sleep(0.001)


async def timed_lock(store, timeout_s=None):
    mine = aio.Lock(store, "timed")
    await mine.acquire(timeout_s=timeout_s)
    await asyncio.sleep(0.001)
    await mine.release()


async def semaphore(store):
    async with aio.Semaphore(store, "semaphore", leases=2):
        await asyncio.sleep(0.001)


async def read(store):
    async with aio.ReadWriteLock(store, "read").read:
        await asyncio.sleep(0.001)


async def write(store):
    async with aio.ReadWriteLock(store, "write").write:
        await asyncio.sleep(0.001)


async def election(store):
    async with await aio.Election(store, "election", node_id="n1").campaign():
        await asyncio.sleep(0.001)


async def barrier(store):
    waiting = (aio.Barrier(store, "barrier", parties=2, member_id=f"m{random.random()}").wait() for _ in range(2))
    await asyncio.gather(*waiting)


async def double_barrier(store):
    async def work():
        while True:
            try:
                async with aio.DoubleBarrier(store, "rounds", parties=2, member_id=f"m{random.random()}"):
                    return await asyncio.sleep(0.001)
            except BarrierBroken:  # one that was cancelled breaks the round of all who came with it
                pass

    await asyncio.gather(work(), work())


async def queue(store):
    mine = aio.Queue(store, "queue")
    await mine.put(b"item")
    async with await mine.take():
        await asyncio.sleep(0.001)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize(
    "play",
    [lock, timed_lock, semaphore, read, write, election, barrier, double_barrier, queue],
    ids=lambda play: play.__name__,
)
def test_storm_of_cancelled_calls_adds_one_thread_and_leaves_the_primitive_usable(etcd35, play):
    rnd = random.Random(5)
    done = 0
    new_threads = set()

    async def ends_soon(store, span_s):
        nonlocal done
        limit_s = rnd.random() * span_s
        try:
            await (play(store, limit_s) if play is timed_lock else asyncio.wait_for(play(store), limit_s))
            done += 1
        except (TimeoutError, BarrierBroken):
            pass
        new_threads.update(thread for thread in threading.enumerate() if thread not in before)

    async def storm():
        nonlocal before
        async with aio.connect(etcd35.url(f"storm-{play.__name__}"), session_ttl_s=TTL_S) as store:
            await play(store)
            before = set(threading.enumerate())
            span_s = SPAN_S
            while len(most) < ROUNDS or (done < ENOUGH and span_s <= LONGEST_SPAN_S):
                await asyncio.gather(*(ends_soon(store, span_s) for _ in range(WIDTH)))
                most.append(len([thread for thread in new_threads if thread.is_alive()]))
                span_s *= 1 if done >= ENOUGH else 2
            began = time.monotonic()
            await play(store)
            return time.monotonic() - began

    before, most = set(), []
    usable_s = asyncio.run(storm())
    of_store = {thread.name for thread in new_threads if thread.name != "latchwork-loop"}  # that one is the process's
    assert of_store <= {"latchwork-cleanup-etcd"}
    assert max(most) <= 2
    assert usable_s < USABLE_S
    assert done >= ENOUGH
