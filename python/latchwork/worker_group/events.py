"""Delivery of a group's events to the listeners of one worker, in order and without gaps.

Each event is written in the transaction that causes it, under the next number. Listeners run one event at a time in a
thread of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.errors import Closed, LatchworkError
from latchwork.primitives.waiting import ListenerQueue
from latchwork.store.backoff import Backoff
from latchwork.store.dispatch import Dispatcher
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.observers import add_listener
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.worker_group.keys import RunKeys
from latchwork.worker_group.membership import WorkerMembership
from latchwork.worker_group.records import MAX_EVENTS, GroupEvent

_log = logging.getLogger(__name__)

Listener = Callable[[GroupEvent], None]
#: Number of events read per call.
_PAGE = 100


async def read_events(store: Store, keys: RunKeys, after: int, up_to: int) -> list[GroupEvent]:
    """Read some events of a run, in order. Only the last `MAX_EVENTS` events are stored; older ones are left out.

    Args:
        store: Store of the group.
        keys: Keys of the run.
        after: Number of the event before the first one to read.
        up_to: Number of the last event to read.
    """
    first = max(after + 1, up_to - MAX_EVENTS + 1)
    found: list[GroupEvent] = []
    for begin in range(first, up_to + 1, _PAGE):
        names = [keys.event_key(number) for number in range(begin, min(begin + _PAGE, up_to + 1))]
        entries = await ask(store.get_many, names)
        events = (GroupEvent.decode_or_none(entry) for entry in entries if entry is not None)
        found += [event for event in events if event is not None]
    return found


class EventListeners:
    """Delivers the events of a group to the listeners of one worker. Thread-safe."""

    def __init__(self, store: Store, membership: WorkerMembership) -> None:
        self._store = store
        self._keys = membership.keys
        self._repeats_all_joined = not membership.is_new
        self._last_delivered = membership.event_count
        self._last_written = membership.event_count
        self._listeners: dict[object, Listener] = {}
        self._lock = mutex()
        self._notifier = Notifier()
        self._closed = Signal()
        self._dispatcher: Dispatcher | None = None
        self._queue: ListenerQueue | None = None
        self._reader: Background | None = None

    def on_event(self, fn: Listener) -> Callable[[], None]:
        """Register a listener for all future events. The first listener also gets the events since the worker joined.

        Args:
            fn: Called with each event, in a separate thread.
        Returns:
            A function that removes the listener.
        """
        cancel = add_listener(self._listeners, fn)
        with self._lock:
            if self._reader is None and not self._closed.is_set():
                self._dispatcher = Dispatcher(f"events-{self._keys.group.group}", size=1)
                self._queue = ListenerQueue(self._dispatcher, f"a listener of group {self._keys.group.group!r}")
                self._reader = Background(self._read, f"latchwork-events-{self._keys.group.group}")
        return cancel

    def notify(self, number: int) -> None:
        """Deliver the events up to a number to the listeners, in the background.

        Args:
            number: Number of the last event that was added to the group.
        """
        with self._notifier.mutex:
            self._last_written = max(self._last_written, number)
            self._notifier.notify_all()

    async def close(self) -> None:
        """Deliver the events that were already read, then stop. Idempotent."""
        self._closed.set()
        with self._notifier.mutex:
            self._notifier.notify_all()
        if self._reader is not None and not self._reader.is_running_here:
            await self._reader
        if self._queue is not None and self._dispatcher is not None:
            await self._queue.wait_until_delivered(self._store.clock, 1.0)
            self._dispatcher.close()
            self._dispatcher.close_callback_queues()

    async def _read(self) -> None:
        backoff = Backoff()
        while not self._closed.is_set():
            with self._notifier.mutex:
                version, last = self._notifier.version, self._last_written
            pause_s = None
            try:
                await self._deliver(last)
                backoff.reset()
            except Closed:
                return
            except LatchworkError as error:
                _log.info("cannot read the events of group %r, retrying: %s", self._keys.group.group, error)
                pause_s = backoff.next_s()
            if pause_s is not None or last == self._last_written:
                await self._notifier.wait_for_change(version, self._store.clock, pause_s)

    async def _deliver(self, last: int) -> None:
        """Queue the events up to a number for the listeners. A restarted worker first gets the last ``all_joined``.

        Args:
            last: Number of the last event to deliver.
        """
        found = await read_events(self._store, self._keys, self._last_delivered, last)
        if self._repeats_all_joined:
            before = await read_events(self._store, self._keys, 0, self._last_delivered)
            found = [event for event in before if event.kind == "all_joined"][-1:] + found
            self._repeats_all_joined = False
        self._last_delivered = last
        assert self._queue is not None
        self._queue.post(
            *(partial(self._call, registration, event) for event in found for registration in list(self._listeners))
        )

    def _call(self, registration: object, event: GroupEvent) -> None:
        """Call a listener with an event, unless the listener was removed meanwhile."""
        fn = self._listeners.get(registration)
        if fn is not None:
            fn(event)
