"""What a run knows: its share, whether to stop, how long its locks last. Nothing here touches the network."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import LockLost

if TYPE_CHECKING:
    from latchwork.store import Store
    from latchwork.types import Fence

log = logging.getLogger(__name__)

StopListener = Callable[[], None]


def _for_ever() -> float:
    return math.inf


def _no_fence(item: str) -> Fence:
    msg = f"no lock protects item {item!r} in this context; construct it with `fence=` to test code that needs one"
    raise LockLost(msg)


class JobContext:
    """Handed to each run of a job. Safe to share between threads; construct one with plain arguments in your tests.

    Not promised: that a run which ignores ``should_stop`` is ended. A thread cannot be killed from outside, so pass
    ``fence(item)`` to every write that matters.
    """

    def __init__(
        self,
        work_share: Iterable[str] = (),
        *,
        job_id: str = "job",
        node_id: str = "node",
        remaining_s: Callable[[], float] = _for_ever,
        fence: Callable[[str], Fence] = _no_fence,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        fire_time_s: float | None = None,
    ) -> None:
        """Make a context; nothing is started.

        Args:
            work_share: the items of this run.
            job_id: the job's id.
            node_id: the id of the node that runs it.
            remaining_s: tells how many seconds the locks of this run are still held; for ever unless given.
            fence: gives the fence of an item; raises ``LockLost`` unless given.
            store: the store of the cluster, if there is one.
            clock: what ``wait_stop`` waits on.
            fire_time_s: the fire time of a cron schedule that this run is for, in seconds since the epoch.
        """
        self._share = tuple(work_share)
        self._members = frozenset(self._share)
        self._job_id = job_id
        self._node_id = node_id
        self._remaining_s = remaining_s
        self._fence = fence
        self._store = store
        self._clock = clock
        self._fire_time_s = fire_time_s
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self._listeners: dict[int, StopListener] = {}
        self._next_listener = 0

    def __repr__(self) -> str:
        state = ", stopping" if self.should_stop else ""
        return f"<JobContext of {self._job_id} on {self._node_id}, {len(self._share)} items{state}>"

    @property
    def work_share(self) -> tuple[str, ...]:
        """The items of this run: sorted, unique, the same for its whole life."""
        return self._share

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._job_id

    @property
    def node_id(self) -> str:
        """The id of the node this runs on."""
        return self._node_id

    @property
    def fire_time_s(self) -> float | None:
        """The fire time this run is for, in seconds since the epoch; None unless the job is on a cron schedule."""
        return self._fire_time_s

    @property
    def store(self) -> Store:
        """The store of the cluster, for reading and for fenced writes; it is shared, do not close it.

        For the time of this run only: no call waits longer than its locks last, and once they are lost every call
        raises ``LockLost``; see ``Store.within``.

        Raises:
            LookupError: this context was constructed without one.
        """
        if self._store is None:
            msg = "this context has no store; construct it with `store=` to test code that uses one"
            raise LookupError(msg)
        return self._store

    @property
    def should_stop(self) -> bool:
        """True from the moment this run was told to stop: finish what is begun, and return."""
        return self._stop.is_set()

    def wait_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until this run is told to stop, a sleep that ends early.

        Args:
            timeout_s: seconds to wait; None waits for ever.
        Returns:
            True when told to stop, False when the time was over.
        """
        return self._clock.wait(self._stop, timeout_s)

    def on_stop(self, listener: StopListener) -> Callable[[], None]:
        """Have ``listener`` called once when this run is told to stop, at once if it was already.

        Listeners are called in the order they were added, on one thread; one that raises is logged and stops no other.

        Returns:
            A function that removes the listener; twice is fine.
        """
        with self._mutex:
            number = self._next_listener
            self._next_listener += 1
            late = self._stop.is_set()
            if not late:
                self._listeners[number] = listener
        if late:
            self._call(listener)
        return lambda: self._remove(number)

    def remaining_s(self) -> float:
        """Seconds for which the locks of this run are surely still ours, by our own clock; 0 when they are not."""
        return max(0.0, self._remaining_s())

    def fence(self, item: str) -> Fence:
        """Proof that this node holds the item: put it among the checks of every write that matters.

        Raises:
            KeyError: the item is not in this run's share.
            LockLost: the lock has run out or was given up; stop the work.
        """
        if item not in self._members:
            msg = f"item {item!r} is not in the share of this run of {self._job_id}"
            raise KeyError(msg)
        return self._fence(item)

    def stop(self) -> None:
        """Tell the run to stop and call the listeners, in this thread; for tests. Twice is fine."""
        self.signal_stop()
        self.notify_listeners()

    def signal_stop(self) -> None:
        """Tell the run to stop without calling listeners; never blocks on user code."""
        with self._mutex:
            self._stop.set()

    def notify_listeners(self) -> None:
        """Call the listeners that were not called yet; only after ``signal_stop``."""
        while True:
            with self._mutex:
                if not self._listeners:
                    return
                listener = self._listeners.pop(min(self._listeners))
            self._call(listener)

    @property
    def has_listeners(self) -> bool:
        """True while a listener waits to be called."""
        with self._mutex:
            return bool(self._listeners)

    def _remove(self, number: int) -> None:
        with self._mutex:
            self._listeners.pop(number, None)

    def _call(self, listener: StopListener) -> None:
        try:
            listener()
        except (Exception, SystemExit):  # one that calls exit must not keep the others from being called
            log.exception(
                "stop listener %r of job %s raised; the others are called",
                listener,
                self._job_id,
            )
