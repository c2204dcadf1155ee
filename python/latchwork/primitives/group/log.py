"""The log of a group's views, as it is stored: a head, steps from view to view, and a base to begin from. Pure, no I/O.

Whoever has the members of one view gets each later one from the steps; whoever has none begins from the base. A step
holds what it changes, never the whole view.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from latchwork.errors import BadRecord, LatchworkError
from latchwork.primitives.group.members import GroupMember
from latchwork.primitives.group.views import View, ViewChange, change
from latchwork.records import Record, short
from latchwork.types import Entry

#: A step has at most so many changes, and so many bytes; what is more goes into the next one.
MOST_CHANGES, MOST_STEP_BYTES = 500, 200_000
#: A head has its step inside, up to so many bytes: then a view costs its followers one event and no read.
MOST_INLINE_BYTES = 16_000
#: A base is written when the steps since the last one have this many changes, and this many for each member.
BASE_CHANGES, BASE_CHANGES_PER_MEMBER = 1_000, 2
_BASE_BYTES = 400_000
_FORMAT = 2
_by_id = attrgetter("id")


@dataclass(frozen=True, slots=True)
class Stored:
    """A member as a step has it.

    Attributes:
        token: of the write that it comes from: a later state of the member has a greater one.
        member: how it described itself.
    """

    token: int
    member: GroupMember

    @classmethod
    def of(cls, entry: Entry) -> Stored:
        """The member whose key this is."""
        return cls(entry.token, GroupMember.at(entry))

    @classmethod
    def read(cls, name: str, stored: Any) -> Stored:
        """From a step or a base."""
        token, created, body = stored
        if not (type(token) is int and type(created) is int and isinstance(body, dict)):
            raise BadRecord(f"member {name!r} is {short(stored)}")
        return cls(token, GroupMember.of(name, body, created))

    def to_json(self) -> list[object]:
        """For a step or a base."""
        return [self.token, self.member.created, self.member.to_body()]


@dataclass(frozen=True, slots=True)
class Step:
    """From one view to the next.

    Attributes:
        number: of the view that it leads to.
        written: members that are new or changed, by id.
        gone: ids of those that are not there any more.
    """

    number: int
    written: Mapping[str, Stored]
    gone: Sequence[str]

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Step:
        """From JSON."""
        record = Record(stored)
        written = {name: Stored.read(name, member) for name, member in record.mapping("written").items()}
        return cls(record.whole("number", least=1), written, record.texts("gone"))

    def to_json(self) -> dict[str, object]:
        """What to store."""
        written = {name: member.to_json() for name, member in self.written.items()}
        return {"number": self.number, "written": written, "gone": list(self.gone)}

    @property
    def changes(self) -> int:
        """How many members it changes."""
        return len(self.written) + len(self.gone)


@dataclass(frozen=True, slots=True)
class Head:
    """Where the log is, and what is kept of it.

    Attributes:
        life: of all steps and bases of one log; when somebody deletes the head, the next log has another.
        number: of the newest view.
        first: the number of the oldest step that is kept.
        base: the number of the view that the base has; 0 is the empty group, which is not stored.
        chunks: in how many parts the base is stored.
        changes: of the steps after the base.
        step: the newest one, if it is small.
        members: of a log in the first format, which had all of them in the head.
    """

    life: str
    number: int = 0
    first: int = 1
    base: int = 0
    chunks: int = 0
    changes: int = 0
    step: Step | None = None
    members: Mapping[str, Any] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, entry: Entry) -> Head:
        """What is stored.

        Raises:
            LatchworkError: it is no log of views.
        """
        with _refusing(entry.key):
            record = Record.of(entry.value)
            number = record.whole("number", least=0)
            if record.has("members"):
                return cls("", number, number + 1, number, members=record.mapping("members"))
            record.whole("format", least=_FORMAT, most=_FORMAT)
            step = Step.read(record.mapping("step")) if record.has("step") else None
            first, base, chunks, changes = (
                record.whole(name, least=0) for name in ("first", "base", "chunks", "changes")
            )
            return cls(record.text("life"), number, first, base, chunks, changes, step)

    def to_bytes(self) -> bytes:
        """What to store."""
        step = None if self.step is None else self.step.to_json()
        body = {"format": _FORMAT, "life": self.life, "number": self.number, "first": self.first, "base": self.base}
        return json.dumps({**body, "chunks": self.chunks, "changes": self.changes, "step": step}).encode()


class State:
    """The members of one view, and how to get to the next. One thread at a time."""

    def __init__(self, number: int = 0, members: Mapping[str, Stored] | None = None) -> None:
        self.number = number
        self._stored = dict(members or {})
        self._sorted = sorted((each.member for each in self._stored.values()), key=_by_id)

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
                old[name] = before.member
                del self._sorted[bisect_left(self._sorted, name, key=_by_id)]
        for name, stored in step.written.items():
            self._stored[name] = stored
            insort(self._sorted, stored.member, key=_by_id)
        self.number = step.number
        return change(self.view(), old, {name: stored.member for name, stored in step.written.items()})

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
        part: dict[str, object] = {}
        size = 0
        for name, stored in self._stored.items():
            part[name] = stored.to_json()
            size += len(json.dumps(part[name]))
            if size >= _BASE_BYTES:
                parts.append(json.dumps(part).encode())
                part, size = {}, 0
        return [*parts, json.dumps(part).encode()] if part else parts

    @classmethod
    def of(cls, head: Head, chunks: Iterable[Entry]) -> State:
        """The state of a head's base.

        Raises:
            LatchworkError: what is stored is no base.
        """
        if head.members is not None:
            bodies = {name: body for name, body in head.members.items() if isinstance(body, dict)}
            old = {name: Stored(0, GroupMember.of(name, body)) for name, body in bodies.items()}
            return cls(head.number, old)
        members: dict[str, Stored] = {}
        for entry in chunks:
            with _refusing(entry.key):
                chunk = Record.of(entry.value).body
                members.update((name, Stored.read(name, each)) for name, each in chunk.items())
        return cls(head.base, members)


def read_step(entry: Entry) -> Step:
    """A step that is stored by itself.

    Raises:
        LatchworkError: it is none.
    """
    with _refusing(entry.key):
        return Step.read(Record.of(entry.value).body)


def write_step(step: Step) -> bytes:
    """What to store."""
    return json.dumps(step.to_json()).encode()


@contextmanager
def _refusing(key: str) -> Iterator[None]:
    """One error for whatever a stored record has wrong."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise LatchworkError(f"key {key!r} holds something else than views; use another name") from error
