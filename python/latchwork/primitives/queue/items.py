"""The keys and values of a work queue. Does no I/O.

<name>/partitions/<partition>/sort_keys/<sort key>      empty, written by every put with that sort key: the index
<name>/partitions/<partition>/items/<sort key>/<id>     an item: a line of JSON, then the value if it is small
<name>/partitions/<partition>/holders/<id>              a taker that has claims there, bound to its session; JSON
<name>/partitions/<partition>/removed/<holder>/<sort key>/<id>   an item was removed while it was claimed: its
holder deletes this, or ``tidy`` once that is gone
<name>/data/<number>                                    the value of an item, if it is large
<name>/dead/<letter>                                    an item that became a dead letter, and where it was
<name>/takers/<partition>                               the tickets of waiting takers, see ``tickets``
<name>/tail, <name>/room, <name>/putters                numbered and bounded puts, see ``puts``
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, convert, to_builtins
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Whole, encode
from latchwork.errors import BadRecord, ValueTooLarge
from latchwork.primitives.waiting.common import check_bytes
from latchwork.primitives.waiting.waits import check_member
from latchwork.types import Absent, At, Check, Create, Entry, Op, Put

if TYPE_CHECKING:
    from latchwork.store.session import Session

#: Values up to this size are kept in the item itself, and written again with each attempt.
INLINE_BYTES = 4096
#: The largest value that fits into a transaction with keys and the like.
MAX_VALUE_BYTES = 990_000
#: Characters kept of a reason.
MAX_WHY_CHARS = 1000
#: Characters kept of a letter's name when another letter has that name already.
_KEPT_CHARS = 100
#: A sort key that ``Queue`` makes: the priority, then a block of numbers.
_PRIORITY = re.compile(r"(\d)-\d{9}\Z")


class QueueKeys:
    """The keys of one work queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.partitions = f"{name}/partitions"
        self.dead = f"{name}/dead"
        self.tail = f"{name}/tail"
        self.capacity_key = f"{name}/room"
        self.putters = f"{name}/putters"

    def partition(self, partition: str) -> str:
        """Return the prefix of a partition: its index, items, holders and removed items."""
        return f"{self.partitions}/{partition}"

    def sort_keys(self, partition: str) -> str:
        """Return the prefix of the index of a partition's sort keys."""
        return f"{self.partitions}/{partition}/sort_keys"

    def items(self, partition: str) -> str:
        """Return the prefix of the items of a partition."""
        return f"{self.partitions}/{partition}/items"

    def holders(self, partition: str) -> str:
        """Return the prefix of the holders of claims in a partition."""
        return f"{self.partitions}/{partition}/holders"

    def holder(self, partition: str, holder: str) -> str:
        """Return the key of a holder of claims."""
        return f"{self.partitions}/{partition}/holders/{holder}"

    def item(self, partition: str, sort_key: str, item_id: str) -> str:
        """Return the key of an item."""
        return f"{self.partitions}/{partition}/items/{sort_key}/{item_id}"

    def removals(self, partition: str) -> str:
        """Return the prefix of the keys of items that were removed while they were claimed, by holder."""
        return f"{self.partitions}/{partition}/removed"

    def removed(self, item: QueueItem) -> str:
        """Return the key by which the holder of an item's claim learns that the item was removed."""
        return f"{self.removals(item.partition)}/{item.holder}/{item.sort_key}/{item.id}"

    def free_checks(self, item: QueueItem) -> list[Check]:
        """Return the checks that an item is as it was read, and has no claim, or one whose holder is gone."""
        holder = item.holder
        return [item.check, Absent(self.holder(item.partition, holder))] if holder else [item.check]

    def takers(self, partition: str) -> str:
        """Return the prefix of the tickets of the takers that wait for a partition."""
        return f"{self.name}/takers/{partition}"

    def letter(self, letter: str) -> str:
        """Return the key of a dead letter."""
        return f"{self.dead}/{letter}"

    def data(self, data_id: str) -> str:
        """Return the key of a large value."""
        return f"{self.name}/data/{data_id}"


class ClaimHolder:
    """The holder of all claims of one queue object in a partition, while a session lasts.

    Attributes:
        id: Its ID, as stored in the items that it has claimed.
        key: Its key.
        session: The session that it is bound to.
        exists: Whether its key was written.
        is_gone: Whether its key was deleted or its session has ended, so that it gets no more claims.
    """

    __slots__ = ("exists", "id", "is_gone", "key", "session")

    def __init__(self, names: QueueKeys, partition: str, session: Session) -> None:
        self.id = new_holder_id()
        self.key = names.holder(partition, self.id)
        self.session = session
        self.exists = self.is_gone = False

    def new_claim(self) -> str:
        """Return the text that a take writes into its items: the ID of the holder and one of the take."""
        return f"{self.id}.{new_holder_id()}"


