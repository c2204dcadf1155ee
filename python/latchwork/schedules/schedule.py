"""Schedules that decide when a job runs next: fixed delay, fixed rate, cron. Pure: the time is an argument.

Each schedule uses its own time scale: fixed delay and fixed rate use the monotonic clock, cron uses the wall clock. A
due time is a number on that scale; ``remaining_s`` converts it to seconds from now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from latchwork._base.validation import is_number
from latchwork.schedules import cron_times


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time on both clocks.

    Attributes:
        mono_s: Seconds on the monotonic clock.
        wall_s: Seconds since the epoch.
    """

    mono_s: float
    wall_s: float


class Schedule(Protocol):
    """Decides when a run is due. Implementations are immutable and thread-safe."""

    def first_due(self, now: Instant, initial_delay_s: float | None) -> float:
        """Return the due time of the first run.

        Args:
            now: Current time.
            initial_delay_s: Seconds to wait before the first run; None uses the schedule's default.
        """
        ...

    def next_due(self, due: float, ended: Instant) -> float:
        """Return the due time of the next run.

        Args:
            due: Due time of the previous run.
            ended: End of the previous run.
        """
        ...

    def remaining_s(self, due: float, now: Instant) -> float:
        """Return the seconds until a due time; 0 or less if it has passed."""
        ...


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """Run, wait ``delay_s``, run again.

    The first run comes after ``delay_s`` unless the job sets another initial delay.

    Attributes:
        delay_s: Seconds from the end of a run to the start of the next; 0 for no pause.
    """

    delay_s: float

    def __post_init__(self) -> None:
        _check_seconds("FixedDelay", "delay_s", self.delay_s, least=0.0)

    def first_due(self, now: Instant, initial_delay_s: float | None) -> float:
        """Return now plus the initial delay, by default ``delay_s``."""
        return now.mono_s + (self.delay_s if initial_delay_s is None else initial_delay_s)

    def next_due(self, due: float, ended: Instant) -> float:  # noqa: ARG002 - not needed for a fixed delay
        """Return the end of the run plus the delay."""
        return ended.mono_s + self.delay_s

    def remaining_s(self, due: float, now: Instant) -> float:
        """Return the seconds until the due time."""
        return due - now.mono_s


@dataclass(frozen=True, slots=True)
class FixedRate:
    """Run every ``period_s``, counted from start to start. Periods that pass during a long run are skipped.

    Attributes:
        period_s: Seconds between two starts, above 0.
    """

    period_s: float

    def __post_init__(self) -> None:
        _check_seconds("FixedRate", "period_s", self.period_s, least=0.001)

    def first_due(self, now: Instant, initial_delay_s: float | None) -> float:
        """Return now plus the initial delay, by default one period."""
        return now.mono_s + (self.period_s if initial_delay_s is None else initial_delay_s)

    def next_due(self, due: float, ended: Instant) -> float:
        """Return the first time that is a whole number of periods after ``due`` and not before the end of the run."""
        return due + max(1, math.ceil((ended.mono_s - due) / self.period_s)) * self.period_s

    def remaining_s(self, due: float, now: Instant) -> float:
        """Return the seconds until the due time."""
        return due - now.mono_s


