"""Chooses the lane of a task: the lane of the member its target and picker select, or the lane of all.

Follows the group from the first task that needs a member. Its view may be stale: the transaction that puts a task
checks that the member is online. A picker states a preference only, so any member may run the task.
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
from latchwork.executor.keys import ANY, Keys, lane_of, member_of
from latchwork.executor.pickers import Load, Picker, Pull, TaskInfo, spread_over
from latchwork.executor.targets import Key, Label, Member, Target, candidates, owner_of
from latchwork.primitives import Group, GroupMember, View
from latchwork.store import Mirror, Store
from latchwork.store.steps import steps_of
from latchwork.types import Check

_log = logging.getLogger(__name__)

#: Seconds for which members that were read are reused as a preference until there is a view.
_SAME_S = 0.2


class Placing:
    """Tracks members and their load, as far as tasks need them. Thread-safe.

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
        self._put: dict[str, tuple[int, int]] = {}
        self._gone: set[str] = set()
        self._view_number = -1
        self._read: tuple[GroupMember, ...] = ()
        self._read_at = -math.inf

    async def place(self, item: TaskItem, picker: Picker, copies: int) -> tuple[str, ...]:
        """Return the lane of each copy of a task.

        Raises:
            NoSuchMember: The only member that may run the task is not online.
        """
        if is_for_all(item, picker, copies):
            return (ANY,)
        target = item.target
        if isinstance(target, Member) and target.otherwise == "wait":
            return (lane_of(target.id),)
        view = await self._view(target)
        able = View(view.number, candidates(target, view))
        if isinstance(target, Member):
            return (lane_of(target.id),) if able.members else (ANY,)
        if isinstance(target, Key):
            owner = owner_of(target.text, able.members)
            picker = _Preferred(owner, picker)
        loads = await self._load(able) if getattr(picker, "needs_load", False) else {}
        task = TaskInfo(item.id, item.function, item.number)
        picked = spread_over(picker, task, able, loads, copies)
        for member in loads.keys() & set(picked):
            self._note(str(member))
        return tuple(ANY if member is None else lane_of(member) for member in picked)

    def checks(self, lanes: tuple[str, ...], target: object) -> list[Check]:
        """Return the checks that the members of these lanes are online."""
        if isinstance(target, Member) and target.otherwise == "wait":
            return []
        members = [member for lane in lanes if (member := member_of(lane)) is not None]
        return [self._looking().check(member) for member in members]

    def refused(self, failed: tuple[object, ...]) -> bool:
        """Note the members that a failed transaction reports as gone; return whether there are any."""
        prefix = f"{self._keys.group}/members/"
        keys = [str(getattr(each, "key", "")) for each in failed]
        gone = {key[len(prefix) :] for key in keys if key.startswith(prefix)}
        with self._lock:
            self._gone |= gone
            self._view_number = self._looking_at().number if gone else self._view_number
        return bool(gone)

    def close(self) -> None:
        """Stop following the group and its load."""
        with self._lock:
            group, loads = self._group, self._loads
        if group is not None:
            group.close()
        if loads is not None:
            loads.close()

    def _looking(self) -> Group:
        with self._lock:
            if self._group is None:
                self._group = Group(self._store, self._keys.group)
                self._group.start()
            return self._group

    def _looking_at(self) -> View:
        return View() if self._group is None else self._group.view

    async def _view(self, target: Target | None) -> View:
        """Return the newest view, without members that the store has reported as gone."""
        group = self._looking()
        view = group.view
        wanted = isinstance(target, (Member, Label)) and not candidates(_lenient(target), view)
        if not view.members or wanted:  # the newest members are not in a view yet
            view = View(view.number, await self._members(group, must_be_new=wanted))
        with self._lock:
            if view.number != self._view_number:
                self._gone.clear()
            gone = frozenset(self._gone)
        return View(view.number, tuple(each for each in view.members if each.id not in gone)) if gone else view

    async def has_members(self) -> bool:
        """Return whether any worker is there now."""
        with closing(Group(self._store, self._keys.group)) as group:
            return bool(await steps_of(group.members)())

    async def _members(self, group: Group, *, must_be_new: bool) -> tuple[GroupMember, ...]:
        """Return the stored members; unless they must be new, at most ``_SAME_S`` seconds old."""
        now = self._store.clock.now()
        if must_be_new or now >= self._read_at + _SAME_S:
            self._read, self._read_at = tuple(await steps_of(group.members)()), now
        return self._read

    async def _load(self, view: View) -> dict[str, Load]:
        """Return the load that members reported, plus the tasks placed there since."""
        if self._loads is None:
            with suppress(LatchworkError):
                self._loads = await self._store.ready(self._store.mirror(self._keys.load, wait=False))
        found: dict[str, Load] = {}
        for member in view.ids:
            entry = None if self._loads is None else self._loads.get(self._keys.load_of(member))
            load = Load() if entry is None else read_load(entry.value)
            with self._lock:
                seen, count = self._put.get(member, (load.number, 0))
                count = count if seen == load.number else 0
                self._put[member] = (load.number, count)
            found[member] = replace(load, queued=load.queued + count)
        return found

    def _note(self, member: str) -> None:
        """Count a task placed on a member since its last report."""
        with self._lock:
            number, count = self._put.get(member, (0, 0))
            self._put[member] = (number, count + 1)


def is_for_all(item: TaskItem, picker: Picker, copies: int) -> bool:
    """Return whether a task goes to the lane of all, regardless of the members."""
    return item.target is None and copies == 1 and isinstance(picker, Pull)


class Offer(Struct, frozen=True):
    """The functions a member can run, as stored when it joined.

    Attributes:
        functions: Their names.
        allow_pickle: Whether it also runs pickled functions.
        slots: Tasks it runs at a time; 0 if unknown.
    """

    functions: frozenset[str] = frozenset()
    allow_pickle: bool = False
    slots: Count = 0


_LOAD: Decoder[Load] = Decoder(Load, "the load of a member")
_OFFER: Decoder[Offer] = Decoder(Offer, "the functions of a member")


def read_load(value: bytes) -> Load:
    """Decode a member's load; an empty load if it cannot be read."""
    return _LOAD.find(value) or Load()


def read_offer(value: bytes) -> Offer:
    """Decode a member's offer; an empty offer if it cannot be read."""
    return _OFFER.find(value) or Offer()


class _Preferred:
    """Picks the owner of a key, or uses another picker if the owner is not available."""

    def __init__(self, owner: str | None, picker: Picker) -> None:
        self._owner = owner
        self._picker = picker

    def pick(self, task: TaskInfo, view: View, load: Mapping[str, Load]) -> str | None:
        return self._owner if self._owner in view else self._picker.pick(task, view, load)


def _lenient(target: Member | Label) -> Member | Label:
    return Member(target.id, "any") if isinstance(target, Member) else target
