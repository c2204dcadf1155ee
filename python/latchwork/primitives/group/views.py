"""Members of a group, their stored records, and numbered views. No I/O."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated

from msgspec import Meta, Struct

from latchwork._base.decoding import Decoder, Record, Timestamp, Whole, encode
from latchwork.primitives.waiting.arguments import check_minimum, check_text
from latchwork.types import Entry

Label = str | bytes
#: Maximum size of one stored member in bytes. Each of its changes is sent to all processes that observe the views.
MAX_MEMBER_BYTES = 4_096

_by_id = attrgetter("id")
_by_age = attrgetter("created", "id")


class GroupMember(Struct, frozen=True):
    """A member of a group, as it described itself.

    Attributes:
        id: Unique in the group.
        weight: Its capacity, for dividing work.
        labels: Any text or bytes by name.
        address: Its address.
        host: The host name of its process.
        pid: The process ID.
        incarnation: A unique text that is new each time it joins. A member that died and returned has another one.
        joined_at: When it joined, in Unix seconds on its own clock; 0 if unknown.
        updated_at: When it last changed its attributes, in Unix seconds on its own clock; 0 if unknown.
        created: A number that grows with each join: the oldest member has the lowest one.
    """

    id: str
    weight: float = 1.0
    labels: Mapping[str, Label] = {}
    address: str = ""
    host: str = ""
    pid: int = 0
    incarnation: str = ""
    joined_at: float = 0.0
    updated_at: float = 0.0
    created: int = 0

    def __hash__(self) -> int:
        return hash((self.id, self.incarnation, self.updated_at))

    @classmethod
    def from_entry(cls, entry: Entry) -> GroupMember:
        """Decode the stored record of a member. If the record is invalid, the result has only the ID."""
        return StoredMember.from_entry(entry).to_member(parse_member_id(entry.key), entry.created)

    def to_bytes(self) -> bytes:
        """Encode this member as bytes for the store."""
        return encode(StoredMember.from_member(self))


class BytesLabel(Struct, frozen=True):
    """A label whose value is bytes, as it is stored."""

    base64: bytes


class StoredMember(Struct, frozen=True):
    """The stored record of a member. The fields are those of ``GroupMember``."""

    weight: Annotated[float, Meta(ge=0.0)] = 1.0
    labels: Mapping[str, str | BytesLabel] = {}
    address: str = ""
    host: str = ""
    pid: Whole = 0
    incarnation: str = ""
    joined_at: Timestamp = 0.0
    updated_at: Timestamp = 0.0

    @classmethod
    def from_entry(cls, entry: Entry) -> StoredMember:
        """Decode the stored record of a member. If the record is invalid, the result has default values."""
        return (_MEMBER.find(entry.value) if len(entry.value) <= MAX_MEMBER_BYTES else None) or cls()

    @classmethod
    def from_member(cls, member: GroupMember) -> StoredMember:
        """Return the record to store for a member."""
        labels = {key: label if isinstance(label, str) else BytesLabel(label) for key, label in member.labels.items()}
        return cls(
            member.weight,
            labels,
            member.address,
            member.host,
            member.pid,
            member.incarnation,
            member.joined_at,
            member.updated_at,
        )

    def to_member(self, member_id: str, created: int) -> GroupMember:
        """Return the group member that the record describes.

        Args:
            member_id: ID of the member.
            created: The token of the write with which it joined.
        """
        labels = {key: label if isinstance(label, str) else label.base64 for key, label in self.labels.items()}
        return GroupMember(
            member_id,
            self.weight,
            labels,
            self.address,
            self.host,
            self.pid,
            self.incarnation,
            self.joined_at,
            self.updated_at,
            created,
        )


class EvictionRecord(Record, frozen=True):
    """The stored record of an eviction, which keeps the member from joining again by itself.

    Attributes:
        incarnation: The incarnation of the evicted member.
        why: The reason.
        at: Seconds since the epoch.
    """

    incarnation: str
    why: str = ""
    at: Timestamp = 0.0

    @staticmethod
    def find(value: bytes) -> EvictionRecord | None:
        """Decode the stored record of an eviction. Return None if it is invalid."""
        return _EVICTED.find(value)


_MEMBER: Decoder[StoredMember] = Decoder(StoredMember, "a member of a group")


_EVICTED: Decoder[EvictionRecord] = Decoder(EvictionRecord, "the eviction of a member")


def parse_member_id(key: str) -> str:
    """Return the ID of the member with this key."""
    return key.rpartition("/")[2]


def check_member(member: GroupMember, what: str) -> GroupMember:
    """Check that a member can be stored, and return it.

    Args:
        member: The member.
        what: Name of the group, for messages.
    Raises:
        ValueError: Its weight is negative or not finite, or its record is too large.
        TypeError: A label or the address is not text.
    """
    who = f"member {member.id!r} of {what}"
    if not math.isfinite(check_minimum(member.weight, "weight", 0.0)):
        raise ValueError(f"weight must be finite, not {member.weight!r}")
    check_text(member.address, f"the address of member {member.id!r}")
    for key, value in member.labels.items():
        name: object = key
        given: object = value
        if not isinstance(name, str) or not isinstance(given, (str, bytes)):
            raise TypeError(
                f"label {key!r} of member {member.id!r} must be text, and its value text or bytes, not {value!r}"
            )
    size = len(member.to_bytes())
    if size > MAX_MEMBER_BYTES:
        raise ValueError(
            f"{who} takes {size:,} bytes with its labels and address, at most {MAX_MEMBER_BYTES:,} are kept: "
            "store what is larger under a key of its own, and name that key in a label"
        )
    return member


@dataclass(frozen=True, slots=True)
class View:
    """The members of a group at one position in the sequence of views, which is the same for all observers.

    Attributes:
        number: 0 for the empty group at the beginning, then one more per view.
        members: The members, sorted by ID.
    """

    number: int = 0
    members: tuple[GroupMember, ...] = ()

    def __contains__(self, member_id: object) -> bool:
        return isinstance(member_id, str) and self.member(member_id) is not None

    @property
    def ids(self) -> list[str]:
        """The IDs of the members, sorted."""
        return [member.id for member in self.members]

    @property
    def by_age(self) -> list[GroupMember]:
        """The members sorted by the time of joining, the oldest first."""
        return sorted(self.members, key=_by_age)

    def member(self, member_id: str) -> GroupMember | None:
        """Return the member with this ID, or None."""
        position = bisect_left(self.members, member_id, key=_by_id)
        found = self.members[position] if position < len(self.members) else None
        return found if found is not None and found.id == member_id else None


@dataclass(frozen=True, slots=True)
class ViewChange:
    """A view, and its differences from the previously reported one. All tuples are sorted by ID.

    Attributes:
        view: The new view.
        joined: Members that were not in the previous view, or are a new incarnation.
        left: Members that are no longer in the view, or were an old incarnation.
        changed: Members with changed attributes, as they are now.
        skipped: The number of views in between that could not be reported; usually 0.
    """

    view: View
    joined: tuple[GroupMember, ...]
    left: tuple[GroupMember, ...]
    changed: tuple[GroupMember, ...]
    skipped: int = 0


def build_change(
    view: View, old: Mapping[str, GroupMember], new: Mapping[str, GroupMember], skipped: int = 0
) -> ViewChange:
    """Build the differences between a view and the previous one.

    Args:
        view: The new view.
        old: The members that may differ, by ID, as they were before.
        new: The members that may differ, by ID, as they are now.
        skipped: The number of views in between.
    """

    def is_same_incarnation(member: GroupMember, others: Mapping[str, GroupMember]) -> bool:
        other = others.get(member.id)
        return other is not None and other.incarnation == member.incarnation

    before, after = (sorted(members.values(), key=_by_id) for members in (old, new))
    return ViewChange(
        view,
        tuple(member for member in after if not is_same_incarnation(member, old)),
        tuple(member for member in before if not is_same_incarnation(member, new)),
        tuple(member for member in after if is_same_incarnation(member, old) and member != old[member.id]),
        skipped,
    )


def compare_views(before: View, after: View) -> ViewChange:
    """Return the differences between two views."""
    old, new = ({member.id: member for member in view.members} for view in (before, after))
    return build_change(after, old, new, max(0, after.number - before.number - 1))
