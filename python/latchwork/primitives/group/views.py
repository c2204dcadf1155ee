"""Members of a group as they describe themselves, and views of it: who is in it, numbered, in one order for all.

Pure records and functions, no I/O.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated

from msgspec import Meta, Struct

from latchwork._base.decoding import Decoder, Timestamp, Whole, encode
from latchwork.primitives.waiting.common import STAND_IN_S, check_least, check_text, delay_s
from latchwork.types import Entry

Label = str | bytes
#: Bytes that one member may take in the store. Every view that it changes in is sent to everybody who follows them.
MAX_MEMBER_BYTES = 4_096

__all__ = ["STAND_IN_S", "View", "ViewChange", "change", "delay_s", "difference"]
_by_id = attrgetter("id")
_by_age = attrgetter("created", "id")


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member, as it described itself.

    Attributes:
        id: unique in the group.
        weight: how much it can bear, for those who divide work.
        labels: whatever it says of itself, text or bytes by name.
        address: where it is reached.
        host: its machine.
        pid: its process.
        incarnation: changes each time it joins: a member that died and came back has another one.
        joined_at: when it joined, in Unix seconds by its own clock; 0 when it did not say.
        updated_at: when it last changed what it says of itself, likewise.
        created: a number that grows with each that joins the group: the lowest is the oldest member.
    """

    id: str
    weight: float = 1.0
    labels: Mapping[str, Label] = field(default_factory=dict, hash=False)
    address: str = ""
    host: str = ""
    pid: int = 0
    incarnation: str = ""
    joined_at: float = 0.0
    updated_at: float = 0.0
    created: int = 0

    @classmethod
    def at(cls, entry: Entry) -> GroupMember:
        """The member whose key this is. A record that nobody of ours can have written counts with its id alone."""
        return StoredMember.at(entry).member(member_id(entry.key), entry.created)

    def to_bytes(self) -> bytes:
        """The value of its key."""
        return encode(StoredMember.of(self))


class Base64(Struct, frozen=True):
    """A label that is bytes."""

    base64: bytes


class StoredMember(Struct, frozen=True):
    """A member as it is stored; see ``GroupMember``."""

    weight: Annotated[float, Meta(ge=0.0)] = 1.0
    labels: Mapping[str, str | Base64] = {}
    address: str = ""
    host: str = ""
    pid: Whole = 0
    incarnation: str = ""
    joined_at: Timestamp = 0.0
    updated_at: Timestamp = 0.0

    @classmethod
    def at(cls, entry: Entry) -> StoredMember:
        """Return what a key holds; the defaults if that is no member."""
        return (_MEMBER.find(entry.value) if len(entry.value) <= MAX_MEMBER_BYTES else None) or cls()

    @classmethod
    def of(cls, member: GroupMember) -> StoredMember:
        """Return a member as it is stored."""
        labels = {key: label if isinstance(label, str) else Base64(label) for key, label in member.labels.items()}
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

    def member(self, member_id: str, created: int) -> GroupMember:
        """Return the member of this id."""
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


class Evicted(Struct, frozen=True):
    """The mark of a member that was evicted.

    Attributes:
        incarnation: of the member.
        why: the reason that was given.
        at: when, in seconds since the epoch.
    """

    incarnation: str
    why: str = ""
    at: Timestamp = 0.0

    def to_bytes(self) -> bytes:
        """The value of its key."""
        return encode(self)

    @staticmethod
    def find(value: bytes) -> Evicted | None:
        """Return the mark in a value, or None if there is none."""
        return _EVICTED.find(value)


_MEMBER: Decoder[StoredMember] = Decoder(StoredMember, "a member of a group")


_EVICTED: Decoder[Evicted] = Decoder(Evicted, "the mark of an evicted member")


def member_id(key: str) -> str:
    """The id of the member whose key this is."""
    return key.rpartition("/")[2]


def check_member(member: GroupMember, what: str) -> GroupMember:
    """The member itself, if it can be stored.

    Raises:
        ValueError: its weight is negative or no finite number, or it takes too many bytes.
        TypeError: a label or the address is no text.
    """
    who = f"member {member.id!r} of {what}"
    if not math.isfinite(check_least(member.weight, "weight", 0.0)):
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
    """Who is in the group, at one place in the sequence of views that all see.

    Attributes:
        number: 0 for the empty group at the beginning, then one more for each view.
        members: sorted by id; may be empty.
    """

    number: int = 0
    members: tuple[GroupMember, ...] = ()

    def __contains__(self, member_id: object) -> bool:
        return isinstance(member_id, str) and self.member(member_id) is not None

    @property
    def ids(self) -> list[str]:
        """The ids of the members, sorted."""
        return [member.id for member in self.members]

    @property
    def by_age(self) -> list[GroupMember]:
        """The members, the oldest first."""
        return sorted(self.members, key=_by_age)

    def member(self, member_id: str) -> GroupMember | None:
        """The member of this id, or None."""
        place = bisect_left(self.members, member_id, key=_by_id)
        found = self.members[place] if place < len(self.members) else None
        return found if found is not None and found.id == member_id else None


@dataclass(frozen=True, slots=True)
class ViewChange:
    """A view, and how it differs from the one that was told before. All sorted by id.

    Attributes:
        view: the new view.
        joined: who is in it and was not, or is a new incarnation.
        left: who was in the one before and is not, or was an old incarnation.
        changed: who changed its attributes, as it is now.
        skipped: views in between that could not be told, because too many had passed; 0 as a rule.
    """

    view: View
    joined: tuple[GroupMember, ...]
    left: tuple[GroupMember, ...]
    changed: tuple[GroupMember, ...]
    skipped: int = 0


def change(view: View, old: Mapping[str, GroupMember], new: Mapping[str, GroupMember], skipped: int = 0) -> ViewChange:
    """What a view changed, from the members that may differ: as they were before it, and as they are in it."""

    def same(member: GroupMember, others: Mapping[str, GroupMember]) -> bool:
        other = others.get(member.id)
        return other is not None and other.incarnation == member.incarnation

    before, after = (sorted(members.values(), key=_by_id) for members in (old, new))
    return ViewChange(
        view,
        tuple(member for member in after if not same(member, old)),
        tuple(member for member in before if not same(member, new)),
        tuple(member for member in after if same(member, old) and member != old[member.id]),
        skipped,
    )


def difference(before: View, after: View) -> ViewChange:
    """What changed from one view to another."""
    old, new = ({member.id: member for member in view.members} for view in (before, after))
    return change(after, old, new, max(0, after.number - before.number - 1))
