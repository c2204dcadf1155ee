"""The fire times of a cron expression in a time zone. Pure.

``cronsim`` reads the expression and finds the *readings of a clock* that match it, in a calendar without time zones.
Each reading is one moment, none (the clock was set forward over it) or two (it was set back over it); which of these
are fire times is decided here, for each reading by itself. So the fire times are the same from wherever one counts,
forward and backward, whatever the shift: half an hour, a day, or the odd seconds of old zones.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

#: What cron's own words stand for.
WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SECOND = timedelta(seconds=1)
_NONE = timedelta()


def fields_of(expression: object) -> str:
    """The expression as fields, with one of cron's words replaced by what it stands for.

    Raises:
        ValueError: it is no cron expression; the message has it, and what to do.
    """
    if not isinstance(expression, str):
        raise ValueError(f"Cron expression {expression!r} is no text; give one like '0 3 * * *', or @daily")  # noqa: TRY004
    word = expression.strip().lower()
    if word.startswith("@") and word not in WORDS:
        raise ValueError(f"Cron expression {expression!r} cannot be used; give fields, or one of {', '.join(WORDS)}")
    fields = WORDS.get(word, expression)
    try:
        next(CronSim(fields, datetime(2024, 1, 1)))  # noqa: DTZ001 - the reading of a clock
    except (CronSimError, StopIteration, AttributeError, TypeError) as error:
        reason = str(error) or "it never fires"
        raise ValueError(f"Cron expression {expression!r} cannot be used ({reason}); see `man 5 crontab`") from error
    return fields


def fire_after(fields: str, zone: ZoneInfo, wall_s: float) -> float:
    """The first fire time after this moment, both in seconds since the epoch."""
    clock = datetime.fromtimestamp(wall_s, zone)
    reading, again = clock.replace(tzinfo=None, fold=0), _set_back(clock)
    found = _first_after(fields, zone, reading, wall_s)
    if clock.fold or again == _NONE or found <= wall_s + again.total_seconds():
        return found
    # The clock is set back soon: readings of before come once more.
    return min(found, _first_after(fields, zone, reading - again, wall_s))


def fire_before(fields: str, zone: ZoneInfo, wall_s: float, oldest_s: float) -> float | None:
    """The last fire time not after this moment; None when that is before ``oldest_s``."""
    clock = datetime.fromtimestamp(wall_s, zone)
    reading, again = clock.replace(tzinfo=None, fold=0), _set_back(clock)
    found = _last_before(fields, zone, reading, wall_s, oldest_s)
    if not clock.fold or (found is not None and found >= wall_s - again.total_seconds()):
        return found
    # The clock was set back just now: readings of later have been already.
    other = _last_before(fields, zone, reading + again, wall_s, oldest_s)
    return max((each for each in (found, other) if each is not None), default=None)


def _first_after(fields: str, zone: ZoneInfo, reading: datetime, wall_s: float) -> float:
    keeps_date = _keeps_date(fields)
    for each in _readings(fields, reading, reverse=False):
        for moment in _moments(each, zone, keeps_date=keeps_date):
            if moment > wall_s:
                return moment
    raise AssertionError(fields)  # it fires, as was seen when it was made


def _last_before(fields: str, zone: ZoneInfo, reading: datetime, wall_s: float, oldest_s: float) -> float | None:
    keeps_date = _keeps_date(fields)
    for each in _readings(fields, reading.replace(microsecond=0) + _SECOND, reverse=True):
        for moment in reversed(_moments(each, zone, keeps_date=keeps_date)):
            if moment <= wall_s:
                return moment if moment >= oldest_s else None
    return None


def _readings(fields: str, reading: datetime, *, reverse: bool) -> Iterator[datetime]:
    """The readings that match after this one, or before it, in order."""
    return iter(CronSim(fields, reading, reverse=reverse))


def _keeps_date(fields: str) -> bool:
    """Whether a fire time counts for its date, as of `30 2 * * *`, and not for the time since the last one.

    As in Debian's cron: when neither minute nor hour begin with a star; nor the second, where there is one.
    """
    *_, minute, hour, _, _, _ = parts = fields.split()
    return not any(part.startswith("*") for part in (minute, hour, *parts[:-5]))


def _moments(reading: datetime, zone: ZoneInfo, *, keeps_date: bool) -> tuple[float, ...]:
    """When a reading is a fire time: none to two moments, in order."""
    earlier, later = reading.replace(tzinfo=zone), reading.replace(tzinfo=zone, fold=1)
    ahead = earlier.utcoffset(), later.utcoffset()
    if ahead[0] == ahead[1]:
        return (earlier.timestamp(),)
    if _exists(earlier):  # it comes twice
        return (earlier.timestamp(),) if keeps_date else (earlier.timestamp(), later.timestamp())
    return (_set_forward(later.timestamp(), earlier.timestamp(), zone),) if keeps_date else ()


def _exists(clock: datetime) -> bool:
    there = clock.astimezone(UTC).astimezone(clock.tzinfo)
    return there.replace(tzinfo=None, fold=0) == clock.replace(tzinfo=None, fold=0)


def _set_back(clock: datetime) -> timedelta:
    """How much the clock is set back after this reading of it, if it comes twice for that; 0 if it does not."""
    ahead = [clock.replace(fold=fold).utcoffset() or _NONE for fold in (0, 1)]
    return max(_NONE, ahead[0] - ahead[1])


@lru_cache(maxsize=256)
def _set_forward(before_s: float, after_s: float, zone: ZoneInfo) -> float:
    """The moment between these two, in whole seconds, at which the clock was set forward."""

    def ahead(at_s: int) -> timedelta | None:
        return datetime.fromtimestamp(at_s, zone).utcoffset()

    first, last = int(before_s), int(after_s)
    new = ahead(last)
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if ahead(middle) == new else (middle + 1, last)
    return float(last)
