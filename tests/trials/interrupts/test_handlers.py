"""A call in a signal handler while its thread is inside one is served, or refused at once, at every line."""

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import latchwork
from latchwork.backends.futures import Pool
from latchwork.errors import LatchworkError, OutcomeUnknown, ReentrantCall, Unavailable
from latchwork.primitives import Lock, Semaphore
from trials.interrupts.harness import Interrupter

if TYPE_CHECKING:
    from collections.abc import Callable

    from latchwork import Store

#: Lines between two that are tried: a call of a server takes a while.
STEP = {"memory": 1, "sqlite": 5}
#: What we wait with: a handler may come there, too.
WAITS = (threading.__file__, str(Path(concurrent.futures.__file__).parent))
#: Seconds after which a call hangs.
HANGS_S = 20.0


def handled_at_every_line(outer: Callable[[], object], inner: Callable[[], object], step: int) -> list[str]:
    """Make the outer call again and again, the inner one at another line of it each time; what was refused, and where.

    Nothing ends at its deadline: that would be a call that waited for its own thread.

    What is raised by the outer call is raised here: a handler must not break what it came upon.
    """
    refused: list[str] = []
    late: list[str] = []

    def act() -> None:
        try:
            inner()
        except ReentrantCall as error:
            refused.append(f"{interrupter.where}: {error}")
        except (OutcomeUnknown, Unavailable) as error:
            late.append(f"{interrupter.where}: {error}")

    interrupter = Interrupter(act, also=WAITS)
    raised: list[BaseException] = []

    def play() -> None:
        line = 1
        try:
            while interrupter.call(outer, line):
                line += step
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    while thread.is_alive():
        before = interrupter.calls
        thread.join(HANGS_S)
        assert not thread.is_alive() or interrupter.calls != before, f"a call in a handler hangs at {interrupter.where}"
    if raised:
        raise AssertionError(f"the handler at {interrupter.where} broke the call it came upon") from raised[0]
    assert not late
    return refused


@pytest.fixture
def step(store: Store) -> int:
    return STEP.get(store.capabilities.name, 17)


def test_a_call_of_the_store_in_a_handler_of_one_is_served_or_refused(store: Store, step: int) -> None:
    def inner() -> None:
        store.put("handler", b"1")
        store.get("handler")

    store.put("handler", b"0")
    refused = handled_at_every_line(lambda: store.put("main", b"1"), inner, step)
    refused += handled_at_every_line(lambda: store.get("main"), inner, step)
    assert all("signal handler" in each for each in refused)
    assert store.get("main").value == b"1"  # type: ignore[union-attr]


@pytest.mark.parametrize("first", range(3))
def test_a_call_in_a_handler_of_the_first_write_of_a_store_is_served_or_refused(
    backend_url: str, step: int, first: int
) -> None:
    """What the first write prepares is for all who write meanwhile: a handler must not wait for its own thread."""
    late: list[str] = []
    refused = 0

    def inner() -> None:
        nonlocal refused
        try:
            store.put("handler", b"1")
        except ReentrantCall:
            refused += 1
        except LatchworkError as error:
            late.append(f"{interrupter.where}: {error!r}")

    interrupter = Interrupter(inner, also=WAITS)
    line = 1 + first * max(1, step // 3)
    hit = True
    while hit:
        with latchwork.connect(backend_url) as store:
            hit = interrupter.call(lambda: store.put("main", b"1"), line)
        line += 2 * step
    assert not late


def test_a_pipeline_in_a_handler_of_one_is_served_or_refused(store: Store, step: int) -> None:
    line = store.pipeline()

    def inner() -> None:
        line.put("handler", b"1").add_done_callback(lambda _: None)

    def outer() -> None:
        future = line.put("main", b"1")
        future.add_done_callback(lambda _: None)
        future.result(10.0)

    handled_at_every_line(outer, inner, 3 * step)
    line.flush()


@pytest.mark.parametrize(
    "kind", [Lock, lambda store, name: Semaphore(store, name, leases=1)], ids=["Lock", "Semaphore"]
)
def test_a_lock_in_a_handler_of_another_is_served_or_refused(store: Store, step: int, kind: Any) -> None:
    mine, other = kind(store, "mine"), kind(store, "other")

    def outer() -> None:
        with mine:
            pass

    def inner() -> None:
        with other:
            pass

    handled_at_every_line(outer, inner, 7 * step)
    with mine, other:
        pass


def test_a_lock_that_is_closed_in_a_handler_of_its_own_call_hangs_nobody(store: Store, step: int) -> None:
    closed: list[Lock] = []

    def outer() -> None:
        lock = Lock(store, "mine")
        closed[:] = [lock]
        try:
            with lock:
                pass
        except LatchworkError:
            pass
        finally:
            lock.close()

    handled_at_every_line(outer, lambda: [each.close() for each in closed], 7 * step)
    with Lock(store, "mine"):
        pass


def test_a_submit_that_was_interrupted_at_any_line_leaves_the_next_one_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that an interrupt left would send all later ones of this thread through threads of their own."""
    late: list[object] = []
    monkeypatch.setattr("latchwork.backends.futures.once_left", late.append)
    interrupter, line, interrupted = Interrupter(), 1, True
    with Pool(1) as pool:
        while interrupted:
            interrupted = interrupter.call(lambda: pool.submit(int), line)
            assert pool.submit(int).result(HANGS_S) == 0
            line += 1
    assert line > 3
    assert late == []
