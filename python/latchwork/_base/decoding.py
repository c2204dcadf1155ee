"""Encoding of records as JSON, and decoding of stored records, which any client may have written.

The type of a record, a ``msgspec.Struct``, defines the fields, with bounds for every number (`Count`, `Seconds`, ...).
A decoded record therefore contains only text that can be encoded, and finite numbers within bounds. All other values
raise `BadRecord`. Unknown fields are ignored, so that a newer version can add some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from latchwork._base.text import short
from latchwork.errors import BadRecord
from latchwork.types import Entry

#: Maximum nesting depth of a record.
MAX_DEPTH = 32
#: Greatest whole number, unless a field sets another bound.
MAX_WHOLE = 2**63 - 1
#: Greatest time in seconds since the epoch: a thousand years.
MAX_TIME_S = 1000 * 366 * 86_400.0
#: Greatest duration in seconds: more than 300 years.
MAX_DURATION_S = 1e10

#: Whole numbers: any, from 0, from 1.
Whole = Annotated[int, Meta(ge=-MAX_WHOLE, le=MAX_WHOLE)]
Count = Annotated[int, Meta(ge=0, le=MAX_WHOLE)]
Positive = Annotated[int, Meta(ge=1, le=MAX_WHOLE)]
#: A duration: up to 300 years.
Seconds = Annotated[float, Meta(ge=0.0, le=MAX_DURATION_S)]
#: Seconds since the epoch: up to 1,000 years from it.
Timestamp = Annotated[float, Meta(ge=-MAX_TIME_S, le=MAX_TIME_S)]

T = TypeVar("T")


class Decoder(Generic[T]):
    """Decodes records of one type. Thread-safe.

    Args:
        kind: The type: a Struct, or any other type that msgspec can decode.
        what: Description of the record in error messages, with an article: ``"a lock"``.
        hint: Advice in the error message for an entry that is not such a record.
    """

    def __init__(self, kind: Any, what: str = "a record", hint: str = "") -> None:
        self._what = what
        self._hint = f"; {hint}" if hint else ""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, value: bytes) -> T:
        """Decode a stored value to a record.

        Raises:
            BadRecord: The value is not a valid record of this type.
        """
        try:
            return self._decode(value)
        except ValueError as error:
            raise BadRecord(f"value {short(value)} is not {self._what}: {error}") from None

    def decode_entry(self, entry: Entry) -> T:
        """Decode the value of an entry to a record. An error message contains the key of the entry.

        Raises:
            BadRecord: The value is not a valid record of this type.
        """
        try:
            return self._decode(entry.value)
        except ValueError as error:
            raise BadRecord(f"key {entry.key!r} does not contain {self._what} ({error}){self._hint}") from None

    def find(self, value: bytes) -> T | None:
        """Decode a stored value to a record. Return None if the value is not a valid record of this type."""
        try:
            return self._decode(value)
        except ValueError:
            return None

    def _decode(self, value: bytes) -> T:
        text = value.decode()  # msgspec does not look at the encoding of text that it skips
        try:
            found = self._decoder.decode(text)
            # only so many brackets can be JSON that is nested so deep; a type bounds the depth of its records
            if text.count("[") + text.count("{") > MAX_DEPTH and not _is_within_max_depth(found):
                raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        except RecursionError:
            raise ValueError("it is nested too deep") from None
        return found


#: Returns the value to store for a record.
encode: Callable[[object], bytes] = msgspec.json.encode


class Record(msgspec.Struct, frozen=True):
    """The base class of records that are stored as JSON."""

    def to_bytes(self) -> bytes:
        """Return the bytes to store."""
        return encode(self)


_JSON: Decoder[Any] = Decoder(Any, "JSON that can be used")
_OBJECT: Decoder[dict[str, Any]] = Decoder(dict[str, Any])


def read_json(value: bytes) -> Any:
    """Decode a stored JSON value. It must be valid text with finite numbers, and nested at most ``MAX_DEPTH`` deep.

    Raises:
        BadRecord: The value is not valid JSON within these limits.
    """
    return _JSON.decode(value)


def read_object(value: bytes) -> dict[str, Any]:
    """Decode a stored JSON object to a dict. Return an empty dict if the value is not a valid JSON object."""
    return _OBJECT.find(value) or {}


def _is_within_max_depth(found: object) -> bool:
    """Return whether a decoded JSON value is nested at most ``MAX_DEPTH`` deep."""
    level = [found]
    for _ in range(MAX_DEPTH):
        boxes = [each for each in level if isinstance(each, (dict, list))]
        level = [part for box in boxes for part in (box.values() if isinstance(box, dict) else box)]
        if not level:
            return True
    return not any(isinstance(each, (dict, list)) for each in level)
