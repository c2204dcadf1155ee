"""The embedded store for callers whose thread must not do the work: calls of an event loop, made in a few threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from latchwork.backends.base import CALLS, Backend
from latchwork.backends.futures import failed
from latchwork.errors import Closed

#: One of them writes at a time; a few more read.
_THREADS = 4


class Apart:
    """A backend around an embedded one. Safe to share between threads; it ends with ``end``; twice is fine."""

    def __init__(self, backend: Backend, name: str, pool: ThreadPoolExecutor | None = None) -> None:
        self._backend = backend
        self._name = name
        self._pool = pool or ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix=f"latchwork-calls-{name}")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return partial(self._elsewhere, found) if name in CALLS else found

    def within(self, limit_s: float) -> Backend:
        """The same within a time, in the same threads."""
        return cast("Backend", Apart(self._backend.within(limit_s), self._name, self._pool))

    def end(self) -> None:
        """Have the threads end once they have done what they were given."""
        self._pool.shutdown(wait=True)

    def _elsewhere(self, call: Callable[..., Future[Any]], *args: Any, **options: Any) -> Future[Any]:
        try:
            return self._pool.submit(_result, call, args, options)
        except RuntimeError:
            return failed(Closed(f"the {self._name} store was closed; connect again"))


def _result(call: Callable[..., Future[Any]], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return call(*args, **options).result()
