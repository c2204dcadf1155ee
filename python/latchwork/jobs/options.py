"""The options of jobs, nodes and clusters: the table with one row for each, and the kinds of values. No network here.

A row says what an option is called (its unit is the end of its name), what values it takes, what holds unless it is
given, and what it does. From the rows come the checks of ``Job``, ``JobManager`` and of settings, the flags of the
command line, the docstrings, and the tables of docs/reference (``scripts/make_reference``).

The rows are fields of dataclasses, so that a type checker knows each value. The class of a row says who may set it:
``JobRows`` and ``NodeRows`` are for the code and, for all nodes and while the cluster runs, for settings; ``JobOnly``
and ``NodeOnly`` are for the code.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from latchwork.checks import is_number
from latchwork.errors import LatchworkError
from latchwork.schedules import Cron, FixedDelay, FixedRate, Schedule

T = TypeVar("T")

#: A schedule; or in short, cron text (in UTC), or the time between two starts.
ScheduleOption = Schedule | str | timedelta

#: What a value may also be where it need not be set: None in settings, nothing (NoReturn) in options.
Unset = TypeVar("Unset")
#: How the number of threads is written: as ``Threads`` in options, as its limit in settings.
Limit = TypeVar("Limit")
#: A shorter grace than this would take a busy server for one that is out of reach.
MIN_GRACE_S = 0.3


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
class OptionKind:
    """The values that an option takes.

    Attributes:
        check: takes the option's name and a value from the code, and returns the value to keep. Raises ValueError for
            one that cannot be used; the message begins with the name.
        read: the same for a setting, whose value comes from the code or was stored; by default as ``check``.
        encode: returns a setting's value for JSON.
        effective: returns the value that the option has where this setting is set.
        least: the least number.
        flag: the type of its flag on the command line; None when it has none of its own.
    """

    check: Callable[[str, Any], Any]
    read: Callable[[str, Any], Any] | None = None
    encode: Callable[[Any], Any] = lambda value: value
    effective: Callable[[Any], Any] = lambda value: value
    least: float | None = None
    flag: type | None = None


def number(least: float) -> OptionKind:
    """Finite numbers that are not below the least; in seconds if the option's name ends so."""

    def check(name: str, value: Any) -> float:
        if not is_number(value, least):
            unit = " of seconds" if name.endswith("_s") else ""
            raise ValueError(f"{name} is {value!r}; give a finite number{unit}, at least {least:g}")
        return float(value)

    return OptionKind(check, least=least, flag=float)


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


SWITCH = OptionKind(_check_switch)


LABELS = OptionKind(_check_labels)


#: ``Threads`` in the code; their limit in settings, and on the command line.
THREADS = OptionKind(_check_threads, _read_limit, effective=Threads, least=0, flag=int)


