"""The context of a run: its share, its stop signal, its locks. Nothing here touches the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import LockLost
from latchwork.primitives.waiting import StopSignal
from latchwork.store import Store
from latchwork.types import Fence


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
        remaining_s: Callable[[], float] = lambda: math.inf,
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
        self._fire_time_s = fire_time_s
        #: Tells this run to stop; for the job manager.
        self.stop_signal = StopSignal(f"job {job_id}", clock)

    def __repr__(self) -> str:
        state = ", stopping" if self.should_stop else ""
        return f"<JobContext of {self._job_id} on {self._node_id}, {len(self._share)} items{state}>"

    @property
    def work_share(self) -> tuple[str, ...]:
        """The items of this run: sorted, unique, unchanged until the run ends."""
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
        """The store of the job manager, in its namespace if it has one, for reads and fenced writes. Do not close it.

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
        return self.stop_signal.should_stop

    def wait_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until this run is told to stop, a sleep that ends early.

        Args:
            timeout_s: seconds to wait; None waits for ever.
        Returns:
            True when told to stop, False when the time was over.
        """
        return self.stop_signal.wait_stop(timeout_s)

    def on_stop(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called once when this run is told to stop, at once if it was already.

        Listeners are called in the order they were added, on one thread; one that raises is logged and stops no other.

        Returns:
            A function that removes the listener; twice is fine.
        """
        return self.stop_signal.on_stop(listener)

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
        self.stop_signal.stop()
