"""References ``${name}`` in the fields of a task: parsed when a definition is applied, filled in at run time. Pure.

    ``${day}``               a parameter, or an output of a preceding task
    ``${extract.rows}``      the output ``rows`` of the task ``extract``
    ``${time:%Y-%m-%d,-1d}`` the schedule time, shifted and formatted with strftime: s, m and h are elapsed time,
                             d and w keep the time of day
    ``${secret:warehouse}``  a secret of the worker's machine, which is never stored elsewhere
    ``${connection:shop}``   the URL of a stored connection with its password, built by the worker
    ``$${``                  the two characters ``${``

A field that consists of a single reference keeps the type of the value. In longer text, the value is inserted as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

_PART = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*")
#: The prefix of secret names.
SECRET = "secret:"  # noqa: S105 - not a password
#: The prefix of connection names.
CONNECTION = "connection:"
_WITH_KIND = re.compile(r"(?:secret|connection):[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SHIFT = re.compile(r"([+-]\d{1,6})([smhdw])")
_MAX_SHIFT = timedelta(days=36_525)  # a hundred years
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
#: The maximum number of characters and values of a value with its references filled in.
MAX_FILLED = 1_000_000
#: The maximum size of a variable in bytes. Linux allows 131,072 including the name.
MAX_VARIABLE = 128_000


class Reference(NamedTuple):
    """A reference ``${...}``.

    Attributes:
        name: The name of a parameter or output, of a secret after ``SECRET``, or of a connection after ``CONNECTION``.
            Empty for a time.
        format: The strftime format of a time. Otherwise empty.
        shift: The shift of a time.
        is_elapsed: Whether the shift is elapsed time, as for hours. Days keep the time of day.
    """

    name: str
    format: str = ""
    shift: timedelta = timedelta()
    is_elapsed: bool = False


def iter_references(text: str) -> Iterator[Reference]:
    """Yield the references ``${...}`` in a text, in their order.

    Raises:
        ValueError: A reference is not closed, or is neither a name nor a time.
    """
    for part in _PART.finditer(text):
        if part.group() == "${":
            raise ValueError(
                f"'${{' at character {part.start() + 1} is not closed; write '$${{' for the characters themselves"
            )
        if part.group(1) is not None:
            yield _parse_reference(part.group(1))


def _parse_reference(inner: str) -> Reference:
    if inner.startswith("time:"):
        return _time_reference(inner[5:])
    if not _NAME.fullmatch(inner) and not _WITH_KIND.fullmatch(inner):
        raise ValueError(f"'${{{inner}}}' is not a reference; write a name such as ${{day}}, or ${{time:%Y-%m-%d,-1d}}")
    return Reference(inner)


def _time_reference(inner: str) -> Reference:
    form, comma, shift = inner.rpartition(",")
    if not comma:
        return Reference("", inner)
    amount = _SHIFT.fullmatch(shift.strip())
    if amount is None:
        raise ValueError(f"'{shift.strip()}' is not a time shift; write one such as -1d, +6h or -30m")
    unit = amount.group(2)
    moved = timedelta(**{_UNITS[unit]: int(amount.group(1))})
    if abs(moved) > _MAX_SHIFT:
        raise ValueError(f"'{shift.strip()}' shifts a time too far; at most {_MAX_SHIFT.days:,} days are possible")
    return Reference("", form, moved, is_elapsed=unit in "smh")


def iter_strings(value: object) -> Iterator[str]:
    """Yield all strings in a JSON value, except the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from iter_strings(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from iter_strings(each)


def iter_names(value: object) -> Iterator[str]:
    """Yield all names that the references ``${...}`` in a JSON value use. Text that does not parse, such as a script,
    has none.
    """
    for text in iter_strings(value):
        if "${" in text:
            with suppress(ValueError):
                yield from [each.name for each in iter_references(text) if each.name]


def get_env_var_name(name: str) -> str:
    """Return the name of the environment variable that contains a value in scripts. ``extract.rows`` becomes
    ``extract_rows``.
    """
    return re.sub(r"[.-]", "_", name)


def format_environment_value(value: Any) -> str:
    """Convert a JSON value to the text of an environment variable."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def find_environment_value_problem(text: str) -> str:
    """Return why a text cannot be the value of an environment variable, or an empty text if it can."""
    if "\0" in text:
        return "it has a NUL character"
    size = len(text.encode("utf-8", "surrogateescape"))
    return f"it has {size:,} bytes, and a variable at most {MAX_VARIABLE:,}" if size > MAX_VARIABLE else ""


def fill_references(
    value: Any, values: Mapping[str, Any], schedule_time: datetime, *, quote: Callable[[Any], str] = str
) -> Any:
    """Replace all references ``${...}`` in a JSON value by their values, including those inside lists and objects.

    Args:
        value: Plain JSON.
        values: Values by name.
        schedule_time: The base of ``${time:...}``.
        quote: Quotes a value for insertion into longer text in another language.
    Raises:
        KeyError: A name is unknown. The argument is the name.
        ValueError: The result has more than ``MAX_FILLED`` characters and values.
    """
    found = _fill(value, values, schedule_time, quote)
    if _count_characters_and_values(found, MAX_FILLED) > MAX_FILLED:  # nested references can expand exponentially
        raise _too_large(value)
    return found


def _fill(value: Any, known: Mapping[str, Any], schedule_time: datetime, quote: Callable[[Any], str]) -> Any:
    if isinstance(value, str):
        return _fill_text(value, known, schedule_time, quote)
    if isinstance(value, Mapping):
        return {key: _fill(each, known, schedule_time, quote) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fill(each, known, schedule_time, quote) for each in value]
    return value


def _too_large(value: Any) -> ValueError:
    return ValueError(f"{str(value)[:60]!r} has more than {MAX_FILLED:,} characters with its values filled in")


def _count_characters_and_values(value: Any, limit: int) -> int:
    """Return the number of characters and values in a JSON value. Counting stops above ``limit``."""
    if isinstance(value, str):
        return 1 + len(value)
    size = 1
    if isinstance(value, Mapping):
        size += sum(map(len, value))
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ():
        if size > limit:
            break
        size += _count_characters_and_values(each, limit - size)
    return size


def _fill_text(text: str, known: Mapping[str, Any], schedule_time: datetime, quote: Callable[[Any], str]) -> Any:
    whole = _PART.fullmatch(text)
    if whole is not None and whole.group(1) is not None:
        return _value(_parse_reference(whole.group(1)), known, schedule_time)

    size = 0

    def one(part: re.Match[str]) -> str:
        nonlocal size
        if part.group(1) is None:
            return "${"
        found = quote(_value(_parse_reference(part.group(1)), known, schedule_time))
        size += len(found)
        if size > MAX_FILLED:
            raise _too_large(text)
        return found

    return _PART.sub(one, text)


def _value(reference: Reference, known: Mapping[str, Any], schedule_time: datetime) -> Any:
    if reference.name:
        return known[reference.name]
    try:
        return _shift_time(schedule_time, reference).strftime(reference.format)
    except (ArithmeticError, ValueError) as error:
        raise ValueError(
            f"the schedule time {schedule_time} moved by {reference.shift} is not a valid time: {error}"
        ) from None


def _shift_time(time: datetime, reference: Reference) -> datetime:
    """Add the offset of a time reference to a time.

    If daylight saving time skips the resulting local time, it is moved forward by the gap.
    """
    start = time.astimezone(UTC) if reference.is_elapsed else time
    return (start + reference.shift).astimezone(UTC).astimezone(time.tzinfo)
