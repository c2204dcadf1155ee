"""Options of jobs, nodes and clusters: a table with one row per option, and the kinds of values. No I/O."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from latchwork._base.validation import is_number
from latchwork.errors import LatchworkError
from latchwork.schedules import Cron, FixedDelay, FixedRate, Schedule

T = TypeVar("T")

#: A schedule, cron text (in UTC), or the time between two starts.
ScheduleOption = Schedule | str | timedelta

#: The type of an unset value: None in settings, nothing (NoReturn) in options.
Unset = TypeVar("Unset")
#: The type of the number of threads: ``Threads`` in options, its limit in settings.
Limit = TypeVar("Limit")
#: Least grace period; a shorter one would treat a busy server as unreachable.
MIN_GRACE_S = 0.3


class InvalidJob(LatchworkError, ValueError):
    """A job is invalid: its ID, its options, or the result of its work pool."""


class InvalidSetting(LatchworkError, ValueError):
    """A setting is invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The number of runs into which a node splits its items of a job. Each run has its own thread.

    Attributes:
        limit: Maximum number of concurrent runs on one node; 0 for one run per item.
    """

    limit: int

    def __post_init__(self) -> None:
        if type(self.limit) is not int or self.limit < 0:
            msg = f"Threads({self.limit!r}) cannot be used; give Threads.whole(), .per_item() or .at_most(n)"
            raise InvalidJob(msg)

    @classmethod
    def whole(cls) -> Threads:
        """Return the setting for one thread, which runs all items of the node."""
        return cls(1)

    @classmethod
    def per_item(cls) -> Threads:
        """Return the setting for one thread per item."""
        return cls(0)

    @classmethod
    def at_most(cls, limit: int) -> Threads:
        """Return the setting for a limited number of threads, which run parts of the node's items, of almost equal
        size.

        Args:
            limit: Maximum number of threads, at least 1.
        Raises:
            InvalidJob: The limit is invalid.
        """
        if type(limit) is not int or limit < 1:
            msg = f"Threads.at_most({limit!r}) cannot be used; give a whole number of at least 1"
            raise InvalidJob(msg)
        return cls(limit)

    def split_items(self, items: Iterable[str]) -> list[tuple[str, ...]]:
        """Split items into groups. Each group is run together, in its own thread.

        Args:
            items: The items.
        Returns:
            The groups: each sorted, disjoint, none empty.
        """
        ordered = sorted(items)
        if self.limit == 0:
            return [(item,) for item in ordered]
        count = min(self.limit, len(ordered))
        bounds = [len(ordered) * i // count for i in range(count + 1)] if count else []
        return [tuple(ordered[a:b]) for a, b in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class OptionType:
    """The type of an option: which values it accepts, and how they are stored.

    Attributes:
        check: Checks a value from code, given the option's name, and returns the value to keep. Raises ValueError with
            a message that begins with the name.
        read: The same for a setting, whose value comes from code or from the store; by default ``check``.
        encode: Converts a setting's value for JSON.
        effective: Converts a setting's value to the option's value.
        minimum: Minimum number.
        flag: Type of its command-line flag; None for no flag.
    """

    check: Callable[[str, Any], Any]
    read: Callable[[str, Any], Any] | None = None
    encode: Callable[[Any], Any] = lambda value: value
    effective: Callable[[Any], Any] = lambda value: value
    minimum: float | None = None
    flag: type | None = None


def create_number_type(minimum: float) -> OptionType:
    """Create an option type whose values are finite numbers. They are seconds if the name of the option ends in ``_s``.

    Args:
        minimum: Minimum value.
    """

    def check(name: str, value: Any) -> float:
        if not is_number(value, minimum):
            unit = " of seconds" if name.endswith("_s") else ""
            raise ValueError(f"{name} is {value!r}; give a finite number{unit}, at least {minimum:g}")
        return float(value)

    return OptionType(check, minimum=minimum, flag=float)


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


def _convert_schedule(name: str, value: Any) -> Any:
    """Convert cron text, or a ``timedelta`` between two starts, to a schedule. Return any other value unchanged.

    Args:
        name: Name of the option, for the error message.
        value: Value of the option.
    Raises:
        ValueError: The value is not a valid schedule.
    """
    if not isinstance(value, (str, timedelta)):
        return value
    try:
        return Cron(value) if isinstance(value, str) else FixedRate(value.total_seconds())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_schedule(name: str, value: Any) -> Any:
    value = _convert_schedule(name, value)
    if isinstance(value, type) or not all(
        callable(getattr(value, each, None)) for each in ("first_due", "next_due", "remaining_s")
    ):
        raise ValueError(f"{name} is {value!r}; give a FixedDelay, a FixedRate, a Cron, cron text or a timedelta")
    return value


def _read_schedule(name: str, value: Any) -> Schedule:
    value = _convert_schedule(name, value)
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


SWITCH = OptionType(_check_switch)


LABELS = OptionType(_check_labels)


#: ``Threads`` in code, their limit in settings and on the command line.
THREADS = OptionType(_check_threads, _read_limit, effective=Threads, minimum=0, flag=int)


#: Any schedule in code, a built-in one in settings; both also accept the short forms.
SCHEDULE = OptionType(_check_schedule, _read_schedule, _encode_schedule)


@dataclass(frozen=True, slots=True)
class OptionRow:
    """The description of an option.

    Attributes:
        kind: Kind of its values.
        default: Default value; an option with the default None also accepts None.
        text: Description in Markdown; a sentence if its unit is put before it.
        none: Meaning of None.
        flag: Whether ``latchwork run`` has a flag for it, if its kind has one.
        name: Name of the option.
    """

    kind: OptionType
    default: Any
    text: str
    none: str = ""
    flag: bool = True
    name: str = ""

    @property
    def unit(self) -> str:
        """The unit of the option's values."""
        return "seconds" if self.name.endswith("_s") else ""

    @property
    def description(self) -> str:
        """The description of the option with its minimum value, without the unit, in Markdown."""
        return self.text + (f"; at least {self.kind.minimum:g}" if self.kind.minimum else "")

    @property
    def sentence(self) -> str:
        """The description of the option with its unit and minimum value, as plain text."""
        return f"{self.unit} {self.description}".strip().replace("`", "")

    def check(self, value: Any) -> Any:
        """Check a value for this option, and return it in its internal form.

        Raises:
            ValueError: The value is invalid; the message begins with the option's name.
        """
        return None if value is None and self.default is None else self.kind.check(self.name, value)


