"""How anything waits, owns and stops. The second door of primitives, for the systems built on them: `StopSignal`.

Everything else in here is for the other wings of primitives.
"""

from latchwork.primitives.waiting.stop import StopSignal

__all__ = ["StopSignal"]