#: Any schedule in the code, one of ours in settings; in both also what stands for one.
SCHEDULE = OptionKind(_check_schedule, _read_schedule, _encode_schedule)


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option.

    Attributes:
        kind: what values it takes.
        default: what holds unless it is given; an option with a default of None may be given None.
        text: what it does, in Markdown; with its unit before it, it is a sentence.
        none: what None means.
        flag: ``latchwork run`` has a flag for it, if its kind has one.
    """

    kind: OptionKind
    default: Any
    text: str
    none: str = ""
    flag: bool = True
    name: str = ""

    @property
    def unit(self) -> str:
        """The unit of its values."""
        return "seconds" if self.name.endswith("_s") else ""

    @property
    def meaning(self) -> str:
        """What it does, and its least value, without the unit."""
        return self.text + (f"; at least {self.kind.least:g}" if self.kind.least else "")

    @property
    def sentence(self) -> str:
        """The same with the unit, in plain text."""
        return f"{self.unit} {self.meaning}".strip().replace("`", "")

    def check(self, value: Any) -> Any:
        """The value as it is kept.

        Raises:
            ValueError: it cannot be used; the message begins with the name.
        """
        return None if value is None and self.default is None else self.kind.check(self.name, value)


def row(kind: OptionKind, default: Any, text: str, **more: Any) -> Any:
    """A field that is a row. Its own default is None: not set."""
    return field(default=None, metadata={"row": OptionRow(kind, default, text, **more)})


def seconds(default: float | None, text: str, *, least: float = 0.0, **more: Any) -> Any:
    """A field that is a row, for a time."""
    return row(number(least), default, text, **more)


@dataclass(frozen=True)
class JobRows(Generic[Unset, Limit]):
    """Options of a job that settings may change."""

    schedule: Schedule | Unset = row(
        SCHEDULE,
        FixedDelay(60.0),
        "when runs start: `FixedDelay`, `FixedRate`, `Cron` or your own; cron text is in UTC, "
        "and a `timedelta` is the time between two starts",
    )
    initial_delay_s: float | None = seconds(
        None,
        "before the first run of an item that is new on a node: 30 lets a node warm up",
        none="the schedule's own: its delay or rate, or the next time that matches",
    )
    jitter_s: float | Unset = seconds(
        0.0, "by which a run starts late at most, at random: anew for each run, on a cron schedule once for each share"
    )
    pool_check_period_s: float | Unset = seconds(
        60.0, "between two reads of the work pool; 0 reads it once, and again when another node stored its own since"
    )
    threads: Limit = row(
        THREADS, Threads.whole(), "how many runs a node's share is cut into, each on a thread of its own"
    )


@dataclass(frozen=True)
class JobOnly:
    """Options of a job that only its code sets."""

    requires: Mapping[str, str] = row(
        LABELS, MappingProxyType({}), "labels, with their values, that a node must have to get items of this job"
    )


@dataclass(frozen=True)
class ManagerRows(Generic[Unset]):
    """Options of a node that it manages the cluster with while it is elected; settings may change them."""

    debounce_s: float | Unset = seconds(
        0.3, "without a change before a rebalance, so that a burst becomes one: 2 where nodes start one by one"
    )
    debounce_max_s: float | Unset = seconds(
        3.0, "from the first change to the rebalance at the latest, however long the burst", flag=False
    )
    cleanup_period_s: float | Unset = seconds(
        3 * 3600.0, "between two cleanings of jobs that no living node can run; 0 for never", flag=False
    )
    sweep_period_s: float | Unset = seconds(
        600.0, "between two sweeps of what dead nodes left locked; 0 for never", flag=False
    )
    outcome_keep_s: float | Unset = seconds(
        7 * 86_400.0, "for which is kept how the runs of a node went that has gone", flag=False
    )


@dataclass(frozen=True)
class NodeRows(ManagerRows[Unset]):
    """Options of a node that settings may change."""

    stop_timeout_s: float | Unset = seconds(
        30.0,
        "after which a run that was told to stop and did not is reported; its items stay locked until it has ended",
        flag=False,
    )
    close_timeout_s: float | Unset = seconds(
        30.0, "that a closing node waits for its runs to stop; then it leaves their locks to run out"
    )
    disconnect_grace_s: float | None = seconds(
        None,
        "that runs go on after the last answer of a store that is out of reach: at most three quarters of "
        "`lock_ttl_s`, and `session_ttl_s`; a longer one that is set for the cluster is cut to that, with a warning",
        least=MIN_GRACE_S,
        none="as long as the locks allow, even beyond `session_ttl_s`",
    )
    outcome_period_s: float | Unset = seconds(
        60.0,
        "between two writes of how this node's runs go, if something has changed; that a job began to fail, or works "
        "again, is written at once, each once in this time; 0 writes nothing",
    )


@dataclass(frozen=True)
class NodeOnly:
    """Options of a node that only its code sets."""

    session_ttl_s: float | None = seconds(
        None,
        "after which a dead node's items are given to others; the server may grant more",
        least=0.1,
        none="that of the URL, else 10",
    )
    lock_ttl_s: float = seconds(
        10.0, "that the items of a dead node stay locked; runs are told to stop when a quarter is left", least=0.3
    )
    weight: float = row(
        number(1e-9), 1.0, "how much this node takes: one of weight 2 takes twice as much as one of weight 1"
    )
    labels: Mapping[str, str] = row(
        LABELS, MappingProxyType({}), "anything, for `inspect` and strategies of your own; jobs may demand some"
    )


@dataclass(frozen=True)
class JobSwitches:
    """Settings of a job that are no options."""

    enabled: bool | None = row(SWITCH, None, "its switch", none="as the default says")


@dataclass(frozen=True)
class ClusterSwitches:
    """Settings of the cluster that are no options."""

    all_disabled: bool | None = row(SWITCH, None, "no job runs anywhere, whatever its switch says", none="no")
    default_enabled: bool | None = row(SWITCH, None, "whether jobs without a switch run", none="yes")


@lru_cache
def _rows(table: Any) -> tuple[OptionRow, ...]:
    found = {each.name: each.metadata.get("row") for each in fields(table)}
    return tuple(replace(each, name=name) for name, each in found.items() if each is not None)


def rows(table: Any) -> tuple[OptionRow, ...]:
    """The rows among the fields of a dataclass, in their order."""
    return _rows(table)


def defaults(options: type[T]) -> T:
    """Options of which none was given."""
    return options(**{each.name: each.default for each in rows(options)})


def values(table: Any, options: object) -> dict[str, Any]:
    """The values of the rows of this table among these options, by name."""
    return {each.name: getattr(options, each.name) for each in rows(table)}


def effective_options(options: type[T], settings: object, code: object) -> T:
    """The options that hold: what is set, else what the code says."""
    found = values(options, code)
    for each in rows(options):
        value = getattr(settings, each.name, None)
        if value is not None:
            found[each.name] = each.kind.effective(value)
    return options(**found)


def documented(*tables: Any) -> Callable[[type[T]], type[T]]:
    """Add these options to the docstring of a class: to its arguments or attributes, before what it raises."""

    def add(cls: type[T]) -> type[T]:
        found = [row for table in tables for row in rows(table)]
        lines = [f"{row.name}: {row.sentence}" + (f"; None is {row.none}" if row.none else "") for row in found]
        told = [textwrap.fill(line, 116, initial_indent=8 * " ", subsequent_indent=12 * " ") for line in lines]
        above, raises, below = (cls.__doc__ or "").partition("    Raises:")
        heading = [] if ":\n        " in above else ["", "    Attributes:"]
        cls.__doc__ = "\n".join([above.rstrip(), *heading, *told, raises + below])
        return cls

    return add
