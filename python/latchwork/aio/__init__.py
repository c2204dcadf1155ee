"""The SDK for asyncio: the names and guarantees of ``latchwork`` and ``latchwork.primitives``, as awaitables.

``async with aio.connect(url) as store``, ``async with aio.Lock(store, "orders") as fence``. Import errors, entries,
checks and records from ``latchwork``: they are the same.
"""

from __future__ import annotations

from typing import Any

from latchwork._base.lazy import lazy_getattr
from latchwork.aio.factory import create_async_class, create_async_function
from latchwork.aio.store import Pipeline
from latchwork.aio.store import connect_later as connect
from latchwork.aio.table import FUNCTIONS, ROWS

_made: dict[str, Any] = {row.kind.__name__: create_async_class(row.kind, row.base, row.hidden) for row in ROWS}
_made |= {function.__name__: create_async_function(function) for function in FUNCTIONS}
globals().update(_made)

#: Asyncio forms that are imported on first use, because they import a whole system.
LATE = {
    "latchwork.aio.job_context": ("JobContext",),
    "latchwork.aio.executor": ("Executor", "TaskFuture", "TaskRef"),
}
__getattr__ = lazy_getattr(__name__, LATE)

__all__ = ["Pipeline", "connect", *_made, *(name for names in LATE.values() for name in names)]  # noqa: PLE0604 - names of the tables