class ItemHeader(Struct, frozen=True, omit_defaults=True):
    """The header of a stored item, see ``QueueItem``. In a dead letter it also has the item's old position."""

    attempts: Count
    size: Whole
    why: str = ""
    data: Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")] = ""
    nonce: str = ""
    claim: Annotated[str, Meta(pattern=r"\A([0-9a-f]{16}\.[0-9a-f]{16})?\Z")] = ""
    partition: str = ""
    sort_key: str = ""
    id: str = ""


class _ClaimOnly(Struct):
    claim: str = ""


_FIELDS = frozenset(ItemHeader.__struct_fields__)
_HEAD: Decoder[dict[str, Any]] = Decoder(dict[str, Any], "an item of a work queue")
_CLAIM: Decoder[_ClaimOnly] = Decoder(_ClaimOnly)


class QueueItem(Struct, frozen=True):
    """One item of a queue, as it was read.

    Attributes:
        id: Unique under its sort key; in a ``Queue`` unique in the queue.
        attempts: How often it was taken.
        why: The reason of the last release, or of the dead letter.
        size: Size of its value in bytes.
        data_id: Name of a large value; empty when the value is in the item.
        value: A small value; empty when it is stored separately.
        partition: The partition that it is in.
        sort_key: Its sort key there.
        letter: Name of a dead letter, for ``requeue`` and ``drop``; empty for other items.
        key: The key it was read from.
        version: The version of that key, as it was read.
        nonce: Identifies its put.
        claim: Its last claim: the holder, and the take; empty if it was released since then, or never taken.
        more: Fields of a later version of the format, kept as they are.
    """

    id: str
    attempts: int = 0
    why: str = ""
    size: int = 0
    data_id: str = ""
    value: bytes = b""
    partition: str = ""
    sort_key: str = ""
    letter: str = ""
    key: str = ""
    version: Hashable = None
    nonce: str = ""
    claim: str = ""
    more: Mapping[str, object] = {}

    def __repr__(self) -> str:
        return f"<QueueItem {self.path!r}, attempts {self.attempts}>"

    @property
    def path(self) -> str:
        """Partition, sort key and ID of the item, joined by slashes: its name in the queue, and in messages."""
        return f"{self.partition}/{self.sort_key}/{self.id}"

    @property
    def priority(self) -> int | None:
        """The priority in a ``Queue``, 0 (first) to 9 (last); None for an item of a ``WorkQueue``."""
        found = _PRIORITY.match(self.sort_key)
        return int(found[1]) if found is not None else None

    @property
    def holder(self) -> str:
        """ID of the holder of its last claim; empty if there is none. The item is claimed while the holder's key
        exists.
        """
        return self.claim.partition(".")[0]

    @property
    def check(self) -> At:
        """The check that the item is as it was read: not removed, taken or released since then."""
        return At.of(self.key, self.version)

    @classmethod
    def from_entry(cls, entry: Entry) -> QueueItem:
        """Decode the entry of an item.

        Raises:
            BadRecord: It is not an item.
        """
        partition, _, sort_key, item_id = entry.key.split("/")[-4:]
        return _read(entry, (partition, sort_key, item_id))

    @classmethod
    def from_dead_letter(cls, entry: Entry) -> QueueItem:
        """Decode the entry of a dead letter.

        Raises:
            BadRecord: It is not a dead letter.
        """
        letter = entry.key.rpartition("/")[2]
        return _read(entry, None, letter)

    def to_dead_letter(self) -> bytes:
        """Encode the item as a dead letter."""
        return self.to_bytes(self.partition, self.sort_key, self.id)

    def to_bytes(self, *position: str) -> bytes:
        """Encode the item. A dead letter is encoded with its old position."""
        head = ItemHeader(self.attempts, self.size, self.why, self.data_id, self.nonce, self.claim, *position)
        return encode({**self.more, **to_builtins(head)} if self.more else head) + b"\n" + self.value

    def with_entry(self, entry: Entry) -> QueueItem:
        """Return the item with the key and the version of an entry that contains it."""
        return replace(self, key=entry.key, version=entry.version)

    def with_claim(self, claim: str) -> QueueItem:
        """Return the item with one more attempt, and a claim."""
        return replace(self, attempts=self.attempts + 1, claim=claim)

    def with_reason(self, why: str) -> QueueItem:
        """Return the item without a claim, and with the reason of its release or dead letter."""
        return replace(self, why=why[:MAX_WHY_CHARS], claim="")

    def without_last_attempt(self) -> QueueItem:
        """Return the item with one attempt less."""
        return replace(self, attempts=max(0, self.attempts - 1))

    def with_attempts_reset(self) -> QueueItem:
        """Return the item without a claim and a reason, and with all its attempts left."""
        return replace(self, attempts=0, why="", nonce="", claim="")


def put_ops(
    names: QueueKeys, partition: str, sort_key: str, item_id: str, value: bytes, *, nonce: str = ""
) -> tuple[Create, list[Op]]:
    """Return the write that creates an item, and all writes of its put: index, item, and its value if that is large."""
    data_id = new_id() if len(value) > INLINE_BYTES else ""
    item = QueueItem(item_id, size=len(value), data_id=data_id, value=b"" if data_id else value, nonce=nonce)
    create = Create(names.item(partition, sort_key, item_id), item.to_bytes())
    data: list[Op] = [Create(names.data(data_id), value)] if data_id else []
    return create, [index_op(names, partition, sort_key), create, *data]


