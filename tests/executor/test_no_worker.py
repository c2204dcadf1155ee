"""An executor that has no worker: it says so, and one Ctrl-C is enough to leave."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from executor.conftest import PATIENCE_S
from executor.work import WORK, square
from latchwork import aio
from latchwork.executor import Call
from latchwork.executor.submitter_session import WARN_S, WorkerWatch
from latchwork.store.steps import run
from latchwork.testing import VirtualClock

SCRIPT = """
import asyncio, latchwork, sys
from latchwork import aio
from latchwork.executor import Call, Executor
from latchwork.tasks import Functions
work = Functions()
@work.task(name="one")
def one(n: int = 0) -> int: return 1
pool = Executor(latchwork.connect("memory://x"), functions=work)
print("waits", flush=True)
if sys.argv[1] == "with":
    with pool: pool.submit(one).result()
if sys.argv[1] == "result":
    pool.submit(one).result()
if sys.argv[1] == "first":
    with pool: pool.first([Call(one), Call(one)])
if sys.argv[1] == "map":
    with pool: list(pool.map("one", [1, 2]))
async def in_a_loop():
    async with aio.connect("memory://x") as store, aio.Executor(store, functions=work) as pool:
        pool.submit(one)
        if sys.argv[1] == "aio-first":
            await pool.first([Call(one), Call(one)])
        if sys.argv[1] == "aio-map":
            [each async for each in pool.map("one", [1, 2])]
        await pool.submit(one)
if sys.argv[1].startswith("aio"):
    asyncio.run(in_a_loop())
pool.submit(one)
"""


@pytest.mark.parametrize("how", ["with", "result", "exit", "first", "map", "aio-first", "aio-map"])
def test_one_control_c_is_enough_to_leave(how):
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "waits\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1.0)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    finally:
        child.kill()
    assert "KeyboardInterrupt" in said


def test_a_timeout_says_that_there_is_no_worker_and_how_to_start_one(pool, eventually):
    future = pool.submit(square, 1)
    eventually(pool._submitter.missing_worker_hint, PATIENCE_S)
    with pytest.raises(TimeoutError, match='latchwork executor run --import MODULE"'):
        future.result(0.01)


@pytest.mark.parametrize(
    "wait",
    [
        lambda pool: pool.call(square, 1, timeout_s=0.01),
        lambda pool: pool.first([Call(square, 1), Call(square, 2)], 0.01),
        lambda pool: list(pool.map(square, [1, 2], timeout=0.01)),
    ],
    ids=["call", "first", "map"],
)
def test_a_timeout_of_several_calls_says_so_too(pool, eventually, wait):
    pool.submit(square, 1)
    eventually(pool._submitter.missing_worker_hint, PATIENCE_S)
    with pytest.raises(TimeoutError, match="latchwork executor run --import MODULE"):
        wait(pool)


async def _mapped(pool):
    return [each async for each in pool.map("square", [1, 2], timeout=0.01)]


@pytest.mark.parametrize(
    "wait",
    [
        lambda pool: pool.call("square", 1, timeout_s=0.01),
        lambda pool: pool.first([Call("square", 1), Call("square", 2)], 0.01),
        _mapped,
    ],
    ids=["call", "first", "map"],
)
def test_a_timeout_in_an_event_loop_says_so_too(backend_url, eventually, wait):
    async def main():
        async with aio.connect(backend_url) as store:
            pool = aio.Executor(store, functions=WORK)
            pool.submit("square", 1)
            await asyncio.to_thread(eventually, pool._of._submitter.missing_worker_hint, PATIENCE_S)
            with pytest.raises(TimeoutError, match="latchwork executor run --import MODULE"):
                await wait(pool)
            await pool.shutdown(wait=False, cancel_futures=True)

    asyncio.run(main())


def test_a_warning_comes_after_five_seconds_without_a_worker_and_once(caplog):
    clock, there = VirtualClock(), [False]

    async def has_members():
        return there[0]

    watch = WorkerWatch(clock, "nightly", has_members)
    began = clock.now()
    while not caplog.records and clock.now() < began + 60.0:
        clock.advance(run(watch.check_workers(is_waiting=True)))
    assert 4.9 < clock.now() - began < 7.1
    for _ in range(10):
        clock.advance(run(watch.check_workers(is_waiting=True)))
    (record,) = (each for each in caplog.records if each.name.startswith("latchwork"))
    assert "executor run --import MODULE --name nightly" in record.getMessage()
    there[0] = True
    assert run(watch.check_workers(is_waiting=True)) == 60.0
    assert watch.missing_worker_hint() == ""
    assert run(watch.check_workers(is_waiting=False)) is None


def test_no_look_for_workers_delays_the_tasks_of_a_slow_link():
    clock, looks = VirtualClock(), []

    async def has_members():
        looks.append(clock.now())
        return True

    watch = WorkerWatch(clock, "nightly", has_members)
    watch.on_result()
    for _ in range(10):
        until = clock.now() + 2.0
        while (left_s := until - clock.now()) > 0.0:
            clock.advance(min(left_s, run(watch.check_workers(is_waiting=True))))
        watch.on_result()
    assert looks == []
    last = clock.now()
    while not looks:
        clock.advance(run(watch.check_workers(is_waiting=True)))
    assert looks == [pytest.approx(last + WARN_S)]
