"""The keys and values of a work queue. Nothing here does I/O.

Keys:  <name>/partitions/<partition>/sort_keys/<sort_key>       empty; written by every put into that sort_key
       <name>/partitions/<partition>/items/<sort_key>/<id>    an item: a line of JSON, then the value if it is small
       <name>/partitions/<partition>/claims/<sort_key>/<id>   who has taken that item, dies with the taker's session;
       as JSON
       <name>/data/<number>                      the value of an item, if it is large
       <name>/dead/<letter>                      an item that was given up: like an item, with its partition, sort_key
       and id
       <name>/takers/<partition>                      those that wait, see ``tickets``
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from latchwork.errors import BadRecord, InvalidKey, ValueTooLarge
from latchwork.primitives.queue.stored import INLINE_BYTES, MAX_VALUE_BYTES, Stored, plain_head, split
from latchwork.primitives.waiting.common import check_bytes
from latchwork.primitives.waiting.waits import check_member
from latchwork.records import short
from latchwork.types import At, Create, Entry, Put

#: Of a letter's name that another letter has already, so many characters are kept.
_KEPT_CHARS = 100
#: What this version keeps before a value; what a later one adds is kept as it is.
_FIELDS = frozenset({"attempts", "why", "size", "data", "nonce", "partition", "sort_key", "id"})
_NUMBER = re.compile(r"[0-9a-f]{32}\Z")
#: What ``plain_head`` writes: read without a JSON reader.
_PLAIN = re.compile(rb'\{"attempts": (0|[1-9]\d{0,8}), "why": "", "size": (0|[1-9]\d{0,11}), "data": ""\}\n')


class Names:
    """The keys of one backlog."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.partitions = f"{name}/partitions"
        self.dead = f"{name}/dead"

    def partition(self, partition: str) -> str:
        """The prefix of what a partition has: items and claims."""
        return f"{self.partitions}/{partition}"

    def sort_keys(self, partition: str) -> str:
        """The prefix of the index of a partition's sort_keys."""
        return f"{self.partitions}/{partition}/sort_keys"

    def items(self, partition: str) -> str:
        """The prefix of the items of a partition."""
        return f"{self.partitions}/{partition}/items"

    def claims(self, partition: str) -> str:
        """The prefix of the claims of a partition; sorted as the items are."""
        return f"{self.partitions}/{partition}/claims"

    def item(self, partition: str, sort_key: str, item_id: str) -> str:
        """The key of an item."""
        return f"{self.partitions}/{partition}/items/{sort_key}/{item_id}"

    def claim(self, partition: str, sort_key: str, item_id: str) -> str:
        """The key of an item's claim."""
        return f"{self.partitions}/{partition}/claims/{sort_key}/{item_id}"

    def claim_of(self, item: QueueItem) -> str:
        """The key of an item's claim."""
        return self.claim(item.partition, item.sort_key, item.id)

    def takers(self, partition: str) -> str:
        """The prefix of the tickets of those that wait for a partition."""
        return f"{self.name}/takers/{partition}"

    def letter(self, letter: str) -> str:
        """The key of a dead letter."""
        return f"{self.dead}/{letter}"

    def data(self, number: str) -> str:
        """The key of a large value."""
        return f"{self.name}/data/{number}"


@dataclass(frozen=True, slots=True)
class QueueItem(Stored):
    """One item of a work queue, as it was read.

    Attributes:
        id: unique in its sort_key.
        attempts: how often it was taken.
        why: what the last one that gave it back, or gave it up, said.
        size: bytes of its value.
        data_id: where a large value is; empty when it is in the item.
        value: a small value; empty when it is elsewhere.
        partition: where it is.
        sort_key: where it is there.
        letter: by which ``revive`` and ``drop`` know it once it is a dead letter; empty before.
        key: the key it was read from.
        version: of that key, as it was read.
    """

    partition: str = ""
    sort_key: str = ""
    letter: str = ""
    key: str = field(default="", repr=False)
    version: Hashable = field(default=None, compare=False, repr=False)
    nonce: str = field(default="", compare=False, repr=False)
    more: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def path(self) -> str:
        """Lane, sort_key and id: what names it in its backlog, and in messages."""
        return f"{self.partition}/{self.sort_key}/{self.id}"

    @property
    def check(self) -> At:
        """The check that it is as it was read: neither removed, nor taken or given back since then."""
        return At.of(self.key, self.version)

    @classmethod
    def made(cls, item_id: str, value: bytes, *, number: str = "", nonce: str = "") -> QueueItem:
        """A new item; with a number its value is elsewhere."""
        return cls(item_id, size=len(value), data_id=number, value=b"" if number else value, nonce=nonce)

    @classmethod
    def of(cls, entry: Entry) -> QueueItem:
        """What is stored in the key of an item.

        Raises:
            BadRecord: it is no item.
        """
        partition, _, sort_key, item_id = entry.key.split("/")[-4:]
        return _read(entry, item_id, partition, sort_key)

    @classmethod
    def letter_of(cls, entry: Entry) -> QueueItem:
        """What is stored in the key of a dead letter.

        Raises:
            BadRecord: it is none.
        """
        letter = entry.key.rpartition("/")[2]
        try:
            body, _ = split(entry.value)
            partition, sort_key, item_id = (_check_segment(body.text(name)) for name in ("partition", "sort_key", "id"))
        except BadRecord as error:
            raise _no_item(entry, error) from None
        return _read(entry, item_id, partition, sort_key, letter)

    def to_letter(self) -> bytes:
        """What to store of it among the dead letters."""
        head = {**self.head(), "partition": self.partition, "sort_key": self.sort_key, "id": self.id}
        return json.dumps(head).encode() + b"\n" + self.value

    def head(self) -> dict[str, object]:
        """What is stored before the value."""
        head = {**self.more, **Stored.head(self)}
        return {**head, "nonce": self.nonce} if self.nonce else head

    def to_bytes(self) -> bytes:
        """What to store."""
        if self.why or self.data_id or self.nonce or self.more:
            return Stored.to_bytes(self)
        return plain_head(self.attempts, self.size) + self.value

    def at(self, entry: Entry) -> QueueItem:
        """The same, at the place and in the version of an entry that holds it."""
        return self._written(self.attempts, entry.key, entry.version)

    def taken(self) -> QueueItem:
        """After one more attempt."""
        return self._written(self.attempts + 1, self.key, self.version)

    def _written(self, attempts: int, key: str, version: Hashable) -> QueueItem:
        """As ``replace``, in a fifth of the time: each take makes two."""
        return QueueItem(
            self.id,
            attempts,
            self.why,
            self.size,
            self.data_id,
            self.value,
            self.partition,
            self.sort_key,
            self.letter,
            key,
            version,
            self.nonce,
            self.more,
        )

    def revived(self) -> QueueItem:
        """With all attempts before it, and nothing said of those that it had."""
        return replace(self, attempts=0, why="", nonce="")

    def not_taken(self) -> QueueItem:
        """As if the last attempt had not been."""
        return replace(self, attempts=max(0, self.attempts - 1))


