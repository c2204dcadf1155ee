"""gRPC's calls so that an interrupt of their thread, at any bytecode, leaves its channel as it should be.

A blocking call of gRPC's takes a condition of the channel, which has methods in Python, and is counted before it is
waited for: an interrupt at the first bytecode of ``Condition.__exit__`` would leave the condition held, and one between
begin and wait a call that ``close`` waits for. Here the condition of a channel is entered and left natively, and a call
is begun and waited for by one native step. An interrupt during the wait is gRPC's own to clean up after: it does.

Used by ``channel`` alone, and for blocking calls alone: those that answer by a callback count in Python code as well.
What gRPC keeps to itself may change: ``make_whole`` says whether all that is needed was there. docs/design/0015.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from itertools import starmap
from operator import attrgetter, methodcaller
from typing import Any, TypeVar

from latchwork.interrupts import mutex, surely

T = TypeVar("T")

_cygrpc: Any = import_module("grpc._cython.cygrpc")
_one_at_a_time = mutex()
_answer = methodcaller("next_event")


class _Condition(threading.Condition):
    """Entered and left by the native methods of its lock, whose lookup is native as well."""

    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))
    notify_all = surely(threading.Condition.notify_all)


class _Threading:
    """The module ``threading`` as gRPC sees it while a channel is made."""

    Condition = _Condition

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


def opened(make: Callable[[], T]) -> T:
    """A channel that is made with such a condition, if gRPC lets us."""
    with _one_at_a_time:
        before = getattr(_cygrpc, "threading", None)
        if before is not threading:
            return make()
        _cygrpc.threading = _Threading()
        try:
            return make()
        finally:
            _cygrpc.threading = before


def make_whole(call: Any) -> bool:
    """Have a unary call of such a channel begun and waited for in one step, when it blocks; whether that was done."""
    begin = getattr(getattr(call, "_channel", None), "segregated_call", None)
    if begin is None or getattr(_cygrpc, "threading", None) is not threading:
        return False
    call._channel = _Whole(begin)  # noqa: SLF001 - gRPC has no other way
    return True


class _Whole:
    """What a blocking call asks of its channel."""

    def __init__(self, begin: Callable[..., Any]) -> None:
        self._begin = begin

    def segregated_call(self, *args: Any) -> _Ended:
        """Begin a call, and wait for its only event."""
        events: list[Any] = []
        events.extend(map(_answer, starmap(self._begin, (args,))))
        return _Ended(events[0])


class _Ended:
    """A call that has ended."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def next_event(self) -> Any:
        """How it ended."""
        return self._event
