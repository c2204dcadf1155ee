"""Rules that primitives keep whatever happens, on real servers and in simulated schedules alike. Pure.

Each gives sentences, none when nothing was wrong; `Views` does so view by view.
"""

from __future__ import annotations

from collections.abc import Iterable


def late_writes(writes: Iterable[tuple[int, int, str]]) -> list[str]:
    """Once an owner has written under its fence, no owner before it can write any more.

    Args:
        writes: that succeeded: the token of each, the token of its fence, and who wrote.
    """
    found, newest = [], 0
    for at, token, name in sorted(writes):
        if token < newest:
            found.append(f"{name} wrote at {at} with token {token}, after a write with token {newest}")
        newest = max(newest, token)
    return found


def miscounted(total: int, *, known: int, unknown: int) -> list[str]:
    """What was confirmed is counted once, what is unknown once at most."""
    right = known <= total <= known + unknown
    return [] if right else [f"{known} changes are known, {unknown} unknown, {total} are there"]


def gaps(numbers: Iterable[int], last: int) -> list[str]:
    """Every number up to the last one was given once, and has its record."""
    found = sorted(numbers)
    return [] if found == list(range(1, last + 1)) else [f"{len(found)} records for {last} ids: there is a gap"]


def too_many(moments: Iterable[float], permits: int, interval_s: float) -> list[str]:
    """In no interval are there more than so many."""
    ordered = sorted(moments)
    spans = [after - before for before, after in zip(ordered, ordered[permits:], strict=False)]
    return [f"{permits + 1} within {span:.3f} s, not {interval_s} s" for span in spans if span < interval_s]


class Views:
    """All members of a group are told the same views in the same order."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._first: dict[int, tuple[str, object]] = {}

    @property
    def are_any(self) -> bool:
        return bool(self._first)

    def told(self, who: str, number: int, members: object) -> list[str]:
        """Take in what somebody was told."""
        found = []
        if number <= self._last.get(who, -1):
            found.append(f"{who} saw view {number} after view {self._last[who]}")
        self._last[who] = number
        name, first = self._first.setdefault(number, (who, members))
        if first != members:
            found.append(f"view {number} is {members} to {who}, and {first} to {name}")
        return found
