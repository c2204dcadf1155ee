"""The one reader of stored records: from bytes that anybody may have written to values of known types.

A record is a JSON object. What comes out of here is text that can be encoded, finite numbers within bounds, and nothing
nested deeper than any record of ours; all else is ``BadRecord``. Whoever lists records leaves a bad one out, or takes
its harmless defaults; whoever needs exactly this one raises, with its key. Nothing here touches the network.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from latchwork.checks import is_number
from latchwork.errors import BadRecord

#: No record of ours is nested so deep.
MOST_DEPTH = 32
#: The greatest whole number, unless a field allows more.
MOST_WHOLE = 2**63 - 1
#: Moments are at most so many seconds from the epoch: a thousand years.
MOST_MOMENT_S = 1000 * 366 * 86_400.0
#: Durations are at most so many seconds: more than 300 years.
MOST_DURATION_S = 1e10

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 3


def short(value: object) -> str:
    """What a value looks like, in a few words without control characters."""
    return _SHORT.repr(value[:60] if isinstance(value, (bytes, str)) else value)


def read_json(value: bytes) -> Any:
    """The JSON in a value: valid text, finite numbers, nested at most ``MOST_DEPTH`` deep.

    Raises:
        BadRecord: it is something else.
    """
    try:
        text = value.decode("utf-8")
        found = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise BadRecord(f"value {short(value)} is no JSON that can be used: {why}") from None
    if may_be_deep(text) and not is_flat(found):
        raise BadRecord(f"value {short(value)} is nested more than {MOST_DEPTH} deep")
    if _SURROGATE.search(text) is not None and not _is_text(found):
        raise BadRecord(f"value {short(value)} holds half of a character")
    return found


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a record.

    A method that reads a field raises ``BadRecord`` when the field is missing or unusable; given a default, it returns
    that instead.
    """

    body: Mapping[str, Any]

    @classmethod
    def of(cls, value: bytes) -> Record:
        """The record in a value.

        Raises:
            BadRecord: there is none.
        """
        body = read_json(value)
        if not isinstance(body, dict):
            raise BadRecord(f"value {short(value)} is no JSON object")
        return cls(body)

    @classmethod
    def or_empty(cls, value: bytes) -> Record:
        """The record in a value; one without fields when there is none."""
        try:
            return cls.of(value)
        except BadRecord:
            return cls({})

    def has(self, name: str) -> bool:
        """Whether there is such a field, and not null."""
        return self.body.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is text."""
        found = self.body.get(name)
        return found if isinstance(found, str) else _instead(self, name, "text", default)

    def number(
        self, name: str, default: float | None = None, *, least: float = -math.inf, most: float = math.inf
    ) -> float:
        """A field that is a finite number within bounds."""
        found = self.body.get(name)
        if is_number(found, least) and found <= most:
            return float(found)
        return _instead(self, name, f"a number from {least:g} to {most:g}", default)

    def duration_s(self, name: str, default: float | None = None, *, least: float = 0.0) -> float:
        """A field that is a number of seconds."""
        return self.number(name, default, least=least, most=MOST_DURATION_S)

    def moment_s(self, name: str, default: float | None = None) -> float:
        """A field that is a moment, in seconds since the epoch."""
        return self.number(name, default, least=-MOST_MOMENT_S, most=MOST_MOMENT_S)

    def moment_or_none(self, name: str) -> float | None:
        """A field that is a moment; None when it is none."""
        found = self.number(name, math.inf)
        return found if abs(found) <= MOST_MOMENT_S else None

    def whole(self, name: str, default: int | None = None, *, least: int = -MOST_WHOLE, most: int = MOST_WHOLE) -> int:
        """A field that is a whole number within bounds."""
        found = self.body.get(name)
        if type(found) is int and least <= found <= most:
            return found
        return _instead(self, name, f"a whole number from {least} to {most}", default)

    def big(self, name: str) -> int:
        """A field that is a whole number of any size: most are for arithmetic of ours, and belong to ``whole``."""
        found = self.body.get(name)
        none: int | None = None
        return found if type(found) is int else _instead(self, name, "a whole number", none)

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A field that is a list of texts."""
        found = self.body.get(name)
        good = isinstance(found, list) and all(isinstance(each, str) for each in found)
        return tuple(found) if good and found is not None else _instead(self, name, "a list of texts", default)

    def mapping(self, name: str, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """A field that is an object."""
        found = self.body.get(name)
        return found if isinstance(found, dict) else _instead(self, name, "an object", default)

    def text_map(self, name: str) -> dict[str, str]:
        """The members of a field that are texts; none when it is no object."""
        return {key: each for key, each in self.mapping(name, {}).items() if isinstance(each, str)}

    def parts(self, name: str) -> list[Record]:
        """A field that is a list of objects."""
        found = self.body.get(name)
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            none: list[Record] | None = None
            return _instead(self, name, "a list of objects", none)
        return [Record(each) for each in found]


def _instead(record: Record, name: str, what: str, default: _T | None) -> _T:
    if default is not None:
        return default
    found = f"is {short(record.body[name])}" if name in record.body else "is missing"
    raise BadRecord(f"field {name!r} {found}, and has to be {what}")


def may_be_deep(text: str) -> bool:
    """Return whether a text has enough brackets for JSON that is nested more than ``MOST_DEPTH`` deep."""
    return text.count("[") + text.count("{") > MOST_DEPTH


def is_flat(found: object) -> bool:
    """Return whether decoded JSON is nested at most ``MOST_DEPTH`` deep."""
    level = [found]
    for _ in range(MOST_DEPTH):
        boxes = [each for each in level if isinstance(each, (dict, list))]
        level = [part for box in boxes for part in (box.values() if isinstance(box, dict) else box)]
        if not level:
            return True
    return not any(isinstance(each, (dict, list)) for each in level)


def _is_text(found: object) -> bool:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{short(text)} is no finite number")
    return number


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no finite number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
