"""Which members a task is for. A target narrows who may run it; a picker only says who is asked first.

Nothing here does I/O.
"""

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
    """One member alone.

    Attributes:
        id: the member.
        otherwise: what becomes of the task when that member is not there, or leaves before it has run it: ``fail``
            with ``NoSuchMember``, ``any`` other member may run it, ``wait`` until a member of this id comes.
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
    """The member that owns a key: the same for all submitters, as long as nobody comes or goes.

    When a member comes or goes only the keys that it gets or had change their owner. When the owner is gone, or stays
    busy, another member may run the task: this is about caches, not about exclusion.

    Attributes:
        text: the key, any text.
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
    """Any member that has these labels: ``Label(zone="a", gpu="yes")``. The task waits while there is none.

    Attributes:
        labels: what a member has to have, all of it.
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
    """Each member that is there when the task is submitted, once each; the future has a dictionary by member."""

    def __str__(self) -> str:
        return "all members"


Target = Member | Key | Label | All


def owner_of(key: str, members: Iterable[GroupMember]) -> str | None:
    """The member that owns a key; members of weight 0 own none. None when there is nobody."""
    able = tuple((member.id, member.weight) for member in members if member.weight > 0)
    return hasher_of(able).owner(key) if able else None


@lru_cache(maxsize=16)
def hasher_of(able: tuple[tuple[str, float], ...]) -> RendezvousHasher:
    """The rendezvous hasher of members and weights: made once for each view."""
    return RendezvousHasher([member for member, _ in able], [weight for _, weight in able])


def candidates(target: Target | None, view: View) -> tuple[GroupMember, ...]:
    """The members of a view among which a task is placed, sorted by id; may be empty.

    Raises:
        NoSuchMember: the one that alone may run it is not there.
    """
    if isinstance(target, Member):
        found = view.member(target.id)
        if found is None and target.otherwise == "fail":
            there = ", ".join(view.ids[:10]) or "nobody"
            raise NoSuchMember(f"the task is for member {target.id!r} alone, which is not there; there: {there}")
        return () if found is None else (found,)
    if isinstance(target, Label):
        return tuple(member for member in view.members if has_labels(member, target.labels))
    return view.members


def has_labels(member: GroupMember, labels: Mapping[str, str]) -> bool:
    """Whether a member has all of these."""
    return all(member.labels.get(name) == value for name, value in labels.items())


class StoredTarget(Struct, frozen=True, omit_defaults=True):
    """A target as it is stored in an item, with one of these names; ``All`` is stored as the member of each item."""

    member: str | None = None
    otherwise: Otherwise = "fail"
    key: str | None = None
    labels: dict[str, str] | None = None

    def __post_init__(self) -> None:
        self.to_target()

    @classmethod
    def of(cls, target: Target | None) -> StoredTarget | None:
        """Return a target as it is stored; None for all members."""
        match target:
            case Member(member, otherwise):
                return cls(member, otherwise)
            case Key(text):
                return cls(key=text)
            case Label():
                return cls(labels=dict(target.labels))
        return None

    def to_target(self) -> Target:
        """Return the target.

        Raises:
            ValueError, TypeError: It is none.
        """
        if self.member is not None:
            return Member(self.member, self.otherwise)
        if self.labels is not None:
            return Label(**self.labels)
        return Key(self.key)  # type: ignore[arg-type]  # None is refused
