"""An executor in an event loop: its futures are awaited, gathered and cancelled like any of the loop's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from latchwork import aio
from latchwork.executor import All, AllFailed, Call, ExecutorWorker, LeastLoaded, SomeFailed, inspect
from latchwork.tasks import Functions, TaskContext, TaskStopped
from patience import eventually

WAIT_S = 30.0
WORK = Functions()


@WORK.task(name="square")
def square(n: int) -> int:
    return n * n


@WORK.task(name="later")
async def later(n: int) -> int:
    await asyncio.sleep(0.01)
    return n + 1


@WORK.task(name="boom")
def boom(what: str) -> None:
    raise TimeoutError(what)


@WORK.task(name="here")
def here(context: TaskContext) -> str:
    return context.node_id


@WORK.task(name="endless")
def endless(key: str, context: TaskContext) -> None:
    context.store.put(f"{key}/began", b"")
    if context.wait_for_stop(10 * WAIT_S):
        context.store.put(f"{key}/stopped", b"")
    raise TaskStopped("told to stop")


@pytest.fixture
def worker(store):
    with ExecutorWorker(store, node_id="n1", slots=4, functions=WORK, session_ttl_s=10.0) as made:
        made.wait_ready(WAIT_S)
        yield made


def in_a_loop(url, use, **options):
    async def main():
        async with aio.connect(url) as store, aio.Executor(store, functions=WORK, **options) as pool:
            return await asyncio.wait_for(use(pool), 2 * WAIT_S)

    return asyncio.run(main())


def test_futures_are_awaited_gathered_and_waited_for(backend_url, worker):
    async def use(pool):
        assert await pool.submit(square, 7) == 49
        assert await asyncio.gather(*(pool.submit(square, n) for n in range(200))) == [n * n for n in range(200)]
        futures = {pool.submit("square", n): n for n in range(5)}
        done, left = await asyncio.wait(futures)
        assert not left
        assert {futures[each]: each.result() for each in done} == {n: n * n for n in range(5)}
        assert sorted([await each for each in asyncio.as_completed([pool.submit(square, n) for n in (1, 2)])]) == [1, 4]
        assert await pool.submit(later, 1) == 2

    in_a_loop(backend_url, use)


def test_an_error_of_the_task_is_the_futures_own(backend_url, worker):
    async def use(pool):
        with pytest.raises(TimeoutError, match="of its own"):
            await pool.submit(boom, "of its own")
        with pytest.raises(TimeoutError, match="of its own"):
            await pool.call(boom, "of its own", timeout_s=WAIT_S)
        ended = await asyncio.gather(pool.submit(boom, "x"), pool.submit(square, 2), return_exceptions=True)
        assert [type(ended[0]), ended[1]] == [TimeoutError, 4]

    in_a_loop(backend_url, use)


def test_results_come_in_order_and_are_submitted_as_far_as_the_buffer_goes(backend_url, worker):
    async def use(pool):
        assert [value async for value in pool.map(square, range(30))] == [n * n for n in range(30)]
        read = []

        def numbers():
            for number in range(100):
                read.append(number)
                yield number

        async for value in pool.map(square, numbers(), buffersize=3):
            if value == 25:
                break
        assert len(read) <= 10
        for wrong in ({"chunksize": 0}, {"buffersize": 0}):
            with pytest.raises(ValueError, match=r"must be"):
                pool.map(square, [1], **wrong)

    in_a_loop(backend_url, use)


def test_a_map_of_very_many_lets_others_have_the_loop(backend_url, store):
    async def use(pool):
        turns = 0

        async def count():
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        mapping = asyncio.create_task(anext_of(pool.map(square, range(1000))))
        while len(pool._of._submitter._tickets) < 1000:
            await asyncio.sleep(0)
        mapping.cancel()
        await asyncio.gather(mapping, return_exceptions=True)
        counting.cancel()
        await pool.shutdown(cancel_futures=True)
        return turns

    assert in_a_loop(backend_url, use) >= 5, "a map that never yields gives one turn"


async def anext_of(values):
    return await values.__anext__()


@pytest.mark.parametrize("way", ["timeout", "call", "cancel"])
def test_a_task_that_nobody_waits_for_any_more_is_told_to_stop(backend_url, store, worker, way):
    async def use(pool):
        future = None
        if way == "call":
            waiting = asyncio.create_task(pool.call(endless, "k", timeout_s=WAIT_S))
        else:
            future = pool.submit(endless, "k")
            waiting = asyncio.create_task(wait_for(future))
        await asyncio.to_thread(eventually, lambda: store.get("k/began"), WAIT_S, "it runs")
        (future or waiting).cancel() if way == "cancel" else waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(eventually, lambda: store.get("k/stopped"), WAIT_S, "it was told to stop")
        assert await pool.submit(square, 3) == 9  # its slot is free

    in_a_loop(backend_url, use)


async def wait_for(future):
    return await future


def test_a_shielded_future_goes_on_and_a_task_can_be_taken_back_with_an_answer(backend_url, store, worker):
    async def use(pool):
        future = pool.submit(endless, "k")
        waiting = asyncio.create_task(wait_for(asyncio.shield(future)))
        await asyncio.to_thread(eventually, lambda: store.get("k/began"), WAIT_S, "it runs")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not future.done()
        assert (await future.state()).phase == "running"
        assert not await future.cancel_and_wait()  # it runs
        assert await future.cancel_and_wait(interrupt=True)
        with pytest.raises(asyncio.CancelledError):
            await future
        assert future.id

    in_a_loop(backend_url, use)


def test_the_first_that_succeeds_counts_and_errors_of_all_are_told(backend_url, worker):
    async def use(pool):
        assert await pool.first([Call(boom, "a"), Call(square, 4), Call(endless, "k")]) == 16
        with pytest.raises(AllFailed) as failed:
            await pool.first([Call(boom, "a"), Call(boom, "b")], timeout_s=WAIT_S)
        assert [str(error) for error in failed.value.errors] == ["a", "b"]
        with pytest.raises(TimeoutError, match=r"none of 1 calls succeeded within 0\.1 s; it was canceled"):
            await pool.first([Call(endless, "l")], timeout_s=0.1)
        with pytest.raises(ValueError, match="at least one call"):
            await pool.first([])

    in_a_loop(backend_url, use)


def test_a_task_for_all_members_gives_a_dictionary(backend_url, store, worker):
    with ExecutorWorker(store, node_id="n2", functions=WORK) as other:
        other.wait_ready(WAIT_S)

        async def use(pool):
            everywhere = pool.with_options(target=All())
            assert await everywhere.submit(here) == {"n1": "n1", "n2": "n2"}
            with pytest.raises(SomeFailed, match="failed on 2 of 2 members"):
                await everywhere.submit(boom, "x")

        in_a_loop(backend_url, use)


def test_detached_tasks_are_put_asked_for_and_forgotten(backend_url, worker):
    async def use(pool):
        ref = await pool.detached(square, 5, id="nightly")
        assert await pool.ref("nightly").result(WAIT_S) == 25
        assert (await ref.state()).phase == "done"
        assert await ref.forget()
        loaded = pool.with_options(picker=LeastLoaded())
        assert await (await loaded.detached(square, 6)).result(WAIT_S) == 36

    in_a_loop(backend_url, use)


def test_what_was_submitted_before_a_flush_is_stored(backend_url, store):
    async def use(pool):
        futures = [pool.submit(square, n) for n in range(10)]
        await pool.flush(WAIT_S)
        stored = sum(partition.tasks for partition in (await asyncio.to_thread(inspect, store)).partitions)
        for future in futures:
            future.cancel()
        return stored

    assert in_a_loop(backend_url, use) == 10


def test_a_loop_that_ends_early_is_told_of_nothing_and_its_executor_can_be_shut_down(backend_url, worker):
    pools = []

    async def forget():
        store = await aio.connect(backend_url)
        pools.append((aio.Executor(store, functions=WORK), store))
        pools[0][0].submit(square, 3)

    asyncio.run(forget())

    async def end():
        pool, store = pools[0]
        await pool.shutdown()
        await store.close()

    asyncio.run(end())
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("latchwork-submits")]


def test_a_timeout_of_the_loop_takes_the_task_back(backend_url, store):
    async def use(pool):
        future = pool.submit(square, 3)  # nobody runs it
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.2)
        await asyncio.to_thread(
            eventually,
            lambda: not any(partition.tasks for partition in inspect(store).partitions),
            WAIT_S,
            "it is gone",
        )

    in_a_loop(backend_url, use)


def test_importing_aio_imports_no_executor():
    code = "import latchwork.aio, sys; sys.exit('latchwork.executor' in sys.modules or 'latchwork.jobs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
