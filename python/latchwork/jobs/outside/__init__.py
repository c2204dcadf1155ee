"""The cluster inspected, explained and controlled by programs that are no node of it.

`latchwork.jobs` exports it; here is also how a moment is shown to people.
"""

from latchwork.words import utc_text

__all__ = ["utc_text"]
