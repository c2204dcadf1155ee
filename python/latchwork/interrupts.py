"""What holds when an interrupt comes at any bytecode: Ctrl-C, ``SystemExit``, an exception that a thread is sent.

``Mutex`` is entered and left in native code: an interrupt comes before or inside the block, and a thread that is
inside already is refused instead of waiting for itself. ``Finally`` runs what ends a block, and once more if an
interrupt cut it short: its function must be one that can be begun again from the start.
"""

from __future__ import annotations

import threading
from typing import Any, cast

from latchwork._core import Finally, Mutex

__all__ = ["Finally", "Mutex", "condition", "mutex"]


def mutex() -> Mutex:
    """A new mutex, for one object; in a simulation, one of its own."""
    return Mutex()


def condition(of: Mutex | None = None) -> threading.Condition:
    """A condition of a mutex: one that there is, or a new one."""
    return threading.Condition(cast("Any", of or mutex()))
