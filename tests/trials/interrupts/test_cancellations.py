"""A task is cancelled at each of its awaits: what was asked for is held and known, or gone; see docs/design/steps.md.

The plays are those of interrupts, through the twins: each call is a task. A cancellation comes before a wait, or when
what was waited for has come and the task has not been told yet. `make check WHAT=interrupts` has every await of every
play; each day has some, and they are others every day.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import threading
import types
import uuid
from concurrent.futures import CancelledError

import pytest

import latchwork
import through_loop
from latchwork import primitives
from levels import LONG
from patience import eventually
from trials.interrupts import plays, plays_of_many, plays_of_watchers

#: Awaits from one that is tried to the next; after so many days each had its turn.
STEP = 1 if LONG else 23
MOST_AWAITS = 2000
SETTLE_S = 10.0
#: Not through a twin: a pipeline's futures are of the loop, and tests/aio has it.
ELSEWHERE = {"Store.pipeline"}
NAMES = [play.name for play in plays.of_protocols() if play.name not in ELSEWHERE]


class Canceller:
    """Cancels the calls that one thread makes at their n-th await, once.

    Attributes:
        late: cancel when the wait is over, but before the task goes on.
        is_over: it has cancelled.
    """

    def __init__(self, at, *, late):
        self.left = at
        self.late = late
        self.thread = threading.current_thread()
        self.where = None

    @property
    def is_over(self):
        return self.left <= 0

    def awaits(self, task, waits_for):
        """Our task is about to wait."""
        self.left -= 1
        if self.left != 0:
            return
        self.where = where(task)
        if self.late and asyncio.isfuture(waits_for):
            waits_for.add_done_callback(lambda _: task.cancel())  # comes before the task's own
        else:
            task.cancel()


def where(task):
    """The functions of ours in which a task waits, innermost first."""
    names, each = [], task.get_coro()
    while each is not None and len(names) < 12:
        code = getattr(each, "cr_code", None) or getattr(each, "gi_code", None)
        if code is not None:
            names.append(code.co_qualname if hasattr(code, "co_qualname") else code.co_name)
        each = getattr(each, "cr_await", None) or getattr(each, "gi_yieldfrom", None)
    return " < ".join(reversed(names))


class CancellingLoop(through_loop.Loop):
    """A loop whose tasks for a test's thread are cancelled."""

    canceller = None

    def call(self, fn, original=None):
        canceller = self.canceller
        if canceller is None or threading.current_thread() is not canceller.thread:
            return super().call(fn, original)
        return super().call(functools.partial(self.cancelled, fn, canceller), original)

    async def cancelled(self, fn, canceller):
        was_over = canceller.is_over
        result = fn()
        if asyncio.iscoroutine(result):
            result = await Stepped(result, canceller)
        assert was_over or not canceller.is_over, f"the cancellation at {canceller.where} was swallowed"
        return result


class Stepped:
    """A coroutine whose awaits are counted."""

    def __init__(self, coroutine, canceller):
        self.coroutine = coroutine
        self.canceller = canceller

    def __await__(self):
        resume = functools.partial(self.coroutine.send, None)
        while True:
            try:
                waits_for = resume()
            except StopIteration as stop:
                return stop.value
            self.canceller.awaits(asyncio.current_task(), waits_for)
            try:
                yield waits_for
            except GeneratorExit:
                self.coroutine.close()
                raise
            except BaseException as error:
                resume = functools.partial(self.coroutine.throw, error)
            else:
                resume = functools.partial(self.coroutine.send, None)


@pytest.fixture
def loop(monkeypatch):
    """The plays' primitives are twins."""
    namespace = types.ModuleType("primitives")
    vars(namespace).update(vars(primitives))
    monkeypatch.setattr(through_loop, "Loop", CancellingLoop)
    made = through_loop.install([namespace], monkeypatch)
    for module in (plays, plays_of_many, plays_of_watchers):
        monkeypatch.setattr(module, "p", namespace)
    yield made
    made.close()


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_behind_by_a_cancellation_at_any_await(loop, name, late):
    play = next(play for play in plays.of_protocols() if play.name == name)
    url = f"memory://{uuid.uuid4().hex}?call_timeout_s=5&session_ttl_s=60"
    with latchwork.connect(url) as mine, latchwork.connect(url) as other:
        mine.open_session(60.0)
        core, rounds = through_loop.raw(mine)._core, 1
        made = play.make(mine, "n0")
        play.use(made, mine, "n0")
        play.after(made, mine, other, "n0")
        kept = len(core._feeds)  # of objects that a play does not close
        first = dt.date.today().toordinal() % STEP + 1  # noqa: DTZ011 - any day will do
        for at in range(first, MOST_AWAITS, STEP):
            rounds += 1
            made = play.make(mine, f"n{at}")
            loop.canceller = canceller = Canceller(at, late=late)
            try:
                play.use(made, mine, f"n{at}")
            except CancelledError:
                assert canceller.is_over, "it was cancelled by nobody"
            finally:
                loop.canceller = None
            try:
                play.after(made, mine, other, f"n{at}")
            except Exception as error:
                pytest.fail(f"cancelled at {canceller.where}: {error!r}")
            if not canceller.is_over:
                break
        else:
            raise AssertionError("it never ended")
        eventually(lambda: len(core._feeds) <= kept * rounds, SETTLE_S, "all watches are closed")
