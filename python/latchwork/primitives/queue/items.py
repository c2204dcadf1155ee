"""The keys and values of a work queue. Does no I/O.

<name>/partitions/<partition>/sort_keys/<sort key>      empty, written by every put with that sort key: the index
<name>/partitions/<partition>/items/<sort key>/<id>     an item: a line of JSON, then the value if it is small
<name>/partitions/<partition>/holders/<id>              a consumer that has claims there, bound to its session; JSON
<name>/partitions/<partition>/removed/<holder>/<sort key>/<id>   an item was removed while it was claimed: its
consumer deletes this, or ``clean_index`` once the consumer has ended
<name>/data/<number>                                    the value of an item, if it is large
<name>/dead/<id>                                        an item that became a dead letter, and where it was
<name>/consumers/<partition>                            the tickets of waiting consumers, see ``tickets``
<name>/tail, <name>/capacity, <name>/producers          numbered and bounded puts, see ``ordered_puts``
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
from latchwork.primitives.waiting.arguments import check_bytes, check_member
from latchwork.types import Absent, At, Check, Create, Entry, Fence, Op, Put

if TYPE_CHECKING:
    from latchwork.store.session import Session

#: Values up to this size are kept in the item itself, and written again with each attempt.
INLINE_BYTES = 4096
#: The largest value that fits into a transaction with keys and the like.
MAX_VALUE_BYTES = 990_000
#: Characters kept of a reason.
MAX_WHY_CHARS = 1000
#: Characters kept of the ID of an item when another dead letter has that ID already.
_KEPT_CHARS = 100
#: A sort key that ``Queue`` makes: the priority, then a block of numbers.
_PRIORITY = re.compile(r"(\d)-\d{9}\Z")


class QueueKeys:
    """Builds the keys and key prefixes of one work queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.partitions = f"{name}/partitions"
        self.dead = f"{name}/dead"
        self.tail = f"{name}/tail"
        self.capacity_key = f"{name}/capacity"
        self.producers = f"{name}/producers"

    def partition_prefix(self, partition: str) -> str:
        """Return the prefix of all keys of a partition."""
        return f"{self.partitions}/{partition}"

    def sort_keys_prefix(self, partition: str) -> str:
        """Return the prefix of a partition's index, which has one key for each sort key."""
        return f"{self.partitions}/{partition}/sort_keys"

    def items_prefix(self, partition: str) -> str:
        """Return the prefix of the items of a partition."""
        return f"{self.partitions}/{partition}/items"

    def holders_prefix(self, partition: str) -> str:
        """Return the prefix of the claim holders of a partition."""
        return f"{self.partitions}/{partition}/holders"

    def holder_key(self, partition: str, holder: str) -> str:
        """Return the key of a claim holder. It is bound to the session of the consumer."""
        return f"{self.partitions}/{partition}/holders/{holder}"

    def item_key(self, partition: str, sort_key: str, item_id: str) -> str:
        """Return the key of an item."""
        return f"{self.partitions}/{partition}/items/{sort_key}/{item_id}"

    def removals_prefix(self, partition: str) -> str:
        """Return the prefix of the removal records of a partition, grouped by claim holder.

        A removal record says that an item was removed while it was claimed.
        """
        return f"{self.partitions}/{partition}/removed"

    def removed_key(self, item: QueueItem) -> str:
        """Return the key of an item's removal record, which tells the claim holder that the item was removed."""
        return f"{self.removals_prefix(item.partition)}/{item.holder}/{item.sort_key}/{item.id}"

    def build_free_checks(self, item: QueueItem) -> list[Check]:
        """Return the checks that an item is unchanged since it was read and that no client has claimed it."""
        holder = item.holder
        return [item.check, Absent(self.holder_key(item.partition, holder))] if holder else [item.check]

    def consumers_prefix(self, partition: str) -> str:
        """Return the prefix of the tickets of the clients that wait for items of a partition."""
        return f"{self.name}/consumers/{partition}"

    def dead_letter_key(self, dead_letter_id: str) -> str:
        """Return the key of a dead letter."""
        return f"{self.dead}/{dead_letter_id}"

    def data_key(self, data_id: str) -> str:
        """Return the key of a large value, which is stored separately from its item."""
        return f"{self.name}/data/{data_id}"


