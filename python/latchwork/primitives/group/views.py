"""Views of a group: who is in it, numbered, in one order for all. Pure records, no I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from latchwork.primitives.group.members import GroupMember
from latchwork.primitives.waiting.common import STAND_IN_S, delay_s

__all__ = ["STAND_IN_S", "View", "ViewChange", "change", "delay_s", "difference"]

_by_id = attrgetter("id")
_by_age = attrgetter("created", "id")


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
