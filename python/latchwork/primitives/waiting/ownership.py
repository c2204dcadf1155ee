"""Ownerships, such as a held lock, and work that depends on them. Work is asked to stop before the ownership can end.

The local clock decides, without I/O, even if the server is unreachable. A thread cannot be stopped from outside, so
work must check its token.
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.validation import deferred_kind
from latchwork.clock import Clock
from latchwork.errors import LockLost, OwnershipLost
from latchwork.primitives.waiting.arguments import check_minimum
from latchwork.store.driving.background import Background
from latchwork.store.forks import ForkGuard, make_lost_signal
from latchwork.store.session import Session
from latchwork.store.steps import Pause, blocking, call_user_function, shielded
from latchwork.types import Fence

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: Default margin between the stop of work and the end of the ownership, as a fraction of the TTL.
MARGIN_PART = 0.1


@dataclass(frozen=True, slots=True)
class Identity:
    """The host name and the process ID of a process, which are stored in records for display."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


class GuardedWork:
    """A cancellation token for work under a lock or leadership: ``with lock.guard_work() as work:``. Thread-safe.

    It is set permanently when the remaining time of the ownership is shorter than the margin, when the ownership is
    lost, and when it is released. The end of the ``with`` block does not set it. Without a ``with`` block, it watches
    the ownership from the first use of ``stopped`` or ``wait``, in a thread that ends with the ownership. It does not
    prevent a paused process from writing late: pass ``fence`` to every write that matters. In a forked child it is set.

    Attributes:
        fence: The fence of the ownership.
    """

    def __init__(self, ownership: Ownership, margin_s: float) -> None:
        self.fence = ownership.fence
        self._home = ForkGuard(f"work under {ownership.what}")
        self._stopped = Signal()
        self._ownership = ownership
        self._margin_s = margin_s
        self._done = Signal()
        self._lock = mutex()
        self._watching: Background | None = None

    def __repr__(self) -> str:
        return f"<GuardedWork under {self._ownership.what} {self.remaining_s():.2f}s>"

    def __enter__(self) -> Self:
        self.start_watching()
        return self

    @shielded
    async def __exit__(self, *_: object) -> None:
        await self.stop_watching()

    def start_watching(self) -> None:
        """Start the thread that asks the work to stop before the lock or leadership ends. Idempotent."""
        if not self._may_start():
            return
        self._ownership.add_work(self)  # first: wherever an interrupt comes, the end of the ownership ends our thread
        with self._lock:
            if self._may_start():
                self._watching = Background(self._watch, f"latchwork-work-{self._ownership.what}")

    async def stop_watching(self) -> None:
        """Stop watching the lock or leadership, because the work has ended. Wait for the end of the watching thread."""
        if self._home.is_foreign:
            return
        self._done.set()
        self._ownership.remove_work(self)
        with self._lock:
            watching = self._watching
        if watching is not None and not watching.is_running_here:
            await watching

    @property
    def stopped(self) -> Signal:
        """A signal that is set when the work must stop."""
        if self._home.is_foreign:
            return make_lost_signal()
        self.start_watching()
        return self._stopped

    @property
    def is_stopped(self) -> bool:
        """Whether the work must stop."""
        return self.remaining_s() <= 0.0

    def remaining_s(self) -> float:
        """Return for how many seconds the work may continue if the ownership is not renewed. Performs no I/O."""
        if self._home.is_foreign or self._stopped.is_set():
            return 0.0
        left_s = max(0.0, self._ownership.remaining_s() - self._margin_s)
        if left_s <= 0.0:
            self._stop_with_warning()  # who saw this 0 must not see a later renewal
        return left_s

    @blocking
    async def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until the work must stop, at most ``timeout_s`` seconds. Use it for pauses in the work.

        Args:
            timeout_s: Seconds to sleep. None sleeps until the work must stop.
        Returns:
            True if the work must stop. False after the timeout.
        """
        return await Pause(self._ownership.clock, self.stopped, timeout_s)

    def raise_if_stopped(self) -> None:
        """Raise an error if the work must stop.

        Raises:
            OwnershipLost: The work must stop: ``LockLost`` or ``NotLeader``, depending on the ownership.
        """
        if self.is_stopped:
            raise self._ownership.build_error()

    def request_stop(self) -> None:
        """Ask the work to stop. Does not block."""
        self._stopped.set()
        self._done.set()

    def _may_start(self) -> bool:
        return self._watching is None and not self._done.is_set()

    def _stop_with_warning(self) -> None:
        if not self._done.is_set():
            _log.warning("work under %s is stopped", self._ownership.what)
        self.request_stop()

    async def _watch(self) -> None:
        while not self._done.is_set():
            left_s = self.remaining_s()
            if left_s > 0.0:
                await Pause(self._ownership.clock, self._done, left_s)


def check_function(fn: object, what: str, arguments: tuple[str, ...] = ("work",)) -> None:
    """Check that a function can be called with these arguments and that the call runs its body.

    Args:
        fn: The function.
        what: Name of the object that will call it, for messages.
        arguments: Names of the arguments.
    Raises:
        TypeError: It cannot be called so, or it is async or a generator.
    """
    if not callable(fn):
        raise TypeError(f"{what} was given {fn!r} to run; give a function, called as fn({', '.join(arguments)})")
    late = deferred_kind(fn)
    if late is not None:
        raise TypeError(f"{what} was given {late}, whose body would never run; give a plain function")
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):  # some that are built in do not say
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{what} calls its function as fn({', '.join(arguments)}): {error}") from None


async def run_guarded(work: GuardedWork, fn: Callable[[GuardedWork], T]) -> tuple[T, ...]:
    """Call ``fn(work)``, which must end early if ``work`` asks it to stop.

    Args:
        work: The cancellation token, which is passed to the function.
        fn: The function.
    Returns:
        A tuple with the result. An empty tuple if the function was asked to stop, because its work may be incomplete.
    """
    work.start_watching()
    try:
        result = await call_user_function(fn, work)
    except OwnershipLost:
        if not work.is_stopped:
            raise
        return ()
    finally:
        await work.stop_watching()
    return () if work.is_stopped else (result,)


class OwnershipHolder(ABC):
    """A base class of locks and leaderships on which work can depend."""

    def guard_work(self, margin_s: float | None = None) -> GuardedWork:
        """Return a cancellation token that is set before this lock or leadership can end. Use it in a ``with``
        statement: ``with lock.guard_work() as work:``.

        Args:
            margin_s: Seconds between the stop and the end of the ownership. None uses a tenth of the TTL.
        Raises:
            LockLost, NotLeader: The lock or leadership is not held now.
        """
        return self._get_ownership().guard_work(margin_s)

    @abstractmethod
    def _get_ownership(self) -> Ownership:
        """Return the current ownership, or raise an error if there is none."""


class Ownership:
    """A lock that is held or a term of leadership, on which work depends. Thread-safe.

    Args:
        what: Name of the ownership, for messages: ``lock 'orders'``.
        fence: The check that proves the ownership.
        ttl_s: Seconds that it lasts without a renewal.
        remaining_s: Returns for how many seconds it certainly lasts. Does no I/O.
        error: Type of the error that ``GuardedWork.raise_if_stopped`` raises.
        clock: The clock.

    Attributes:
        lost: Set when the ownership has ended without a release.
    """

    def __init__(
        self,
        what: str,
        fence: Fence,
        *,
        ttl_s: float,
        remaining_s: Callable[[], float],
        error: type[OwnershipLost],
        clock: Clock,
    ) -> None:
        self.what = what
        self.fence = fence
        self.clock = clock
        self._ttl_s = ttl_s
        self._remaining_s = remaining_s
        self._error = error
        self._lock = mutex()
        self._works: set[GuardedWork] = set()
        self._ended = False
        self._forget: Callable[[], None] = lambda: None
        self.lost = Signal()

    @classmethod
    def for_session(
        cls, what: str, fence: Fence, session: Session, clock: Clock, error: type[OwnershipLost] = LockLost
    ) -> Ownership:
        """Create an ownership that lasts as long as a session. It is lost when the session expires or is closed.

        Args:
            what: Name of the ownership, for messages.
            fence: The check that proves the ownership.
            session: The session.
            clock: The clock.
            error: Type of the error that ``GuardedWork.raise_if_stopped`` raises.
        """
        made = cls(what, fence, ttl_s=session.ttl_s, remaining_s=session.remaining_s, error=error, clock=clock)
        made._forget = session.on_end(made.mark_lost)
        if made._ended:  # it ended meanwhile
            made._forget()
        return made

    def guard_work(self, margin_s: float | None = None) -> GuardedWork:
        """Return a cancellation token that is set before this ownership can end. Use it in a ``with`` statement.

        Args:
            margin_s: Seconds between the stop and the end of the ownership. None uses a tenth of the TTL.
        """
        margin = self._ttl_s * MARGIN_PART if margin_s is None else check_minimum(margin_s, "margin_s", 0.0)
        return GuardedWork(self, margin)

    def remaining_s(self) -> float:
        """Return for how many seconds the ownership certainly lasts, 0 after it has ended."""
        return 0.0 if self._ended else self._remaining_s()

    def end(self) -> None:
        """Ask all work that depends on the ownership to stop, because it was released. Does not block. Idempotent."""
        self._end(lost=False)

    def mark_lost(self) -> None:
        """Record that the ownership was lost, and ask all work that depends on it to stop. Does not block. Idempotent.

        Nothing is done if the ownership was already released.
        """
        self._end(lost=True)

    def _end(self, *, lost: bool) -> None:
        with self._lock:
            first, self._ended = not self._ended, True
            works, self._works = self._works, set()
        if first and lost:
            self.lost.set()
        for work in works:
            work.request_stop()
        self._forget()

    def build_error(self) -> OwnershipLost:
        """Return the error that ``GuardedWork.raise_if_stopped`` raises: the ownership has ended, or is about to."""
        if self.remaining_s() > 0.0:
            return self._error(
                f"{self.what} ends in {self.remaining_s():.3g} s unless it is renewed; stop the work now"
            )
        return self._error(f"{self.what} is not ours any more; stop the work it protected")

    def add_work(self, work: GuardedWork) -> None:
        """Register work, to ask it to stop when the ownership ends. If it has ended, ask it now."""
        with self._lock:
            if not self._ended:
                self._works.add(work)
                return
        work.request_stop()

    def remove_work(self, work: GuardedWork) -> None:
        """Forget work that has ended."""
        with self._lock:
            self._works.discard(work)
