"""Choice of the queue partition of a task: that of the member selected by its target and picker, or the shared one.

The list of members may be stale, so the transaction that puts a task into the queue checks that the member is online. A
picker states only a preference, so any member may run the task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import closing, suppress

from msgspec import Struct
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder
from latchwork._base.interrupts import mutex
from latchwork.errors import LatchworkError
from latchwork.executor.items import TaskItem
from latchwork.executor.keys import ANY, Keys, member_partition, partition_member
from latchwork.executor.pickers import Load, Picker, Pull, TaskInfo, pick_for_copies
from latchwork.executor.targets import Key, Label, Member, Target, eligible_members, find_key_owner
from latchwork.primitives import Group, GroupMember, View
from latchwork.store import Mirror, Store
from latchwork.store.steps import coroutine_of
from latchwork.types import Check

_log = logging.getLogger(__name__)

#: Seconds for which members that were read are reused as a preference until there is a view.
_SAME_S = 0.2


class TaskPlacer:
    """Chooses the queue partitions of tasks. For that it follows the members and their load. Thread-safe.

    Args:
        store: The executor's store.
        keys: Its keys.
    """

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._lock = mutex()
        self._group: Group | None = None
        self._loads: Mirror | None = None
        self._placed: dict[str, tuple[int, int]] = {}
        self._departed: set[str] = set()
        self._view_number = -1
        self._read: tuple[GroupMember, ...] = ()
        self._members_read_at = -math.inf

    async def choose_partitions(self, item: TaskItem, picker: Picker, copies: int) -> tuple[str, ...]:
        """Return the partition for each copy of a task.

        Args:
            item: The task.
            picker: Picks the preferred member.
            copies: Number of copies.
        Raises:
            NoSuchMember: The only member that may run the task is not online.
        """
        if needs_no_member(item, picker, copies):
            return (ANY,)
        target = item.target
        if isinstance(target, Member) and target.otherwise == "wait":
            return (member_partition(target.id),)
        view = await self._read_view(target)
        able = View(view.number, eligible_members(target, view))
        if isinstance(target, Member):
            return (member_partition(target.id),) if able.members else (ANY,)
        if isinstance(target, Key):
            owner = find_key_owner(target.text, able.members)
            picker = _OwnerPicker(owner, picker)
        loads = await self._read_loads(able) if getattr(picker, "needs_load", False) else {}
        task = TaskInfo(item.id, item.function, item.number)
        picked = pick_for_copies(picker, task, able, loads, copies)
        for member in loads.keys() & set(picked):
            self._count_placed(str(member))
        return tuple(ANY if member is None else member_partition(member) for member in picked)

    def build_member_checks(self, partitions: tuple[str, ...], target: object) -> list[Check]:
        """Return the checks that the members of these partitions are online, for the transaction that queues a task.

        Args:
            partitions: Partitions of the task's copies.
            target: Target of the task.
        """
        if isinstance(target, Member) and target.otherwise == "wait":
            return []
        members = [member for partition in partitions if (member := partition_member(partition)) is not None]
        return [self._start_group().check(member) for member in members]

    def record_departed(self, failed: tuple[object, ...]) -> bool:
        """Record the members that a failed transaction has reported as gone. Return whether there are any.

        Args:
            failed: The checks that failed.
        """
        prefix = f"{self._keys.group}/members/"
        keys = [str(getattr(each, "key", "")) for each in failed]
        departed = {key[len(prefix) :] for key in keys if key.startswith(prefix)}
        with self._lock:
            self._departed |= departed
            if departed:
                self._view_number = View().number if self._group is None else self._group.view.number
        return bool(departed)

    def close(self) -> None:
        """Stop watching the members and their load."""
        with self._lock:
            group, loads = self._group, self._loads
        if group is not None:
            group.close()
        if loads is not None:
            loads.close()

    def _start_group(self) -> Group:
        with self._lock:
            if self._group is None:
                self._group = Group(self._store, self._keys.group)
                self._group.start()
            return self._group

    async def _read_view(self, target: Target | None) -> View:
        """Return the latest view of the group, without members that this process knows to have left.

        Args:
            target: Target of the task. If no member of the view may run the task, the members are read from the store.
        """
        group = self._start_group()
        view = group.view
        wish = Member(target.id, "any") if isinstance(target, Member) else target
        wanted = isinstance(wish, (Member, Label)) and not eligible_members(wish, view)
        if not view.members or wanted:  # the newest members are not in a view yet
            view = View(view.number, await self._members(group, must_be_new=wanted))
        with self._lock:
            if view.number != self._view_number:
                self._departed.clear()
            departed = frozenset(self._departed)
        return View(view.number, tuple(each for each in view.members if each.id not in departed)) if departed else view

    async def has_members(self) -> bool:
        """Return whether any worker is online now."""
        with closing(Group(self._store, self._keys.group)) as group:
            return bool(await coroutine_of(group.members)())

    async def _members(self, group: Group, *, must_be_new: bool) -> tuple[GroupMember, ...]:
        """Return the stored members of the group, from a cache of ``_SAME_S`` seconds.

        Args:
            group: The group of workers.
            must_be_new: Whether to read the members from the store even if the cache has them.
        """
        now = self._store.clock.now()
        if must_be_new or now >= self._members_read_at + _SAME_S:
            self._read, self._members_read_at = tuple(await coroutine_of(group.members)()), now
        return self._read

    async def _read_loads(self, view: View) -> dict[str, Load]:
        """Return the load of each member by ID: the load that it last reported, plus the tasks placed on it since."""
        if self._loads is None:
            with suppress(LatchworkError):
                self._loads = await self._store.ready(self._store.mirror(self._keys.load, wait=False))
        found: dict[str, Load] = {}
        for member in view.ids:
            entry = None if self._loads is None else self._loads.get(self._keys.member_load_key(member))
            load = Load() if entry is None else decode_load(entry.value)
            with self._lock:
                seen, count = self._placed.get(member, (load.number, 0))
                count = count if seen == load.number else 0
                self._placed[member] = (load.number, count)
            found[member] = replace(load, queued=load.queued + count)
        return found

    def _count_placed(self, member: str) -> None:
        """Count a task that is placed on a member, in addition to the load that the member last reported."""
        with self._lock:
            number, count = self._placed.get(member, (0, 0))
            self._placed[member] = (number, count + 1)


def needs_no_member(item: TaskItem, picker: Picker, copies: int) -> bool:
    """Return whether a task goes to the shared partition, regardless of the current members.

    Args:
        item: The task.
        picker: Picks the preferred member.
        copies: Number of copies.
    """
    return item.target is None and copies == 1 and isinstance(picker, Pull)


class MemberFunctions(Struct, frozen=True):
    """The functions that a member can run, as stored when it joined.

    Attributes:
        functions: Their names.
        allow_pickle: Whether it also runs pickled functions.
        slots: Number of tasks that it runs at a time; 0 if unknown.
    """

    functions: frozenset[str] = frozenset()
    allow_pickle: bool = False
    slots: Count = 0


_LOAD: Decoder[Load] = Decoder(Load, "the load of a member")
_OFFER: Decoder[MemberFunctions] = Decoder(MemberFunctions, "the functions of a member")


def decode_load(value: bytes) -> Load:
    """Decode the stored load of a member. Return an empty load if it is unreadable."""
    return _LOAD.find(value) or Load()


def decode_member_functions(value: bytes) -> MemberFunctions:
    """Decode the stored list of functions of a member. Return an empty list if it is unreadable."""
    return _OFFER.find(value) or MemberFunctions()


class _OwnerPicker:
    """A picker that picks the owner of a key. If the owner is not available, it uses another picker."""

    def __init__(self, owner: str | None, picker: Picker) -> None:
        self._owner = owner
        self._picker = picker

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:
        return self._owner if self._owner in view else self._picker.pick(task, view, load)
