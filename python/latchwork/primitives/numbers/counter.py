"""A number that many clients change at once. Each change counts exactly once.

Keys:  <name>   {"value", "writes", "recent"} as JSON; see ``shared_number``
"""

from __future__ import annotations

from collections.abc import Sequence

from latchwork._base.validation import check_store
from latchwork.primitives.numbers.shared_number import SharedNumber
from latchwork.primitives.waiting.arguments import check_integer, check_name
from latchwork.store.steps import blocking
from latchwork.store.store import Store
from latchwork.types import Check, Fence

#: Seconds that a change is tried while others change the number too, or the server cannot be reached.
TIMEOUT_S = 10.0


class Counter:
    """An integer in the store that many clients change. It starts at 0, may be negative and has no limit. Thread-safe.

    Construction does no I/O. Every change is one transaction on one key, and simultaneous changes make each other
    retry, so it is for thousands of changes a minute, not a second.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the number.
    """

    def __init__(self, store: Store, name: str) -> None:
        check_store(store, "a counter")
        self.name = check_name(name, "counter")
        self._cell = SharedNumber(store, name, f"counter {name!r}")

    def __repr__(self) -> str:
        return f"<Counter {self.name!r}>"

    @blocking
    async def value(self) -> int:
        """Read the number. The read is linearizable."""
        return (await self._cell.read()).value

    @blocking
    async def add(self, amount: int = 1, *, fence: Fence | None = None, timeout_s: float = TIMEOUT_S) -> int:
        """Add to the number exactly once, and return the new number.

        Args:
            amount: The amount, which may be negative.
            fence: The fence of an ownership. If the ownership is lost, nothing is added.
            timeout_s: Seconds for retries while other clients change the number or the server cannot be reached.
        Returns:
            The number after this change.
        Raises:
            TypeError: The amount is not an integer.
            Conflict: Not added: the fence is no longer valid, or other clients changed the number until the timeout.
            Unavailable: Not added.
            OutcomeUnknown: It may have been added: the server could not be reached in time after the connection broke,
                or more than 16 other changes came in between.
        """
        amount = check_integer(amount, f"an amount for counter {self.name!r}")
        changed = await self._cell.change(lambda now: now + amount, checks=_checks(fence), timeout_s=timeout_s)
        assert changed is not None
        return changed

    @blocking
    async def put(self, value: int, *, fence: Fence | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Set the number to a value. The other arguments and the errors are those of ``add``."""
        value = check_integer(value, f"a value for counter {self.name!r}")
        await self._cell.change(lambda _now: value, checks=_checks(fence), timeout_s=timeout_s)

    @blocking
    async def compare_and_set(
        self, expected: int, value: int, *, fence: Fence | None = None, timeout_s: float = TIMEOUT_S
    ) -> bool:
        """Set the number to ``value`` if it equals ``expected``. Return False if it does not, and write nothing.

        The other arguments and the errors are those of ``add``.
        """
        value = check_integer(value, f"a value for counter {self.name!r}")
        done = await self._cell.change(
            lambda now: value if now == expected else None, checks=_checks(fence), timeout_s=timeout_s
        )
        return done is not None


def _checks(fence: Fence | None) -> Sequence[Check]:
    return () if fence is None else (fence,)
