"""Steps: one source of a protocol, driven by a thread or by an event loop."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import latchwork
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import WaitTimeout
from latchwork.primitives import Barrier, Election, Group, LeaderLatch, Lock, Queue, Semaphore
from latchwork.store import steps
from latchwork.store.driving.background import Background
from latchwork.store.driving.background_loop import run_in_task
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause, Signal, ask, blocking, call_user_function, coroutine_of, run

PACKAGE = Path(latchwork.__file__).parent


def in_loop(protocol):
    return run_in_task(lambda: protocol)


def loop(function, *args, **options):
    return run_in_task(partial(coroutine_of(function), *args, **options))


@pytest.fixture
def store():
    with latchwork.connect("memory://steps") as opened:
        yield opened


@blocking
async def add_up(*numbers):
    total = 0
    for number in numbers:
        total += await call_user_function(lambda number=number: number)
    return total


def test_a_driven_protocol_is_an_ordinary_function_and_its_steps_are_had_by_name():
    assert add_up(1, 2, 3) == 6
    assert run(coroutine_of(add_up)(4, 5)) == 9


def test_an_error_of_a_step_is_raised_at_its_await_and_may_be_handled_there(store):
    async def absent_or_created():
        try:
            await ask(store.create, "a", b"1")
            await ask(store.create, "a", b"2")
        except latchwork.KeyExists:
            return (await ask(store.get, "a")).value

    assert run(absent_or_created()) == b"1"


def test_what_interrupts_a_wait_is_raised_in_the_protocol_whose_cleaning_up_may_wait():
    done = []

    class Interrupting:
        def now(self):
            return 0.0

        def wait(self, event, timeout_s=None):
            raise KeyboardInterrupt

    async def guarded():
        try:
            await Pause(Interrupting(), Signal(), 1.0)
        finally:
            done.append(await Pause(SYSTEM_CLOCK, Signal(), 0.0))

    with pytest.raises(KeyboardInterrupt):
        run(guarded())
    assert done == [False]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # interrupted before its first line
def test_an_interrupt_at_any_line_of_the_driver_is_raised_in_the_protocol():
    at = line = 0
    driver = {run.__code__, steps._drive.__code__}

    def interrupt(frame, event, _arg):
        nonlocal line
        if frame.f_code not in driver:
            return None
        if event == "line":
            line += 1
            if line == at:
                raise KeyboardInterrupt
        return interrupt

    async def guarded():
        cleaned.append("begun")
        try:
            for _ in range(3):
                await Pause(SYSTEM_CLOCK, Signal(), 0.0)
        finally:
            cleaned.append("cleaned")

    interrupted = 0
    for at in range(1, 200):
        line, cleaned = 0, []
        sys.settrace(interrupt)
        try:
            run(guarded())
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        assert cleaned in ([], ["begun", "cleaned"]), f"line {at} of the driver"
        if line < at:
            break
    assert interrupted > 10


def test_a_signal_calls_once_when_it_is_set_and_at_once_if_it_is():
    signal, calls = Signal(), []
    signal.call_when_set(lambda: calls.append("first"))
    signal.call_when_set(lambda: calls.append("taken back"))()
    signal.set()
    signal.set()
    signal.call_when_set(lambda: calls.append("late"))
    assert calls == ["first", "late"]


def test_a_bell_that_was_rung_since_the_look_is_not_waited_for():
    bell = Notifier()
    with bell.mutex:
        before = bell.version
        bell.notify_all()
    assert run(one(bell.wait_for_change(before, SYSTEM_CLOCK, None)))
    assert asyncio.run(in_loop(one(bell.wait_for_change(before, SYSTEM_CLOCK, None))))
    assert not run(one(bell.wait_for_change(bell.version, SYSTEM_CLOCK, 0.0)))
    assert not asyncio.run(in_loop(one(bell.wait_for_change(bell.version, SYSTEM_CLOCK, 0.01))))


async def one(step):
    return await step


def test_a_protocol_in_the_background_can_be_waited_for_by_both_drivers():
    ends = []

    async def work():
        ends.append(threading.current_thread().name)

    run(one(Background(work, "latchwork-one")))
    asyncio.run(in_loop(one(Background(work, "latchwork-two"))))
    assert ends == ["latchwork-one", "latchwork-two"]


def test_coroutines_of_one_thread_exclude_each_other_with_a_lock(store):
    inside = most = 0

    async def enter(number):
        nonlocal inside, most
        lock = Lock(store, "lock", label=str(number))
        await loop(lock.acquire, timeout_s=20)
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        await loop(lock.release)

    async def all_enter():
        await asyncio.gather(*(enter(number) for number in range(20)))

    asyncio.run(all_enter())
    assert most == 1
    assert Lock(store, "lock").holder() is None


def test_a_wait_in_a_loop_ends_when_its_time_is_over_and_leaves_nothing_behind(store):
    with Lock(store, "lock"):
        with pytest.raises(WaitTimeout, match="lock 'lock' is held by"):
            asyncio.run(loop(Lock(store, "lock").acquire, timeout_s=0.05))
        assert Lock(store, "lock").waiters() == []


def test_a_cancelled_wait_in_a_loop_leaves_nothing_behind(store):
    async def give_up():
        task = asyncio.create_task(loop(Lock(store, "lock").acquire))
        with store.watch("lock") as watch:
            while not Lock(store, "lock").waiters():
                await loop(watch.next, 20.0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with Lock(store, "lock"):
        asyncio.run(give_up())
        with store.watch("lock") as watch:  # a create that was cancelled is undone in the background
            while Lock(store, "lock").waiters():
                watch.next(20.0)


def test_every_kind_of_primitive_waits_in_a_loop(store):
    async def use_all():
        semaphore = Semaphore(store, "semaphore", leases=1)
        await loop(semaphore.acquire)
        await loop(semaphore.release)
        barriers = [Barrier(store, "barrier", parties=3, member_id=name) for name in "abc"]
        assert await asyncio.gather(*(loop(barrier.wait) for barrier in barriers)) == [0, 0, 0]
        queue = Queue(store, "queue")
        taken, _ = await asyncio.gather(loop(queue.take), loop(queue.put, b"item"))
        await loop(taken.ack)
        latch = LeaderLatch(store, "latch", node_id="n1")
        await loop(latch.start)
        assert (await loop(latch.wait)).token == latch.fence.token
        await loop(latch.close)
        group = Group(store, "group", member_id="n1")
        group.start()
        assert list((await loop(group.wait)).ids) == ["n1"]
        await loop(group.close)
        term = await loop(Election(store, "election", node_id="n1").campaign, b"value")
        await loop(term.resign)
        return taken.value

    assert asyncio.run(use_all()) == b"item"


def protocols():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AsyncFunctionDef):
                yield path, node


MUTEXES = ("_lock", "_changed", "_mutex", "_opening")


@pytest.mark.slow
def test_no_protocol_holds_a_mutex_at_an_await():
    found = []
    for path, protocol in protocols():
        for block in ast.walk(protocol):
            names = [ast.unparse(item.context_expr) for item in block.items] if isinstance(block, ast.With) else []
            if any(name.endswith(MUTEXES) for name in names):
                awaits = [node for inner in block.body for node in ast.walk(inner) if isinstance(node, ast.Await)]
                found += [f"{path.name}:{node.lineno}" for node in awaits]
    assert found == []
    assert len(list(protocols())) > 100
