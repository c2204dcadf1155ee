"""Locks that outlive their process for a TTL: one write renews any number of them.

``latchwork.primitives`` exports the public names. Begin with ``protocol`` and ``keeper``.
"""

from latchwork.primitives.leased.inspect import forget_free_of

__all__ = ["forget_free_of"]
