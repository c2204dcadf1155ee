"""The fire times of one live run: which comes next, written down before it starts and when it has ended.

Owned by the run's thread; it touches the store, so no other thread waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from latchwork.errors import LatchworkError, LockLost
from latchwork.jobs.fires import Fired, Step, next_step

if TYPE_CHECKING:
    from latchwork.jobs.progress import CronProgress, Hold
    from latchwork.jobs.schedule import Cron

log = logging.getLogger(__name__)


class CronTurns:
    """One thread only.

    Args:
        progress: that of the job on this node.
        holds: the locks of the run's items.
    """

    def __init__(self, progress: CronProgress, holds: Mapping[str, Hold]) -> None:
        self._progress = progress
        self._holds = holds
        self._fired: dict[str, Fired] | None = None

    def next(self, cron: Cron, now_s: float, since_s: float) -> Step:
        """What comes next, and when; asks the store for the progress the first time.

        Args:
            cron: the schedule of the moment.
            now_s: seconds since the epoch.
            since_s: fire times up to this one do not count for items that never ran.
        Raises:
            LatchworkError: the store could not be used, or a lock is lost; ask again.
        """
        if self._fired is None:
            self._fired = self._progress.claim(self._holds, since_s)
        return next_step(cron, self._fired, now_s)

    def begin(self, step: Step) -> None:
        """Write down that it starts; only then may it.

        Raises:
            LatchworkError: it is not written, or not known to be: nothing may start; ask what comes next again.
        """
        assert self._fired is not None, "ask what comes next first"
        begun = {item: self._fired[item].begin(step.at) for item in step.items}
        try:
            self._progress.write(begun)
        except LockLost:
            self._fired = None  # another node's, or swept: claim it anew if the lock is still ours
            raise
        self._fired.update(begun)

    def end(self, step: Step) -> None:
        """Write down that it has ended. When that fails it is written with the next start."""
        assert self._fired is not None
        ended = {item: self._fired[item].end() for item in step.items}
        self._fired.update(ended)
        try:
            self._progress.write(ended)
        except LatchworkError as error:
            log.warning("the end of a run is not written down yet, elsewhere it counts as interrupted: %s", error)
