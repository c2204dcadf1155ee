"""How many calls of a pipeline are in flight."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from latchwork.backends.futures import LightFuture
from latchwork.store.dispatch import Dispatcher
from latchwork.store.pipeline import Pipeline

WAITERS = 5


class Calls:
    """Hands out futures that the test ends."""

    def __init__(self):
        self.futures = []

    def get(self, key, *, stale_ok=False):
        del stale_ok
        if key == "refused":
            raise ValueError(key)
        self.futures.append(LightFuture())
        return self.futures[-1]


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def callback_queue():
    dispatcher = Dispatcher("test")
    yield dispatcher.create_callback_queue()
    dispatcher.close_callback_queues()


def test_every_call_that_waits_for_a_place_gets_one_when_places_become_free_all_at_once(calls, callback_queue):
    pipeline = Pipeline(calls, callback_queue, max_in_flight=WAITERS)
    for n in range(WAITERS):
        pipeline.get(f"first{n}")
    threads = [threading.Thread(target=pipeline.get, args=(f"later{n}",)) for n in range(WAITERS)]
    for thread in threads:
        thread.start()
    while pipeline._waiting < WAITERS:
        threading.Event().wait(0.001)
    assert len(calls.futures) == WAITERS
    for future in calls.futures[:WAITERS]:
        future.set_result(None)
    for thread in threads:
        thread.join(20)
    assert len(calls.futures) == 2 * WAITERS


def test_no_more_calls_are_in_flight_than_may_be(calls, callback_queue):
    pipeline = Pipeline(calls, callback_queue, max_in_flight=2)
    thread = threading.Thread(target=lambda: [pipeline.get(f"k{n}") for n in range(4)])
    thread.start()
    for most in (2, 3, 4):
        thread.join(0.1)
        assert len(calls.futures) == most
        calls.futures[most - 2].set_result(None)
    thread.join(20)
    assert not thread.is_alive()


def test_refused_call_leaves_its_place_to_others(calls, callback_queue):
    pipeline = Pipeline(calls, callback_queue, max_in_flight=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="refused"):
            pipeline.get("refused")
    pipeline.get("k")
    assert len(calls.futures) == 1


def test_flush_waits_for_the_calls_made_so_far_and_for_no_others(calls, callback_queue):
    pipeline = Pipeline(calls, callback_queue)
    first = pipeline.get("first")
    thread = threading.Thread(target=pipeline.flush)
    thread.start()
    while not vars(first) or not first._waiters:
        threading.Event().wait(0.001)
    pipeline.get("later")
    first.set_result(None)
    thread.join(20)
    assert not thread.is_alive()
    assert not calls.futures[1].done()


def test_futures_of_another_kind_have_their_callbacks_run_by_the_outlet_too(callback_queue):
    class Foreign(Calls):
        def get(self, key, *, stale_ok=False):
            del key, stale_ok
            self.futures.append(Future())
            return self.futures[-1]

    calls, ran_in, told = Foreign(), [], threading.Event()
    handed = Pipeline(calls, callback_queue).get("k")
    handed.add_done_callback(lambda _: ran_in.append(threading.current_thread()))
    handed.add_done_callback(lambda _: told.set())
    calls.futures[0].set_result(7)
    assert told.wait(10)
    assert handed.result(0) == 7
    assert ran_in != [threading.current_thread()]
