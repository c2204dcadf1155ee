"""Nothing of ours keeps the thread of an event loop: not a wait, not I/O, not much work at a time."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from pathlib import Path

import pytest

from latchwork import aio
from latchwork._base.interrupts import mutex

sys.path.insert(0, str(Path(__file__).parent))
from everything import use_everything

from loop_guard import LONGEST_STEP_S, Guard

#: Of measuring, as many as it takes at the most.
ROUNDS = 5
PATIENCE_S = 30.0


def test_nothing_of_ours_waits_in_the_thread_of_a_loop(backend_url, monkeypatch):
    guard = Guard(monkeypatch)
    guard.follow_mutexes(monkeypatch)

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
    """The best of some rounds: on a busy machine caches are lost, and a step counts that, too."""
    guard = Guard(monkeypatch)

    async def use(name):
        async with aio.connect(backend_url) as store, aio.connect(backend_url) as other:
            await use_everything(store.namespace(name), other.namespace(name))

    asyncio.run(use("first"))  # what is imported and compiled at the first use is none of a step's
    guard.measure(monkeypatch)
    longest = []
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for turn in range(ROUNDS):
            guard.steps.clear()
            asyncio.run(use(f"n{turn}"))
            assert len(guard.steps) > 300
            longest.append(guard.longest)
            if guard.longest[0] <= LONGEST_STEP_S:
                return
    finally:
        gc.enable()
        gc.unfreeze()
    pytest.fail(f"the longest steps of each round: {longest}")


def test_the_guard_notes_a_mutex_whose_holder_waits_and_none_whose_holder_works(monkeypatch):
    guard = Guard(monkeypatch)
    guard.follow_mutexes(monkeypatch)
    held, until = mutex(), threading.Event()
    has_it, may_go = threading.Event(), threading.Event()

    def wait():
        with held:
            has_it.set()
            may_go.wait(PATIENCE_S)

    def work():
        with held:
            has_it.set()
            while not until.is_set():
                pass

    async def meet():
        with held:
            pass

    for hold, let_go in ((work, until), (wait, may_go)):
        has_it.clear()
        holder = threading.Thread(target=hold)
        holder.start()
        assert has_it.wait(PATIENCE_S)
        release = threading.Timer(0.2, let_go.set)
        release.start()
        asyncio.run(meet())
        holder.join()
        release.join()
        assert bool(guard.found) == (hold is wait)
    assert guard.contended == 2
    assert "a mutex whose holder waits (at threading.py" in guard.found[0]


def test_the_guard_notes_what_waits_and_what_takes_long(monkeypatch):
    guard = Guard(monkeypatch)
    guard.measure(monkeypatch)

    async def misbehave():
        threading.Event().wait(0.001)
        time.sleep(0.001)  # noqa: ASYNC251 - it is to be seen
        until = time.thread_time() + 2 * LONGEST_STEP_S
        while time.thread_time() < until:
            pass

    asyncio.run(misbehave())
    assert {each.partition(" ")[0] for each in guard.found} >= {"Event.wait", "sleep"}
    assert guard.longest[0] > LONGEST_STEP_S
