"""The fire times of a cron expression in a time zone. Pure.

``cronsim`` parses the expression and finds the matching *clock readings*, in a calendar without time zones. A reading
is usually one point in time, but none if the clock was set forward over it, and two if the clock was set back over it.
This module decides for each reading which of them are fire times. The fire times are therefore the same from any
starting point, forward and backward, for any shift of the clock: half an hour, a day, or the odd seconds of old zones.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

#: Cron's words and the fields that they stand for.
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


def expand_expression(expression: object) -> str:
    """Validate a cron expression and return it with a word such as ``@daily`` replaced by its fields, such as ``0 0 * *
    *``.

    Raises:
        ValueError: The text is not a cron expression. The message says what to do.
    """
    if not isinstance(expression, str):
        raise ValueError(f"Cron expression {expression!r} is not text; write it like '0 3 * * *', or @daily")  # noqa: TRY004
    word = expression.strip().lower()
    if word.startswith("@") and word not in WORDS:
        raise ValueError(f"Cron expression {expression!r} cannot be used; give fields, or one of {', '.join(WORDS)}")
    fields = WORDS.get(word, expression)
    try:
        next(CronSim(fields, datetime(2024, 1, 1)))  # noqa: DTZ001 - a clock reading
    except (CronSimError, StopIteration, AttributeError, TypeError) as error:
        reason = str(error) or "it never fires"
        raise ValueError(f"Cron expression {expression!r} cannot be used ({reason}); see `man 5 crontab`") from error
    return fields


def fire_after(fields: str, zone: ZoneInfo, wall_s: float) -> float:
    """Return the first fire time after a given time.

    Args:
        fields: Fields of the cron expression.
        zone: Time zone of the schedule.
        wall_s: The given time in seconds since the epoch.
    Returns:
        The fire time in seconds since the epoch.
    """
    clock = datetime.fromtimestamp(wall_s, zone)
    reading, again = clock.replace(tzinfo=None, fold=0), _find_repetition(clock)
    found = _first_after(fields, zone, reading, wall_s)
    if clock.fold or again == _NONE or found <= wall_s + again.total_seconds():
        return found
    # The clock is set back soon, so earlier readings occur again.
    return min(found, _first_after(fields, zone, reading - again, wall_s))


def fire_before(fields: str, zone: ZoneInfo, wall_s: float, oldest_s: float) -> float | None:
    """Return the last fire time that is not after a given time.

    Args:
        fields: Fields of the cron expression.
        zone: Time zone of the schedule.
        wall_s: The given time in seconds since the epoch.
        oldest_s: Earliest fire time of interest, in seconds since the epoch.
    Returns:
        The fire time in seconds since the epoch; None if it is before ``oldest_s``.
    """
    clock = datetime.fromtimestamp(wall_s, zone)
    reading, again = clock.replace(tzinfo=None, fold=0), _find_repetition(clock)
    found = _last_before(fields, zone, reading, wall_s, oldest_s)
    if not clock.fold or (found is not None and found >= wall_s - again.total_seconds()):
        return found
    # The clock was just set back, so later readings have occurred already.
    other = _last_before(fields, zone, reading + again, wall_s, oldest_s)
    return max((each for each in (found, other) if each is not None), default=None)


def _first_after(fields: str, zone: ZoneInfo, reading: datetime, wall_s: float) -> float:
    keeps_date = _is_bound_to_date(fields)
    for each in _generate_matching_readings(fields, reading, reverse=False):
        for time_s in _find_times_of_reading(each, zone, keeps_date=keeps_date):
            if time_s > wall_s:
                return time_s
    raise AssertionError(fields)  # cannot happen: the expression was checked to fire


def _last_before(fields: str, zone: ZoneInfo, reading: datetime, wall_s: float, oldest_s: float) -> float | None:
    keeps_date = _is_bound_to_date(fields)
    for each in _generate_matching_readings(fields, reading.replace(microsecond=0) + _SECOND, reverse=True):
        for time_s in reversed(_find_times_of_reading(each, zone, keeps_date=keeps_date)):
            if time_s <= wall_s:
                return time_s if time_s >= oldest_s else None
    return None


def _generate_matching_readings(fields: str, reading: datetime, *, reverse: bool) -> Iterator[datetime]:
    """Generate the readings of a clock that match the fields, in order.

    Args:
        fields: Fields of the cron expression.
        reading: Start: only later readings are generated, or with ``reverse`` only earlier ones.
        reverse: Go back in time.
    """
    return iter(CronSim(fields, reading, reverse=reverse))


def _is_bound_to_date(fields: str) -> bool:
    """Return whether fire times belong to dates, as for `30 2 * * *`: each happens exactly once, even when the clock is
    changed.

    Otherwise fire times follow the elapsed time. As in Debian's cron, fire times belong to dates if neither minute nor
    hour begins with `*`.
    """
    *_, minute, hour, _, _, _ = parts = fields.split()
    return not any(part.startswith("*") for part in (minute, hour, *parts[:-5]))


def _find_times_of_reading(reading: datetime, zone: ZoneInfo, *, keeps_date: bool) -> tuple[float, ...]:
    """Return the times at which a clock shows a reading and the schedule fires, in order: none, one or two.

    Args:
        reading: Date and time that the clock shows.
        zone: Time zone of the clock.
        keeps_date: Whether each reading fires exactly once, even if the clock shows it twice or never.
    """
    earlier, later = reading.replace(tzinfo=zone), reading.replace(tzinfo=zone, fold=1)
    ahead = earlier.utcoffset(), later.utcoffset()
    if ahead[0] == ahead[1]:
        return (earlier.timestamp(),)
    if _exists(earlier):  # the reading occurs twice
        return (earlier.timestamp(),) if keeps_date else (earlier.timestamp(), later.timestamp())
    return (_find_forward_change_s(later.timestamp(), earlier.timestamp(), zone),) if keeps_date else ()


def _exists(clock: datetime) -> bool:
    there = clock.astimezone(UTC).astimezone(clock.tzinfo)
    return there.replace(tzinfo=None, fold=0) == clock.replace(tzinfo=None, fold=0)


def _find_repetition(clock: datetime) -> timedelta:
    """Return the length of the time that the clock repeats, if it shows this reading twice; otherwise 0."""
    ahead = [clock.replace(fold=fold).utcoffset() or _NONE for fold in (0, 1)]
    return max(_NONE, ahead[0] - ahead[1])


@lru_cache(maxsize=256)
def _find_forward_change_s(before_s: float, after_s: float, zone: ZoneInfo) -> float:
    """Return the time between two times at which the clock is set forward, in whole seconds since the epoch."""

    def ahead(at_s: int) -> timedelta | None:
        return datetime.fromtimestamp(at_s, zone).utcoffset()

    first, last = int(before_s), int(after_s)
    new = ahead(last)
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if ahead(middle) == new else (middle + 1, last)
    return float(last)