def option_field(kind: OptionType, default: Any, text: str, **attributes: Any) -> Any:
    """Create a dataclass field that describes an option. The default of the field is None, which means not set.

    Args:
        kind: Kind of the option's values.
        default: Default value of the option.
        text: Description of the option.
        attributes: More attributes of ``OptionRow``.
    """
    return field(default=None, metadata={"row": OptionRow(kind, default, text, **attributes)})


def seconds_field(default: float | None, text: str, *, minimum: float = 0.0, **attributes: Any) -> Any:
    """Create a dataclass field that describes an option whose value is a time in seconds.

    Args:
        default: Default value of the option.
        text: Description of the option.
        minimum: Minimum value.
        attributes: More attributes of ``OptionRow``.
    """
    return option_field(create_number_type(minimum), default, text, **attributes)


@dataclass(frozen=True)
class JobRows(Generic[Unset, Limit]):
    """Options of a job that settings may change."""

    schedule: Schedule | Unset = option_field(
        SCHEDULE,
        FixedDelay(60.0),
        "when runs start: `FixedDelay`, `FixedRate`, `Cron` or your own; cron text is in UTC, "
        "and a `timedelta` is the time between two starts",
    )
    initial_delay_s: float | None = seconds_field(
        None,
        "before the first run of an item that is new on a node; 30 lets a node warm up",
        none="the schedule's own: its delay or rate, or the next time that matches",
    )
    jitter_s: float | Unset = seconds_field(
        0.0,
        "of random delay before a run at most: chosen for each run, or on a cron schedule once for each set of items",
    )
    pool_check_period_s: float | Unset = seconds_field(
        60.0, "between two reads of the work pool; 0 reads it once, and again when another node has stored it"
    )
    threads: Limit = option_field(
        THREADS, Threads.whole(), "into how many runs a node splits its items, each on its own thread"
    )


@dataclass(frozen=True)
class JobOnly:
    """Options of a job that only its code sets."""

    requires: Mapping[str, str] = option_field(
        LABELS, MappingProxyType({}), "labels and values that a node must have to get items of this job"
    )


@dataclass(frozen=True)
class ManagerRows(Generic[Unset]):
    """Options of a node for managing the cluster while it is elected; settings may change them."""

    debounce_s: float | Unset = seconds_field(
        0.3, "without a change before a rebalance, so that a burst causes only one; use 2 if nodes start one by one"
    )
    debounce_max_s: float | Unset = seconds_field(
        3.0, "from the first change to the rebalance at most, however long the burst", flag=False
    )
    cleanup_period_s: float | Unset = seconds_field(
        3 * 3600.0, "between two cleanups of jobs that no running node can run; 0 for never", flag=False
    )
    sweep_period_s: float | Unset = seconds_field(
        600.0, "between two sweeps of locks of dead nodes; 0 for never", flag=False
    )
    outcome_keep_s: float | Unset = seconds_field(
        7 * 86_400.0, "for which the outcomes of a removed node are kept", flag=False
    )


