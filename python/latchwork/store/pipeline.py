"""Many calls in flight at once: the store's calls, returning futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from latchwork.backends.futures import with_outlet

if TYPE_CHECKING:
    from latchwork.backends.futures import Outlet
    from latchwork.store.calls import Calls, Entries, Names
    from latchwork.store.session import Session
    from latchwork.types import Check, Committed, Entry, Op

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_MAX_IN_FLIGHT = 1000


class Pipeline:
    """The store's calls, each returning its future at once; at most so many are in flight, then a call waits.

    Calls in flight have no order among each other: put what must follow another behind its future. As a context
    manager it waits at the end until every call has ended; errors stay in their futures. Safe to share between threads.

    Callbacks added to its futures run one after another, in the order in which the calls end, in a thread of the store
    for callbacks: also that of a future which has ended, and on every backend. They may call the store; a slow one
    delays the callbacks of this pipeline and nothing else. Not to be waited for there: locks and other primitives,
    which refuse it (``LatchworkError``), and other callbacks of this pipeline. After ``Store.close`` a callback may run
    in the thread that adds it. That a callback has run is not promised when ``flush`` or ``result`` returns.
    """

    def __init__(self, calls: Calls, outlet: Outlet, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT) -> None:
        if max_in_flight < 1:
            msg = f"max_in_flight must be at least 1, not {max_in_flight}"
            raise ValueError(msg)
        self._calls = calls
        self._outlet = outlet
        self._most = max_in_flight
        self._count = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._fewer = threading.Condition(self._lock)
        self._in_flight: set[Future[Any]] = set()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def flush(self) -> None:
        """Wait until every call made so far has ended."""
        wait(list(self._in_flight))

    def get(self, key: str, *, stale_ok: bool = False) -> Future[Entry | None]:
        """See ``Store.get``."""
        return self._send(self._calls.get, key, stale_ok=stale_ok)

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """See ``Store.get_many``."""
        return self._send(self._calls.get_many, keys, stale_ok=stale_ok)

    def list(
        self,
        prefix: str,
        *,
        recursive: bool = False,
        limit: int | None = None,
        start_after: str | None = None,
        stale_ok: bool = False,
    ) -> Future[Entries]:
        """See ``Store.list``."""
        return self._send(
            self._calls.list, prefix, recursive=recursive, limit=limit, start_after=start_after, stale_ok=stale_ok
        )

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[Names]:
        """See ``Store.children``."""
        return self._send(self._calls.children, prefix, stale_ok=stale_ok)

    def put(self, key: str, value: bytes, *, session: Session | None = None) -> Future[Entry]:
        """See ``Store.put``."""
        return self._send(self._calls.put, key, value, session=session)

    def create(
        self, key: str, value: bytes, *, session: Session | None = None, sequential: bool = False
    ) -> Future[Entry]:
        """See ``Store.create``."""
        return self._send(self._calls.create, key, value, session=session, sequential=sequential)

    def delete(self, key: str, *, version: Hashable | None = None) -> Future[bool]:
        """See ``Store.delete``."""
        return self._send(self._calls.delete, key, version=version)

    def delete_tree(self, prefix: str) -> Future[int]:
        """See ``Store.delete_tree``."""
        return self._send(self._calls.delete_tree, prefix)

    def commit(self, checks: Sequence[Check], ops: Sequence[Op]) -> Future[Committed]:
        """See ``Store.commit``."""
        return self._send(self._calls.commit, checks, ops)

    def _send(self, call: Callable[P, Future[T]], *args: P.args, **options: P.kwargs) -> Future[T]:
        with self._lock:
            while self._count >= self._most:
                self._wait()
            self._count += 1
        try:
            future = call(*args, **options)
        except BaseException:
            self._leave(None)
            raise
        self._in_flight.add(future)  # without the lock: one operation of a set is atomic, and costs half as much
        future.add_done_callback(self._leave)
        return with_outlet(future, self._outlet)

    def _wait(self) -> None:
        """With the lock held, until one more has ended."""
        self._waiting += 1
        try:
            self._fewer.wait()
        finally:
            self._waiting -= 1

    def _leave(self, future: Future[Any] | None) -> None:
        self._in_flight.discard(future)
        with self._lock:
            self._count -= 1
            if self._waiting:
                self._fewer.notify()
