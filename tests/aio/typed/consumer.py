"""Code of a user, for type checkers: it is read by mypy --strict and by pyright, and never run.

Each public name of ``latchwork.aio`` is used. ``assert_type`` says what its awaited answer is; a line with
``type: ignore`` must be an error, or the checkers say that the comment is not needed.
"""

from __future__ import annotations

import asyncio
from typing import assert_type

import latchwork
from latchwork import At, Committed, Entry, Fence, LatchworkError, Put, aio
from latchwork.primitives import Candidate, GroupMember, Leader, LockHolder, LockState, View, ViewChange
from latchwork.store.watch import Batch


async def stores() -> None:
    async with aio.connect("memory://typed", session_ttl_s=5) as store:
        assert_type(store, aio.Store)
        assert_type(await store.get("k"), Entry | None)
        assert_type(await store.get_many(["a", "b"]), list[Entry | None])
        assert_type(list(await store.list("", recursive=True)), list[Entry])
        assert_type(await store.put("k", b"v"), Entry)
        assert_type(await store.create("k", b"v", session=await store.session), Entry)
        assert_type(await store.delete("k"), bool)
        assert_type(await store.commit([At(await store.put("k", b""))], [Put("k", b"")]), Committed)
        assert_type(store.namespace("inner"), aio.Store)
        assert_type(await store.reopen(), aio.Store)
        assert_type(await store.transact(count), int)
        await store.transact(plain)  # type: ignore[arg-type]
        print(store.get("k").value)  # type: ignore[attr-defined]
    store = await aio.connect()
    await store.close()
    assert_type(aio.Store.wrap(latchwork.connect()), aio.Store)


async def count(tx: aio.Tx) -> int:
    known = await tx.get("count")
    await tx.put("count", b"1" if known is None else known.value + b"1")
    return len(await tx.list(""))


def plain(tx: aio.Tx) -> int:
    return 1


async def sessions(store: aio.Store) -> None:
    session = await store.session
    assert_type(session, aio.Session)
    assert_type(session.remaining_s(), float)
    assert_type(session.lost, aio.Signal)
    assert_type(await session.lost.wait(1.0), bool)
    async with await store.open_session(5.0) as own:
        assert_type(own.fence, Fence)


async def following(store: aio.Store) -> None:
    async with store.watch("k") as watch:
        assert_type(watch, aio.Watch)
        async for batch in watch:
            assert_type(batch, Batch)
        assert_type(await watch.next(1.0), Batch)
    async with await store.mirror("k") as mirror:
        assert_type(mirror, aio.Mirror)
        assert_type(mirror["k"], Entry)
        assert_type(list(mirror), list[str])
        await mirror.wait_until(lambda now: "k" in now, 5.0)
    async with store.pipeline() as pipe:
        assert_type(pipe, aio.Pipeline)
        assert_type(pipe.put("k", b"v"), asyncio.Future[Entry])
        assert_type(await pipe.get("k"), Entry | None)
        assert_type(await asyncio.gather(store.put("a", b""), store.get("a")), tuple[Entry, Entry | None])


async def locks(store: aio.Store) -> None:
    lock = aio.Lock(store, "orders", label="web")
    async with lock as fence:
        assert_type(fence, Fence)
        async with lock.guard_work() as work:
            assert_type(work, aio.GuardedWork)
            assert_type(await work.wait(1.0), bool)
    assert_type(await lock.acquire(timeout_s=0), Fence)
    assert_type(lock.is_held, bool)
    await lock.release()
    aio.Lock(latchwork.connect(), "orders")  # type: ignore[arg-type]
    await aio.Lock(store, "orders").acquire(timeout=1)  # type: ignore[call-arg]
    both = aio.ReadWriteLock(store, "table")
    assert_type(both.read, aio.ModeLock)
    async with both.write as fence:
        assert_type(await both.downgrade(), Fence)
    async with aio.Semaphore(store, "seats", leases=3) as fence:
        assert_type(fence, Fence)
    async with aio.PersistentLock(store, "nightly", ttl_s=60) as fence:
        assert_type(fence, Fence)
    assert_type(await aio.PersistentLock(store, "nightly").holder(), LockHolder | None)
    keeper = aio.LockKeeper(store, session=lambda: session)
    session = await store.session
    held = await keeper.acquire("item", timeout_s=5)
    assert_type(held, aio.HeldLock)
    assert_type(keeper.held(), dict[str, aio.HeldLock])
    assert_type(await aio.lock_states(store), list[LockState])
    await aio.force_release(store, "nightly")
    await aio.forget(store, "name")
    await aio.forget_free_locks(store)