def shown(entry: Entry) -> QueueItem:
    """What is stored as an item or a dead letter, for people.

    Of what is neither its bytes, as far as they fit, and why it is none.
    """
    parts = entry.key.split("/")
    is_letter = parts[-2] == "dead"
    try:
        return QueueItem.letter_of(entry) if is_letter else QueueItem.of(entry)
    except BadRecord as error:
        why, value = str(error)[:1000], entry.value[:MAX_VALUE_BYTES]
        found = QueueItem(parts[-1], why=why, size=len(entry.value), value=value).at(entry)
        return (
            replace(found, letter=parts[-1]) if is_letter else replace(found, partition=parts[-4], sort_key=parts[-2])
        )


def check_place(partition: str, sort_key: str, item_id: str) -> None:
    """Let a name of an item pass; ``InvalidKey`` if a part of it cannot be one segment of a key."""
    for part, kind in ((partition, "partition"), (sort_key, "sort_key"), (item_id, "item")):
        check_member(part, kind)


def check_inline(value: bytes, what: str) -> bytes:
    """The value itself; ``TypeError`` if it is no ``bytes``, ``ValueTooLarge`` if it does not fit into the item."""
    check_bytes(value, f"a value for {what}")
    if len(value) > INLINE_BYTES:
        raise ValueTooLarge(
            f"a value for {what} has {len(value):,} bytes, an item of your own transaction holds {INLINE_BYTES:,}; "
            "put it with put(), or write it to a key of yours and put that key"
        )
    return value


def place_of(key: str, prefix: str) -> tuple[str, str] | None:
    """Shelf and id of a key below a prefix of items or claims; None for a key that is neither."""
    sort_key, _, item_id = key[len(prefix) + 1 :].partition("/")
    return (sort_key, item_id) if item_id and "/" not in item_id else None


def new_number() -> str:
    """A name for a large value, or a nonce."""
    return uuid.uuid4().hex


def other_letter(item_id: str) -> str:
    """A name for a dead letter whose item has the id of another letter."""
    return f"{item_id[:_KEPT_CHARS]}~{uuid.uuid4().hex[:8]}"


def sort_key_op(names: Names, partition: str, sort_key: str) -> Put:
    """The write that goes with every write of a new item: it keeps the sort_key in the index, or brings it there."""
    return Put(f"{names.sort_keys(partition)}/{sort_key}", b"")


def letter_op(names: Names, item: QueueItem, letter: str) -> Create:
    """The write that makes a dead letter of an item."""
    return Create(names.letter(letter), item.to_letter())


def _read(entry: Entry, item_id: str, partition: str, sort_key: str, letter: str = "") -> QueueItem:
    plain = _PLAIN.match(entry.value)
    if plain is not None and not letter:
        attempts, size, value = int(plain[1]), int(plain[2]), entry.value[plain.end() :]
        return QueueItem(item_id, attempts, "", size, "", value, partition, sort_key, "", entry.key, entry.version)
    try:
        body, value = split(entry.value)
        attempts, why = body.whole("attempts", least=0), body.text("why")
        size, number, nonce = body.whole("size"), _number(body.text("data")), body.text("nonce", "")
    except BadRecord as error:
        raise _no_item(entry, error) from None
    more = {name: each for name, each in body.body.items() if name not in _FIELDS}
    return QueueItem(
        item_id, attempts, why, size, number, value, partition, sort_key, letter, entry.key, entry.version, nonce, more
    )


def _number(text: str) -> str:
    if text and not _NUMBER.match(text):
        raise BadRecord(f"{short(text)} is no name of a value")
    return text


def _check_segment(text: str) -> str:
    try:
        return check_member(text, "item")
    except InvalidKey as error:
        raise BadRecord(str(error)) from None


def _no_item(entry: Entry, error: BadRecord) -> BadRecord:
    return BadRecord(f"key {entry.key!r} holds no item of a work queue ({error}); delete it")