@dataclass(frozen=True)
class NodeRows(ManagerRows[Unset]):
    """Options of a node that settings may change."""

    stop_timeout_s: float | Unset = seconds_field(
        30.0,
        "after which a run that does not stop is reported; its items stay locked until it has ended",
        flag=False,
    )
    close_timeout_s: float | Unset = seconds_field(
        30.0, "that a closing node waits for its runs to stop; after that their locks expire on their own"
    )
    disconnect_grace_s: float | None = seconds_field(
        None,
        "that runs continue after the last answer of an unreachable store: at most three quarters of "
        "`lock_ttl_s`, and `session_ttl_s`; a longer cluster setting is shortened to that, with a warning",
        minimum=MIN_GRACE_S,
        none="as long as the locks allow, even beyond `session_ttl_s`",
    )
    outcome_period_s: float | Unset = seconds_field(
        60.0,
        "between two writes of this node's outcomes, if they have changed; the first failure of a job and "
        "its recovery are written immediately, each at most once in this time; 0 writes nothing",
    )


@dataclass(frozen=True)
class NodeOnly:
    """Options of a node that only its code sets."""

    session_ttl_s: float | None = seconds_field(
        None,
        "after which a dead node's items are given to other nodes; the server may grant more",
        minimum=0.1,
        none="that of the URL, else 10",
    )
    lock_ttl_s: float = seconds_field(
        10.0, "that the items of a dead node stay locked; runs are asked to stop when a quarter is left", minimum=0.3
    )
    weight: float = option_field(
        create_number_type(1e-9), 1.0, "the relative capacity of this node: with 2 it takes twice as much as with 1"
    )
    labels: Mapping[str, str] = option_field(
        LABELS, MappingProxyType({}), "labels for `inspect` and custom strategies; jobs may require some"
    )


@dataclass(frozen=True)
class JobSwitches:
    """Settings of a job that are not options."""

    enabled: bool | None = option_field(SWITCH, None, "the job's own switch", none="the default")


@dataclass(frozen=True)
class ClusterSwitches:
    """Settings of the cluster that are not options."""

    all_disabled: bool | None = option_field(SWITCH, None, "no job runs anywhere, whatever its switch is", none="no")
    default_enabled: bool | None = option_field(SWITCH, None, "whether jobs without a switch run", none="yes")


@lru_cache
def _rows(table: Any) -> tuple[OptionRow, ...]:
    found = {each.name: each.metadata.get("row") for each in fields(table)}
    return tuple(replace(each, name=name) for name, each in found.items() if each is not None)


def get_option_rows(table: Any) -> tuple[OptionRow, ...]:
    """Return a description of each option that a dataclass defines, in the order of its fields."""
    return _rows(table)


def create_default_options(options_class: type[T]) -> T:
    """Create an options object in which every option has its default value."""
    return options_class(**{each.name: each.default for each in get_option_rows(options_class)})


def get_option_values(table: Any, source: object) -> dict[str, Any]:
    """Return the values of an object's options, by option name.

    Args:
        table: Dataclass that describes the options.
        source: Object with an attribute for each option.
    """
    return {each.name: getattr(source, each.name) for each in get_option_rows(table)}


def combine_options(options_class: type[T], settings: object, code_options: object) -> T:
    """Combine settings with options from code. A setting that is set overrides the option from code.

    Args:
        options_class: Class of the result.
        settings: Object with the settings as attributes; None means not set.
        code_options: Object with all options as attributes.
    """
    found = get_option_values(options_class, code_options)
    for each in get_option_rows(options_class):
        value = getattr(settings, each.name, None)
        if value is not None:
            found[each.name] = each.kind.effective(value)
    return options_class(**found)


def document_options(*tables: Any) -> Callable[[type[T]], type[T]]:
    """Create a class decorator that adds the descriptions of options to the docstring of a class.

    Args:
        tables: Dataclasses that describe the options.
    """

    def add(cls: type[T]) -> type[T]:
        found = [row for table in tables for row in get_option_rows(table)]
        lines = [f"{row.name}: {row.sentence}" + (f"; None is {row.none}" if row.none else "") for row in found]
        entries = [textwrap.fill(line, 116, initial_indent=4 * " ", subsequent_indent=8 * " ") for line in lines]
        # Newer versions of Python remove the indentation of docstrings, older ones keep it.
        above, raises, below = inspect.cleandoc(cls.__doc__ or "").partition("Raises:")
        heading = [] if ":\n    " in above else ["", "Attributes:"]
        cls.__doc__ = "\n".join([above.rstrip(), *heading, *entries, "", raises + below]).rstrip()
        return cls

    return add
