"""Steps driven by futures."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from latchwork.backends.futures import attempt, completed, drive, failed, reject, resolve, then


def test_steps_go_on_with_each_result_and_see_each_error():
    def steps():
        first = yield completed(1)
        try:
            yield failed(KeyError("k"))
        except KeyError:
            second = yield completed(10)
        return first + second

    assert drive(steps()).result(0) == 11


def test_a_long_chain_of_ended_futures_needs_no_deep_stack():
    def steps():
        total = 0
        for number in range(50_000):
            total += yield completed(number)
        return total

    assert drive(steps()).result(0) == sum(range(50_000))


def test_an_error_that_is_not_caught_ends_the_outcome():
    def steps():
        yield failed(ValueError("bad"))

    with pytest.raises(ValueError, match="bad"):
        drive(steps()).result(0)


def test_steps_go_on_in_the_thread_that_ends_the_future():
    pending: Future[int] = Future()
    outcome = then(pending, lambda value: (value, threading.current_thread().name))
    assert not outcome.done()
    thread = threading.Thread(target=resolve, args=(pending, 7), name="ender")
    thread.start()
    thread.join()
    assert outcome.result(0) == (7, "ender")


def test_only_the_first_end_of_a_future_counts():
    future: Future[int] = Future()
    assert resolve(future, 1)
    assert not resolve(future, 2)
    assert not reject(future, ValueError())
    assert future.result(0) == 1


def test_an_attempt_hands_over_value_or_error():
    assert attempt(lambda: 3).result(0) == 3
    assert isinstance(attempt(lambda: 1 / 0).exception(0), ZeroDivisionError)
