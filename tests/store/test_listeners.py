"""Listeners: one that exits ends itself only, and what cannot be called is refused when it is given."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import uuid
from functools import partial

import pytest

import latchwork
from latchwork.primitives import Election, Group, LeaderLatch, Lock, LockKeeper, PersistentLock, Queue
from latchwork.primitives.waiting import StopSignal
from latchwork.store.dispatch import Dispatcher
from latchwork.store.observers import Observers, add_listener, call_each

SOON_S = 10.0
PROBLEM = "a listener of %s raised"


@pytest.fixture
def store():
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as opened:
        yield opened


def exits():
    sys.exit(3)


def test_a_listener_that_exits_stops_no_other(caplog):
    told = []
    with caplog.at_level(logging.ERROR):
        call_each([exits, lambda: told.append(1)], logging.getLogger("test"), PROBLEM, "x")
    assert told == [1]
    assert "a listener of x raised" in caplog.text


def test_an_interrupt_of_the_thread_is_raised_once_all_were_called():
    told = []

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_each([interrupted, lambda: told.append(1)], logging.getLogger("test"), PROBLEM, "x")
    assert told == [1]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_lane_whose_drain_exits_runs_again_at_the_next_signal(error):
    dispatcher, runs = Dispatcher("test"), threading.Semaphore(0)

    def drain():
        runs.release()
        raise error

    drain_task = dispatcher.create_serial_drain(drain, "test")
    for _ in range(3):
        drain_task.signal()
        assert runs.acquire(timeout=SOON_S)
        threading.Event().wait(0.05)
    dispatcher.close()


def test_a_mirror_and_a_watch_go_on_calling_a_listener_that_exits(store):
    heard, seen = [], []
    both = threading.Semaphore(0)

    def of_mirror(batch):
        heard.extend(change.key for change in batch)
        both.release()
        sys.exit(3)

    def of_watch(batch):
        seen.extend(change.key for change in batch)
        both.release()
        raise SystemExit

    with store.mirror("m") as mirror, store.watch("m") as watch:
        mirror.on_change(of_mirror)
        watch.subscribe(of_watch)
        for number in range(4):
            assert both.acquire(timeout=SOON_S)
            assert both.acquire(timeout=SOON_S)
            store.put(f"m/{number}", b"")
    assert heard[:3] == seen[:3] == ["m/0", "m/1", "m/2"]


def test_a_lost_session_tells_the_listeners_behind_one_that_exits(store):
    session, told = store.open_session(30.0), threading.Event()
    session.on_lost(exits)
    session.on_lost(told.set)
    session.mark_ended()
    assert told.wait(SOON_S)


def test_an_announcer_makes_the_calls_behind_one_that_is_interrupted(store):
    told = threading.Event()

    def interrupted():
        raise KeyboardInterrupt

    with LeaderLatch(store, "latch", node_id="n") as latch:
        latch.on_elected(interrupted)
        latch.on_elected(told.set)
        assert told.wait(SOON_S)


def test_an_observer_that_exits_disturbs_nobody():
    class Exits:
        def started(self):
            sys.exit(3)

    told = []

    class Hears:
        def started(self):
            told.append(1)

    Observers([Exits(), Hears()]).notify("started")
    assert told == [1]


async def asynchronous(*_):
    await asyncio.sleep(0)


class Asynchronous:
    async def __call__(self, *_):
        await asyncio.sleep(0)


def doors(store):
    """Everything that takes a listener."""
    lock, latch = Lock(store, "lock"), LeaderLatch(store, "latch", node_id="n")
    term = Election(store, "election", node_id="n").campaign(timeout_s=30.0)
    queue = Queue(store, "queue")
    queue.put(b"x")
    keeper, persistent = LockKeeper(store, ttl_s=30.0), PersistentLock(store, "p", ttl_s=30.0)
    return {
        "session.on_lost": store.session.on_lost,
        "session.on_end": store.session.on_end,
        "mirror.on_change": store.mirror("m").on_change,
        "watch.subscribe": store.watch("m").subscribe,
        "watch.subscribe on_error": partial(store.watch("m").subscribe, print),
        "lock.on_lost": lock.on_lost,
        "latch.on_elected": latch.on_elected,
        "latch.on_revoked": latch.on_revoked,
        "term.on_lost": term.on_lost,
        "claim.on_lost": queue.take(30.0).on_lost,
        "group.on_view": Group(store, "group", member_id="m").on_view,
        "keeper.on_lost": keeper.on_lost,
        "keeper.on_renewal_failed": keeper.on_renewal_failed,
        "keeper.when_free": partial(keeper.when_free, "p"),
        "persistent.on_lost": persistent.on_lost,
        "persistent.on_renewal_failed": persistent.on_renewal_failed,
        "stop.on_stop": StopSignal("work").on_stop,
        "listen": partial(add_listener, {}),
    }


@pytest.mark.parametrize("listener", ["print", 7, asynchronous, partial(asynchronous, 1), Asynchronous()])
def test_what_cannot_be_called_is_refused_when_it_is_given(store, listener):
    for name, register in doors(store).items():
        with pytest.raises(TypeError, match="must be a"):
            register(listener)
            pytest.fail(f"{name} accepts {listener!r}")


def test_a_listener_of_work_that_was_told_to_stop_is_refused_all_the_same(store):
    signal, session = StopSignal("work"), store.open_session(30.0)
    signal.stop()
    session.close()
    for register in (signal.on_stop, session.on_lost, session.on_end):
        with pytest.raises(TypeError, match="must be a function, not None"):
            register(None)