async def leading(store: aio.Store) -> None:
    async def lead(work: aio.GuardedWork) -> str:
        await work.wait()
        return "done"

    async def govern(term: aio.Term, work: aio.GuardedWork) -> int:
        await term.proclaim(b"hello")
        return 1

    async with aio.LeaderLatch(store, "manager", node_id="n1") as latch:
        assert_type(await latch.wait(5.0), Fence)
        assert_type(await latch.run(lead), str)
        assert_type(await latch.candidates(), list[Candidate])
        latch.on_elected(lambda: print("elected"))
    election = aio.Election(store, "mayor", node_id="n1")
    assert_type(await election.run(govern, b"v"), int)
    assert_type(await election.campaign(), aio.Term)
    assert_type(await election.leader(), Leader | None)
    async with election.observe() as observer:
        assert_type(observer, aio.Observer)
        async for leader in observer:
            assert_type(leader, Leader | None)
    await election.run(lead)  # type: ignore[arg-type]


async def meeting(store: aio.Store) -> None:
    async with aio.Barrier(store, "start", parties=3, member_id="m1") as barrier:
        assert_type(await barrier.wait(5.0), int)
    async with aio.DoubleBarrier(store, "phase", parties=3, member_id="m1") as double:
        assert_type(await double.members(), list[str])
    async with aio.Group(store, "workers", member_id="m1", labels={"zone": "a"}) as group:
        assert_type(group.view, View)
        assert_type(await group.members(), list[GroupMember])
        group.on_view(seen)
    await aio.list_groups(store)


def seen(change: ViewChange) -> None:
    print(change.view)


async def work_to_do(store: aio.Store) -> None:
    queue = aio.Queue(store, "mail")
    assert_type(await queue.put(b"x"), str)
    async with await queue.take(5.0) as claim:
        assert_type(claim, aio.QueueClaim)
        assert_type(claim.value, bytes)
    await aio.PriorityQueue(store, "urgent").put(b"x", priority=1)
    backlog = aio.WorkQueue(store, "tasks")
    for taken in await backlog.try_take(["any"], limit=3, accept=lambda item: bool(item.id)):
        assert_type(taken, aio.QueueClaim)
        ending = taken.prepare_ack()
        assert_type(ending, aio.PreparedClaimEnd)
        assert_type(await ending.was_committed(LatchworkError("x")), bool)


async def numbers(store: aio.Store) -> None:
    assert_type(await aio.Counter(store, "count").add(2), int)
    assert_type(await aio.Sequence(store, "ids").take(record, count=3), range)
    await aio.RateLimiter(store, "api", permits=10, interval_s=1.0).acquire()

    async def once(work: aio.GuardedWork) -> bytes | None:
        return b"made"

    assert_type(await aio.Once(store, "schema").run(once), bytes)


def record(number: int) -> list[Put]:
    return [Put(f"used/{number}", b"")]


async def calls(store: aio.Store) -> None:
    async with aio.Executor(store, "pictures") as executor:
        assert_type(executor, aio.Executor)
        future = executor.submit(scaled, b"x")
        assert_type(future, aio.TaskFuture[bytes])
        assert_type(await future, bytes)
        assert_type(await executor.call(scaled, b"x", timeout_s=5), bytes)
        async for each in executor.map(scaled, [b"x", b"y"]):
            assert_type(each, bytes)
        task = await executor.detached(scaled, b"x")
        assert_type(task, aio.TaskRef)
        assert_type(await task.cancel(), bool)


def scaled(picture: bytes) -> bytes:
    return picture


async def run(context: aio.JobContext) -> None:
    while not await context.wait_for_stop(1.0):
        for item in context.items:
            assert_type(context.fence(item), Fence)
            await context.store.commit([context.fence(item)], [Put(f"done/{item}", b"")])
