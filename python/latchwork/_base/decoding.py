"""Stored records: from bytes that any client may have written to a `msgspec.Struct`, and back.

A record is JSON. Its type says what each field may be, with bounds for every number (`Count`, `Seconds`, ...), so a
decoded record holds only text that can be encoded and finite numbers within bounds. All other values are `BadRecord`.
Fields that a type does not name are skipped, so that a newer version can add some.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from latchwork.errors import BadRecord
from latchwork.records import MOST_DEPTH, MOST_DURATION_S, MOST_MOMENT_S, MOST_WHOLE, is_flat, may_be_deep, short
from latchwork.types import Entry

#: Whole numbers: any, from 0, from 1.
Whole = Annotated[int, Meta(ge=-MOST_WHOLE, le=MOST_WHOLE)]
Count = Annotated[int, Meta(ge=0, le=MOST_WHOLE)]
Positive = Annotated[int, Meta(ge=1, le=MOST_WHOLE)]
#: A duration: up to 300 years.
Seconds = Annotated[float, Meta(ge=0.0, le=MOST_DURATION_S)]
#: Seconds since the epoch: up to 1,000 years from it.
Timestamp = Annotated[float, Meta(ge=-MOST_MOMENT_S, le=MOST_MOMENT_S)]

T = TypeVar("T")


class Decoder(Generic[T]):
    """Decodes records of one type. Thread-safe.

    Args:
        kind: the type: a Struct, or anything else that msgspec decodes.
        what: the record in error messages, with an article: ``"a lock"``.
        hint: what to do about an entry that holds something else.
    """

    def __init__(self, kind: Any, what: str = "a record", hint: str = "") -> None:
        self._what = what
        self._hint = f"; {hint}" if hint else ""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, value: bytes) -> T:
        """Return the record in a value.

        Raises:
            BadRecord: The value is not such a record.
        """
        try:
            return self._decode(value)
        except ValueError as error:
            raise BadRecord(f"value {short(value)} is not {self._what}: {error}") from None

    def decode_entry(self, entry: Entry) -> T:
        """Return the record in the value of an entry; an error names its key.

        Raises:
            BadRecord: The value is not such a record.
        """
        try:
            return self._decode(entry.value)
        except ValueError as error:
            raise BadRecord(f"key {entry.key!r} holds something else than {self._what} ({error}){self._hint}") from None

    def find(self, value: bytes) -> T | None:
        """Return the record in a value, or None if the value is not such a record."""
        try:
            return self._decode(value)
        except ValueError:
            return None

    def _decode(self, value: bytes) -> T:
        text = value.decode()  # msgspec does not look at the encoding of text that it skips
        try:
            found = self._decoder.decode(text)
            if may_be_deep(text) and not is_flat(msgspec.json.decode(text)):
                raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
        except RecursionError:
            raise ValueError("it is nested too deep") from None
        return found


def encode(record: object) -> bytes:
    """Return the value to store for a record."""
    return msgspec.json.encode(record)
