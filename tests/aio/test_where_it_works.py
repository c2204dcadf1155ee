"""asyncio's timeouts at every wait, other loops and libraries above asyncio, the end of a loop, a fork."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import anyio
import pytest
import uvloop

import latchwork
from latchwork import aio
from latchwork.errors import ForkedProcess, LatchworkError

SHORT_S = 0.1


async def acquire(store, other):
    await aio.Lock(other, "x").acquire()
    await aio.Lock(store, "x").acquire()


async def permit(store, other):
    await aio.Semaphore(other, "s", leases=1).acquire()
    await aio.Semaphore(store, "s", leases=1).acquire()


async def write(store, other):
    await aio.ReadWriteLock(other, "rw").read.acquire()
    await aio.ReadWriteLock(store, "rw").write.acquire()


async def keep(store, other):
    await aio.PersistentLock(other, "p").acquire()
    await aio.PersistentLock(store, "p").acquire()


async def campaign(store, other):
    await aio.Election(other, "e", node_id="n1").campaign()
    await aio.Election(store, "e", node_id="n2").campaign()


async def lead(store, other):
    await aio.Election(other, "l", node_id="n1").campaign()
    async with aio.LeaderLatch(store, "l", node_id="n2") as latch:
        await latch.wait()


async def take(store, _other):
    await aio.Queue(store, "q").take()


async def meet(store, _other):
    await aio.Barrier(store, "b", parties=2, member_id="m").wait()


async def enter(store, _other):
    await aio.DoubleBarrier(store, "d", parties=2, member_id="m").enter()


async def follow(store, _other):
    async with store.watch("w") as watch:
        await watch.next()  # the state
        await watch.next()


async def mirrored(store, _other):
    async with await store.mirror("m") as mirror:
        await mirror.wait_until(lambda now: len(now) > 0)


async def limited(store, _other):
    limiter = aio.RateLimiter(store, "r", permits=1, interval_s=3600.0)
    await limiter.acquire()
    await limiter.acquire()


async def once(store, other):
    begun = asyncio.Event()

    async def long(_work):
        begun.set()
        await asyncio.sleep(3600.0)

    running = asyncio.ensure_future(aio.Once(other, "o").run(long))
    await begun.wait()
    try:
        await aio.Once(store, "o").run(long)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


WAITS = (
    acquire, permit, write, keep, campaign, lead, take, meet, enter, follow, mirrored, limited, once,
)  # fmt: skip


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
def test_a_timeout_of_asyncio_ends_each_wait_and_its_task_goes_on(backend_url, wait):
    async def main():
        async with aio.connect(backend_url) as store, aio.connect(backend_url) as other:
            await asyncio.gather(store.session, other.session)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wait(store, other), SHORT_S)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SHORT_S):
                    await wait(store.namespace("again"), other.namespace("again"))
            assert not asyncio.current_task().cancelling()
            await store.put("still", b"here")

    asyncio.run(asyncio.wait_for(main(), 60.0))


def test_an_arrival_counts_although_its_wait_was_cancelled_and_may_be_waited_for_again(backend_url):
    """As after the end of a session: an arrival outlives its process."""

    async def main():
        async with aio.connect(backend_url) as store:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(meet(store, store), 20 * SHORT_S)
            other = aio.Barrier(store, "b", parties=2, member_id="x")
            assert await other.arrived() == ["m"]
            return await other.wait(30.0), await aio.Barrier(store, "b", parties=2, member_id="m").wait(30.0)

    assert asyncio.run(main()) == (0, 0)


def test_anyio_has_its_cancel_scopes_and_task_groups_over_the_twins(backend_url, store):
    held = []

    async def hold(mine, number):
        async with aio.Lock(mine, "x"):
            held.append(number)

    async def main():
        async with aio.connect(backend_url) as mine, aio.connect(backend_url) as other:
            async with anyio.create_task_group() as group:
                for number in range(5):
                    group.start_soon(hold, mine, number)
            blocker = aio.Lock(other, "x")
            await blocker.acquire()
            with anyio.move_on_after(SHORT_S) as scope:
                await aio.Lock(mine, "x").acquire()
            assert scope.cancelled_caught
            with pytest.raises(TimeoutError), anyio.fail_after(SHORT_S):
                await aio.Queue(mine, "empty").take()
            await blocker.release()
            with anyio.fail_after(30.0):
                await hold(mine, 5)

    anyio.run(main, backend="asyncio")
    assert sorted(held) == [0, 1, 2, 3, 4, 5]
    assert latchwork.primitives.Lock(store, "x").holder() is None


def test_uvloop_drives_the_twins(backend_url):
    async def main():
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        async with aio.connect(backend_url) as store, aio.connect(backend_url) as other:
            async with aio.Lock(store, "x") as fence:
                waiting = asyncio.ensure_future(aio.Lock(other, "x").acquire(30.0))
                await store.commit([fence], [latchwork.Put("a", b"1")])
            await waiting
            return [entry.value for entry in await asyncio.gather(*(store.get("a") for _ in range(100)))]

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(main()) == [b"1"] * 100
    finally:
        loop.close()


def test_without_asyncio_a_call_says_what_it_needs(recwarn):
    async def main():
        await aio.connect("memory://nobody")

    coroutine = main()  # as trio would drive it
    with pytest.raises(
        RuntimeError, match=r"needs a running event loop of asyncio.*with trio the sync SDK in a thread"
    ):
        coroutine.send(None)
    assert [str(each.message) for each in recwarn] == []  # no coroutine was left that nobody awaits


FORGETFUL = """
import asyncio, sys
from latchwork import aio

