"""Pickers choose the preferred member for a task. This is only a preference: any member that claims a task runs it.

A picker gets the members that may run the task. Many threads may call it at once. Does no I/O.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, Protocol

from msgspec import Struct

from latchwork._base.decoding import Count
from latchwork._base.interrupts import mutex
from latchwork._base.user_code import call_user
from latchwork.executor.targets import rendezvous_hasher
from latchwork.primitives import GroupMember, View

By = Literal["id", "function"]


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The description of a task that pickers get.

    Attributes:
        id: Its unique ID.
        function: Its function's name; empty if pickled.
        number: Its number within its submitter, from 0.
        copy: Index of this copy, from 0.
    """

    id: str
    function: str
    number: int
    copy: int = 0


class Load(Struct, frozen=True):
    """The load of a member: the load that it last reported, plus the tasks that were placed there since.

    Attributes:
        running: Number of running tasks.
        queued: Number of unclaimed tasks in its partition.
        slots: Number of tasks that it runs at a time.
        number: Sequence number of the report.
    """

    running: Count = 0
    queued: Count = 0
    slots: Count = 1
    number: Count = 0

    @property
    def rate(self) -> float:
        """Running and queued tasks per slot."""
        return (self.running + self.queued) / max(1, self.slots)


class Picker(Protocol):
    """Picks the preferred member for a task. Implementations must be thread-safe."""

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:
        """Return the ID of the preferred member, or None for any member. Must not block.

        Args:
            task: The task.
            view: The members that may run it, as last reported; may be empty.
            load: Load by member ID. Members that have not reported any are missing.
        """
        ...


@dataclass(frozen=True)
class Pull:
    """Prefers no member: any member with a free slot takes the oldest task.

    The default; a slow member delays no task.
    """

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """Return None: the task goes to the shared partition, from which any member takes it."""
        return None


@dataclass(frozen=True)
class Rank:
    """Picks members in turn by task number, oldest member first.

    The index is the task's number modulo the number of members, so each submitter spreads its tasks evenly.
    """

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """Return the ID of the member whose index is the task number modulo the number of members. None if there are no
        members.
        """
        members = view.by_age
        return members[(task.number + task.copy) % len(members)].id if members else None


class Random:
    """Picks a member at random, with equal chances.

    Args:
        seed: Seed for repeatable picks; None uses a random seed.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._chance = random.Random(seed)

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """Return the ID of a random member. None if there are no members."""
        return self._chance.choice(view.members).id if view.members else None


class RoundRobin:
    """Picks members in turn, by ID. Membership changes do not restart the sequence."""

    def __init__(self) -> None:
        self._lock = mutex()
        self._last = ""

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """Return the ID of the next member in the sequence. None if there are no members."""
        if not view.members:
            return None
        with self._lock:
            self._last = next((each for each in view.ids if each > self._last), view.members[0].id)
            return self._last


class Weighted:
    """Picks a random member, with probabilities in proportion to the weights of the members.

    Other members do not take these tasks while the picked member is online, so runs match the weights.

    Args:
        seed: Seed for repeatable picks; None uses a random seed.
    """

    keeps = True

    def __init__(self, seed: int | None = None) -> None:
        self._chance = random.Random(seed)

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """Return the ID of a random member, chosen by weight. None if there are no members."""
        return pick_by_weight(view.members, self._chance.random())


@dataclass(frozen=True)
class Rendezvous:
    """Picks the owner of the task's ID or function by rendezvous hashing, the same for every submitter.

    When a member joins or leaves, only tasks it gains or loses are placed elsewhere.

    Attributes:
        by: ``id`` spreads tasks by weight; ``function`` sends all calls of one function to one member.
    """

    by: By = "id"

    def __post_init__(self) -> None:
        if self.by not in ("id", "function"):
            raise ValueError(f"by must be 'id' or 'function', not {self.by!r}; Key(text) is a target")

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """Return the ID of the member that owns the ID or the function of the task. None if all weights are 0."""
        able = tuple((member.id, member.weight) for member in view.members if member.weight > 0)
        if not able:
            return None
        found = rendezvous_hasher(able).owners(task.id if self.by == "id" else task.function, task.copy + 1)
        return found[task.copy % len(found)]


class LeastLoaded:
    """Picks the member with the fewest tasks per slot; ties go to the greater weight, then the lower ID."""

    needs_load = True

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:  # noqa: ARG002 - the protocol
        """Return the ID of the member with the fewest tasks per slot. None if there are no members."""
        none = Load()

        def cost(member: GroupMember) -> tuple[float, float, str]:
            return load.get(member.id, none).rate, -member.weight, member.id

        return min(view.members, key=cost).id if view.members else None


def pick_by_weight(members: Sequence[GroupMember], random_fraction: float) -> str | None:
    """Return the ID of a member chosen by weight. None if there are no members.

    Args:
        members: The members.
        random_fraction: A random number from 0 to 1, which selects the member.
    """
    ends = list(accumulate(member.weight for member in members))
    if not ends or ends[-1] <= 0:
        return None
    at = random_fraction * ends[-1]
    return next((member.id for member, end in zip(members, ends, strict=True) if at < end), members[-1].id)


def pick_for_copies(
    picker: Picker, task: TaskInfo, view: View, load: Mapping[str, Load], copies: int
) -> list[str | None]:
    """Pick a different member for each copy of a task.

    Args:
        picker: Picks a member.
        task: The task.
        view: The members that may run it.
        load: Load by member ID.
        copies: Number of copies.
    Returns:
        The ID of a member for each copy; None for copies beyond the number of members.
    """
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
