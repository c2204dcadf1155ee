"""Calls that wait for something in the store. They end when the object is closed or its session ends.

A ``Waiter`` watches the store until a condition is met or it is cancelled. A ``WaiterLimit`` limits how many waiters
send requests at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.clock import Clock
from latchwork.errors import (
    Closed,
    KeyExists,
    LatchworkError,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
    WaitTimeout,
)
from latchwork.primitives.waiting.arguments import raise_if_in_callback
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.store.backoff import Backoff
from latchwork.store.forks import ForkGuard
from latchwork.store.session import Session
from latchwork.store.steps import Pause, StepCoroutine, ask, coroutine_of
from latchwork.store.store import Store
from latchwork.store.watch import Batch, RelevanceFilter, Watch
from latchwork.types import Entry

T = TypeVar("T")


class WaiterRegistry:
    """The waiting calls of one object, which end when the object is closed or its session ends. Thread-safe.

    Args:
        store: The store.
        what: Name of the object, for messages: ``barrier 'start'``.
        session: The session whose end ends the waiting calls. None uses the store's primary session, opened on first
            use.

    Attributes:
        home: The process that created the object.
    """

    def __init__(self, store: Store, what: str, session: Session | None) -> None:
        self._store = store
        self._what = what
        self._given = session
        self.home = ForkGuard(what)
        self._lock = mutex()
        self._waiters: set[Waiter] = set()
        self._closed = False
        self._closing = Signal()

    def ensure_usable(self, cause: BaseException | None = None) -> None:
        """Check that the object can be used.

        Args:
            cause: The error that led to this check, to be attached as the cause.
        Raises:
            Closed: The object was closed.
            ForkedProcess: This process inherited the object through a fork.
        """
        if self.home.is_foreign:
            raise self.home.error()
        if self._closed:
            raise Closed(f"{self._what} was closed; create another one") from cause

    @property
    def is_closed(self) -> bool:
        """Whether the object was closed."""
        return self._closed

    @asynccontextmanager
    async def start(
        self, timeout_s: float | None, kept: Waiter | None = None
    ) -> AsyncIterator[tuple[Waiter, Deadline]]:
        """Return a context manager for a waiting call. It yields a waiter and the deadline.

        Args:
            timeout_s: Seconds to wait. None waits forever.
            kept: The waiter of an earlier call, to be used again. None creates one.
        Raises:
            Closed, ForkedProcess, SessionLost: The object or the session cannot be used, or ended during the wait.
            LatchworkError: The call is inside a callback, and ``timeout_s`` is not 0.
            Unavailable, OutcomeUnknown: The store's session could not be opened in time.
        """
        self.ensure_usable()
        raise_if_in_callback(self._what, timeout_s)
        deadline = Deadline(self._store.clock, timeout_s)
        waiter = Waiter(self._store, await self._open_session(deadline)) if kept is None else kept
        waiter.is_kept = False
        with self._waiting(waiter):
            try:
                yield waiter, deadline
            except SessionLost as error:
                self.check_open(waiter.session, error)
                raise

    async def session(self) -> Session:
        """Return the session for a call that does not wait: the given one, or the store's primary session.

        Raises:
            Closed, ForkedProcess, SessionLost, Unavailable, OutcomeUnknown: As for ``start``.
        """
        self.ensure_usable()
        return await self._open_session(Deadline(self._store.clock, 0.0))

    async def _open_session(self, deadline: Deadline) -> Session:
        """Return the given session, or open the store's primary session. Retry until the deadline if the server is
        unreachable.
        """
        if self._given is not None:
            self._given.ensure_usable()
            return self._given
        if (opened := self._store.find_open_session()) is not None:
            return opened
        backoff = Backoff()
        while True:
            try:
                session: Session = await ask(self._store.primary_session)
                session.ensure_usable()
            except (Unavailable, OutcomeUnknown) as error:
                if deadline.has_passed:
                    raise
                if await Pause(self._store.clock, self._closing, deadline.left_s(backoff.next_s())):
                    self.ensure_usable(error)
            else:
                return session

    @contextmanager
    def open_waiter(self, session: Session) -> Iterator[Waiter]:
        """Return a context manager that yields an additional waiter, which can be cancelled separately.

        Args:
            session: The session whose end cancels the waiter.
        """
        with self._waiting(Waiter(self._store, session)) as waiter:
            yield waiter

    @contextmanager
    def _waiting(self, waiter: Waiter) -> Iterator[Waiter]:
        try:
            with self._lock:
                if not self._closed:
                    self._waiters.add(waiter)
            self.ensure_usable()
            yield waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)
            if not waiter.is_kept:
                waiter.close()

    def check_open(self, session: Session, cause: BaseException | None = None) -> None:
        """Check that the object and the session of a waiting call were not closed.

        Args:
            session: The session of the waiting call.
            cause: The error that led to this check, to be attached as the cause.
        Raises:
            Closed: The object or the session was closed.
        """
        self.ensure_usable(cause)
        if session.state == "closed":
            raise Closed(f"the session of {self._what} was closed; use another one") from cause

    def raise_if_ended(self, waiter: Waiter, cause: BaseException | None = None) -> None:
        """Raise an error if a waiting call ended because the object was closed or the session has ended.

        Args:
            waiter: The waiter of the call.
            cause: The error that led to this check, to be attached as the cause.
        Raises:
            Closed: The object or the session was closed.
            SessionLost: The session has expired.
        """
        self.check_open(waiter.session, cause)
        if waiter.session.remaining_s() <= 0.0:
            raise SessionLost(f"the session of a wait for {self._what} has ended; wait again") from cause

    def close(self) -> bool:
        """End all waiting calls. Return False if the object was already closed, or was inherited through a fork."""
        if self.home.is_foreign:
            return False
        with self._lock:
            was_closed, self._closed = self._closed, True
            self._closing.set()
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.cancel()
        return not was_closed


class Waiter:
    """Waits for one thing at a time. Any thread can cancel it permanently.

    It is cancelled when its session is lost or closed. The watch of the last wait stays open until the next wait or
    ``close``, because closing it would delay a client that has just acquired a lock.

    Attributes:
        session: The session whose end cancels it.
        cancelled: Set when it is cancelled.
        is_kept: Set by a caller that keeps the waiter after the wait and closes it later.
    """

    def __init__(self, store: Store, session: Session) -> None:
        self.session = session
        self.is_kept = False
        self._store = store
        self._lock = mutex()
        self.cancelled = Signal()
        self._watch: Watch | None = None
        self._cancel = session.on_end(self.cancel)

    def close(self) -> None:
        """Stop listening to the session, and close the watch of the last wait. Idempotent."""
        self._cancel()
        self._replace(None)

    @property
    def is_cancelled(self) -> bool:
        """Whether the waiter was cancelled."""
        return self.cancelled.is_set()

    def cancel(self) -> None:
        """End the current wait and every later one at once. Does not block."""
        self.cancelled.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()

    async def pause(self, seconds: float | None) -> bool:
        """Pause for this many seconds. Return False if the waiter was cancelled."""
        return not await Pause(self._store.clock, self.cancelled, seconds)

    @property
    def siblings(self) -> tuple[str, ...] | None:
        """The last segments of the keys that remained under the same parent when the watched key was deleted.

        None if ``watch_until`` was called without ``siblings``, or if the server did not send them. See
        ``Watch.siblings``.
        """
        watch = self._watch
        return None if watch is None else watch.siblings

    async def watch_until(
        self,
        prefix: str,
        is_done: Callable[[Batch], bool],
        deadline: Deadline,
        *,
        single_key: bool = False,
        siblings: bool = False,
        is_relevant: RelevanceFilter | None = None,
    ) -> bool:
        """Watch a key prefix until a batch of changes satisfies a condition.

        Args:
            prefix: The watch reports changes at and below this key.
            is_done: Called with each batch of changes. Returns whether to stop.
            deadline: When the wait times out.
            single_key: As for ``Store.watch``.
            siblings: As for ``Store.watch``.
            is_relevant: As for ``Watch``.
        Returns:
            True if the condition was satisfied. False after the deadline or if cancelled.
        """
        watch = self._store.watch(prefix, single_key=single_key, siblings=siblings)
        watch.is_relevant = is_relevant
        self._replace(watch)
        return await self._follow(watch, is_done, deadline)

    def start_watching(self, prefix: str) -> None:
        """Open a watch for ``continue_watching``, so that it begins before the wait. Idempotent. Does not block.

        Args:
            prefix: The watch reports changes at and below this key.
        """
        if self._watch is None or self._watch.prefix != prefix:
            self._replace(self._store.watch(prefix))

    async def continue_watching(self, is_done: Callable[[Batch], bool], deadline: Deadline) -> bool:
        """Wait for another condition on the watch that ``watch_until`` or ``start_watching`` has opened.

        No change is missed in between. Returns False at once if there is no such watch.

        Args:
            is_done: Called with each later batch of changes. Returns whether to stop.
            deadline: When the wait times out.
        Returns:
            True if the condition was satisfied. False after the deadline or if cancelled.
        """
        watch = self._watch
        return watch is not None and await self._follow(watch, is_done, deadline)

    async def _follow(self, watch: Watch, is_done: Callable[[Batch], bool], deadline: Deadline) -> bool:
        try:
            while not self.is_cancelled:
                if is_done(await coroutine_of(watch.next)(deadline.left_s())):
                    return True
        except WaitTimeout:
            return False
        except Closed:
            if not self.is_cancelled:
                raise
        return False

    def _replace(self, watch: Watch | None) -> None:
        with self._lock:
            before, self._watch = self._watch, watch
        if before is not None:
            before.close()

    async def keep_trying(self, step: Callable[[], StepCoroutine[T]], deadline: Deadline) -> T:
        """Call ``step`` until it succeeds, and return its result. Retry while the server is unreachable, until the
        deadline.

        Raises:
            SessionLost: The session has ended.
            Unavailable, OutcomeUnknown: The last error before the deadline.
        """
        backoff: Backoff | None = None
        while True:
            try:
                return await step()
            except (Unavailable, OutcomeUnknown) as error:
                backoff = backoff or Backoff()
                self._raise_if_session_lost(error)
                pause_s = deadline.left_s(backoff.next_s())
                if deadline.has_passed or not await self.pause(pause_s):
                    self._raise_if_session_lost(error)
                    raise

    def _raise_if_session_lost(self, error: LatchworkError) -> None:
        if self.session.remaining_s() <= 0.0:
            raise SessionLost(f"session {self.session.id} ended: {error}") from error


async def get_or_create(store: Store, key: str, value: bytes) -> Entry:
    """Return the entry of a key. If the key does not exist, create it with ``value`` first."""
    while (entry := await ask(store.get, key)) is None:
        with suppress(KeyExists):
            created: Entry = await ask(store.create, key, value)
            return created
    return entry


class WaiterLimit:
    """A fair semaphore of this process, which limits how many waiters send requests at a time. Thread-safe.

    Args:
        limit: Maximum number of waiters that hold the semaphore.
    """

    def __init__(self, limit: int) -> None:
        self._lock = mutex()
        self._free = limit
        self._turns: deque[Signal] = deque()

    async def acquire(self, waiter: Waiter, clock: Clock) -> bool:
        """Wait until fewer than ``limit`` waiters hold the semaphore, and acquire it. The caller must call ``release``.

        Returns:
            False if the waiter was cancelled. It has not acquired the semaphore then.
        """
        turn = Signal()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            self._turns.append(turn)
        take_back = waiter.cancelled.call_when_set(turn.set)
        try:
            await Pause(clock, turn, None)
        except BaseException:
            if not self._stop_waiting(turn):
                self.release()
            raise
        finally:
            take_back()
        return not self._stop_waiting(turn)

    def _stop_waiting(self, turn: Signal) -> bool:
        """Stop waiting. Return False if the waiter has already acquired the semaphore.

        Args:
            turn: The signal of the waiter, which is set when it acquires the semaphore.
        """
        with self._lock:
            waits = turn in self._turns
            if waits:
                self._turns.remove(turn)
            return waits

    def release(self) -> None:
        """Release the semaphore, so that the next waiter acquires it."""
        with self._lock:
            if self._turns:
                self._turns.popleft().set()
            else:
                self._free += 1

    def close(self) -> None:
        """Do nothing, because the waiters are cancelled by their owners."""
