"""Nothing of ours keeps the thread of an event loop: not a wait, not I/O, not much work at a time."""

from __future__ import annotations

import asyncio
import gc
import socket
import sqlite3
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from latchwork import aio

sys.path.insert(0, str(Path(__file__).parent))
from everything import use_everything

#: Seconds of processor time. What is promised is 5 ms; a machine that runs tests counts what its caches lose, too.
LONGEST_STEP_S = 0.02


def waits(*args):
    """Whether a wait with these arguments takes time."""
    return len(args) < 2 or args[1] is None or args[1] > 0


SOCKET_CALLS = {"recv", "send", "sendall", "connect"}


class Guard:
    """Notes each call in the loop's thread that may wait, with who made it."""

    def __init__(self, monkeypatch):
        self.thread = threading.current_thread()
        self.found = []
        for owner, name in ((threading.Event, "wait"), (threading.Condition, "wait"), (threading.Thread, "join")):
            monkeypatch.setattr(owner, name, self.guarded(getattr(owner, name), waits))
        monkeypatch.setattr(time, "sleep", self.guarded(time.sleep, waits))
        monkeypatch.setattr(Future, "result", self.guarded(Future.result, lambda future, *_: not future.done()))

    def guarded(self, call, does_wait):
        def guarded(*args, **options):
            if self.is_ours() and does_wait(*args, *options.values()):
                self.note(call.__qualname__, sys._getframe(1))
            return call(*args, **options)

        return guarded

    def is_ours(self):
        return threading.current_thread() is self.thread and asyncio._get_running_loop() is not None

    def profile(self, frame, event, arg):
        if event != "c_call":
            return
        owner = getattr(arg, "__self__", None)
        if isinstance(owner, (sqlite3.Connection, sqlite3.Cursor)):
            self.note(f"sqlite3 {arg.__name__}", frame)
        elif (
            isinstance(owner, socket.socket)
            and owner.gettimeout() != 0.0
            and arg.__name__ in {"recv", "send", "sendall"}
        ):
            self.note(f"socket {arg.__name__}", frame)

    def note(self, what, frame):
        before = frame.f_back and frame.f_back.f_back
        if "start" in (frame.f_code.co_name, before and before.f_code.co_name):
            return  # a thread that is started says so before it does anything
        if (frame.f_code.co_name, what) == ("wake", "socket send"):
            return  # one byte to our own thread, with MSG_DONTWAIT
        names = []
        while frame is not None and len(names) < 6:
            names.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            frame = frame.f_back
        if not names[0].startswith(("selector_events", "base_events")):
            self.found.append(f"{what} at {' < '.join(names)}")


def test_nothing_of_ours_waits_in_the_thread_of_a_loop(backend_url, monkeypatch):
    guard = Guard(monkeypatch)

    async def use():
        async with aio.connect(backend_url) as store, aio.connect(backend_url) as other:
            await asyncio.wait_for(use_everything(store, other), 100.0)

    sys.setprofile(guard.profile)
    try:
        asyncio.run(use())
    finally:
        sys.setprofile(None)
    assert not guard.found, "\n".join(sorted(set(guard.found))[:20])


@pytest.mark.serial
def test_no_step_of_ours_keeps_the_loop_for_long(backend_url, monkeypatch):
    turns = []
    run = asyncio.Handle._run

    def measured(handle):
        began = time.thread_time()
        run(handle)
        turns.append((time.thread_time() - began, repr(handle)))

    async def use():
        async with aio.connect(backend_url) as store, aio.connect(backend_url) as other:
            await use_everything(store, other)

    asyncio.run(use())  # what is imported and compiled at the first use is none of a step's
    gc.collect()
    gc.freeze()
    gc.disable()
    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    try:
        asyncio.run(use_anew(backend_url))
    finally:
        gc.enable()
        gc.unfreeze()
    assert max(turns)[0] < LONGEST_STEP_S, max(turns)


async def use_anew(url):
    async with aio.connect(url) as store, aio.connect(url) as other:
        below = store.namespace("anew"), other.namespace("anew")
        await use_everything(*below)
