"""The guard: tells runs to stop before their locks run out. Nothing here touches the network.

It has a thread of its own, so that no call to the store, however long it hangs, keeps a run from being told in time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from latchwork.clock import Clock
from latchwork.jobs.options.settings import STOP_MARGIN
from latchwork.jobs.options.table import LEAST_GRACE_S
from latchwork.jobs.worker.runs import JobRun

log = logging.getLogger(__name__)

_LEAST_WAIT_S = 0.01
_RETRY_S = 0.1


def stop_margin_s(lock_ttl_s: float, grace_s: float | None) -> float:
    """Seconds that are left of their locks when runs are told to stop.

    Args:
        lock_ttl_s: how long locks last after the last confirmed renewal.
        grace_s: how long runs go on after that; None for as long as the locks allow, which is the most.
    """
    least_s = lock_ttl_s * STOP_MARGIN
    return least_s if grace_s is None else max(least_s, lock_ttl_s - max(LEAST_GRACE_S, grace_s))


class RunGuard:
    """Watches over the live runs of one node. Safe to share between threads.

    Args:
        node_id: for its thread's name and its log lines.
        runs: gives the live runs; called in the guard's thread.
        margin_s: tells how much is left of their locks when runs are told to stop; may change.
        on_stop: called after runs were told to stop; must not block.
        clock: what it waits on.
    """

    def __init__(
        self,
        node_id: str,
        runs: Callable[[], Iterable[JobRun]],
        *,
        margin_s: Callable[[], float],
        on_stop: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._runs = runs
        self._margin_s = margin_s
        self._on_stop = on_stop
        self._clock = clock
        self._wake = threading.Event()
        self._finishing = threading.Event()
        self.thread = threading.Thread(target=self._loop, name=f"latchwork-guard-{node_id}", daemon=True)

    def look(self) -> None:
        """Look again: a run was added, or the margin changed."""
        self._wake.set()

    def finish(self) -> None:
        """End as soon as every run has ended or was told to stop; no run is added any more."""
        self._finishing.set()
        self._wake.set()

    def _loop(self) -> None:
        while True:
            self._wake.clear()
            finishing = self._finishing.is_set()
            try:
                wait_s = self.check()
            except Exception:  # a guard that dies unseen would let runs outlive their locks
                log.exception("node %s: the guard of the runs failed and looks again", self._node_id)
                wait_s = _RETRY_S
            if finishing and wait_s is None:
                return
            self._clock.wait(self._wake, wait_s)

    def check(self) -> float | None:
        """Stop runs that would outlive their locks; return the seconds until the next look, None without runs."""
        left = [(run.remaining_s(), run) for run in self._runs() if not run.ended and not run.stopping]
        margin_s = self._margin_s()
        doomed = [(left_s, run) for left_s, run in left if left_s <= margin_s]
        if doomed:
            log.error(
                "node %s: the locks of %d runs last %.2f s more and could not be renewed: the runs are told to stop",
                self._node_id,
                len(doomed),
                min(left_s for left_s, _ in doomed),
            )
            for _, run in doomed:
                run.stop()
            self._on_stop()
            return _LEAST_WAIT_S
        nearest_s = min((left_s for left_s, _ in left), default=None)
        return None if nearest_s is None else max(_LEAST_WAIT_S, nearest_s - margin_s)