def index_op(names: QueueKeys, partition: str, sort_key: str) -> Put:
    """Return the write that adds a sort key to the index or keeps it there. It goes with every write of a new item."""
    return Put(f"{names.sort_keys(partition)}/{sort_key}", b"")


def dead_letter_op(names: QueueKeys, item: QueueItem, letter: str) -> Create:
    """Return the write that creates a dead letter from an item."""
    return Create(names.letter(letter), item.to_dead_letter())


def read_for_display(entry: Entry) -> QueueItem:
    """Decode an item or a dead letter for display. If it is neither, return its first bytes and the reason."""
    parts = entry.key.split("/")
    is_item = parts[-5:-4] == ["partitions"] and parts[-3] == "items"
    try:
        return QueueItem.from_entry(entry) if is_item else QueueItem.from_dead_letter(entry)
    except BadRecord as error:
        why, value = str(error)[:MAX_WHY_CHARS], entry.value[:MAX_VALUE_BYTES]
        found = QueueItem(parts[-1], why=why, size=len(entry.value), value=value).with_entry(entry)
        return replace(found, partition=parts[-4], sort_key=parts[-2]) if is_item else replace(found, letter=parts[-1])


def check_item_name(partition: str, sort_key: str, item_id: str) -> None:
    """Check that partition, sort key and ID of an item can be segments of a key.

    Raises:
        InvalidKey: One of them cannot.
    """
    for part, kind in ((partition, "partition"), (sort_key, "sort key"), (item_id, "item")):
        check_member(part, kind)


def check_payload(value: bytes, what: str) -> bytes:
    """Return a value after checking its type and its size.

    Raises:
        TypeError: It is not ``bytes``.
        ValueTooLarge: It is too large for a queue.
    """
    check_bytes(value, f"a value for {what}")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueTooLarge(
            f"a value for {what} has {len(value):,} bytes, the limit is {MAX_VALUE_BYTES:,}; put a key of it instead"
        )
    return value


def check_inline(value: bytes, what: str) -> bytes:
    """Return a value after checking that it can be stored in the item itself.

    Raises:
        TypeError: It is not ``bytes``.
        ValueTooLarge: It is too large for that.
    """
    check_bytes(value, f"a value for {what}")
    if len(value) > INLINE_BYTES:
        raise ValueTooLarge(
            f"a value for {what} has {len(value):,} bytes, an item of your own transaction holds {INLINE_BYTES:,}; "
            "put it with put(), or write it to a key of yours and put that key"
        )
    return value


def split_item_key(key: str, prefix: str) -> tuple[str, str] | None:
    """Return the sort key and the ID of an item's key; None if it is not the key of an item below this prefix."""
    sort_key, _, item_id = key[len(prefix) + 1 :].partition("/")
    return (sort_key, item_id) if item_id and "/" not in item_id else None


def last_segment(entry: Entry) -> str:
    """Return the last segment of an entry's key."""
    return entry.key[entry.key.rindex("/") + 1 :]


def stored_holder(entry: Entry) -> str:
    """Return the holder ID of the last claim of a stored item; empty if there is none, or if it is not an item."""
    found = _CLAIM.find(entry.value.partition(b"\n")[0])
    return found.claim.partition(".")[0] if found is not None else ""


def new_holder_id() -> str:
    """Return a new ID for a holder, or for a take."""
    return uuid.uuid4().hex[:16]


def new_id() -> str:
    """Return a new name for a large value, or a new nonce for a put."""
    return uuid.uuid4().hex


def alternative_dead_letter_id(item_id: str) -> str:
    """Return another ID for a dead letter, because there is already one with the item's ID."""
    return f"{item_id[:_KEPT_CHARS]}~{uuid.uuid4().hex[:8]}"


def _read(entry: Entry, position: tuple[str, str, str] | None, letter: str = "") -> QueueItem:
    """Decode an item, or a dead letter, which contains the position that the item had."""
    line, _, value = entry.value.partition(b"\n")
    try:
        body = _HEAD.decode(line)
        head = convert(body, ItemHeader)
        partition, sort_key, item_id = position or _checked(head)
    except ValueError as error:  # BadRecord and InvalidKey are such
        raise BadRecord(f"key {entry.key!r} holds no item of a work queue ({error}); delete it") from None
    more = {name: body[name] for name in body.keys() - _FIELDS}
    return QueueItem(
        item_id,
        head.attempts,
        head.why,
        head.size,
        head.data,
        value,
        partition,
        sort_key,
        letter,
        entry.key,
        entry.version,
        head.nonce,
        head.claim,
        more,
    )


def _checked(head: ItemHeader) -> tuple[str, str, str]:
    position = head.partition, head.sort_key, head.id
    check_item_name(*position)
    return position
