"""A copy of the data that lags behind, for the reads under a ``FaultyStore`` that may be stale. See ``faults``."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from latchwork.backends.base import Backend, BackendWatch, WatchEvent
from latchwork.backends.futures import completed
from latchwork.store.feed import Tracker
from latchwork.types import Entry

Later = Callable[[float, Callable[[], None]], None]


class StaleReplica:
    """Every key as it was a while ago; never goes back. Safe to share between threads.

    Args:
        lag_s: how long after the backend reports a change it shows here.
        later: does something after a delay, one thing at a time, in the order of their times.
    """

    def __init__(self, lag_s: float, later: Later) -> None:
        self._lag_s = lag_s
        self._later = later
        self._lock = threading.Lock()
        self._tracker = Tracker(keep_values=True)
        self._inner: BackendWatch | None = None

    def follow(self, backend: Backend) -> None:
        """Begin."""
        self._inner = backend.watch("", lambda event: self._later(self._lag_s, lambda: self._take(event)))

    def close(self) -> None:
        """Stop."""
        if self._inner is not None:
            self._inner.close()

    @property
    def is_ready(self) -> bool:
        """True once it has a state."""
        return self._tracker.ready

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:  # noqa: ARG002 - it is stale in any case
        """See ``Backend.get``."""
        with self._lock:
            return completed(self._tracker.known.get(key))

    def get_many(self, keys: Sequence[str], *, stale_ok: bool) -> Future[builtins.list[Entry | None]]:  # noqa: ARG002
        """See ``Backend.get_many``; all of one moment."""
        with self._lock:
            return completed([self._tracker.known.get(key) for key in keys])

    def list(
        self,
        prefix: str,
        *,
        recursive: bool,
        limit: int | None,
        start_after: str | None,
        stale_ok: bool,  # noqa: ARG002
    ) -> Future[builtins.list[Entry]]:
        """See ``Backend.list``; all of one moment."""
        below = f"{prefix}/" if prefix else ""
        with self._lock:
            found = [
                self._tracker.known[key]
                for key in sorted(self._tracker.known)
                if key.startswith(below)
                and (recursive or "/" not in key[len(below) :])
                and (start_after is None or key > start_after)
            ]
        return completed(found[:limit])

    def children(self, prefix: str, *, stale_ok: bool) -> Future[builtins.list[str]]:  # noqa: ARG002
        """See ``Backend.children``; all of one moment."""
        below = f"{prefix}/" if prefix else ""
        with self._lock:
            known = [key for key in self._tracker.known if key.startswith(below)]
        return completed(sorted({key[len(below) :].partition("/")[0] for key in known}))

    def _take(self, event: WatchEvent) -> None:
        with self._lock:
            self._tracker.fold(event)
