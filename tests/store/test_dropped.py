"""A store that its user dropped without ``close``."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import latchwork
from latchwork import Session, Store, aio
from latchwork.executor import ExecutorWorker
from latchwork.jobs import JobManager
from latchwork.plans import PlanWorker
from latchwork.primitives import LeaderLatch, Lock, LockKeeper, RateLimiter
from latchwork.store.owner import StoreOwner, keep_with_owner
from latchwork.testing.faults import FaultyStore
from latchwork.worker_group import GroupWorker
from patience import Deadline

pytestmark = pytest.mark.threads


def warned_of(call: Callable[[], Any]) -> list[str]:
    """The resource warnings about stores of a call, and of the collection after it; returns once they are closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
        gc.collect()
    ours = [each for each in caught if isinstance(each.source, StoreOwner)]
    assert all(comes_true(lambda owner=each.source: owner._core.is_closed) for each in ours)
    return [str(each.message) for each in ours]


def comes_true(look: Callable[[], bool]) -> bool:
    deadline = Deadline(10.0)
    while not look():
        if deadline.has_passed:
            return False
        time.sleep(0.01)
    return True


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that shows every ``ResourceWarning``; return how it ended."""
    return subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_dropped_store_warns_with_the_place_of_its_creation_and_gives_up_its_lock(backend_url: str) -> None:
    def drop() -> None:
        Lock(latchwork.connect(backend_url), "dropped").acquire()

    (message,) = warned_of(drop)

    assert f"created at {__file__}:{drop.__code__.co_firstlineno + 1}" in message
    with latchwork.connect(backend_url) as store:
        assert comes_true(lambda: not store.list("dropped"))


def test_dropped_store_of_an_event_loop_names_the_line_of_its_connect(backend_url: str) -> None:
    async def drop() -> None:
        store = await aio.connect(backend_url)
        await aio.Lock(store, "dropped").acquire()

    (message,) = warned_of(lambda: asyncio.run(drop()))

    assert f"created at {__file__}:{drop.__code__.co_firstlineno + 1}" in message
    with latchwork.connect(backend_url) as store:
        assert comes_true(lambda: not store.list("dropped"))


def test_namespace_keeps_its_store_open(backend_url: str) -> None:
    space = latchwork.connect(backend_url).namespace("below")
    gc.collect()

    space.put("k", b"v")

    assert warned_of(lambda: space.get("k")) == []
    space._core.close()


def test_primitive_keeps_its_store_open(backend_url: str) -> None:
    lock = Lock(latchwork.connect(backend_url), "kept")
    lock.acquire()
    gc.collect()

    assert lock.is_held
    lock._store.close()


def test_pipeline_keeps_its_store_open(backend_url: str) -> None:
    pipeline = latchwork.connect(backend_url).pipeline()
    gc.collect()

    assert pipeline.put("k", b"v").result().key == "k"
    pipeline._store.close()


def test_listener_that_refers_to_its_store_does_not_keep_it_open(backend_url: str) -> None:
    def drop() -> None:
        store = latchwork.connect(backend_url)
        store.session.on_lost(store.close)

    assert len(warned_of(drop)) == 1


def test_listener_of_a_dropped_store_is_called_at_its_end(backend_url: str) -> None:
    ended: list[bool] = []

    def drop() -> None:
        latchwork.connect(backend_url).session.on_lost(lambda: ended.append(True), or_closed=True)

    warned_of(drop)

    assert comes_true(lambda: ended == [True])


def called_after(meanwhile: Callable[[Session, Callable[[], None]], object], *, or_closed: bool = False) -> list[str]:
    """The calls of two listeners: the second is given to this function, between the end of the owner and its close."""
    called: list[str] = []
    begun: list[Any] = []

    def drop() -> None:
        store = latchwork.connect("memory://dropped-meanwhile")
        session = store.session
        session.on_lost(lambda: called.append("first" if store else ""), or_closed=or_closed)
        # The collector calls this after it has cleared the weak references, before it calls the first finalizer.
        begun.append(weakref.ref(store, lambda _: meanwhile(session, lambda: called.append("second"))))

    assert len(warned_of(drop)) == 1
    comes_true(lambda: len(called) == 2)
    return sorted(called)


def test_listeners_are_called_for_a_session_that_is_lost_while_its_store_is_dropped() -> None:
    def lose(session: Session, listener: Callable[[], None]) -> None:
        session.on_lost(listener)
        session.mark_ended()
        assert comes_true(session.lost.is_set)

    assert called_after(lose) == ["first", "second"]


def test_listeners_are_called_for_a_session_that_is_closed_while_its_store_is_dropped() -> None:
    def close(session: Session, listener: Callable[[], None]) -> None:
        session.on_lost(listener, or_closed=True)
        session.close()

    assert called_after(close, or_closed=True) == ["first", "second"]


def test_value_that_is_kept_while_the_owner_is_dropped_is_not_lost() -> None:
    kept: list[Any] = []

    class Core:
        def __init__(self) -> None:
            self.is_closed = False

        @property
        def url(self) -> str:  # read by the finalizer, and later by the thread that closes it
            kept.append(keep_with_owner(owner, self, object()))
            return "memory://"

        def take_back(self, value: object) -> None: ...

        def close(self) -> None:
            self.is_closed = True

    core = Core()
    owners = [StoreOwner(core, ("file", 1))]
    owner = weakref.ref(owners[0])

    assert len(warned_of(owners.clear)) == 1
    assert kept[0]() is not None


def test_store_whose_close_was_cut_short_ends_its_session_when_it_is_dropped() -> None:
    class Interrupted:
        closes = 0

        def close(self) -> None:
            self.closes += 1
            if self.closes == 1:
                raise KeyboardInterrupt

    sessions: list[Session] = []

    def drop() -> None:
        store = latchwork.connect("memory://dropped-again")
        sessions.append(store.session)
        store.shared("interrupted", lambda _: Interrupted())
        with pytest.raises(KeyboardInterrupt):
            store.close()

    assert len(warned_of(drop)) == 1
    assert comes_true(lambda: sessions[0].state == "closed")


def test_rate_limiter_that_is_dropped_ends_its_watch_and_does_not_keep_its_store_open() -> None:
    with latchwork.connect("memory://dropped-limiter") as store:
        RateLimiter(store, "mail", permits=2, interval_s=60).acquire()
        assert comes_true(lambda: not store._core._feeds)

    def drop() -> None:
        RateLimiter(latchwork.connect("memory://dropped-limiter"), "mail", permits=2, interval_s=60).acquire()

    assert len(warned_of(drop)) == 1


STARTED: dict[str, Callable[[Store], Any]] = {
    "latch": lambda store: LeaderLatch(store, "latch", node_id="node"),
    "keeper": LockKeeper,
    "worker": lambda store: ExecutorWorker(store, slots=1),
    "plan worker": PlanWorker,
    "node": lambda store: JobManager(store, "node", []),
}


@pytest.mark.parametrize("kind", STARTED)
def test_object_that_was_started_runs_on_when_it_is_dropped(kind: str) -> None:
    references: list[weakref.ref[Any]] = []

    def drop() -> None:
        made = STARTED[kind](latchwork.connect("memory://started"))
        made.start()
        references.append(weakref.ref(made))

    assert warned_of(drop) == []
    (made,) = [reference() for reference in references]
    store = getattr(made, "_store", None) or made._store_or_url
    assert made is not None
    assert not store._core.is_closed
    made.close()
    store._core.close()


def test_worker_that_joined_its_job_keeps_its_store_open_when_it_is_dropped() -> None:
    cores: list[Any] = []

    def drop() -> None:
        store = latchwork.connect("memory://joined")
        cores.append(store._core)
        GroupWorker(store, "train", workers=1, key="k").join()

    assert warned_of(drop) == []
    cores[0].close()


def test_closed_store_does_not_warn(backend_url: str) -> None:
    def close() -> None:
        with latchwork.connect(backend_url) as store:
            Lock(store, "closed").acquire()

    assert warned_of(close) == []


def test_faulty_store_that_is_dropped_warns_once_and_closes_the_store_it_took_over() -> None:
    inner: list[Any] = []

    def drop() -> None:
        store = latchwork.connect("memory://dropped-faulty")
        inner.append(store._core)
        FaultyStore(store).put("k", b"v")

    assert len(warned_of(drop)) == 1
    assert comes_true(lambda: inner[0].is_closed)


def test_reopened_store_that_is_dropped_names_the_line_of_the_reopening() -> None:
    def drop() -> None:
        with latchwork.connect("memory://dropped-again") as store:
            store.reopen()

    (message,) = warned_of(drop)

    assert f":{drop.__code__.co_firstlineno + 2}" in message


def test_hook_of_a_fork_that_drops_the_store_of_the_parent_does_not_warn() -> None:
    program = """
import os, warnings, latchwork
held = []
os.register_at_fork(after_in_child=held.clear)  # before the hooks of latchwork, which is imported at its first use
held.append(latchwork.connect("memory://forked"))
warnings.simplefilter("ignore", DeprecationWarning)  # newer versions of Python warn of any fork beside threads
if (child := os.fork()) == 0:
    os._exit(0)
os.waitpid(child, 0)
held[0].put("k", b"v")
held[0].close()
"""
    ended = run_program(program)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_store_that_a_module_has_open_at_the_end_of_the_program_neither_warns_nor_hangs() -> None:
    program = "import latchwork; store = latchwork.connect('memory://end'); store.session"

    ended = run_program(program)

    assert (ended.returncode, [line for line in ended.stderr.splitlines() if "store " in line]) == (0, [])
