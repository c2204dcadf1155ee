"""JSON that any client may have stored, and the fields of tickets and leases in it. No I/O.

What is returned holds text that can be encoded, finite numbers, and nothing that is nested deeper than any record of
ours. Everything else is ``BadRecord``. Records with a type of their own are read by ``_base.decoding``.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

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

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is text."""
        found = self.body.get(name)
        return found if isinstance(found, str) else _instead(self, name, "text", default)

    def whole(self, name: str, default: int | None = None, *, least: int = -MOST_WHOLE, most: int = MOST_WHOLE) -> int:
        """A field that is a whole number within bounds."""
        found = self.body.get(name)
        if type(found) is int and least <= found <= most:
            return found
        return _instead(self, name, f"a whole number from {least} to {most}", default)


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
