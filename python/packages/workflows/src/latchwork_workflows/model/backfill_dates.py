"""The schedule times of a backfill for a set of dates. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from latchwork.schedules import Cron
from latchwork_workflows.model.definition import ScheduleSpec

#: The maximum number of runs of a backfill.
MAX_SCHEDULE_TIMES = 5_000
#: The maximum number of runs that run at a time.
MAX_PARALLEL = 1_000


@dataclass(frozen=True, slots=True)
class DateRange:
    """The dates from ``first`` to ``last``, inclusive.

    Raises:
        ValueError: ``last`` is before ``first``.
    """

    first: date
    last: date

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise ValueError(f"{self.last} is before {self.first}; put the earlier date first")

    def __iter__(self) -> Iterator[date]:
        return (self.first + timedelta(days=each) for each in range(len(self)))

    def __len__(self) -> int:
        return (self.last - self.first).days + 1


def list_schedule_times(dates: DateRange | Sequence[date], schedule: ScheduleSpec | None, now: float) -> list[float]:
    """Return the schedule times of a backfill for these dates, earliest first, without duplicates.

    Without a schedule, there is one time for each date, midnight UTC. With a schedule, there are all fire times of each
    date in the time zone of the schedule, regardless of ``start``, ``end`` and ``misfire``. Dates of a range without
    fire times are left out.

    Args:
        dates: The dates.
        schedule: The schedule of the workflow. None: it has none.
        now: Seconds since the epoch.
    Raises:
        ValueError: There are no times or too many, a time is in the future, or a single date has no fire time.
    """
    _check_dates(dates, now)
    found = _midnights(dates) if schedule is None else _fires(dates, schedule)
    if not found:
        raise ValueError("no dates are given" if schedule is None else "the schedule never fires on these dates")
    if found[-1] > now:
        zone = UTC if schedule is None else ZoneInfo(schedule.tz)
        raise ValueError(f"{datetime.fromtimestamp(found[-1], zone).isoformat()} is in the future; end before it")
    return found


def _check_dates(dates: DateRange | Sequence[date], now: float) -> None:
    """Check that the dates are in the range that databases and calendars support, before they are enumerated.

    Raises:
        ValueError: A date is out of range.
    """
    ends = (dates.first, dates.last) if isinstance(dates, DateRange) else tuple(dates)
    latest = datetime.fromtimestamp(now, UTC).date() + timedelta(days=1)  # it may be tomorrow in another time zone
    for each in ends:
        if each.year < 1970 or each > latest:
            why = "is in the future; end before it" if each > latest else "is before 1970; start later"
            raise ValueError(f"{each} {why}")


def _too_many() -> ValueError:
    return ValueError(f"these are more than {MAX_SCHEDULE_TIMES:,} runs; use fewer dates")


def _midnights(dates: DateRange | Sequence[date]) -> list[float]:
    if len(dates) > MAX_SCHEDULE_TIMES:
        raise _too_many()
    return sorted({datetime.combine(each, time(), UTC).timestamp() for each in dates})


def _fires(dates: DateRange | Sequence[date], schedule: ScheduleSpec) -> list[float]:
    cron, zone = Cron(schedule.cron, tz=schedule.tz), ZoneInfo(schedule.tz)
    if isinstance(dates, DateRange):
        return list(_fires_between(cron, dates.first, dates.last, zone, MAX_SCHEDULE_TIMES))
    found: set[float] = set()
    for each in dates:
        of_date = list(_fires_between(cron, each, each, zone, MAX_SCHEDULE_TIMES))
        if not of_date:
            raise ValueError(f"the schedule does not fire on {each}; leave it out")
        found.update(of_date)
        if len(found) > MAX_SCHEDULE_TIMES:
            raise _too_many()
    return sorted(found)


def _fires_between(cron: Cron, first: date, last: date, zone: ZoneInfo, limit: int) -> Iterable[float]:
    at = datetime.combine(first, time(), zone).timestamp() - 0.001
    end = datetime.combine(last + timedelta(days=1), time(), zone).timestamp()
    for _ in range(limit + 1):
        try:
            at = cron.fire_after(at)
        except ValueError:  # it never fires again
            return
        if at >= end:
            return
        yield at
    raise _too_many()
