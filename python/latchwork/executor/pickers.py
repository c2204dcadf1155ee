"""Pickers: which member is asked first to run a task. A preference, no promise: who takes a task runs it.

A picker sees the members that may run the task. It may be called by many threads at once. Nothing here does I/O.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, Protocol

from msgspec import Struct

from latchwork._base.decoding import Count
from latchwork.executor.targets import hasher_of
from latchwork.interrupts import mutex
from latchwork.primitives import GroupMember, View
from latchwork.user_code import call_user

By = Literal["id", "function"]


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What a picker knows of a task.

    Attributes:
        id: of the task, unique.
        function: the name of its function; empty when it is pickled.
        number: counts the tasks of its submitter, from 0.
        copy: which of its copies this is, from 0.
    """

    id: str
    function: str
    number: int
    copy: int = 0


class Load(Struct, frozen=True):
    """What is queued and running on a member, as it said a second ago, and what we have put there since.

    Attributes:
        running: tasks that run.
        queued: tasks in its lane that nobody has taken.
        slots: how many it runs at a time.
        number: how often it has said so.
    """

    running: Count = 0
    queued: Count = 0
    slots: Count = 1
    number: Count = 0

    @property
    def rate(self) -> float:
        """Tasks for each slot."""
        return (self.running + self.queued) / max(1, self.slots)


class Picker(Protocol):
    """Picks a member for a task. Safe to share between threads."""

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:
        """The id of a member of the view, or None for whoever comes first. It must not block.

        Args:
            task: the task.
            view: the members that may run it, in the newest view; may be empty.
            load: what they do, by id; of a member that did not say yet there is nothing.
        """
        ...


@dataclass(frozen=True)
class Pull:
    """Nobody is asked first: whoever has a slot free takes the oldest task. The default; nothing stays behind a slow
    member.
    """

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """See ``Picker``."""
        return None


@dataclass(frozen=True)
class Rank:
    """The task's number modulo the members, the oldest member first: each submitter deals them out like cards."""

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """See ``Picker``."""
        members = view.by_age
        return members[(task.number + task.copy) % len(members)].id if members else None


class Random:
    """Any member, each with the same chance.

    Args:
        seed: for picks that can be repeated; None for others each time.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._chance = random.Random(seed)

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """See ``Picker``."""
        return self._chance.choice(view.members).id if view.members else None


class RoundRobin:
    """One member after the other, by id; it goes on behind the last one when members come and go."""

    def __init__(self) -> None:
        self._lock = mutex()
        self._last = ""

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """See ``Picker``."""
        if not view.members:
            return None
        with self._lock:
            self._last = next((each for each in view.ids if each > self._last), view.members[0].id)
            return self._last


class Weighted:
    """Any member, each with a chance by its weight. A new weight counts from the next view on.

    Tasks that it has placed are not taken by others from a member that lives, so that weights are what is run.

    Args:
        seed: as for ``Random``.
    """

    keeps = True

    def __init__(self, seed: int | None = None) -> None:
        self._chance = random.Random(seed)

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """See ``Picker``."""
        return drawn(view.members, self._chance.random())


@dataclass(frozen=True)
class Rendezvous:
    """The member that owns the task's id, or its function: the same for every submitter, by rendezvous hashing.

    When a member comes or goes, only what it gets or had is placed anew.

    Attributes:
        by: ``id`` spreads tasks evenly by weight; ``function`` sends all calls of one function to one member.
    """

    by: By = "id"

    def __post_init__(self) -> None:
        if self.by not in ("id", "function"):
            raise ValueError(f"by must be 'id' or 'function', not {self.by!r}; Key(text) is a target")

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """See ``Picker``."""
        able = tuple((member.id, member.weight) for member in view.members if member.weight > 0)
        if not able:
            return None
        found = hasher_of(able).owners(task.id if self.by == "id" else task.function, task.copy + 1)
        return found[task.copy % len(found)]


class LeastLoaded:
    """The member with the fewest tasks for each slot; among equals by weight and id."""

    needs_load = True

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """See ``Picker``."""
        none = Load()

        def cost(member: GroupMember) -> tuple[float, float, str]:
            return load.get(member.id, none).rate, -member.weight, member.id

        return min(view.members, key=cost).id if view.members else None


def drawn(members: Sequence[GroupMember], chance: float) -> str | None:
    """The member that a number from 0 to 1 falls on, when each has a stretch as long as its weight."""
    ends = list(accumulate(member.weight for member in members))
    if not ends or ends[-1] <= 0:
        return None
    at = chance * ends[-1]
    return next((member.id for member, end in zip(members, ends, strict=True) if at < end), members[-1].id)


def spread_over(picker: Picker, task: TaskInfo, view: View, load: Mapping[str, Load], copies: int) -> list[str | None]:
    """A different member for each copy, as far as there are members; copies behind that have None."""
    picked: list[str | None] = []
    left = view
    for _ in range(copies):
        if not left.members:
            picked.append(None)
            continue
        member = call_user(picker.pick, TaskInfo(task.id, task.function, task.number, 0), left, load)
        if member not in left and copies > 1:
            member = left.members[task.number % len(left.members)].id
        picked.append(member if member in left else None)
        left = View(view.number, tuple(each for each in left.members if each.id != member))
    return picked
