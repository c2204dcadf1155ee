"""Threads that take turns in virtual time: the same seed, the same run; what goes wrong is told."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import latchwork
from latchwork import aio
from latchwork.primitives import LeaderLatch
from latchwork.testing.simulation import (
    Deadlock,
    Simulation,
    SimulationError,
    ThreadFailed,
    ThreadsLeft,
    TooLong,
)


def three_candidates(sim):
    """A run with locks, pools, sessions and watches; who led when."""
    led = []

    def candidate(name):
        with latchwork.connect("memory://three") as store, LeaderLatch(store, "leader", node_id=name) as latch:
            latch.wait(60)
            led.append((name, latch.fence.token, sim.elapsed_s))
            sim.sleep(3)

    for thread in [sim.spawn(lambda name=name: candidate(name), name=name) for name in "abc"]:
        thread.join()
    return led


def traced(seed=None, **options):
    with Simulation(seed, **options) as sim:
        led = three_candidates(sim)
    return led, sim


# The same again


@pytest.mark.parametrize("seed", range(10))
def test_the_same_seed_gives_the_same_turns(seed):
    first, second = traced(seed), traced(seed)
    assert first[0] == second[0]
    assert first[1].trace == second[1].trace
    assert len(first[1].trace) > 50


def test_other_seeds_give_other_turns():
    traces = {tuple(map(str, traced(seed)[1].trace)) for seed in range(10)}
    assert len(traces) == 10
    assert len({traced(seed)[0][0][0] for seed in range(20)}) == 3, "each candidate is first in some run"


def test_the_decisions_of_a_run_repeat_it():
    led, sim = traced(3, preempt_rate=0.2)
    again, replayed = traced(3, decisions=sim.decisions)
    assert again == led
    assert replayed.trace == sim.trace


def test_without_a_seed_each_thread_runs_until_it_waits():
    order = []

    def note(name):
        for _ in range(3):
            with lock:
                order.append(name)

    with Simulation() as sim:
        lock = threading.Lock()
        for thread in [sim.spawn(lambda name=name: note(name), name=name) for name in "ab"]:
            thread.join()
    assert "".join(order) in {"aaabbb", "bbbaaa"}


def test_uuids_and_random_numbers_repeat_as_well():
    import random
    import secrets
    import uuid

    def draw():
        with Simulation(5):
            return uuid.uuid4(), random.random(), secrets.token_hex(8)

    assert draw() == draw()
    assert uuid.uuid4() != uuid.uuid4()


# Time


def test_an_hour_passes_in_no_time():
    before = time.perf_counter()
    with Simulation() as sim:
        time.sleep(1800)
        sim.sleep(1800)
        assert sim.elapsed_s == 3600
    assert time.perf_counter() - before < 30


def test_time_stands_still_while_anybody_can_run():
    with Simulation() as sim:
        start = time.monotonic()
        sum(range(100_000))
        assert time.monotonic() == start == sim.now()


def test_timeouts_of_every_wait_are_virtual():
    with Simulation() as sim:
        assert not threading.Event().wait(10)
        lock = threading.Lock()
        lock.acquire()
        assert not lock.acquire(timeout=10)
        condition = threading.Condition()
        with condition:
            assert not condition.wait(10)
            assert not condition.wait_for(lambda: False, 10)
        with pytest.raises(queue.Empty):
            queue.Queue().get(timeout=10)
        with pytest.raises(queue.Empty):
            queue.SimpleQueue().get(timeout=10)
        with pytest.raises(TimeoutError):
            Future().result(10)
        assert not threading.Semaphore(0).acquire(timeout=10)
        assert sim.elapsed_s == pytest.approx(80)


def test_a_thread_pool_and_its_futures_take_turns_as_well():
    with Simulation(1) as sim, ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda number: (sim.sleep(1), number)[1], range(4)))
        assert results == [0, 1, 2, 3]
        assert sim.elapsed_s == 2


def test_a_session_expires_in_virtual_time_when_its_node_freezes():
    with Simulation() as sim:
        opened = []

        def node():
            with latchwork.connect("memory://frozen", session_ttl_s=2) as store:
                store.put("alive/a", b"", session=store.session)
                opened.append(store)
                sim.sleep(20)

        with latchwork.connect("memory://frozen") as other:
            thread = sim.spawn(node, name="a", node="a")
            sim.sleep(10)
            assert other.get("alive/a") is not None
            sim.freeze("a", 3)
            sim.sleep(2.5)
            assert other.get("alive/a") is None
            sim.sleep(1)
            assert opened[0]._core._primary.state == "lost"
            thread.join()


def test_a_killed_node_does_nothing_more_and_its_session_runs_out():
    with Simulation() as sim:
        done = []

        def node():
            with latchwork.connect("memory://killed", session_ttl_s=2) as store:
                store.put("alive/a", b"", session=store.session)
                sim.sleep(10)
                done.append("still here")

        with latchwork.connect("memory://killed") as other:
            sim.spawn(node, name="a", node="a")
            sim.sleep(1)
            sim.kill("a")
            sim.sleep(0.9)
            assert other.get("alive/a") is not None
            sim.sleep(2)
            assert other.get("alive/a") is None
            sim.sleep(20)
    assert done == []


# What a run can find


def test_threads_that_wait_for_each_other_are_a_deadlock_that_says_where():
    with pytest.raises(Deadlock, match=r"one: test_simulation\.py:\d+ take.*") as caught, Simulation() as sim:
        first, second = threading.Lock(), threading.Lock()

        def take(here, there):
            with here:
                sim.sleep(1)
                with there:
                    pass

        threads = [
            sim.spawn(lambda: take(first, second), name="one"),
            sim.spawn(lambda: take(second, first), name="two"),
        ]
        for thread in threads:
            thread.join()
    assert "two: " in str(caught.value)


def test_a_race_is_found_by_some_seed_and_repeats_with_it():
    def lost_update(seed):
        with Simulation(seed) as sim, latchwork.connect("memory://race") as store:
            store.put("count", b"0")

            def add():
                before = int(store.get("count").value)
                store.put("count", str(before + 1).encode())

            for thread in [sim.spawn(add, name=f"add-{number}") for number in range(3)]:
                thread.join()
            return store.get("count").value

    found = {seed: lost_update(seed) for seed in range(30)}
    wrong = [seed for seed, value in found.items() if value != b"3"]
    assert wrong
    assert any(value == b"3" for value in found.values())
    assert [lost_update(seed) for seed in wrong] == [found[seed] for seed in wrong]


def test_an_exception_nobody_caught_ends_the_run():
    def fail():
        raise ValueError("broken")

    with pytest.raises(ThreadFailed, match="thread worker ended with ValueError: broken"), Simulation() as sim:
        sim.spawn(fail, name="worker")
        sim.sleep(1)
        pytest.fail("the run goes on after a thread failed")


def test_a_thread_left_running_is_told():
    with pytest.raises(ThreadsLeft, match="forgotten"), Simulation() as sim:
        sim.spawn(lambda: threading.Event().wait(), name="forgotten")


def test_a_store_left_open_is_told():
    with pytest.raises(ThreadsLeft, match="latchwork-session"), Simulation():
        store = latchwork.connect("memory://left-open")
        assert store.session.state == "active"


def test_going_round_in_circles_is_told():
    with pytest.raises(TooLong, match="100 turns"), Simulation(max_turns=100):
        while True:
            time.sleep(1)


def test_a_thread_that_waits_for_something_real_is_told(monkeypatch):
    monkeypatch.setattr("latchwork.testing._sim.scheduler._STUCK_AFTER_S", 0.2)
    monkeypatch.setattr("latchwork.testing.simulation._UNWIND_TIMEOUT_S", 0.2)
    read, write = os.pipe()
    try:
        with pytest.raises(SimulationError, match="thread reader does something") as caught, Simulation() as sim:
            sim.spawn(lambda: os.read(read, 1), name="reader").join()
        assert "os.read" in str(caught.value)
    finally:
        os.write(write, b"x")
        os.close(write)
    os.close(read)


def test_an_observer_sees_every_turn_and_ends_the_run_by_raising():
    seen = []
    with pytest.raises(AssertionError, match="too late"), Simulation() as sim:

        def look():
            seen.append(sim.elapsed_s)
            assert sim.elapsed_s < 5, "too late"

        sim.observe(look)
        sim.spawn(lambda: [sim.sleep(1) for _ in range(20)], name="walker").join()
    assert max(seen) == 5
    assert len(seen) >= 5


def test_an_exception_in_the_body_is_the_one_that_is_raised():
    with pytest.raises(KeyError), Simulation() as sim:
        sim.spawn(lambda: threading.Event().wait(), name="forgotten")
        raise KeyError("mine")


# Leaving no trace


def test_everything_is_real_again_afterwards():
    before = (threading.Lock, threading.Thread.start, time.sleep, queue.SimpleQueue)
    with pytest.raises(Deadlock), Simulation():
        threading.Event().wait()
    assert (threading.Lock, threading.Thread.start, time.sleep, queue.SimpleQueue) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "forgotten"]


def test_threads_that_are_started_while_others_are_ended_are_ended_too():
    def wait():
        threading.Event().wait()

    def stubborn():
        try:
            wait()
        finally:
            threading.Thread(target=wait, name="latchwork-late").start()

    with pytest.raises(KeyError), Simulation() as sim:
        sim.spawn(stubborn, name="latchwork-stubborn")
        sim.sleep(1)
        raise KeyError
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("latchwork")]


def test_a_module_first_imported_inside_keeps_real_locks(tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text("import threading\nlock = threading.Lock()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Simulation():
        import imported_late
    assert type(imported_late.lock).__name__ == "lock"


def test_threads_outside_the_simulation_keep_real_locks_and_real_time():
    go, told = threading.Event(), []

    def outsider():
        go.wait(30)
        lock = threading.Lock()
        start = time.monotonic()
        time.sleep(0.01)
        told.extend([type(lock).__name__, time.monotonic() - start])

    thread = threading.Thread(target=outsider)
    thread.start()
    with Simulation() as sim:
        go.set()
        with sim.use_real_locks():
            thread.join(30)
    assert told[0] == "lock"
    assert told[1] >= 0.009


def test_a_simulation_inside_a_simulation_is_refused():
    with Simulation(), pytest.raises(SimulationError, match="already"), Simulation():
        pass


def test_calls_that_need_the_simulation_say_so_outside():
    sim = Simulation()
    with pytest.raises(SimulationError, match="does not belong to the running simulation"):
        sim.spawn(lambda: None, name="never")


def test_event_loops_wait_in_virtual_time_and_repeat_with_their_seed():
    async def main():
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        from_a_thread = loop.create_future()
        threading.Timer(20.0, lambda: loop.call_soon_threadsafe(from_a_thread.set_result, "told")).start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(3600), 60.0)
        return await from_a_thread, time.monotonic() - began

    def run(seed):
        with Simulation(seed) as sim:
            return asyncio.run(main()), sim.switch_points

    told, points = run(7)
    assert told == ("told", 60.0)
    assert run(7) == (told, points)


def test_an_awaitable_lock_passes_in_virtual_time_when_its_holder_is_killed():
    async def hold(url, seconds):
        async with aio.connect(url, session_ttl_s=10.0) as store, aio.Lock(store, "x"):
            await asyncio.sleep(seconds)

    with Simulation(seed=3) as sim:
        url = f"memory://{uuid.uuid4().hex}"
        sim.spawn(lambda: asyncio.run(hold(url, 1000.0)), name="victim", node="a")
        sim.sleep(5.0)
        sim.kill("a")
        began = sim.now()
        asyncio.run(hold(url, 0.0))
        assert 5.0 < sim.now() - began < 20.0


def test_time_goes_on_in_an_event_loop_that_waits_for_less_than_its_clock_can_tell():
    """Who has a rounding error of its lease left, and looks by the clock, does not wait for it again and again."""

    async def main():
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(1e-15)
        return loop.time() - began

    with Simulation():
        assert asyncio.run(main()) > 0.0


def test_event_loops_are_real_again_afterwards():
    with Simulation():
        pass
    loop = asyncio.new_event_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()