class ClaimHolder:
    """The key that holds all claims of one queue object in a partition. It exists as long as the session.

    Args:
        keys: Builds the keys of the queue.
        partition: The partition.
        session: The session to which the key is bound.

    Attributes:
        id: Its ID, which each claimed item names.
        key: Its key.
        session: The session to which the key is bound.
        exists: Whether the key was written.
        is_gone: Whether the key was deleted or its session has ended, so that it gets no more claims.
        fence: The check that the key and its session exist; None until a claim needs it.
    """

    __slots__ = ("exists", "fence", "id", "is_gone", "key", "session")

    def __init__(self, keys: QueueKeys, partition: str, session: Session) -> None:
        self.id = generate_holder_id()
        self.key = keys.holder_key(partition, self.id)
        self.session = session
        self.exists = self.is_gone = False
        self.fence: Fence | None = None

    def generate_claim_id(self) -> str:
        """Return a unique claim ID, which a transaction writes into the items that it takes.

        It consists of the ID of this holder and an ID of the transaction.
        """
        return f"{self.id}.{generate_holder_id()}"


class ItemHeader(Struct, frozen=True, omit_defaults=True):
    """The header of a stored item, before its value. The fields are those of ``QueueItem``.

    Only a dead letter has ``partition``, ``sort_key`` and ``id``: the position that the item had in the queue.
    """

    attempts: Count
    size: Whole
    why: str = ""
    data: Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")] = ""
    nonce: str = ""
    claim: Annotated[str, Meta(pattern=r"\A([0-9a-f]{16}\.[0-9a-f]{16})?\Z")] = ""
    failures: Count = 0
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
        data_id: Name of a large value; "" if the value is in the item.
        value: A small value; empty if it is stored separately.
        partition: The partition that contains it.
        sort_key: Its sort key in the partition.
        dead_letter_id: ID of a dead letter, for ``requeue`` and ``drop``; "" for other items.
        key: The key it was read from.
        version: The version of that key, as it was read.
        nonce: A unique text of the call that put it.
        claim: Its last claim: the ID of the holder, and an ID of the taking transaction; "" if it was released or never
            taken.
        failures: How often it was released with ``failed=True``.
        unknown_fields: Fields of a later version of the format, kept unchanged.
    """

    id: str
    attempts: int = 0
    why: str = ""
    size: int = 0
    data_id: str = ""
    value: bytes = b""
    partition: str = ""
    sort_key: str = ""
    dead_letter_id: str = ""
    key: str = ""
    version: Hashable = None
    nonce: str = ""
    claim: str = ""
    failures: int = 0
    unknown_fields: Mapping[str, object] = {}

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
        """The ID of the holder of its last claim; "" if there is none. The item is claimed as long as the holder's key
        exists.
        """
        return self.claim.partition(".")[0]

    @property
    def check(self) -> At:
        """A precondition for transactions: the item was not removed, taken or released since it was read."""
        return At.of(self.key, self.version)

    @classmethod
    def from_entry(cls, entry: Entry) -> QueueItem:
        """Decode the entry of an item.

        Raises:
            BadRecord: It is not an item.
        """
        partition, _, sort_key, item_id = entry.key.split("/")[-4:]
        return _decode_item(entry, (partition, sort_key, item_id))

    @classmethod
    def from_dead_letter(cls, entry: Entry) -> QueueItem:
        """Decode the entry of a dead letter.

        Raises:
            BadRecord: It is not a dead letter.
        """
        return _decode_item(entry, None, entry.key.rpartition("/")[2])

    def to_dead_letter(self) -> bytes:
        """Return the bytes to store for a dead letter of this item."""
        return self.to_bytes(self.partition, self.sort_key, self.id)

    def to_bytes(self, *position: str) -> bytes:
        """Return the bytes to store.

        Args:
            position: Only for a dead letter: the partition, the sort key and the ID that the item had in the queue.
        """
        head = ItemHeader(
            self.attempts, self.size, self.why, self.data_id, self.nonce, self.claim, self.failures, *position
        )
        fields = {**self.unknown_fields, **to_builtins(head)} if self.unknown_fields else head
        return encode(fields) + b"\n" + self.value

    def with_entry(self, entry: Entry) -> QueueItem:
        """Return a copy with the key and the version of the entry that now contains the item."""
        return replace(self, key=entry.key, version=entry.version)

    def with_claim(self, claim: str) -> QueueItem:
        """Return a copy with a claim and one more attempt."""
        return replace(self, attempts=self.attempts + 1, claim=claim)

    def with_reason(self, why: str) -> QueueItem:
        """Return a copy without a claim, and with the reason why it was released or became a dead letter."""
        return replace(self, why=why[:MAX_WHY_CHARS], claim="")

    def without_last_attempt(self) -> QueueItem:
        """Return a copy with one attempt less."""
        return replace(self, attempts=max(0, self.attempts - 1))

    def with_failure(self) -> QueueItem:
        """Return a copy with one more failure."""
        return replace(self, failures=self.failures + 1)

    def with_attempts_reset(self) -> QueueItem:
        """Return a copy with no attempts, no failures, no claim and no reason."""
        return replace(self, attempts=0, failures=0, why="", nonce="", claim="")


def build_put_ops(
    keys: QueueKeys, partition: str, sort_key: str, item_id: str, value: bytes, *, nonce: str = ""
) -> tuple[Create, list[Op]]:
    """Build the writes that put an item.

    Args:
        keys: Builds the keys of the queue.
        partition: The partition of the item.
        sort_key: The sort key of the item.
        item_id: The ID of the item.
        value: The value. A large one is stored separately.
        nonce: A unique text by which the item is recognized after an unknown outcome.
    Returns:
        The write that creates the item, and all writes: of the index, the item and a large value.
    """
    data_id = generate_id() if len(value) > INLINE_BYTES else ""
    item = QueueItem(item_id, size=len(value), data_id=data_id, value=b"" if data_id else value, nonce=nonce)
    create = Create(keys.item_key(partition, sort_key, item_id), item.to_bytes())
    data: list[Op] = [Create(keys.data_key(data_id), value)] if data_id else []
    return create, [build_index_put(keys, partition, sort_key), create, *data]


def build_index_put(keys: QueueKeys, partition: str, sort_key: str) -> Put:
    """Build the write that adds a sort key to the index of a partition. Include it whenever an item is added."""
    return Put(f"{keys.sort_keys_prefix(partition)}/{sort_key}", b"")


def build_dead_letter_put(keys: QueueKeys, item: QueueItem, dead_letter_id: str) -> Create:
    """Build the write that creates a dead letter from an item.

    Args:
        keys: Builds the keys of the queue.
        item: The item, with its reason.
        dead_letter_id: The ID of the dead letter.
    """
    return Create(keys.dead_letter_key(dead_letter_id), item.to_dead_letter())


def read_for_display(entry: Entry) -> QueueItem:
    """Decode an item or a dead letter for display. An invalid record gives an item with its first bytes and the
    error.
    """
    parts = entry.key.split("/")
    is_item = parts[-5:-4] == ["partitions"] and parts[-3] == "items"
    try:
        return QueueItem.from_entry(entry) if is_item else QueueItem.from_dead_letter(entry)
    except BadRecord as error:
        why, value = str(error)[:MAX_WHY_CHARS], entry.value[:MAX_VALUE_BYTES]
        item = QueueItem(parts[-1], why=why, size=len(entry.value), value=value).with_entry(entry)
        if is_item:
            return replace(item, partition=parts[-4], sort_key=parts[-2])
        return replace(item, dead_letter_id=parts[-1])


def check_item_name(partition: str, sort_key: str, item_id: str) -> None:
    """Check that the partition, the sort key and the ID of an item are valid key segments.

    Raises:
        InvalidKey: One of them is not valid.
    """
    for part, kind in ((partition, "partition"), (sort_key, "sort key"), (item_id, "item")):
        check_member(part, kind)


def check_payload(value: bytes, what: str) -> bytes:
    """Check the type and the size of a value, and return it.

    Args:
        value: The value to put.
        what: Name of the queue, for messages.
    Raises:
        TypeError: It is not ``bytes``.
        ValueTooLarge: It is too large for a queue.
    """
    check_bytes(value, f"a value for {what}")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueTooLarge(
            f"a value for {what} has {len(value):,} bytes, but the limit is {MAX_VALUE_BYTES:,}; "
            "store it under a key and put that key instead"
        )
    return value


def check_inline_value(value: bytes, what: str) -> bytes:
    """Check that a value is small enough to be stored in the item itself, and return it.

    Args:
        value: The value to put.
        what: Name of the queue, for messages.
    Raises:
        TypeError: It is not ``bytes``.
        ValueTooLarge: It must be stored separately.
    """
    check_bytes(value, f"a value for {what}")
    if len(value) > INLINE_BYTES:
        raise ValueTooLarge(
            f"a value for {what} has {len(value):,} bytes, but an item in your own transaction "
            f"holds at most {INLINE_BYTES:,}; "
            "put it with put(), or write it to a key of yours and put that key"
        )
    return value


def split_item_key(key: str, prefix: str) -> tuple[str, str] | None:
    """Return the sort key and the ID in the key of an item. None if it is not the key of an item.

    Args:
        key: The key.
        prefix: The prefix of all items of the partition.
    """
    sort_key, _, item_id = key[len(prefix) + 1 :].partition("/")
    return (sort_key, item_id) if item_id and "/" not in item_id else None


def get_last_segment(entry: Entry) -> str:
    """Return the last segment of an entry's key."""
    return entry.key[entry.key.rindex("/") + 1 :]


