"""The machine's clock waits as long as it is told, however long that is."""

from __future__ import annotations

import threading

import pytest

from latchwork.clock import SYSTEM_CLOCK

LONG = [1e10, 1e300, float("inf"), threading.TIMEOUT_MAX]


@pytest.mark.parametrize("timeout_s", LONG)
def test_a_wait_for_longer_than_the_system_counts_ends_when_its_event_is_set(timeout_s):
    event = threading.Event()
    setter = threading.Timer(0.05, event.set)
    setter.start()
    assert SYSTEM_CLOCK.wait(event, timeout_s)
    setter.join()


@pytest.mark.parametrize("timeout_s", LONG)
def test_a_condition_is_waited_for_longer_than_the_system_counts(timeout_s):
    condition = threading.Condition()

    def tell():
        with condition:
            condition.notify()

    with condition:
        teller = threading.Timer(0.05, tell)
        teller.start()
        assert SYSTEM_CLOCK.wait_condition(condition, timeout_s)
    teller.join()
