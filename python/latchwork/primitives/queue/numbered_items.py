"""The keys and values of a queue. Nothing here does I/O.

Keys:  <name>/tail                    the number of the last item put, see ``cell``
       <name>/room                    capacity, and how many may be put before the items have to be counted; as JSON
       <name>/live/items/<p>-<n>      an item, by priority and number: a line of JSON, then the value if it is small
       <name>/live/claims/<p>-<n>     who has taken that item, dies with the taker's session; as JSON
       <name>/data/<p>-<n>            the value of an item, if it is large
       <name>/dead/<p>-<n>            an item that was given up: like an item
       <name>/takers, <name>/putters  queues of those that wait, see ``tickets``
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from latchwork.errors import BadRecord, LatchworkError
from latchwork.primitives.queue.stored import INLINE_BYTES, MAX_VALUE_BYTES, Stored, split
from latchwork.records import Record, short
from latchwork.types import Entry

_MOST = 10**12
_ID = re.compile(r"\d-\d{12}")


class Names:
    """The keys of one queue, and the prefixes of items, claims and dead letters."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tail = f"{name}/tail"
        self.room = f"{name}/room"
        self.live = f"{name}/live"
        self.items = f"{self.live}/items"
        self.claims = f"{self.live}/claims"
        self.dead = f"{name}/dead"

    def item(self, item_id: str) -> str:
        """The key of an item."""
        return f"{self.items}/{item_id}"

    def claim(self, item_id: str) -> str:
        """The key of an item's claim."""
        return f"{self.claims}/{item_id}"

    def letter(self, item_id: str) -> str:
        """The key of a dead letter."""
        return f"{self.dead}/{item_id}"

    def data(self, item_id: str) -> str:
        """The key of a large value."""
        return f"{self.name}/data/{item_id}"


@dataclass(frozen=True, slots=True)
class Item(Stored):
    """One item of a queue, as it is stored.

    Attributes:
        id: unique in the queue.
        attempts: how often it was taken.
        why: what the last one that gave it back, or gave it up, said.
        size: bytes of its value.
        data_id: where a large value is; empty when it is in the item.
        value: a small value; empty when it is elsewhere.
    """

    @property
    def priority(self) -> int:
        """0 is taken first, 9 last."""
        return int(self.id[0])

    @classmethod
    def made(cls, item_id: str, value: bytes) -> Item:
        """A new item."""
        is_small = len(value) <= INLINE_BYTES
        return cls(item_id, size=len(value), data_id="" if is_small else item_id, value=value if is_small else b"")

    @classmethod
    def of(cls, entry: Entry) -> Item:
        """What is stored.

        Raises:
            BadRecord: it is no item.
        """
        try:
            body, value = split(entry.value)
            name = _check_id(item_id(entry))
            data_id = body.text("data") and _check_id(body.text("data"))
            return cls(name, body.whole("attempts", least=0), body.text("why"), body.whole("size"), data_id, value)
        except BadRecord as error:
            raise BadRecord(f"key {entry.key!r} holds no item of a queue ({error}); delete it") from None

    @classmethod
    def shown(cls, entry: Entry) -> Item:
        """What is stored, for people; of what is no item its bytes, as far as they fit, and why it is none."""
        try:
            return cls.of(entry)
        except BadRecord as error:
            value = entry.value[:MAX_VALUE_BYTES]
            return cls(item_id(entry), why=str(error)[:1000], size=len(entry.value), value=value)


def make_id(priority: int, number: int) -> str:
    """The id of an item; ids sort by priority, then by number."""
    if not number < _MOST:
        raise LatchworkError(f"{number - 1:,} items have gone through this queue, it is used up; use another name")
    return f"{priority}-{number:012d}"


def _check_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise BadRecord(f"{short(text)} is no id of an item")
    return text


def item_id(entry: Entry) -> str:
    """The id of an item, from its own key, its claim or its dead letter."""
    return entry.key.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Room:
    """Capacity of a queue, None for no limit, and how many may be put before its items have to be counted again."""

    capacity: int | None
    free: int = 0

    @classmethod
    def of(cls, entry: Entry) -> Room:
        """What is stored.

        Raises:
            BadRecord: it is no capacity.
        """
        try:
            body = Record.of(entry.value)
            capacity = body.whole("capacity", least=1) if body.has("capacity") else None
            return cls(capacity, body.whole("free", 0))
        except BadRecord as error:
            raise BadRecord(f"key {entry.key!r} holds no capacity of a queue ({error}); use another name") from None

    def to_bytes(self) -> bytes:
        """What to store."""
        return json.dumps({"capacity": self.capacity, "free": self.free}).encode()
