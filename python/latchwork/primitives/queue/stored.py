"""What items of every queue have in common: their values, and what is told of their attempts. Nothing here does I/O.

An item is a line of JSON, then the value if it is small; a large value has a key of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from latchwork.errors import ValueTooLarge
from latchwork.primitives.waiting.common import check_bytes
from latchwork.records import Record

if TYPE_CHECKING:
    from typing import Self

#: Values up to so many bytes are kept in the item itself, and written anew with each attempt.
INLINE_BYTES = 4096
#: What one transaction can carry beside keys and the like.
MAX_VALUE_BYTES = 990_000
#: Of a reason so many characters are kept.
MOST_WHY = 1000


@dataclass(frozen=True, slots=True)
class Stored:
    """One item, as it is stored.

    Attributes:
        id: its name.
        attempts: how often it was taken.
        why: what the last one that gave it back, or gave it up, said.
        size: bytes of its value.
        data_id: where a large value is; empty when it is in the item.
        value: a small value; empty when it is elsewhere.
    """

    id: str
    attempts: int = 0
    why: str = ""
    size: int = 0
    data_id: str = ""
    value: bytes = field(default=b"", repr=False)

    def head(self) -> dict[str, object]:
        """What is stored before the value."""
        return {"attempts": self.attempts, "why": self.why, "size": self.size, "data": self.data_id}

    def to_bytes(self) -> bytes:
        """What to store."""
        if self.why or self.data_id or type(self) is not Stored:
            return json.dumps(self.head()).encode() + b"\n" + self.value
        return plain_head(self.attempts, self.size) + self.value

    def taken(self) -> Self:
        """After one more attempt."""
        return replace(self, attempts=self.attempts + 1)

    def given_back(self, why: str) -> Self:
        """After somebody gave it back, or up."""
        return replace(self, why=why[:MOST_WHY])


def plain_head(attempts: int, size: int) -> bytes:
    """What is stored before the value of an item of which nothing more is to be told."""
    return b'{"attempts": %d, "why": "", "size": %d, "data": ""}\n' % (attempts, size)


def split(stored: bytes) -> tuple[Record, bytes]:
    """What is stored before a value, and the value if it is small.

    Raises:
        BadRecord: it is no item.
    """
    head, _, value = stored.partition(b"\n")
    return Record.of(head), value


def check_payload(value: bytes, what: str) -> bytes:
    """The value itself; ``TypeError`` if it is no ``bytes``, ``ValueTooLarge`` if it is too large."""
    check_bytes(value, f"a value for {what}")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueTooLarge(
            f"a value for {what} has {len(value):,} bytes, the limit is {MAX_VALUE_BYTES:,}; put a key of it instead"
        )
    return value
