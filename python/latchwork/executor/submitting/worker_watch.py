"""Notices that an executor has tasks and no worker."""

from __future__ import annotations

import logging
from collections.abc import Callable

from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.executor.keys import NAME
from latchwork.store.steps import Steps

_log = logging.getLogger(__name__)

#: Seconds without a result: before the first look, between two looks that find no worker, before the warning.
_FIRST_S, _AGAIN_S, WARN_S = 0.5, 1.0, 5.0
#: Seconds until the next look while there are workers.
_RARELY_S = 60.0


class WorkerWatch:
    """Looks for workers while tasks wait and no result comes, and warns when there is none. One thread looks.

    Args:
        clock: the store's.
        name: of the executor.
        has_members: reads whether any worker is there.
    """

    def __init__(self, clock: Clock, name: str, has_members: Callable[[], Steps[bool]]) -> None:
        self._clock = clock
        self._name = name
        self._has_members = has_members
        self._quiet_since: float | None = None
        self._look_at = 0.0
        self._is_missing = self._has_warned = False

    def progress(self) -> None:
        """A result has come."""
        self._quiet_since = None
        self._is_missing = False

    def why(self) -> str:
        """Say, for the end of a message, that there is no worker; empty if there is one, or that is not known."""
        if not self._is_missing:
            return ""
        named = "" if self._name == NAME else f" --name {self._name}"
        return f': no worker is there; start one with "latchwork executor run --import MODULE{named}"'

    async def look(self, *, is_waiting: bool) -> float | None:
        """Look if it is time; the seconds until the next look, None while no task waits."""
        if not is_waiting:
            self._quiet_since, self._has_warned = None, False
            return None
        now, since = self._clock.now(), self._quiet_since
        if since is None:
            since = self._quiet_since = now
            self._look_at = now + _FIRST_S
        if now < self._look_at:
            return self._look_at - now
        try:
            self._is_missing = not await self._has_members()
        except LatchworkError as error:
            _log.debug("executor %s: its workers are looked for later: %s", self._name, error)
            self._look_at = now + _AGAIN_S
            return _AGAIN_S
        if self._is_missing and now >= since + WARN_S and not self._has_warned:
            self._has_warned = True
            _log.warning("executor %s has tasks that wait%s", self._name, self.why())
        left_s = _AGAIN_S if self._is_missing else _RARELY_S
        if self._is_missing and now < since + WARN_S:
            left_s = min(left_s, since + WARN_S - now)
        self._look_at = now + left_s
        return left_s
