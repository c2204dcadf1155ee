"""A base class of latch candidates and group members, which take part in something in a background thread."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from latchwork._base.event import Signal
from latchwork._base.execution_context import current_task_caller
from latchwork.errors import Closed, LatchworkError, WaitTimeout
from latchwork.primitives.waiting.arguments import raise_if_in_callback
from latchwork.primitives.waiting.closable import Startable
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.listeners import ListenerQueue
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.dispatch import Dispatcher
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.forks import ForkGuard
from latchwork.store.session import Session
from latchwork.store.steps import Pause, ask
from latchwork.store.store import Store

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Participant(Startable):
    """Takes part in a group or an election in a background thread, and retries after temporary errors. Thread-safe.

    Base class of latch candidates and group members.

    Args:
        store: The store.
        what: Name of the group or latch, for messages: ``latch 'leader'``.
        who: Name of this participant, for messages: ``node 'web-1'``.
        session: The session whose end ends the participation. None uses the store's primary session.
        name: Name of the background thread.
    """

    def __init__(self, store: Store, what: str, who: str, session: Session | None, *, name: str) -> None:
        self._store = store
        self._what = what
        self._who = who
        self._given = session
        self._name = name
        self._home = ForkGuard(what)
        self._changed = Notifier()
        self._wake = Signal()
        self._background: Background | None = None
        self._made_by = current_task_caller()
        self._waiter: Waiter | None = None
        self._error: LatchworkError | None = None
        self._leaving = False
        self._closed = False
        self._dispatcher = Dispatcher(name, size=1)
        self._announcer = ListenerQueue(self._dispatcher, what)

    @abstractmethod
    async def _participate(self, backoff: Backoff) -> None:
        """Take part until the session ends or this participant leaves.

        Args:
            backoff: Delays between retries. An implementation resets it after a success.
        """

    def _may_end_thread(self) -> bool:
        """Return whether the thread may end after ``_participate`` has returned. It is started again when needed."""
        return False

    @abstractmethod
    async def _depart(self) -> None:
        """Leave the group or election. Called at the end of the background thread."""

    @abstractmethod
    def _is_final(self, error: LatchworkError) -> bool:
        """Return whether an error is permanent, so that a retry would fail too."""

    def _on_error(self, error: LatchworkError) -> None:
        """Handle an error of ``_participate``, permanent or not. The default does nothing."""

    def _start_thread(self) -> None:
        """Start the background thread. The caller holds the mutex."""
        self._background = Background(self._run_until_final, f"latchwork-{self._name}", self._made_by)

    async def _run_until_final(self) -> None:
        backoff = Backoff()
        while not self._leaving:
            try:
                await self._participate(backoff)
                if self._may_end_thread():
                    return
            except LatchworkError as error:
                self._on_error(error)
                if self._is_final(error):
                    self._fail(error)
                    break
                _log.info("%s: %s tries again: %s", self._what, self._who, error)
            except Exception:  # a participant must not vanish silently after an error
                _log.exception("%s: %s failed unexpectedly, retrying", self._what, self._who)
            await self._pause(backoff.next_s())
        await self._depart()

    async def _get_open_session(self) -> Session:
        return self._given if self._given is not None else await ask(self._store.primary_session)

    async def _pause(self, seconds: float) -> None:
        """Pause for this many seconds, but end the pause early if this participant must leave."""
        if not self._leaving:
            await Pause(self._store.clock, self._wake, seconds)
            self._wake.clear()

    async def _wait_until(
        self,
        poll: Callable[[], T | None],
        timeout_s: float | None,
        what: str,
        timeout_error: Callable[[], WaitTimeout],
        *,
        poll_s: float | None = None,
    ) -> T:
        """Call a function until it returns a result other than None, and return the result.

        The function is called after each change of this participant, without the mutex.

        Args:
            poll: The function.
            timeout_s: Seconds to wait. None waits forever.
            what: What the caller waits for, for messages.
            timeout_error: Returns the error to raise after the timeout.
            poll_s: Call the function also after this many seconds without a change. None calls it only after changes.
        """
        self._home.check()
        deadline = Deadline(self._store.clock, timeout_s)
        while True:
            with self._changed.mutex:
                version = self._changed.version
            found = poll()
            if found is not None:
                return found
            raise_if_in_callback(what, timeout_s)
            if deadline.has_passed:
                raise timeout_error()
            await self._changed.wait_for_change(version, self._store.clock, deadline.left_s(poll_s))

    def _fail(self, error: LatchworkError) -> None:
        with self._changed.mutex:
            self._error = error
            self._changed.notify_all()
        if not self._leaving:
            _log.warning("%s: %s has ended permanently: %s", self._what, self._who, error)

    def _check_open(self) -> None:
        self._home.check()
        if self._closed:
            raise Closed(f"{self._what} was closed; create another one")

    def _raise_if_ended(self) -> None:
        if self._error is not None:
            raise self._error
        if self._leaving or self._background is None:
            raise Closed(
                f"{self._what} was closed, has left or was never started; start it before "
                "waiting, or create another one"
            )


def is_open(store: Store) -> bool:
    """Return whether the store is open. It may be open although its primary session was closed."""
    try:
        store.primary_session()  # refuses when the store was closed
    except LatchworkError as error:
        return not isinstance(error, Closed)
    return True
