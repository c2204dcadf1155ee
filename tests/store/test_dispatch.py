"""Lanes: one run at a time, signals merged, none lost."""

from __future__ import annotations

import logging
import threading

from latchwork.store.dispatch import Dispatcher, is_in_callback


def test_a_signal_during_a_run_causes_exactly_one_more_run():
    dispatcher = Dispatcher("test")
    started, release, ended = threading.Semaphore(0), threading.Semaphore(0), threading.Semaphore(0)

    def drain():
        started.release()
        release.acquire(timeout=5)
        ended.release()

    drain_task = dispatcher.create_serial_drain(drain, "test")
    drain_task.signal()
    assert started.acquire(timeout=5)
    for _ in range(5):
        drain_task.signal()
    release.release()
    assert ended.acquire(timeout=5)
    assert started.acquire(timeout=5)
    release.release()
    assert ended.acquire(timeout=5)
    assert not started.acquire(timeout=0.1)
    dispatcher.close()


def test_runs_of_one_lane_never_overlap_and_no_signal_is_lost():
    dispatcher = Dispatcher("test", size=8)
    lock = threading.Lock()
    overlaps: list[int] = []
    wanted = seen = 0
    done = threading.Event()

    def drain():
        nonlocal seen
        if not lock.acquire(blocking=False):
            overlaps.append(1)
            return
        seen = wanted
        lock.release()
        if seen == 4000:
            done.set()

    drain_task = dispatcher.create_serial_drain(drain, "test")
    count = threading.Lock()

    def produce():
        nonlocal wanted
        for _ in range(1000):
            with count:
                wanted += 1
            drain_task.signal()

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done.wait(5)
    assert overlaps == []
    dispatcher.close()


def test_a_drain_that_raises_is_run_again_at_the_next_signal():
    dispatcher = Dispatcher("test")
    runs = threading.Semaphore(0)

    def drain():
        runs.release()
        raise RuntimeError

    drain_task = dispatcher.create_serial_drain(drain, "test")
    for _ in range(2):
        drain_task.signal()
        assert runs.acquire(timeout=5)
        threading.Event().wait(0.05)
    dispatcher.close()


def test_a_closed_lane_or_pool_takes_signals_and_runs_nothing():
    dispatcher = Dispatcher("test")
    ran = threading.Event()
    drain_task = dispatcher.create_serial_drain(ran.set, "test")
    drain_task.close()
    drain_task.signal()
    open_lane = dispatcher.create_serial_drain(ran.set, "test")
    dispatcher.close()
    open_lane.signal()
    assert not ran.wait(0.1)


def test_an_outlet_makes_every_call_in_order_and_as_a_callback():
    dispatcher, made, done = Dispatcher("test"), [], threading.Event()
    callback_queue = dispatcher.create_callback_queue()
    for number in range(1000):
        callback_queue(lambda value: made.append((value, is_in_callback())), number)
    callback_queue(lambda _: done.set(), None)
    assert done.wait(10)
    assert made == [(number, True) for number in range(1000)]
    dispatcher.close_callback_queues()


def fail(error):
    raise error


def test_a_call_of_an_outlet_that_raises_stops_no_other(caplog):
    dispatcher, done = Dispatcher("test"), threading.Event()
    callback_queue = dispatcher.create_callback_queue()
    with caplog.at_level(logging.ERROR):
        for error in (ValueError, SystemExit):
            callback_queue(fail, error)
        callback_queue(lambda _: done.set(), None)
        assert done.wait(10)
    assert caplog.text.count("a callback of a future raised") == 2
    dispatcher.close_callback_queues()


def test_a_slow_call_of_an_outlet_delays_no_other_outlet():
    dispatcher, release, done = Dispatcher("test"), threading.Event(), threading.Event()
    dispatcher.create_callback_queue()(lambda _: release.wait(10), None)
    dispatcher.create_callback_queue()(lambda _: done.set(), None)
    assert done.wait(5)
    release.set()
    dispatcher.close_callback_queues()


def test_calls_given_before_the_close_and_after_it_are_made():
    dispatcher, release, made = Dispatcher("test", size=1), threading.Event(), []
    done = threading.Event()
    blocked, waiting = dispatcher.create_callback_queue(), dispatcher.create_callback_queue()
    blocked(lambda _: release.wait(10), None)
    waiting(lambda _: made.append("before"), None)
    waiting(lambda _: done.set(), None)
    dispatcher.close_callback_queues()
    dispatcher.create_callback_queue()(lambda _: made.append("after"), None)
    assert made == ["after"]
    release.set()
    assert done.wait(10)
    assert made == ["after", "before"]
