"""When a job runs next: fixed delay, fixed rate, cron. Pure: the time comes in as an argument.

Every schedule counts on one scale of its own: fixed delay and rate on the local clock that never goes back, cron on
the wall clock. A *due* is a number on that scale; ``remaining_s`` says how long it is from now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from latchwork.checks import is_number
from latchwork.schedules import cron_times


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment on both clocks.

    Attributes:
        mono_s: seconds on the local clock that never goes back.
        wall_s: seconds since the epoch.
    """

    mono_s: float
    wall_s: float


class Schedule(Protocol):
    """What decides when a run is due. Implementations are immutable, and safe to share."""

    def first_due(self, now: Instant, initial_delay_s: float | None) -> float:
        """The due of the first run; ``initial_delay_s`` of None is the schedule's own."""
        ...

    def next_due(self, due: float, ended: Instant) -> float:
        """The due after the run that was due at ``due`` and ended at ``ended``."""
        ...

    def remaining_s(self, due: float, now: Instant) -> float:
        """Seconds until the due; 0 or less when it has come."""
        ...


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """Run, wait ``delay_s``, run again. The first run comes after ``delay_s`` unless the job says otherwise.

    Attributes:
        delay_s: seconds from the end of a run to the start of the next; 0 runs without a pause.
    """

    delay_s: float

    def __post_init__(self) -> None:
        _check_seconds("FixedDelay", "delay_s", self.delay_s, least=0.0)

    def first_due(self, now: Instant, initial_delay_s: float | None) -> float:
        """Now plus the initial delay, by default ``delay_s``."""
        return now.mono_s + (self.delay_s if initial_delay_s is None else initial_delay_s)

    def next_due(self, due: float, ended: Instant) -> float:  # noqa: ARG002 - a fixed delay does not care when it began
        """The end of the run plus the delay."""
        return ended.mono_s + self.delay_s

    def remaining_s(self, due: float, now: Instant) -> float:
        """Seconds until the due."""
        return due - now.mono_s


@dataclass(frozen=True, slots=True)
class FixedRate:
    """Run every ``period_s``, counted from start to start; the periods that a long run covered drop out.

    Attributes:
        period_s: seconds between two starts, above 0.
    """

    period_s: float

    def __post_init__(self) -> None:
        _check_seconds("FixedRate", "period_s", self.period_s, least=0.001)

    def first_due(self, now: Instant, initial_delay_s: float | None) -> float:
        """Now plus the initial delay, by default one period."""
        return now.mono_s + (self.period_s if initial_delay_s is None else initial_delay_s)

    def next_due(self, due: float, ended: Instant) -> float:
        """The first multiple of the period after ``due`` that is not before the end of the run."""
        return due + max(1, math.ceil((ended.mono_s - due) / self.period_s)) * self.period_s

    def remaining_s(self, due: float, now: Instant) -> float:
        """Seconds until the due."""
        return due - now.mono_s


