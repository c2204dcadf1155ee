"""Views of a group: who is in it, numbered, in one order for all. Pure functions and records, no I/O.

A view log holds the newest view and the last steps that led to it, so that a slow reader still gets every view.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from latchwork.errors import LatchworkError
from latchwork.primitives.fair.tickets import read_body
from latchwork.primitives.waiting.common import check_least, check_text
from latchwork.store.watch import Batch
from latchwork.types import Entry

Body = Mapping[str, object]
#: Steps that are kept, and their size: a reader that is further behind skips views, and is told how many.
KEPT_STEPS, KEPT_BYTES = 100, 200_000
#: When a new view is due, each member writes it so much later than the next older one, up to so many times.
STAND_IN_S, MOST_RANKS = 0.15, 10


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member, as it described itself.

    Attributes:
        id: unique in the group.
        weight: how much it can bear, for those who divide work.
        labels: whatever it says of itself.
        address: where it is reached.
        host: its machine.
        pid: its process.
        incarnation: changes each time it joins: a member that died and came back has another one.
    """

    id: str
    weight: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    address: str = ""
    host: str = ""
    pid: int = 0
    incarnation: str = ""

    @classmethod
    def of(cls, member_id: str, body: Body) -> GroupMember:
        """The member as it is stored; what cannot be read is left out."""
        weight, labels, pid = body.get("weight"), body.get("labels"), body.get("pid")
        return cls(
            member_id,
            float(weight) if isinstance(weight, int | float) else 1.0,
            {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {},
            str(body.get("address", "")),
            str(body.get("host", "")),
            pid if isinstance(pid, int) else 0,
            str(body.get("incarnation", "")),
        )

    def to_body(self) -> dict[str, object]:
        """What to store."""
        return {
            "weight": self.weight,
            "labels": dict(self.labels),
            "address": self.address,
            "host": self.host,
            "pid": self.pid,
            "incarnation": self.incarnation,
        }


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
        return any(member.id == member_id for member in self.members)

    @property
    def ids(self) -> list[str]:
        """The ids of the members, sorted."""
        return [member.id for member in self.members]


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


def difference(before: View, after: View) -> ViewChange:
    """What changed from one view to a later one."""
    old = {member.id: member for member in before.members}
    new = {member.id: member for member in after.members}

    def same_life(member: GroupMember, others: Mapping[str, GroupMember]) -> bool:
        other = others.get(member.id)
        return other is not None and other.incarnation == member.incarnation

    return ViewChange(
        after,
        tuple(member for member in after.members if not same_life(member, old)),
        tuple(member for member in before.members if not same_life(member, new)),
        tuple(member for member in after.members if same_life(member, old) and member != old[member.id]),
        max(0, after.number - before.number - 1),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """From one view to the next: members written, members gone."""

    number: int
    written: Mapping[str, Body]
    gone: tuple[str, ...]

    def to_body(self) -> dict[str, object]:
        """What to store."""
        return {"number": self.number, "written": self.written, "gone": self.gone}


@dataclass(frozen=True, slots=True)
class ViewLog:
    """The newest view and the steps before it, the oldest first."""

    number: int = 0
    bodies: Mapping[str, Body] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    @classmethod
    def of(cls, entry: Entry | None) -> ViewLog:
        """What is stored.

        Raises:
            LatchworkError: it is no view log.
        """
        if entry is None:
            return cls()
        try:
            body = json.loads(entry.value)
            steps = tuple(Step(s["number"], s["written"], tuple(s["gone"])) for s in body["steps"])
            return cls(int(body["number"]), dict(body["members"]), steps)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LatchworkError(f"key {entry.key!r} holds something else than views; use another name") from error

    def to_bytes(self) -> bytes:
        """What to store."""
        steps = [step.to_body() for step in self.steps]
        return json.dumps({"number": self.number, "members": self.bodies, "steps": steps}).encode()

    def view(self) -> View:
        """The newest view."""
        return _view(self.number, self.bodies)

    def next(self, live: Mapping[str, Body]) -> ViewLog | None:
        """The log with the view of those who live; None when the newest view is that already."""
        written = {member: body for member, body in live.items() if self.bodies.get(member) != body}
        gone = tuple(sorted(set(self.bodies) - set(live)))
        if not written and not gone:
            return None
        step = Step(self.number + 1, written, gone)
        return ViewLog(step.number, dict(live), _trimmed((*self.steps, step)))

    def since(self, before: View) -> list[ViewChange]:
        """All views after the given one, in order; those that are not kept any more are skipped."""
        if before.number >= self.number:
            return []
        steps = [step for step in self.steps if step.number > before.number]
        if not steps or steps[0].number != before.number + 1:
            return [difference(before, self.view())]
        changes: list[ViewChange] = []
        bodies: dict[str, Body] = {member.id: member.to_body() for member in before.members}
        for step in steps:
            bodies = {member: body for member, body in bodies.items() if member not in step.gone}
            bodies.update(step.written)
            changes.append(difference(changes[-1].view if changes else before, _view(step.number, bodies)))
        return changes


class Seen:
    """The members and views as the watch tells them. One thread only."""

    def __init__(self, members_key: str, views_key: str) -> None:
        self.log = ViewLog()
        self.life = 0
        self.entries: dict[str, Entry] = {}
        self._members_key = members_key
        self._views_key = views_key

    def fold(self, batch: Batch) -> None:
        """Take changes in."""
        for change in batch:
            parent, _, member = change.key.rpartition("/")
            if change.key == self._views_key:
                self.log = ViewLog.of(change.entry)
                self.life = change.entry.created if change.entry is not None else self.life
            elif parent == self._members_key and change.entry is not None:
                self.entries[member] = change.entry
            elif parent == self._members_key:
                self.entries.pop(member, None)

    def live(self) -> dict[str, dict[str, object]]:
        """What the members say of themselves."""
        return {member: read_body(entry.value) for member, entry in self.entries.items()}

    def rank(self, member_id: str | None) -> int:
        """How many members are older; onlookers come last."""
        mine = self.entries.get(member_id) if member_id is not None else None
        if mine is None:
            return len(self.entries) + 1
        return sum(entry.created < mine.created for entry in self.entries.values())


def delay_s(rank: int) -> float:
    """Seconds to leave a new view to members of a lower rank; the oldest member has rank 0."""
    return STAND_IN_S * min(rank, MOST_RANKS)


def check_member_body(member: GroupMember) -> GroupMember:
    """The member itself; ``ValueError`` for a negative weight, ``TypeError`` for a label or address that is no text."""
    check_least(member.weight, "weight", 0.0)
    check_text(member.address, f"the address of member {member.id!r}")
    for key, value in member.labels.items():
        texts: tuple[object, object] = (key, value)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"label {key!r} of member {member.id!r} must be text, and so its value, not {value!r}")
    return member


def _view(number: int, bodies: Mapping[str, Body]) -> View:
    return View(number, tuple(GroupMember.of(member, bodies[member]) for member in sorted(bodies)))


def _trimmed(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The newest steps, as many as are kept, at least one."""
    kept: list[Step] = []
    size = 0
    for step in reversed(steps):
        size += len(json.dumps(step.to_body()))
        if kept and (len(kept) >= KEPT_STEPS or size > KEPT_BYTES):
            break
        kept.append(step)
    return tuple(reversed(kept))
