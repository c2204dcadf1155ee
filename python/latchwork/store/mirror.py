"""A mirror: a local read-only copy of keys that a watch keeps up to date."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from latchwork.backends.base import ProvesCurrent
from latchwork.clock import Clock
from latchwork.store.dispatch import Dispatcher, SerialDrain
from latchwork.store.keys import Scope
from latchwork.store.observers import check_listener
from latchwork.store.steps import blocking
from latchwork.store.watch import Batch, ChangeBuffer, WatchReceiver
from latchwork.types import Change, Entry


class Mirror(WatchReceiver, Mapping[str, Entry]):
    """A local read-only mapping from each key at and below a prefix to its last reported entry, sorted by key.

    It may lag behind the server: ``stale_s()`` returns by how much at most. Thread-safe. Reads perform no I/O. Entries
    of different keys may be from different points in time. In a forked child, a read raises ``ForkedProcess``.
    """

    def __init__(
        self, prefix: str, scope: Scope, clock: Clock, dispatcher: Dispatcher, *, keep_values: bool = True
    ) -> None:
        super().__init__(prefix, scope, clock, keep_values=keep_values)
        self._dispatcher = dispatcher
        self._listeners: dict[SerialDrain, ChangeBuffer] = {}  # replaced, never changed: it is read without the mutex
        self._version = 0
        self._announced = False

    def __getitem__(self, key: str) -> Entry:
        self._home.check()
        return self._scope.relative_entry(self._tracker.known[self._scope.join(key)])

    def __iter__(self) -> Iterator[str]:
        self._home.check()
        with self._changed.mutex:
            keys = sorted(self._tracker.known)
        return iter([self._scope.relative_key(key) for key in keys])

    def __len__(self) -> int:
        self._home.check()
        return len(self._tracker.known)

    def __contains__(self, key: object) -> bool:
        self._home.check()
        return isinstance(key, str) and self._scope.join(key) in self._tracker.known

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def snapshot(self) -> dict[str, Entry]:
        """Return a copy of all entries by key, sorted by key."""
        self._home.check()
        with self._changed.mutex:
            known = sorted(self._tracker.known.items())
        return {self._scope.relative_key(key): self._scope.relative_entry(entry) for key, entry in known}

    def stale_s(self) -> float:
        """Return the seconds since the state was last known to be up to date.

        The result is infinite before the first state has arrived, and in a forked child.

        On ZooKeeper, a confirmation needs a transaction. It is sent once per second for half a minute after each call
        of this method. So the first result after a quiet time may be the age of the last change.
        """
        if self._home.is_foreign:
            return math.inf
        watch: object = self._backend
        if isinstance(watch, ProvesCurrent):
            watch.prove_current()
        return max(0.0, self._clock.now() - self._tracker.as_of)

    @blocking
    async def ready(self, timeout_s: float | None = None) -> Mirror:
        """Wait until the first state has arrived, and return the mirror itself.

        Raises:
            WaitTimeout: The first state did not arrive in time.
            Closed: The mirror or its store was closed.
        """
        return await self._wait_and_take(lambda: self._tracker.ready, lambda: self, timeout_s, "the first state")

    @blocking
    async def wait_until(self, predicate: Callable[[Mirror], bool], timeout_s: float | None = None) -> None:
        """Wait until ``predicate(mirror)`` is true. The predicate is called in this thread after each change.

        Raises:
            WaitTimeout: The predicate was not true in time.
            Closed: The mirror or its store was closed.
        """
        self._home.check()
        deadline = None if timeout_s is None else self._clock.now() + timeout_s
        while True:
            with self._changed.mutex:
                seen = self._version
            if self._tracker.ready and predicate(self):
                return
            left = None if deadline is None else max(0.0, deadline - self._clock.now())
            await self._wait_and_take(lambda seen=seen: self._version != seen, bool, left, "the awaited state")  # type: ignore[misc]

    def on_change(self, fn: Callable[[Batch], None]) -> Callable[[], None]:
        """Call ``fn`` with each batch of changes, in order, in a callback thread of the store.

        The first batch is the current state. Later batches contain the latest state of each key that has changed since
        the previous batch. A slow listener may miss intermediate states, but never the last one.

        Returns:
            A function that removes the listener.
        Raises:
            TypeError: ``fn`` is a coroutine function, or cannot be called.
        """
        self._home.check()
        check_listener(fn)
        inbox = ChangeBuffer()

        def drain() -> None:
            with self._changed.mutex:
                batch = inbox.take() if inbox.filled else None
            if batch is not None:
                fn(batch)

        drain_task = self._dispatcher.create_serial_drain(drain, f"the mirror of {self.prefix!r}")
        with self._changed.mutex:
            state = self._scope.relative_changes([Change(key, entry) for key, entry in self._tracker.known.items()])
            inbox.add(state, ready=self._tracker.ready)
            self._listeners = {**self._listeners, drain_task: inbox}
        drain_task.signal()
        return lambda: self._remove(drain_task)

    def close(self) -> None:
        """Stop updating the mapping. Its last state can still be read. Idempotent."""
        super().close()
        for drain_task in self._listeners if not self._home.is_foreign else ():
            self._remove(drain_task)

    def _deliver(self, changes: list[Change]) -> bool:
        if changes or not self._announced:
            self._announced = self._tracker.ready
            self._version += 1
        for inbox in self._listeners.values():
            inbox.add(changes, ready=self._tracker.ready)
        return True

    def _notify_listeners(self, changes: list[Change]) -> None:  # noqa: ARG002 - the inboxes know
        for drain_task, inbox in self._listeners.items():
            if inbox.filled:
                drain_task.signal()

    def _remove(self, drain_task: SerialDrain) -> None:
        if self._home.is_foreign:
            return
        with self._changed.mutex:
            self._listeners = {each: inbox for each, inbox in self._listeners.items() if each is not drain_task}
        drain_task.close()
