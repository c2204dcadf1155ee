"""Signals: set, waited for and called, also when an interrupt ends a call at any line."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from latchwork._base import event
from latchwork._base.event import Signal

FILES = {event.__file__, threading.__file__}


class Interrupt(BaseException):
    pass


def interrupted_at(number, call):
    """Interrupt a call before this line of it. Return False if it has fewer lines."""
    left = number

    def trace(frame, kind, _):
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if kind == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def waiter_of(signal):
    """Start a thread that waits for a signal, and return it once it waits."""
    thread = threading.Thread(target=signal.wait, args=(20.0,), daemon=True)
    thread.start()
    time.sleep(0.02)
    return thread


def ended(*threads):
    for thread in threads:
        thread.join(5.0)
    return not any(thread.is_alive() for thread in threads)


def test_waiters_wake_when_set_is_repeated_after_an_interrupt_at_any_line():
    for number in range(100):
        signal = Signal()
        waiter = waiter_of(signal)
        was_interrupted = interrupted_at(number, signal.set)
        again = threading.Thread(target=signal.set, daemon=True)
        again.start()
        assert ended(again, waiter), f"interrupted at line {number}"
        if not was_interrupted:
            assert number > 3
            return
    pytest.fail("it never came to its end")


def test_a_signal_works_after_an_interrupt_at_any_line_of_a_wait():
    for number in range(100):
        signal = Signal()
        was_interrupted = interrupted_at(number, lambda signal=signal: signal.wait(0.0))
        waiter = waiter_of(signal)
        setter = threading.Thread(target=signal.set, daemon=True)
        setter.start()
        assert ended(setter, waiter), f"interrupted at line {number}"
        if not was_interrupted:
            assert number > 3
            return
    pytest.fail("it never came to its end")


def test_a_wait_ends_with_the_timeout_or_the_signal():
    signal = Signal()
    assert not signal.wait(0.01)
    threading.Timer(0.05, signal.set).start()
    assert signal.wait(10.0)
    assert signal.wait(0.0)
    signal.clear()
    assert not signal.wait(0.0)


def test_calls_are_made_once_when_it_is_set_or_at_once():
    signal, made = Signal(), []
    signal.call_when_set(lambda: made.append("a"))
    remove = signal.call_when_set(lambda: made.append("b"))
    remove()
    signal.set()
    signal.set()
    signal.call_when_set(lambda: made.append("c"))
    assert made == ["a", "c"]
