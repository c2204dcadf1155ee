"""Whether open watches may still see what they watch.

etcd looks at rights when a watch is created, and never again. So every few seconds one small read of the whole root is
asked of the connected member; only when it is refused, one linearizable read for each watch, and a watch whose read is
refused too ends. Nothing here has a thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import Link
from latchwork.backends.etcd.layout import KeyRange
from latchwork.errors import AuthenticationFailed, LatchworkError, PermissionDenied
from latchwork.interrupts import mutex

#: What an account without rights, or one that is no more, is told.
REFUSALS = (PermissionDenied, AuthenticationFailed)
#: An open watch whose account has lost its rights ends after so long, and what two reads take.
_EVERY_S = 4.0

#: Ranges that somebody watches, what to call that in messages, and whom to tell when they are refused.
Watched = tuple[KeyRange, str, Callable[[LatchworkError], None]]


class Rights:
    """Looks at them as long as there is anything to look at. Safe to share between threads.

    ``whole`` is a range that holds all others; ``watched`` gives the ranges to look at now, and none once the store is
    closing.
    """

    def __init__(self, link: Link, whole: KeyRange, watched: Callable[[], list[Watched]]) -> None:
        self._link = link
        self._whole = whole
        self._watched = watched
        self._lock = mutex()
        self._looking = False

    def look_after(self) -> None:
        """There is something to look at from now on."""
        with self._lock:
            begin, self._looking = not self._looking, True
        if begin:
            self._later()

    def _later(self) -> None:
        self._link.timer.call_later(_EVERY_S, self._look)

    def _look(self) -> None:
        with self._lock:
            self._looking = bool(self._watched())
            if not self._looking:
                return
        self._may_read(self._whole, "watch the root", member_only=True).add_done_callback(self._looked)

    def _looked(self, asked: Future[Any]) -> None:
        if isinstance(asked.exception(), REFUSALS):
            for span, what, refuse in self._watched():
                self._may_read(span, what).add_done_callback(functools.partial(_judge, refuse))
        self._later()

    def _may_read(self, span: KeyRange, what: str, *, member_only: bool = False) -> Future[Any]:
        request = pb.RangeRequest(key=span[0], range_end=span[1], limit=1, keys_only=True, serializable=member_only)
        return self._link.read("Range", request, what, lambda answer: answer)


def _judge(refuse: Callable[[LatchworkError], None], asked: Future[Any]) -> None:
    error = asked.exception()
    if isinstance(error, REFUSALS):
        refuse(error)