async def main():
    store, other = await aio.connect(sys.argv[1]), await aio.connect(sys.argv[1])
    await aio.Lock(store, "x").acquire()
    waiting = [asyncio.create_task(aio.Lock(other, "x").acquire()) for _ in range(5)]
    group = aio.Group(store, "g", member_id="m")
    group.start()
    await group.wait(20.0)
    latch = aio.LeaderLatch(store, "l", node_id="n")
    await latch.start()
    watch = store.watch("w")
    waiting.append(asyncio.create_task(watch.next()))
    waiting.append(asyncio.create_task(aio.Queue(store, "q").take()))
    await asyncio.sleep(0.2)
    print("ended")

asyncio.run(main())
"""


def test_a_process_whose_loop_ends_with_everything_open_ends_quietly(backend_url):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "default", "-W", "error::RuntimeWarning", "-c", FORGETFUL, backend_url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    said = [line for line in ran.stderr.splitlines() if "or newer" not in line]  # of servers that lose writes
    assert (ran.returncode, ran.stdout, said) == (0, "ended\n", [])


EXITING = """
import asyncio, sys, threading
from latchwork import aio

async def write_late(url, opened):
    async with await aio.connect(url) as store:
        await store.put("k", b"early")
        opened.set()
        while threading.main_thread().is_alive():
            await asyncio.sleep(0.01)
        for _ in range(1000):  # until the interpreter has ended the pools of threads
            await store.put("k", b"late")
            await asyncio.sleep(0.01)

opened = threading.Event()
threading.Thread(target=lambda: asyncio.run(write_late(sys.argv[1], opened))).start()
opened.wait()
"""


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_call_while_the_interpreter_exits_says_so(tmp_path, scheme):
    url = "memory://exiting" if scheme == "memory" else f"sqlite:///{tmp_path / 'exiting.db'}"
    done = subprocess.run([sys.executable, "-c", EXITING, url], capture_output=True, text=True, timeout=60, check=False)
    assert "Closed: the " in done.stderr
    assert "the interpreter is exiting" in done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_fork_is_refused_by_its_parents_store_and_has_one_of_its_own(tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}?root=test"
    opened = []

    async def parent():
        opened.append(await aio.connect(url))
        await aio.Lock(opened[0], "x").acquire()

    async def child():
        try:
            await opened[0].get("a")
        except ForkedProcess:
            pass
        else:
            return 2
        async with aio.connect(url) as mine:
            try:
                await aio.Lock(mine, "x").acquire(0.05)
            except LatchworkError:
                pass
            else:
                return 3
            async with aio.Lock(mine, "y"), aio.Group(mine, "g", member_id="c") as group:
                await group.wait(20.0)
        return 0

    asyncio.run(parent())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = asyncio.run(asyncio.wait_for(child(), 30.0))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    asyncio.run(opened[0].close())
