"""Members of a group, as they describe themselves and as they are stored. Pure functions and records, no I/O."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from latchwork.primitives.fair.tickets import read_body, write_body
from latchwork.primitives.waiting.common import check_least, check_text
from latchwork.records import Record
from latchwork.types import Entry

Body = Mapping[str, object]
Label = str | bytes

#: Bytes that one member may take in the store. Every view that it changes in is sent to everybody who follows them.
MAX_MEMBER_BYTES = 4_096
_BASE64 = "base64"


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
    def of(cls, member_id: str, body: Body, created: int = 0) -> GroupMember:
        """The member as it is stored; what cannot be read is left out."""
        record = Record(body)
        labels = {key: _read_label(stored) for key, stored in record.mapping("labels", {}).items()}
        return cls(
            member_id,
            record.number("weight", 1.0, least=0.0),
            {key: label for key, label in labels.items() if label is not None},
            record.text("address", ""),
            record.text("host", ""),
            record.whole("pid", 0),
            record.text("incarnation", ""),
            record.moment_s("joined_at", 0.0),
            record.moment_s("updated_at", 0.0),
            created,
        )

    @classmethod
    def at(cls, entry: Entry) -> GroupMember:
        """The member whose key this is. A record that nobody of ours can have written counts with its id alone."""
        body = read_body(entry.value) if len(entry.value) <= MAX_MEMBER_BYTES else {}
        return cls.of(member_id(entry.key), body, entry.created)

    def to_body(self) -> dict[str, object]:
        """What to store."""
        return {
            "weight": self.weight,
            "labels": {key: _write_label(label) for key, label in self.labels.items()},
            "address": self.address,
            "host": self.host,
            "pid": self.pid,
            "incarnation": self.incarnation,
            "joined_at": self.joined_at,
            "updated_at": self.updated_at,
        }

    def to_bytes(self) -> bytes:
        """The value of its key."""
        return write_body(self.to_body())


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


def _write_label(label: Label) -> object:
    return label if isinstance(label, str) else {_BASE64: base64.b64encode(label).decode()}


def _read_label(stored: object) -> Label | None:
    if isinstance(stored, str):
        return stored
    encoded = stored.get(_BASE64) if isinstance(stored, dict) else None
    try:
        return base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else None
    except (binascii.Error, ValueError):
        return None
