"""A server that stands still, on servers of the test's own: what ends an executor's calls ends on time."""

from __future__ import annotations

import asyncio

import pytest

import latchwork
from backends_table import BY_NAME, SERVERS
from executor.conftest import PATIENCE_S, end
from executor.work import WORK, mark, square
from latchwork import aio
from latchwork.executor import Call, Executor
from patience import Deadline
from trials.fault import frozen

#: Seconds by which a call may be late.
LATE_S = 2.0
#: Seconds that one call to the store waits; a call of the executor that waited for one would be late by far.
CALL_TIMEOUT_S = 10.0
TASKS = 12


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with BY_NAME[request.param].launch() as started:
        yield started


@pytest.fixture
def url(server, request):
    return server.url(request.function.__name__, call_timeout_s=CALL_TIMEOUT_S)


@pytest.fixture
def store(url):
    with latchwork.connect(url) as opened:
        yield opened


def on_time(timeout_s, call):
    """Make a call; it has to return or raise within its timeout, or soon after."""
    deadline = Deadline(timeout_s + LATE_S)
    call()
    assert not deadline.has_passed


def test_a_shutdown_that_does_not_wait_returns_at_once_and_cancels_later(server, store, eventually):
    pool = Executor(store, functions=WORK, session_ttl_s=60.0)
    futures = [pool.submit(mark, "never") for _ in range(TASKS)]
    pool.flush(PATIENCE_S)
    with frozen(server):
        on_time(0.0, lambda: pool.shutdown(wait=False, cancel_futures=True))
    eventually(lambda: all(future.cancelled() for future in futures), PATIENCE_S)
    assert not store.list("never", recursive=True)


def timed_out(call):
    with pytest.raises(TimeoutError):
        call()


def test_call_and_first_and_map_end_by_their_timeout(server, store):
    pool = Executor(store, functions=WORK, session_ttl_s=60.0)
    pool.submit(square, 1)
    pool.flush(PATIENCE_S)
    with frozen(server):
        on_time(0.2, lambda: timed_out(lambda: pool.call(square, 2, timeout_s=0.2)))
        calls = [Call(square, number) for number in range(TASKS)]
        on_time(0.2, lambda: timed_out(lambda: pool.first(calls, timeout_s=0.2)))
        on_time(0.2, lambda: timed_out(lambda: list(pool.map(square, range(TASKS), timeout=0.2))))
    end(pool)


def test_call_and_first_and_map_of_an_event_loop_end_by_their_timeout(server, url):
    async def on_time_here(timeout_s, awaited):
        deadline = Deadline(timeout_s + LATE_S)
        with pytest.raises(TimeoutError):
            await awaited
        assert not deadline.has_passed

    async def mapped(pool):
        return [value async for value in pool.map(square, range(TASKS), timeout=0.2)]

    async def main():
        async with aio.connect(url) as store:
            pool = aio.Executor(store, functions=WORK, session_ttl_s=60.0)
            pool.submit(square, 1)
            await pool.flush(PATIENCE_S)
            with frozen(server):
                await on_time_here(0.2, pool.call(square, 2, timeout_s=0.2))
                calls = [Call(square, number) for number in range(TASKS)]
                await on_time_here(0.2, pool.first(calls, timeout_s=0.2))
                await on_time_here(0.2, mapped(pool))
                deadline = Deadline(LATE_S)
                await pool.shutdown(wait=False, cancel_futures=True)
                assert not deadline.has_passed

    asyncio.run(main())
