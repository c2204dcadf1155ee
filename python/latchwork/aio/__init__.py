"""The SDK for event loops: the same names and promises as in ``latchwork`` and ``latchwork.primitives``, to await.

``async with aio.connect(url) as store``, ``async with aio.Lock(store, "orders") as fence``. What these modules do not
name is taken from there: errors, entries, checks and records are the same.
"""

from __future__ import annotations

from typing import Any

from latchwork.aio.stores import Pipeline
from latchwork.aio.stores import connect_later as connect
from latchwork.aio.table import FUNCTIONS, ROWS
from latchwork.aio.twinning import function_twin, twin
from latchwork.doors import late

_made: dict[str, Any] = {row.kind.__name__: twin(row.kind, row.by_hand, row.hidden) for row in ROWS}
_made |= {function.__name__: function_twin(function) for function in FUNCTIONS}
globals().update(_made)

#: Twins of what systems have: who uses none of them does not import them.
LATE = {
    "latchwork.aio.contexts": ("JobContext",),
    "latchwork.aio.executors": ("Executor", "TaskFuture", "TaskRef"),
}
__getattr__ = late(__name__, LATE)

__all__ = ["Pipeline", "connect", *_made, *(name for names in LATE.values() for name in names)]  # noqa: PLE0604 - names of the tables