@dataclass(frozen=True, slots=True)
class Cron:
    """Run at the times of a cron expression, right whenever the clock is set.

    A schedule whose minute and hour begin with no star counts for its date: a fire time that the clock was set forward
    over comes right after that, one that comes twice counts once. Any other follows the time that passes.

    In a cluster every item has one start for each fire time, also when its node, or the manager, dies at that moment:
    starts are written down before they are made. A fire time that could not start in time is a misfire:

    ``once``  one start makes up for all that were missed (the newest of them is recorded)
    ``all``   each one that was missed is run, the oldest first
    ``skip``  those that are late by more than ``on_time_s`` are dropped

    With ``once`` and ``skip`` the fire times that pass during a run, too, become one start. A schedule that is changed
    owes no fire time from before the change. How late a start is counts from the end of the job's jitter.

    Attributes:
        expression: five fields (minute, hour, day of month, month, day of week), or six with seconds first; or
            ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``, which become the fields they stand for.
        tz: name of the time zone; ``UTC`` unless given.
        misfire: ``once`` unless given.
        on_time_s: seconds that a start may be late without being missed, 60 by default; for ``skip``.
        max_lateness_s: seconds after which a fire time is dropped whatever the policy, one day by default.
        rerun_interrupted: whether a run that was begun and did not end (its node died, or was told to stop) is run
            again, for the same fire time; True by default. One that was not called at all is no such run.
    Source:
        Debian's cron, as the ``cronsim`` package reads it.
    """

    expression: str
    tz: str = "UTC"
    misfire: Literal["once", "all", "skip"] = "once"
    on_time_s: float = 60.0
    max_lateness_s: float = 86_400.0
    rerun_interrupted: bool = True

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
            raise ValueError(f"Cron time zone {self.tz!r} is not known; {_remedy(self.tz)}") from error
        object.__setattr__(self, "expression", cron_times.fields_of(self.expression))
        if self.misfire not in {"once", "all", "skip"}:
            raise ValueError(f"Cron got misfire={self.misfire!r}; give one of once, all, skip")
        _check_seconds("Cron", "on_time_s", self.on_time_s, least=0.0)
        _check_seconds("Cron", "max_lateness_s", self.max_lateness_s, least=0.0)

    def first_due(self, now: Instant, initial_delay_s: float | None) -> float:
        """The first fire time after now plus the initial delay, by default 0."""
        return self.fire_after(now.wall_s + (initial_delay_s or 0.0))

    def next_due(self, due: float, ended: Instant) -> float:
        """The first fire time after the end of the run and after ``due``."""
        return self.fire_after(max(due, ended.wall_s))

    def remaining_s(self, due: float, now: Instant) -> float:
        """Seconds until the due, by the wall clock of now: ask again after a while, it may be set."""
        return due - now.wall_s

    def fire_after(self, wall_s: float) -> float:
        """The first fire time after this moment, both in seconds since the epoch."""
        return cron_times.fire_after(self.expression, ZoneInfo(self.tz), wall_s)

    def fire_before(self, wall_s: float, oldest_s: float) -> float | None:
        """The last fire time not after this moment; None when that is before ``oldest_s``."""
        return cron_times.fire_before(self.expression, ZoneInfo(self.tz), wall_s, oldest_s)


@dataclass(frozen=True, slots=True)
class Due:
    """When a share runs next, and how that was found: so that a changed schedule can find it anew.

    Attributes:
        at: on the scale of the schedule.
        schedule: whose scale that is.
        since: what it was counted from: the end of the run before, or the moment the items came here.
        initial_delay_s: the delay it was found with; matters to the first run only.
        is_first: it was counted from the moment the items came here.
        luck: 0 to 1, drawn once: which part of the jitter it runs later than ``at``.
    """

    at: float
    schedule: Schedule
    since: Instant
    initial_delay_s: float | None = None
    is_first: bool = False
    luck: float = 0.0

    @classmethod
    def first(cls, schedule: Schedule, now: Instant, initial_delay_s: float | None, luck: float = 0.0) -> Due:
        """The due of items that have just come."""
        return cls(schedule.first_due(now, initial_delay_s), schedule, now, initial_delay_s, True, luck)

    def after(self, ended: Instant, luck: float = 0.0) -> Due:
        """The due after this one, whose run has ended."""
        return Due(self.schedule.next_due(self.at, ended), self.schedule, ended, self.initial_delay_s, False, luck)

    def under(self, schedule: Schedule, initial_delay_s: float | None) -> Due:
        """This due as another schedule, or initial delay, would have found it then; itself if nothing changed."""
        if schedule == self.schedule and (not self.is_first or initial_delay_s == self.initial_delay_s):
            return self
        delay_s = initial_delay_s if self.is_first else None
        at = schedule.first_due(self.since, delay_s)
        return Due(at, schedule, self.since, initial_delay_s, self.is_first, self.luck)

    def remaining_s(self, now: Instant, jitter_s: float = 0.0) -> float:
        """Seconds until it has come, its part of the jitter included; 0 or less then."""
        return self.schedule.remaining_s(self.at, now) + self.luck * jitter_s


def _remedy(tz: object) -> str:
    """What to do about a time zone that is not known: there may be none at all on this machine."""
    known = available_timezones()
    if not known:
        return "this machine has no time zones: install its tzdata package, or the one for Python"
    close = get_close_matches(str(tz), known, n=3)
    return f"similar ones are {', '.join(close)}" if close else "give an IANA name, like Europe/Berlin"


def _check_seconds(what: str, name: str, value: object, *, least: float) -> None:
    if not is_number(value, least):
        raise ValueError(f"{what} got {name}={value!r}; give a finite number of seconds, at least {least:g}")
