"""When a view has to be written, by the writer or by its deputy. Pure."""

from __future__ import annotations

import math
from typing import Literal

from latchwork.primitives.group.views import STAND_IN_S

#: Views are written at most so often: what changes meanwhile is one view.
GATHER_S = 0.02
#: A deputy gives the writer so long, then looks whether there still is one.
LOOK_S = 0.03


class Duty:
    """When a view has to be written, by the writer or by its deputy. Pure.

    Attributes:
        is_writer: whether it is ours to write, at once; else we give the writer a moment.
    """

    def __init__(self, *, is_writer: bool) -> None:
        self.is_writer = is_writer
        self._since: float | None = None
        self._looked = False
        self._last = -math.inf

    def due(self, now: float, *, is_behind: bool) -> Literal["", "look", "write"]:
        """What has to be done now: nothing, look whether there is a writer, or write."""
        if not is_behind:
            self._since, self._looked = None, False
            return ""
        self._since = now if self._since is None else self._since
        if now >= self._at():
            return "write"
        if not self.is_writer and not self._looked and now >= self._since + LOOK_S:
            self._looked = True
            return "look"
        return ""

    def wrote(self, now: float) -> None:
        """A view was written, or found to need no writing: what is behind after this waits its time again."""
        self._last, self._since, self._looked = now, now, False

    def pause_s(self, now: float, *, is_behind: bool) -> float | None:
        """Seconds until it has to be asked again; None when only a change can make something due."""
        if not is_behind or self._since is None:
            return None if not is_behind else 0.0
        at = self._at() if self.is_writer or self._looked else self._since + LOOK_S
        return max(0.0, at - now)

    def _at(self) -> float:
        assert self._since is not None
        return max(self._since if self.is_writer else self._since + STAND_IN_S, self._last + GATHER_S)
