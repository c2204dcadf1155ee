"""What holds when an interrupt comes at any bytecode: Ctrl-C, ``SystemExit``, an exception that a thread is sent.

``Mutex`` is entered and left in native code: an interrupt comes before or inside the block, and a thread that is
inside already is refused instead of waiting for itself. ``Finally`` runs what ends a block, and once more if an
interrupt cut it short: its function must be one that can be begun again from the start.
"""

from __future__ import annotations

from latchwork._core import Finally, Mutex

__all__ = ["Finally", "Mutex"]
