"""One job of a worker: its live runs, and when its items are due. Nothing here touches the network."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable

from latchwork.jobs.job.job import Job
from latchwork.jobs.options.settings import JobOptions
from latchwork.jobs.worker.outcomes import OnTurn, Outcomes
from latchwork.jobs.worker.runs import SCHEDULE_PAUSE_S, JobRun
from latchwork.schedules import Due, Instant

log = logging.getLogger(__name__)


class LocalJob:
    """One job on one node. Only the worker's thread writes it.

    Attributes:
        options: its options as of the last look.
        outcomes: how its runs go.
        enabled: whether it may run, as of the last look.
        runs: its live runs, those told to stop included, by number.
        warned: numbers of the runs whose not stopping was reported.
        filling: more of its locks are asked for right now.
    """

    def __init__(
        self, job: Job, options: JobOptions, node: str = "", on_turn: OnTurn = lambda _job, _turn: None
    ) -> None:
        self.job = job
        self.options = options
        self.enabled = True
        self.outcomes = Outcomes(job.id, node, on_turn)
        self.runs: dict[int, JobRun] = {}
        self.warned: set[int] = set()
        self.filling = False
        self._dues: dict[str, Due] = {}
        self._paused_until = -math.inf

    def adopt(self, options: JobOptions, *, enabled: bool) -> None:
        """Take over what holds now; live runs look at their schedule again."""
        self.enabled = enabled
        if options != self.options:
            log.info("job %s: options changed to %s", self.job.id, options)
            self.options = options
            for run in self.runs.values():
                run.reschedule()

    def first_due(self, items: Iterable[str], now: Instant) -> Due:
        """The earliest due of these items: kept ones have theirs already, new ones come after the initial delay."""
        options = self.options
        fresh = Due.first(options.schedule, now, options.initial_delay_s, random.random())
        dues = (self._dues.get(item, fresh).under(options.schedule, options.initial_delay_s) for item in items)
        return min(dues, key=lambda due: due.at + due.luck * options.jitter_s)

    def reap(self, now: Instant) -> list[JobRun]:
        """Forget the runs that have ended, remember when their items are due, and return those runs."""
        ended = [run for run in self.runs.values() if run.ended]
        for run in ended:
            del self.runs[run.number]
            self.warned.discard(run.number)
            self._remember(run, now)
        return ended

    def forget_dues(self, wanted: frozenset[str]) -> None:
        """Forget the dues of all other items."""
        for item in [item for item in self._dues if item not in wanted]:
            del self._dues[item]

    def pause(self, now: Instant, seconds: float) -> None:
        """Start nothing for so long."""
        self._paused_until = now.mono_s + seconds

    def paused_s(self, now: Instant) -> float:
        """Seconds until runs may be started again; 0 when they may."""
        return max(0.0, self._paused_until - now.mono_s)

    def may_start(self, now: Instant) -> bool:
        """True unless it is paused, or a run started now would be cut short by the next locks, which come at once."""
        return self.paused_s(now) <= 0 and not (self.filling and self.options.threads.limit)

    def _remember(self, run: JobRun, now: Instant) -> None:
        due = run.resume_due
        try:
            if due is None:
                due = Due(self.options.schedule.first_due(now, 0.0), self.options.schedule, now)
        except BaseException:  # the user's own schedule: it must not stop the other jobs
            log.exception("job %s does not run here for %.3g s: its schedule raised", self.job.id, SCHEDULE_PAUSE_S)
            self.pause(now, SCHEDULE_PAUSE_S)
            for item in run.items:
                self._dues.pop(item, None)
            return
        self._dues.update(dict.fromkeys(run.items, due))
