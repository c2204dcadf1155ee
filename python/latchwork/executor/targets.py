"""Targets: which members may run a task. A picker, in contrast, only states a preference. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from latchwork.assignment import RendezvousHasher
from latchwork.executor.errors import NoSuchMember
from latchwork.executor.keys import check_member_id
from latchwork.primitives import GroupMember, View

Otherwise = Literal["fail", "any", "wait"]
_OTHERWISE: tuple[Otherwise, ...] = ("fail", "any", "wait")


@dataclass(frozen=True, slots=True)
class Member:
    """A target that allows one member.

    Attributes:
        id: Its member ID.
        otherwise: What happens if that member is missing or leaves before it runs the task: ``fail`` with
            ``NoSuchMember``, let ``any`` other member run it, or ``wait`` for a member with this ID.
    """

    id: str
    otherwise: Otherwise = "fail"

    def __post_init__(self) -> None:
        check_member_id(self.id)
        if self.otherwise not in _OTHERWISE:
            raise ValueError(f"otherwise must be one of {', '.join(_OTHERWISE)}, not {self.otherwise!r}")

    def __str__(self) -> str:
        return f"member {self.id!r}"


@dataclass(frozen=True, slots=True)
class Key:
    """A target that allows the member that owns a key. All submitters compute the same owner from the same members.

    When a member joins or leaves, only the keys that it gains or loses change owner. If the owner is gone or stays
    busy, another member may run the task. Use it for caches, not for exclusion.

    Attributes:
        text: The key, any text.
    """

    text: str

    def __post_init__(self) -> None:
        given: object = self.text
        if not isinstance(given, str):
            raise TypeError(f"a key must be text, not {self.text!r}")

    def __str__(self) -> str:
        return f"the owner of key {self.text!r}"


@dataclass(frozen=True, slots=True, init=False)
class Label:
    """A target that allows the members with these labels: ``Label(zone="a", gpu="yes")``. Without such a member, the
    task waits.

    Attributes:
        labels: Labels that a member must have, all of them.
    """

    labels: Mapping[str, str] = field(hash=False)

    def __init__(self, **labels: str) -> None:
        if not labels or not all(isinstance(value, str) for value in labels.values()):
            raise TypeError(f"labels must be text by name, at least one: Label(zone='a'), not {labels!r}")
        object.__setattr__(self, "labels", dict(labels))

    def __str__(self) -> str:
        return "a member with " + ", ".join(f"{name}={value}" for name, value in sorted(self.labels.items()))


@dataclass(frozen=True, slots=True)
class All:
    """A target that runs the task once on each current member. The future's result is a dictionary by member."""

    def __str__(self) -> str:
        return "all members"


Target = Member | Key | Label | All


def find_key_owner(key: str, members: Iterable[GroupMember]) -> str | None:
    """Return the ID of the member that owns a key. None if there is none. Members of weight 0 own no keys."""
    able = tuple((member.id, member.weight) for member in members if member.weight > 0)
    return rendezvous_hasher(able).owner(key) if able else None


@lru_cache(maxsize=16)
def rendezvous_hasher(able: tuple[tuple[str, float], ...]) -> RendezvousHasher:
    """Return a cached rendezvous hasher for members.

    Args:
        able: IDs and weights of the members.
    """
    return RendezvousHasher([member for member, _ in able], [weight for _, weight in able])


def eligible_members(target: Target | None, view: View) -> tuple[GroupMember, ...]:
    """Return the members that may run a task, sorted by ID. May be empty.

    Args:
        target: Target of the task; None allows all members.
        view: The current members.
    Raises:
        NoSuchMember: The only member that may run it is missing.
    """
    if isinstance(target, Member):
        found = view.member(target.id)
        if found is None and target.otherwise == "fail":
            there = ", ".join(view.ids[:10]) or "nobody"
            raise NoSuchMember(f"the task is for member {target.id!r}, which is not online; online: {there}")
        return () if found is None else (found,)
    if isinstance(target, Label):
        return tuple(member for member in view.members if has_labels(member, target.labels))
    return view.members


def has_labels(member: GroupMember, labels: Mapping[str, str]) -> bool:
    """Return whether a member has all of these labels."""
    return all(member.labels.get(name) == value for name, value in labels.items())


class StoredTarget(Struct, frozen=True, omit_defaults=True):
    """The stored form of a target. Only the fields of one kind of target are set. ``All`` is stored as one ``Member``
    per item.
    """

    member: str | None = None
    otherwise: Otherwise = "fail"
    key: str | None = None
    labels: dict[str, str] | None = None

    def __post_init__(self) -> None:
        self.to_target()

    @classmethod
    def from_target(cls, target: Target | None) -> StoredTarget | None:
        """Convert a target into its stored form. None stands for all members."""
        match target:
            case Member(member, otherwise):
                return cls(member, otherwise)
            case Key(text):
                return cls(key=text)
            case Label():
                return cls(labels=dict(target.labels))
        return None

    def to_target(self) -> Target:
        """Convert the stored form into a target.

        Raises:
            ValueError, TypeError: The stored target is invalid.
        """
        if self.member is not None:
            return Member(self.member, self.otherwise)
        if self.labels is not None:
            return Label(**self.labels)
        return Key(self.key)  # type: ignore[arg-type]  # None is refused
