"""When a node looks whether there is something to write down of how its runs went. Pure; one thread at a time.

It looks once in a period. When a job turned, to failing or back to well, it looks at once; but each turn of a job
counts once in a period only, so that a job which fails every other time costs a few writes in a period.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

#: The first look comes so much sooner than the others: then it is known when runs start next.
_FIRST_PART = 0.25


class OutcomePace:
    """Tells when to look next."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._looked = False
        self._turned_at: dict[Hashable, float] = {}
        self._taken: frozenset[Hashable] = frozenset()
        self._wanted: dict[Hashable, float] = {}  # turns since the last look, and when they came

    def turn(self, what: Hashable, now: float) -> None:
        """A job turned to something."""
        self._wanted.setdefault(what, now)

    def due_in_s(self, now: float, period_s: float) -> float | None:
        """Seconds until the next look, 0 or less when it is time; None for never."""
        if period_s <= 0:
            return None
        if self._since is None:
            self._since = now
        at = self._since + period_s * (1.0 if self._looked else _FIRST_PART)
        asked = (max(at, self._turned_at.get(what, -math.inf) + period_s) for what, at in self._wanted.items())
        return min([at, *asked]) - now

    def look(self) -> None:
        """It looks from now on: what turns later is for the next look."""
        self._taken = frozenset(self._wanted)

    def done(self, now: float) -> None:
        """It looked, and what there was is written."""
        self._since, self._looked = now, True
        self._turned_at.update(dict.fromkeys(self._taken, now))
        self._wanted = {what: at for what, at in self._wanted.items() if what not in self._taken}
