"""anyio on its asyncio backend: its scopes, which cancel again and again until their block is left, and its tasks."""

from __future__ import annotations

import anyio
import pytest

from latchwork import aio
from latchwork.errors import LockLost

WAIT_S = 20.0


def played(play, backend_url):
    async def go():
        async with aio.connect(backend_url) as store, aio.connect(backend_url) as other:
            await play(store, other)

    anyio.run(go, backend="asyncio")


def test_a_scope_that_ends_a_wait_leaves_no_ticket(backend_url):
    async def play(store, other):
        async with aio.Lock(other, "x"):
            with anyio.move_on_after(0.05) as scope:
                await aio.Lock(store, "x").acquire()
            assert scope.cancelled_caught
            await came_true(lambda: names(other), 1)
        with anyio.fail_after(WAIT_S):
            await aio.Lock(store, "x").acquire()

    played(play, backend_url)


def test_a_scope_that_ends_work_under_a_lock_gives_the_lock_back(backend_url):
    async def play(store, other):
        with anyio.move_on_after(0.05):
            async with aio.Lock(store, "x"):
                await anyio.sleep(WAIT_S)
        with anyio.fail_after(WAIT_S):
            await aio.Lock(other, "x").acquire()
        assert len(await names(other)) == 1

    played(play, backend_url)


def test_a_shielded_release_is_awaited(backend_url):
    async def play(store, other):
        lock = aio.Lock(store, "x")
        with anyio.CancelScope() as scope:
            await lock.acquire()
            try:
                scope.cancel()
                await anyio.sleep(WAIT_S)
            finally:
                with anyio.CancelScope(shield=True):
                    await lock.release()
        assert await names(other) == []
        with pytest.raises(LockLost):
            await lock.release()

    played(play, backend_url)


def test_a_failing_task_of_a_group_calls_off_what_the_others_wait_for(backend_url):
    async def play(store, other):
        async def fail():
            await came_true(lambda: names(other), 4)
            raise ValueError("no")

        async with aio.Lock(other, "x"):
            with pytest.raises(ExceptionGroup) as raised:
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(aio.Lock(store, "x").acquire)
                    tasks.start_soon(fail)
            assert [type(error) for error in raised.value.exceptions] == [ValueError]
            await came_true(lambda: names(other), 1)

    played(play, backend_url)


async def names(store):
    return await store.children("x")


async def came_true(read, count):
    with anyio.fail_after(WAIT_S):
        while len(await read()) != count:
            await anyio.sleep(0.01)