def get_holder_id(entry: Entry) -> str:
    """Return the ID of the claim holder that a stored item names; "" if it names none or is not an item."""
    found = _CLAIM.find(entry.value.partition(b"\n")[0])
    return found.claim.partition(".")[0] if found is not None else ""


def generate_holder_id() -> str:
    """Return a new ID for a claim holder, or for a transaction that takes items."""
    return uuid.uuid4().hex[:16]


def generate_id() -> str:
    """Return a new name for a large value, or a new nonce for an item."""
    return uuid.uuid4().hex


def generate_dead_letter_id(item_id: str) -> str:
    """Return a new ID for a dead letter, for the case that another dead letter has the ID of the item."""
    return f"{item_id[:_KEPT_CHARS]}~{uuid.uuid4().hex[:8]}"


def _decode_item(entry: Entry, position: tuple[str, str, str] | None, dead_letter_id: str = "") -> QueueItem:
    """Decode an item or a dead letter.

    Args:
        entry: The entry.
        position: Partition, sort key and ID of an item, from its key. None for a dead letter, which contains them.
        dead_letter_id: ID of a dead letter; "" for an item.
    """
    line, _, value = entry.value.partition(b"\n")
    try:
        body = _HEAD.decode(line)
        head = convert(body, ItemHeader)
        partition, sort_key, item_id = position or _get_checked_position(head)
    except ValueError as error:  # BadRecord and InvalidKey are such
        raise BadRecord(f"key {entry.key!r} does not contain an item of a work queue ({error}); delete it") from None
    unknown_fields = {name: body[name] for name in body.keys() - _FIELDS}
    return QueueItem(
        item_id,
        head.attempts,
        head.why,
        head.size,
        head.data,
        value,
        partition,
        sort_key,
        dead_letter_id,
        entry.key,
        entry.version,
        head.nonce,
        head.claim,
        head.failures,
        unknown_fields,
    )


def _get_checked_position(head: ItemHeader) -> tuple[str, str, str]:
    """Return the partition, the sort key and the ID in the header of a dead letter, if they are valid.

    Raises:
        InvalidKey: One of them is not valid.
    """
    position = head.partition, head.sort_key, head.id
    check_item_name(*position)
    return position