@dataclass(frozen=True, slots=True)
class Cron:
    """Run at the times of a cron expression, correct also when the clock is set.

    A schedule whose minute and hour do not begin with a star belongs to its date: a fire time that the clock was set
    forward over comes right after that, and one that occurs twice counts once. Any other schedule follows the elapsed
    time.

    In a cluster every item has one start per fire time, even if its node or the manager dies at that time, because
    starts are stored before they are made. A fire time that could not start in time is a misfire:

    ``once``  one start replaces all missed ones (the newest of them is recorded)
    ``all``   each missed one is run, oldest first
    ``skip``  those that are late by more than ``on_time_s`` are dropped

    With ``once`` and ``skip``, fire times that pass during a run also become one start. A changed schedule has no
    missed fire times from before the change. Lateness is measured from the end of the job's jitter.

    Attributes:
        expression: Five fields (minute, hour, day of month, month, day of week), or six with seconds first; or
            ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``, which are expanded.
        tz: Name of the time zone; by default ``UTC``.
        misfire: Misfire policy; by default ``once``.
        on_time_s: Seconds that a start may be late without being missed, 60 by default; for ``skip``.
        max_lateness_s: Seconds after which a fire time is dropped under any policy, one day by default.
        rerun_interrupted: Whether a run that started and did not end (its node died or asked it to stop) is repeated
            for the same fire time; True by default. A run that was never called does not count as interrupted.
    Source:
        Debian's cron, as parsed by the ``cronsim`` package.
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
            raise ValueError(f"Cron time zone {self.tz!r} is unknown; {_suggest_time_zone(self.tz)}") from error
        object.__setattr__(self, "expression", cron_times.expand_expression(self.expression))
        if self.misfire not in {"once", "all", "skip"}:
            raise ValueError(f"Cron got misfire={self.misfire!r}; give one of once, all, skip")
        _check_seconds("Cron", "on_time_s", self.on_time_s, least=0.0)
        _check_seconds("Cron", "max_lateness_s", self.max_lateness_s, least=0.0)

    def first_due(self, now: Instant, initial_delay_s: float | None) -> float:
        """Return the first fire time after now plus the initial delay, by default 0."""
        return self.fire_after(now.wall_s + (initial_delay_s or 0.0))

    def next_due(self, due: float, ended: Instant) -> float:
        """Return the first fire time after the end of the run and after ``due``."""
        return self.fire_after(max(due, ended.wall_s))

    def remaining_s(self, due: float, now: Instant) -> float:
        """Return the seconds until the due time by the current wall clock. Call it again after a while, because the
        clock may be set.
        """
        return due - now.wall_s

    def fire_after(self, wall_s: float) -> float:
        """Return the first fire time after a given time.

        Args:
            wall_s: The given time in seconds since the epoch.
        Returns:
            The fire time in seconds since the epoch.
        """
        return cron_times.fire_after(self.expression, ZoneInfo(self.tz), wall_s)

    def fire_before(self, wall_s: float, oldest_s: float) -> float | None:
        """Return the last fire time that is not after a given time.

        Args:
            wall_s: The given time in seconds since the epoch.
            oldest_s: Earliest fire time of interest, in seconds since the epoch.
        Returns:
            The fire time in seconds since the epoch; None if it is before ``oldest_s``.
        """
        return cron_times.fire_before(self.expression, ZoneInfo(self.tz), wall_s, oldest_s)


@dataclass(frozen=True, slots=True)
class DueTime:
    """The time of the next run of some items, and its inputs, so that it can be recomputed for a changed schedule.

    Attributes:
        at: The due time, on the scale of the schedule.
        schedule: The schedule.
        since: Start of the wait: the end of the previous run, or the arrival of the items.
        initial_delay_s: Initial delay that was used; only relevant for the first run.
        is_first: Whether it was counted from the arrival of the items.
        jitter_fraction: 0 to 1, drawn once: the fraction of the jitter that is added to ``at``.
    """

    at: float
    schedule: Schedule
    since: Instant
    initial_delay_s: float | None = None
    is_first: bool = False
    jitter_fraction: float = 0.0

    @classmethod
    def first(
        cls, schedule: Schedule, now: Instant, initial_delay_s: float | None, jitter_fraction: float = 0.0
    ) -> DueTime:
        """Return the first due time of items that have just arrived on a node.

        Args:
            schedule: Schedule of the items.
            now: Current time.
            initial_delay_s: Seconds to wait before the first run; None uses the schedule's default.
            jitter_fraction: Fraction of the jitter that is added, 0 to 1.
        """
        return cls(schedule.first_due(now, initial_delay_s), schedule, now, initial_delay_s, True, jitter_fraction)

    def after(self, ended: Instant, jitter_fraction: float = 0.0) -> DueTime:
        """Return the next due time of items whose run has ended.

        Args:
            ended: End of the run.
            jitter_fraction: Fraction of the jitter that is added, 0 to 1.
        """
        return DueTime(
            self.schedule.next_due(self.at, ended), self.schedule, ended, self.initial_delay_s, False, jitter_fraction
        )

    def with_schedule(self, schedule: Schedule, initial_delay_s: float | None) -> DueTime:
        """Return the due time for another schedule or initial delay. Return it unchanged if these are the same."""
        if schedule == self.schedule and (not self.is_first or initial_delay_s == self.initial_delay_s):
            return self
        delay_s = initial_delay_s if self.is_first else None
        at = schedule.first_due(self.since, delay_s)
        return DueTime(at, schedule, self.since, initial_delay_s, self.is_first, self.jitter_fraction)

    def remaining_s(self, now: Instant, jitter_s: float = 0.0) -> float:
        """Return the seconds until the due time plus its jitter; 0 or less if that has passed.

        Args:
            now: Current time.
            jitter_s: Maximum jitter in seconds.
        """
        return self.schedule.remaining_s(self.at, now) + self.jitter_fraction * jitter_s


def _suggest_time_zone(tz: object) -> str:
    """Return advice for an unknown time zone: similar names, or how to install time zones if the machine has none."""
    known = available_timezones()
    if not known:
        return "this machine has no time zones: install its tzdata package, or the one for Python"
    close = get_close_matches(str(tz), known, n=3)
    return f"similar names are {', '.join(close)}" if close else "give an IANA name, such as Europe/Berlin"


def _check_seconds(what: str, name: str, value: object, *, least: float) -> None:
    if not is_number(value, least):
        raise ValueError(f"{what} got {name}={value!r}; give a finite number of seconds, at least {least:g}")
