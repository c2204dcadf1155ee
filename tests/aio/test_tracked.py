"""A write that must not be lost to a cancellation is awaited before anything is undone."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from latchwork.store.driving.background_loop import run_in_task
from latchwork.store.steps import TrackedWrite, undone_if_interrupted

PATIENCE_S = 20.0


class Server:
    """Answers one call when it is told to."""

    def __init__(self):
        self.connection = self
        self.asked = threading.Event()
        self.answer = Future()
        self.seen = []
        self.undone = threading.Event()

    def create(self, key):
        raise AssertionError(key)

    def start_call(self, *_):
        self.asked.set()
        return self.answer

    def remaining_timeout_s(self, _since=None):
        return PATIENCE_S

    async def protocol(self):
        with undone_if_interrupted(self.undo):
            await TrackedWrite(lambda future: self.seen.append(future.result()), self.create, "key")

    def undo(self):
        self.seen.append("undone")
        self.undone.set()


async def cancelled_in_flight(server):
    task = asyncio.create_task(run_in_task(server.protocol))
    while not server.asked.is_set() and not task.done():
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.01)
    return task


def test_cancelled_call_waits_for_the_answer_of_its_write_and_undoes_afterwards():
    async def main():
        server = Server()
        task = await cancelled_in_flight(server)
        assert not task.done()
        server.answer.set_result("created")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert server.seen == ["created", "undone"]

    asyncio.run(main())


def test_second_cancellation_leaves_the_answer_and_the_undo_to_the_background():
    async def main():
        server = Server()
        task = await cancelled_in_flight(server)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert server.seen == []
        server.answer.set_result("created")
        assert await asyncio.to_thread(server.undone.wait, PATIENCE_S)
        assert server.seen == ["created", "undone"]

    asyncio.run(main())


def test_answer_that_takes_longer_than_a_cancelled_call_waits_is_awaited_in_the_background(monkeypatch):
    monkeypatch.setattr("latchwork.store.driving.loop.CLEAN_UP_S", 0.05)

    async def main():
        server = Server()
        task = await cancelled_in_flight(server)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert server.seen == []
        server.answer.set_result("created")
        assert await asyncio.to_thread(server.undone.wait, PATIENCE_S)
        assert server.seen == ["created", "undone"]

    asyncio.run(main())
