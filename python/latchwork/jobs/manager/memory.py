"""Memory that was freed, given back to the operating system: allocators keep it, for a process that lives for weeks.

Loading a large cluster, or placing all of it anew, needs much for a moment. What is freed then lies in pieces between
what stays, and the C library gives none of it back by itself.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def give_back() -> bool:
    """Give back what can be given back; False where the C library knows no way. Some milliseconds."""
    trim = _malloc_trim()
    return trim is not None and bool(trim(0))


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """The function of the GNU C library; None where there is another one."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
