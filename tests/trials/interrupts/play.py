"""A play: what is interrupted, and what has to be true afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds for which another client may have to wait: cleaning up goes on in the background.
WAIT_S = 4.0


class Play:
    """One use of something.

    Attributes:
        name: what to call it.
        make: makes the object, which is not interrupted.
        use: what is interrupted.
        after: what proves, with the object, the store and another one, that nothing is left behind.
    """

    def __init__(self, name: str, make: Callable[..., Any], use: Callable[..., Any], after: Callable[..., Any]) -> None:
        self.name = name
        self.make = make
        self.use = use
        self.after = after
