"""The machine's clock waits as long as it is told, however long that is."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from latchwork.clock import SYSTEM_CLOCK, Signal

LONG = [1e10, 1e300, float("inf"), threading.TIMEOUT_MAX]


@pytest.mark.parametrize("timeout_s", LONG)
def test_a_wait_for_longer_than_the_system_counts_ends_when_its_event_is_set(timeout_s):
    event = Signal()
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


SIGNALED = """
import signal, sys, threading, time
from latchwork.clock import SYSTEM_CLOCK, Signal

event, condition = Signal(), threading.Condition()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))

def kill_myself():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # which does not end a wait of the main thread
    time.sleep(60)

threading.Thread(target=kill_myself, daemon=True).start()
with condition:
    {wait}
"""


@pytest.mark.parametrize(
    "wait",
    [
        "SYSTEM_CLOCK.wait(event)",
        "SYSTEM_CLOCK.wait(event, 3600.0)",
        "SYSTEM_CLOCK.wait_condition(condition)",
        "SYSTEM_CLOCK.wait_condition(condition, 3600.0)",
    ],
)
def test_a_signal_that_ends_no_wait_is_handled_while_the_main_thread_waits(wait):
    assert subprocess.run([sys.executable, "-c", SIGNALED.format(wait=wait)], check=False, timeout=30).returncode == 7


@pytest.mark.parametrize("timeout_s", [0.0, 0.01, 1.2])
def test_a_wait_of_the_main_thread_ends_with_its_time(timeout_s):
    began = SYSTEM_CLOCK.now()
    assert not SYSTEM_CLOCK.wait(Signal(), timeout_s)
    assert SYSTEM_CLOCK.now() - began >= timeout_s


class LateLock:
    """A lock that lets another thread be faster once, when a wait whose time has passed takes it again."""

    def __init__(self):
        self._lock = threading.Lock()
        self.release = self._lock.release
        self.locked = self._is_owned = self._lock.locked
        self.before = None

    def acquire(self, *arguments):
        faster, self.before = self.before, None
        if faster is not None:
            with self._lock:
                faster()
        return self._lock.acquire(*arguments)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_a_notification_at_the_end_of_a_slice_ends_the_wait_of_the_main_thread(timeout_s):
    lock = LateLock()
    condition = threading.Condition(lock)
    come = []

    def notify():
        come.append(True)
        condition.notify_all()

    began = SYSTEM_CLOCK.now()
    with condition:
        lock.before = notify
        while not come:
            SYSTEM_CLOCK.wait_condition(condition, timeout_s)
    assert SYSTEM_CLOCK.now() - began < 30.0
