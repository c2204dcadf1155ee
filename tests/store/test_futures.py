"""Steps driven by futures."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
from concurrent.futures import CancelledError, Future, as_completed, wait

import pytest

from latchwork.backends.futures import (
    LightFuture,
    attempt,
    completed,
    failed,
    mapped,
    reject,
    resolve,
    run_generator,
    then,
)
from patience import eventually


def test_steps_go_on_with_each_result_and_see_each_error():
    def steps():
        first = yield completed(1)
        try:
            yield failed(KeyError("k"))
        except KeyError:
            second = yield completed(10)
        return first + second

    assert run_generator(steps()).result(0) == 11


def test_a_long_chain_of_ended_futures_needs_no_deep_stack():
    def steps():
        total = 0
        for number in range(50_000):
            total += yield completed(number)
        return total

    assert run_generator(steps()).result(0) == sum(range(50_000))


def test_an_error_that_is_not_caught_ends_the_outcome():
    def steps():
        yield failed(ValueError("bad"))

    with pytest.raises(ValueError, match="bad"):
        run_generator(steps()).result(0)


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


def in_thread(call, *args):
    thread = threading.Thread(target=call, args=args)
    thread.start()
    return thread


@pytest.mark.parametrize("end", [resolve, reject])
def test_whoever_waits_for_an_outcome_wakes_when_it_ends(end):
    outcome = LightFuture()
    value = ValueError("no")
    seen = []
    threads = [in_thread(lambda: seen.append(outcome.exception(10) or outcome.result(0))) for _ in range(3)]
    eventually(lambda: len(outcome._callbacks) == 3, what="three who wait")
    assert end(outcome, value)
    for thread in threads:
        thread.join(10)
    assert seen == [value] * 3


def test_outcome_that_does_not_end_is_waited_for_as_long_as_told():
    outcome = LightFuture()
    with pytest.raises(TimeoutError):
        outcome.result(0.01)
    with pytest.raises(TimeoutError):
        outcome.exception(0)
    assert not outcome.done()


def test_outcomes_can_be_waited_for_together():
    outcomes = [LightFuture() for _ in range(3)]
    resolve(outcomes[0], 0)
    thread = in_thread(lambda: [resolve(outcomes[2], 2), reject(outcomes[1], ValueError("no"))])
    done, pending = wait(outcomes, timeout=10)
    thread.join(10)
    assert (done, pending) == (set(outcomes), set())
    assert set(as_completed(outcomes, timeout=0)) == set(outcomes)


def test_outcome_can_be_awaited_in_an_event_loop():
    async def run():
        outcome = LightFuture()
        wrapped = asyncio.wrap_future(outcome)
        in_thread(resolve, outcome, 7).join()
        return await asyncio.wait_for(wrapped, 10)

    assert asyncio.run(run()) == 7


def test_cancelled_outcome_takes_no_value():
    outcome = LightFuture()
    called = []
    outcome.add_done_callback(called.append)
    assert outcome.cancel()
    assert outcome.cancelled()
    assert outcome.done()
    assert not resolve(outcome, 1)
    assert called == [outcome]
    with pytest.raises(CancelledError):
        outcome.result(0)


def test_callbacks_of_an_outcome_are_called_in_order_and_a_raising_one_spoils_no_other(caplog):
    outcome, called = LightFuture(), []
    outcome.add_done_callback(lambda _: called.append(1))
    outcome.add_done_callback(lambda _: 1 / 0)
    outcome.add_done_callback(lambda done: called.append(done.result(0)))
    with caplog.at_level(logging.ERROR):
        resolve(outcome, 2)
    outcome.add_done_callback(lambda _: called.append(3))
    assert called == [1, 2, 3]
    assert "a callback of a future raised" in caplog.text


def test_outcome_nobody_waits_for_makes_no_condition():
    outcome = LightFuture()
    resolve(outcome, 1)
    assert (outcome.result(0), vars(outcome)) == (1, {})


def test_outcome_names_no_field_of_its_base_class():
    source = inspect.getsource(LightFuture)
    assert [name for name in vars(Future()) if re.search(rf"\b{name}\b", source)] == []


@pytest.mark.parametrize("end", [resolve, reject])
def test_outcome_that_ends_as_somebody_begins_to_wait_is_heard_of(end):
    for _ in range(500):
        outcome = LightFuture()
        thread = in_thread(end, outcome, KeyError("k"))
        done, _ = wait([outcome], timeout=10)
        thread.join(10)
        assert done == {outcome}
        assert isinstance(outcome.exception(0) or outcome.result(0), KeyError)


def test_callbacks_from_before_and_after_somebody_waited_are_called_in_order():
    outcome, called = LightFuture(), []
    outcome.add_done_callback(lambda _: called.append(1))
    assert wait([outcome], timeout=0).not_done == {outcome}
    outcome.add_done_callback(lambda _: called.append(2))
    resolve(outcome, 7)
    outcome.add_done_callback(lambda _: called.append(3))
    assert called == [1, 2, 3]
    assert not resolve(outcome, 8)
    assert outcome.result(0) == 7


def test_outcome_that_somebody_waits_for_is_mapped_by_another_one():
    outcome = LightFuture()
    mapped(outcome, lambda value: value + 1)
    assert wait([outcome], timeout=0).not_done == {outcome}
    other = mapped(outcome, str)
    resolve(outcome, 7)
    assert (outcome.result(0), other.result(0)) == (8, "8")
    wait([outcome])
    assert mapped(outcome, str).result(0) == "8"


def test_outcome_that_has_ended_can_be_waited_for_and_is_no_more_cancelled():
    for outcome, error in ((completed(7), None), (failed(KeyError("k")), KeyError)):
        assert wait([outcome], timeout=0).done == {outcome}
        assert not outcome.cancel()
        assert not outcome.running()
        assert (outcome.done(), outcome.cancelled()) == (True, False)
        assert type(outcome.exception(0)) is (error or type(None))


def test_errors_can_be_explained_on_the_way():
    explained = then(failed(KeyError("k")), str, lambda error: ValueError(f"explained {error}"))
    assert str(explained.exception(0)) == "explained 'k'"


def test_a_mapped_outcome_ends_with_what_the_function_makes_of_it():
    outcome = LightFuture()
    assert mapped(outcome, str) is outcome
    resolve(outcome, 7)
    assert outcome.result(0) == "7"
    assert mapped(completed(7), str).result(0) == "7"


def test_a_mapped_outcome_can_be_mapped_again():
    for outcome in (LightFuture(), completed(7)):
        twice = mapped(mapped(outcome, str), lambda text: text + "!")
        resolve(outcome, 7)
        assert twice.result(0) == "7!"


@pytest.mark.parametrize("make", [LightFuture, Future])
def test_errors_of_a_mapped_future_are_explained_and_its_function_may_raise(make):
    refused, broken = make(), make()
    explained = mapped(refused, str, lambda error: ValueError(f"explained {error}"))
    raising = mapped(broken, lambda _: 1 / 0)
    reject(refused, KeyError("k"))
    resolve(broken, 7)
    assert str(explained.exception(0)) == "explained 'k'"
    assert isinstance(raising.exception(0), ZeroDivisionError)


def test_outcome_that_is_mapped_while_it_ends_is_mapped_all_the_same():
    class Late(LightFuture):
        """Mapped between the moment when its end begins and the moment when it is told."""

        @property
        def _mapping(self):
            found = self.__dict__.get("mapped_by")
            if found is None:
                self.__dict__["mapped_by"] = (str, None)
            return found

        @_mapping.setter
        def _mapping(self, value):
            pass

    outcome = Late()
    outcome.set_result(7)
    assert outcome.result(0) == "7"
