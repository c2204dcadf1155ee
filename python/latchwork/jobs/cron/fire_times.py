"""The fire times of one live run: which comes next, written down before it starts and when it has ended.

Owned by the run's thread; it touches the store, so no other thread waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from latchwork.errors import LatchworkError, LockLost
from latchwork.jobs.cron.progress import CronProgress, Hold
from latchwork.schedules import NO_JITTER, Cron, Fired, Jitter, Step, next_step, rule_of

log = logging.getLogger(__name__)


class FireTimes:
    """The fire times of a run, whose items have these locks. One thread only."""

    def __init__(self, progress: CronProgress, holds: Mapping[str, Hold]) -> None:
        self._progress = progress
        self._holds = holds
        self._fired: dict[str, Fired] | None = None
        self._rerun = True
        self._uncalled: dict[str, Fired] = {}  # progress before a start that may be written and was not made

    def next(
        self, cron: Cron, now_s: float, since_s: float, *, changed_s: float | None = None, jitter: Jitter = NO_JITTER
    ) -> Step:
        """Return the next step and its time; the first call reads the progress from the store.

        Args:
            cron: the schedule of the moment.
            now_s: seconds since the epoch.
            since_s: fire times up to this one do not count for items that never ran.
            changed_s: when the schedule came into force, if this node saw it change: fire times up to this one do not
                count for any item.
            jitter: how much later than at its fire times this share starts.
        Raises:
            LatchworkError: the store could not be used, or a lock is lost; ask again.
        """
        self._rerun = cron.rerun_interrupted
        rule = rule_of(cron)
        if self._fired is None:
            self._fired = self._progress.claim(self._holds, Fired(max(since_s, changed_s or since_s), rule=rule))
        self._adopt({item: fired.under(rule, now_s, changed_s) for item, fired in self._fired.items()})
        return next_step(cron, self._fired, now_s, jitter)

    def _adopt(self, found: dict[str, Fired]) -> None:
        """Write down how far the items are under another schedule: later holders of their locks go by it."""
        assert self._fired is not None
        changed = {item: fired for item, fired in found.items() if fired != self._fired[item]}
        if changed:
            self._write(changed)
            self._fired.update(changed)

    def _write(self, fired: dict[str, Fired]) -> None:
        try:
            self._progress.write(fired)
        except LockLost:
            self._fired = None  # another node's, or swept: claim it anew if the lock is still ours
            raise

    def begin(self, step: Step) -> None:
        """Write down that it starts; only then may it.

        Raises:
            LatchworkError: it is not written, or not known to be: nothing may start; ask what comes next again.
        """
        assert self._fired is not None, "ask what comes next first"
        begun = {item: self._fired[item].begin(step.at) for item in step.items}
        self._uncalled = {} if self._rerun else {item: self._fired[item] for item in step.items}
        self._write(begun)
        self._fired.update(begun)

    def called(self) -> None:
        """The job was called for the step that was begun: from now on it counts, whatever comes of it."""
        self._uncalled = {}

    def give_back(self) -> None:
        """Write down that the job was not called for the step that was begun: its fire time is still owed.

        Only where interrupted runs are not run again: the others go by what is written. When that fails it counts as
        made.
        """
        uncalled, self._uncalled = self._uncalled, {}
        try:
            if uncalled:
                self._progress.write(uncalled)
        except LatchworkError as error:
            log.warning("a start that was written down and not made counts as made: %s", error)

    def end(self, step: Step) -> None:
        """Write down that it has ended. When that fails it is written with the next start."""
        assert self._fired is not None
        ended = {item: self._fired[item].end() for item in step.items}
        self._fired.update(ended)
        try:
            self._progress.write(ended)
        except LatchworkError as error:
            log.warning("the end of a run is not written down yet, elsewhere it counts as interrupted: %s", error)
