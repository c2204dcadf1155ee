"""One use of every part of the SDK for event loops, for tests that look at how it runs."""

from __future__ import annotations

import asyncio

from latchwork import Put, aio


async def use_everything(store, other):
    """Use each part once, some of it contended by the other store."""
    await asyncio.gather(*(store.put(f"k/{number}", b"x") for number in range(50)))
    await asyncio.gather(store.get("k/1"), store.get_many(["k/1", "k/2"]), store.list("k"), store.children(""))
    async with store.pipeline() as pipe:
        for number in range(50):
            pipe.create(f"c/{number}", b"")
            await asyncio.sleep(0)  # each is a step by itself
    await store.delete("k/1")
    await store.delete_tree("c")

    async def add(tx):
        entry = await tx.get("n")
        await tx.put("n", b"1" if entry is None else entry.value + b"1")

    await asyncio.gather(store.transact(add, attempts=100), other.transact(add, attempts=100))
    async with store.watch("k") as watch, await store.mirror("k") as mirror:
        await watch.next(20.0)
        await store.put("k/0", b"changed")
        await mirror.wait_until(lambda now: now["k/0"].value == b"changed", 20.0)
    await asyncio.gather(*(contend(each, kind) for kind in (locks, terms, items) for each in (store, other)))
    barriers = [aio.Barrier(store, "b", parties=2, member_id=name) for name in "xy"]
    await asyncio.gather(*(barrier.wait(30.0) for barrier in barriers))
    await aio.Counter(store, "count").add(2)
    await aio.Sequence(store, "sequence").take(lambda number: [Put(f"recorded/{number}", b"")])
    await aio.RateLimiter(store, "rate", permits=100, interval_s=1.0).acquire()
    async with aio.Group(store, "group", member_id="m1") as group:
        await group.wait(30.0)
        await group.update(weight=2.0)
    async with aio.LeaderLatch(store, "leads", node_id="n1") as latch:
        latch.on_elected(lambda: None)
        await latch.wait(30.0)
        await latch.run(work)
    await aio.Once(store, "once").run(bytes_of)
    async with await store.open_session(10.0) as session, aio.Lock(store, "own", session=session):
        pass
    await asyncio.gather(aio.lock_states(store), aio.list_groups(store))


async def contend(store, kind):
    for _ in range(2):
        await kind(store)


async def locks(store):
    async with aio.Lock(store, "lock") as fence:
        await store.commit([fence], [])
    async with aio.Semaphore(store, "semaphore", leases=1):
        pass
    both = aio.ReadWriteLock(store, "both")
    async with both.write:
        await both.downgrade()
    async with both.read:
        pass
    async with aio.PersistentLock(store, "kept"):
        pass


async def terms(store):
    election = aio.Election(store, "election", node_id="n1")
    async with await election.campaign(timeout_s=60.0) as term, term.guard_work() as token:
        assert not token.is_stopped


async def items(store):
    queue = aio.Queue(store, "queue")
    await queue.put(b"item")
    async with await queue.take(60.0):
        pass


async def work(_token):
    await asyncio.sleep(0)


async def bytes_of(_token):
    return b"done"
