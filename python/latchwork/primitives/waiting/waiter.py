"""Waiting for something in the store, by a watch, until called off. See ``store.steps`` for who drives it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from latchwork.errors import Closed, KeyExists, LatchworkError, OutcomeUnknown, SessionLost, Unavailable, WaitTimeout
from latchwork.interrupts import mutex
from latchwork.primitives.waiting.common import Patience
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import Pause, Signal, Steps, ask, steps_of
from latchwork.store.store import Store
from latchwork.store.watch import Batch, Watch
from latchwork.types import Entry

T = TypeVar("T")


class Waiter:
    """Waits for one thing at a time; can be called off for good, from any thread.

    It is called off when its session ends, lost or closed. The watch of the last wait stays open until the next wait or
    ``close``: closing it would delay whoever has just got a lock.

    Attributes:
        session: the session whose end calls it off.
        off: set once it is called off.
        is_kept: set by the caller that keeps it after the wait, and closes it.
    """

    def __init__(self, store: Store, session: Session) -> None:
        self.session = session
        self.is_kept = False
        self._store = store
        self._lock = mutex()
        self.off = Signal()
        self._watch: Watch | None = None
        self._cancel = session.on_end(self.call_off)

    def close(self) -> None:
        """Stop listening to the session, and close the last watch. Twice is fine."""
        self._cancel()
        self._replace(None)

    @property
    def is_off(self) -> bool:
        """True once called off."""
        return self.off.is_set()

    def call_off(self) -> None:
        """End the wait, and every later one, at once. Does not block."""
        self.off.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()

    async def pause(self, seconds: float | None) -> bool:
        """Pause so long; False when called off."""
        return not await Pause(self._store.clock, self.off, seconds)

    @property
    def beside(self) -> tuple[str, ...] | None:
        """What the last wait found beside its leaf; see ``Watch.beside``."""
        watch = self._watch
        return None if watch is None else watch.beside

    async def follow(
        self,
        prefix: str,
        is_done: Callable[[Batch], bool],
        patience: Patience,
        *,
        leaf: bool = False,
        beside: bool = False,
    ) -> bool:
        """Wait until a batch of changes at or below a prefix satisfies; False when time is over or called off.

        ``leaf`` and ``beside`` as for ``Store.watch``.
        """
        watch = self._store.watch(prefix, leaf=leaf, beside=beside)
        self._replace(watch)
        return await self._follow(watch, is_done, patience)

    async def go_on(self, is_done: Callable[[Batch], bool], patience: Patience) -> bool:
        """``follow`` on, by the watch of the last wait: what has changed since its last batch."""
        watch = self._watch
        return watch is not None and await self._follow(watch, is_done, patience)

    async def _follow(self, watch: Watch, is_done: Callable[[Batch], bool], patience: Patience) -> bool:
        try:
            while not self.is_off:
                if is_done(await steps_of(watch.next)(patience.left_s())):
                    return True
        except WaitTimeout:
            return False
        except Closed:
            if not self.is_off:
                raise
        return False

    def _replace(self, watch: Watch | None) -> None:
        with self._lock:
            before, self._watch = self._watch, watch
        if before is not None:
            before.close()

    async def keep_trying(self, step: Callable[[], Steps[T]], patience: Patience) -> T:
        """Do something with the server, again and again while it cannot be reached and there is time.

        Raises:
            SessionLost: the session ended meanwhile.
            Unavailable, OutcomeUnknown: the last one, when the time is over.
        """
        backoff = Backoff()
        while True:
            try:
                return await step()
            except (Unavailable, OutcomeUnknown) as error:
                self._refuse_lost(error)
                pause_s = patience.left_s(backoff.next_s())
                if patience.is_over or not await self.pause(pause_s):
                    self._refuse_lost(error)
                    raise

    def _refuse_lost(self, error: LatchworkError) -> None:
        if self.session.remaining_s() <= 0.0:
            raise SessionLost(f"session {self.session.id} ended: {error}") from error


async def get_or_create(store: Store, key: str, value: bytes) -> Entry:
    """The entry of a key, which is created with this value if it is not there."""
    while (entry := await ask(store.get, key)) is None:
        with suppress(KeyExists):
            created: Entry = await ask(store.create, key, value)
            return created
    return entry
