"""The log of a group's views, as it is stored: a head, steps from view to view, and a base to begin from. Pure, no I/O.

Whoever has the members of one view gets each later one from the steps; whoever has none begins from the base. A step
holds what it changes, never the whole view.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct

from latchwork._base.decoding import Count, Decoder, Positive, Whole, encode
from latchwork.primitives.group.members import GroupMember, StoredMember
from latchwork.primitives.group.views import View, ViewChange, change
from latchwork.types import Entry

#: A step has at most so many changes, and so many bytes; what is more goes into the next one.
MOST_CHANGES, MOST_STEP_BYTES = 500, 200_000
#: A head has its step inside, up to so many bytes: then a view costs its followers one event and no read.
MOST_INLINE_BYTES = 16_000
#: A base is written when the steps since the last one have this many changes, and this many for each member.
BASE_CHANGES, BASE_CHANGES_PER_MEMBER = 1_000, 2
_BASE_BYTES = 400_000
_by_id = attrgetter("id")


class Stored(Struct, frozen=True, array_like=True):
    """A member as a step has it: a JSON array.

    Attributes:
        token: of the write that it comes from: a later state of the member has a greater one.
        created: as in ``GroupMember``.
        record: how it described itself.
    """

    token: Whole
    created: Whole
    record: StoredMember

    @classmethod
    def of(cls, entry: Entry) -> Stored:
        """The member whose key this is."""
        return cls(entry.token, entry.created, StoredMember.at(entry))

    def member(self, name: str) -> GroupMember:
        """The member, whose id is given."""
        return self.record.member(name, self.created)


class Step(Struct, frozen=True):
    """From one view to the next.

    Attributes:
        number: of the view that it leads to.
        written: members that are new or changed, by id.
        gone: ids of those that are not there any more.
    """

    number: Positive
    written: Mapping[str, Stored]
    gone: Sequence[str]

    @property
    def changes(self) -> int:
        """How many members it changes."""
        return len(self.written) + len(self.gone)


class Head(Struct, frozen=True):
    """Where the log is, and what is kept of it.

    Attributes:
        life: of all steps and bases of one log; when somebody deletes the head, the next log has another.
        number: of the newest view.
        first: the number of the oldest step that is kept.
        base: the number of the view that the base has; 0 is the empty group, which is not stored.
        chunks: in how many parts the base is stored.
        changes: of the steps after the base.
        step: the newest one, if it is small.
    """

    life: str
    number: Count = 0
    first: Count = 1
    base: Count = 0
    chunks: Count = 0
    changes: Count = 0
    step: Step | None = None

    @classmethod
    def of(cls, entry: Entry) -> Head:
        """What is stored.

        Raises:
            BadRecord: it is no log of views.
        """
        return _HEAD.decode_entry(entry)

    def to_bytes(self) -> bytes:
        """What to store."""
        return encode(self)


_OTHER = "use another name"
_HEAD: Decoder[Head] = Decoder(Head, "views", _OTHER)
_STEP: Decoder[Step] = Decoder(Step, "a step of views", _OTHER)
_BASE: Decoder[dict[str, Stored]] = Decoder(dict[str, Stored], "a base of views", _OTHER)


class State:
    """The members of one view, and how to get to the next. One thread at a time."""

    def __init__(self, number: int = 0, members: Mapping[str, Stored] | None = None) -> None:
        self.number = number
        self._stored = dict(members or {})
        self._sorted = sorted((each.member(name) for name, each in self._stored.items()), key=_by_id)

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def token(self, name: str) -> int | None:
        """The token of a member as this view has it; None if it is not in."""
        stored = self._stored.get(name)
        return None if stored is None else stored.token

    def view(self) -> View:
        """The view."""
        return View(self.number, tuple(self._sorted))

    def apply(self, step: Step) -> ViewChange:
        """Go on to the next view, by the step that leads to it."""
        old: dict[str, GroupMember] = {}
        for name in (*step.gone, *step.written):
            before = self._stored.pop(name, None)
            if before is not None:
                old[name] = before.member(name)
                del self._sorted[bisect_left(self._sorted, name, key=_by_id)]
        new = {name: stored.member(name) for name, stored in step.written.items()}
        self._stored.update(step.written)
        for member in new.values():
            insort(self._sorted, member, key=_by_id)
        self.number = step.number
        return change(self.view(), old, new)

    def step(self, found: Mapping[str, Entry | None]) -> Step | None:
        """The step to the view that has these members as they were found, None for one that is not there.

        None when the view has them like that already. What is too much for one step is left for the next.
        """
        written: dict[str, Stored] = {}
        gone: list[str] = []
        size = 0
        for name, entry in found.items():
            if entry is None:
                if name in self._stored:
                    gone.append(name)
            elif self.token(name) != entry.token:
                written[name] = Stored.of(entry)
                size += len(entry.value)
            if len(written) + len(gone) >= MOST_CHANGES or size >= MOST_STEP_BYTES:
                break
        return Step(self.number + 1, written, gone) if written or gone else None

    def chunks(self) -> list[bytes]:
        """The base of this view, in parts small enough to be stored; may be empty."""
        parts: list[bytes] = []
        part: dict[str, Stored] = {}
        size = 0
        for name, stored in self._stored.items():
            part[name] = stored
            size += len(encode(stored))
            if size >= _BASE_BYTES:
                parts.append(encode(part))
                part, size = {}, 0
        return [*parts, encode(part)] if part else parts

    @classmethod
    def of(cls, head: Head, chunks: Iterable[Entry]) -> State:
        """The state of a head's base.

        Raises:
            BadRecord: what is stored is no base.
        """
        members: dict[str, Stored] = {}
        for entry in chunks:
            members.update(_BASE.decode_entry(entry))
        return cls(head.base, members)


def read_step(entry: Entry) -> Step:
    """A step that is stored by itself.

    Raises:
        BadRecord: it is none.
    """
    return _STEP.decode_entry(entry)


def write_step(step: Step) -> bytes:
    """What to store."""
    return encode(step)
