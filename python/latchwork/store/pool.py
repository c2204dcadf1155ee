"""A pool of threads that a signal handler may give work to while its thread gives it some.

Executors share a lock of their library, which is no mutex of ours: a thread would wait for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from latchwork.backends.futures import chain
from latchwork.interrupts import once_left

P = ParamSpec("P")
T = TypeVar("T")

#: The threads that are giving work to a pool.
_inside: set[int] = set()


class Pool(ThreadPoolExecutor):
    """An executor. Safe to share, also with signal handlers."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have it called in the pool; in the midst of another ``submit`` of this thread, a moment later."""
        me = threading.get_ident()
        if me in _inside:
            outcome: Future[T] = Future()
            once_left(lambda: chain(self.submit(fn, *args, **kwargs), outcome))
            return outcome
        _inside.add(me)
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            _inside.discard(me)
