"""One request and how it ends: with the server's reply, or with ``Cut``, which says whether it was ever sent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import InvalidStateError

from kazoo.exceptions import SessionExpiredError

from latchwork.backends.futures import Outcome
from latchwork.backends.zookeeper.errors import Cut
from latchwork.backends.zookeeper.wire import Reply


class Call(Outcome[Reply]):
    """One request and its reply to come."""

    def __init__(self, kind: int, payload: bytes, deadline: float, number: int = 0) -> None:
        super().__init__()
        self.kind = kind
        self.payload = payload
        self.deadline = deadline
        self.number = number  # of a write with evidence; else 0
        self.evidence = ""
        self.epoch = 0  # of the connection it was sent on last; 0: never sent
        self.sent_at = 0.0
        self.barrier: Call | None = None
        self.hold: Callable[[Call], bool] | None = None

    def answer(self, reply: Reply) -> None:
        """Take the reply, unless the deadline came first."""
        with contextlib.suppress(InvalidStateError):
            self.set_result(reply)

    def set_exception(self, exception: BaseException | None) -> None:
        """End without a reply; called so by kazoo when the connection ends. A write may be held back to be settled."""
        if isinstance(exception, Cut):
            end: Cut = exception
        else:
            end = Cut(sent=True, over=isinstance(exception, SessionExpiredError))
            if not end.over and self.hold is not None and self.hold(self):
                return
        with contextlib.suppress(InvalidStateError):
            super().set_exception(end)

    @property
    def linearizable(self) -> bool:
        """The barrier before it was answered on the same connection."""
        barrier = self.barrier
        return barrier is not None and barrier.epoch == self.epoch and barrier.done() and barrier.exception() is None
