"""The kinds of values that options have: how each is checked, and stored. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from itertools import pairwise
from typing import Any

from latchwork.checks import is_number
from latchwork.errors import LatchworkError
from latchwork.schedules import Cron, FixedDelay, FixedRate, Schedule

#: A schedule; or in short, cron text (in UTC), or the time between two starts.
ScheduleOption = Schedule | str | timedelta


class InvalidJob(LatchworkError, ValueError):
    """A job is put together wrongly: its id, its options, or what its work pool returned."""


class InvalidSetting(LatchworkError, ValueError):
    """A setting cannot be used; the message names it."""


@dataclass(frozen=True, slots=True)
class Threads:
    """How many runs a node's share of a job is cut into; each run has a thread of its own.

    Attributes:
        limit: most runs at a time on one node; 0 is one run per item.
    """

    limit: int

    def __post_init__(self) -> None:
        if type(self.limit) is not int or self.limit < 0:
            msg = f"Threads({self.limit!r}) cannot be used; give Threads.whole(), .per_item() or .at_most(n)"
            raise InvalidJob(msg)

    @classmethod
    def whole(cls) -> Threads:
        """One run with the node's whole share."""
        return cls(1)

    @classmethod
    def per_item(cls) -> Threads:
        """One run for each item, with just that item."""
        return cls(0)

    @classmethod
    def at_most(cls, limit: int) -> Threads:
        """Up to ``limit`` runs with disjoint parts of the share, of sizes within 1."""
        if type(limit) is not int or limit < 1:
            msg = f"Threads.at_most({limit!r}) cannot be used; give a whole number of at least 1"
            raise InvalidJob(msg)
        return cls(limit)

    def slices(self, items: Iterable[str]) -> list[tuple[str, ...]]:
        """The items cut into runs: sorted, disjoint, none empty."""
        ordered = sorted(items)
        if self.limit == 0:
            return [(item,) for item in ordered]
        count = min(self.limit, len(ordered))
        bounds = [len(ordered) * i // count for i in range(count + 1)] if count else []
        return [tuple(ordered[a:b]) for a, b in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that an option takes.

    Attributes:
        check: takes the option's name and a value from the code, and returns the value to keep. Raises ValueError for
            one that cannot be used; the message begins with the name.
        read: the same for a setting, whose value comes from the code or was stored; by default as ``check``.
        encode: returns a setting's value for JSON.
        in_force: returns the value that the option has where this setting is set.
        least: the least number.
        flag: the type of its flag on the command line; None when it has none of its own.
    """

    check: Callable[[str, Any], Any]
    read: Callable[[str, Any], Any] | None = None
    encode: Callable[[Any], Any] = lambda value: value
    in_force: Callable[[Any], Any] = lambda value: value
    least: float | None = None
    flag: type | None = None


def number(least: float) -> Kind:
    """Finite numbers that are not below the least; in seconds if the option's name ends so."""

    def check(name: str, value: Any) -> float:
        if not is_number(value, least):
            unit = " of seconds" if name.endswith("_s") else ""
            raise ValueError(f"{name} is {value!r}; give a finite number{unit}, at least {least:g}")
        return float(value)

    return Kind(check, least=least, flag=float)


def _check_switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; give true or false")  # noqa: TRY004 - as for every other kind
    return value


def _check_labels(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in (*value, *value.values())):
        raise ValueError(f"{name} is {value!r}; give label names and values as str")
    return dict(value)


def _check_threads(name: str, value: Any) -> Threads:
    if not isinstance(value, Threads):
        raise ValueError(f"{name} is {value!r}; give Threads.whole(), .per_item() or .at_most(n)")  # noqa: TRY004
    return value


def _read_limit(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}; give a whole number, 0 for one thread per item")
    return value


def _short_schedule(name: str, value: Any) -> Any:
    """A schedule that was given in short: cron text, or the time between two starts; anything else as it is."""
    if not isinstance(value, (str, timedelta)):
        return value
    try:
        return Cron(value) if isinstance(value, str) else FixedRate(value.total_seconds())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_schedule(name: str, value: Any) -> Any:
    value = _short_schedule(name, value)
    if isinstance(value, type) or not all(
        callable(getattr(value, each, None)) for each in ("first_due", "next_due", "remaining_s")
    ):
        raise ValueError(f"{name} is {value!r}; give a FixedDelay, a FixedRate, a Cron, cron text or a timedelta")
    return value


def _read_schedule(name: str, value: Any) -> Schedule:
    value = _short_schedule(name, value)
    if isinstance(value, (FixedDelay, FixedRate, Cron)):
        return value
    makers: dict[str, Callable[[dict[str, Any]], Schedule]] = {
        "fixed_delay_s": lambda given: FixedDelay(given["fixed_delay_s"]),
        "fixed_rate_s": lambda given: FixedRate(given["fixed_rate_s"]),
        "cron": lambda given: Cron(given.pop("cron"), **given),
    }
    kind = next((kind for kind in makers if isinstance(value, dict) and kind in value), None)
    if kind is None:
        raise ValueError(f"{name} is {value!r}; give one of {', '.join(makers)}")
    try:
        return makers[kind](dict(value))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from None


def _encode_schedule(schedule: FixedDelay | FixedRate | Cron) -> dict[str, Any]:
    if isinstance(schedule, FixedDelay):
        return {"fixed_delay_s": schedule.delay_s}
    if isinstance(schedule, FixedRate):
        return {"fixed_rate_s": schedule.period_s}
    given = {each.name: getattr(schedule, each.name) for each in fields(schedule) if each.name != "expression"}
    return {"cron": schedule.expression, **given}


SWITCH = Kind(_check_switch)
LABELS = Kind(_check_labels)
#: ``Threads`` in the code; their limit in settings, and on the command line.
THREADS = Kind(_check_threads, _read_limit, in_force=Threads, least=0, flag=int)
#: Any schedule in the code, one of ours in settings; in both also what stands for one.
SCHEDULE = Kind(_check_schedule, _read_schedule, _encode_schedule)
