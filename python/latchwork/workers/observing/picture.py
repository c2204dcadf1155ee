"""A run as it was last reported: who is a member, who lives, who is lost.

It is folded from changes, each once: a job of n workers costs a process n changes to be told of n workers, and not n
times n records to be read again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from latchwork.store.driving.bell import Bell
from latchwork.store.mirror import Mirror
from latchwork.store.steps import steps_of
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Entry
from latchwork.workers.keys import RunKeys
from latchwork.workers.plans import head_or_none
from latchwork.workers.records import Head, WorkerInfo, read_incarnation

#: Seconds for which the first state is waited for, again and again.
_FIRST_STATE_S = 30.0


@dataclass(frozen=True, slots=True)
class Missing:
    """One that is at work and has no lease.

    Attributes:
        member: its record.
        had_one: whether we have seen that it had a lease, and that it went. Otherwise our picture of the leases may be
            behind that of the members, which come on their own: both are written in one transaction.
    """

    member: Entry
    had_one: bool


class Roll:
    """Who is a member and who lives, folded change by change. Pure. Not safe to share: its owner holds a mutex."""

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys
        self._leases: dict[str, Entry] = {}
        self._members: dict[str, tuple[str, Entry]] = {}
        self._by_lease: dict[str, str] = {}
        self._went: dict[str, str] = {}

    def see_member(self, key: str, entry: Entry | None) -> None:
        """A member's record is this now; one that is no member's is none."""
        lease, _ = self._members.pop(key, ("", None))
        if self._by_lease.get(lease) == key:
            del self._by_lease[lease]
        info = None if entry is None else WorkerInfo.or_none(entry)
        if entry is not None and info is not None and info.is_at_work:
            lease = self._keys.live_of(info.id)
            self._members[key] = (lease, entry)
            self._by_lease[lease] = key

    def see_lease(self, key: str, entry: Entry | None) -> None:
        """A lease is this now."""
        if entry is None:
            lease = self._leases.pop(key, None)
            if lease is not None:
                self._went[key] = read_incarnation(lease)
        else:
            self._leases[key] = entry

    def lease(self, key: str) -> Entry | None:
        """A lease."""
        return self._leases.get(key)

    def rank(self, keys: set[str]) -> int:
        """How many live that come before the first of these."""
        first = min(keys & self._leases.keys(), default=None)
        return sum(key < first for key in self._leases) if first is not None else len(self._leases)

    def lost(self) -> list[Missing]:
        """Those that are at work and have no lease, by id."""
        missing = sorted(self._by_lease.keys() - self._leases.keys())
        members = [(lease, self._members[self._by_lease[lease]][1]) for lease in missing]
        return [Missing(each, self._went.get(lease) == read_incarnation(each)) for lease, each in members]


class Picture:
    """A run as it was last reported, kept current by mirrors. Safe to share between threads.

    Args:
        store: the store.
        keys: of the run.
        bell: is rung with each change.
    """

    def __init__(self, store: Store, keys: RunKeys, bell: Bell) -> None:
        self._keys = keys
        self._bell = bell
        self._roll = Roll(keys)
        with ExitStack() as opened:

            def follow(prefix: str, see: Callable[[str, Entry | None], None]) -> Mirror:
                mirror = opened.enter_context(store.mirror(prefix, wait=False))
                mirror.on_change(lambda batch: self._take_in(batch, see))
                return mirror

            self._head, self._epoch = follow(keys.head, _nothing), follow(keys.epoch, _nothing)
            self._members = follow(keys.members, self._roll.see_member)
            self._live = follow(keys.live, self._roll.see_lease)
            self._opened = opened.pop_all()

    def _take_in(self, batch: Batch, see: Callable[[str, Entry | None], None]) -> None:
        with self._bell.mutex:
            for change in batch:
                see(change.key, change.entry)
            self._bell.ring()

    async def ready(self) -> None:
        """Wait for the first state."""
        for mirror in (self._head, self._epoch, self._members, self._live):
            await steps_of(mirror.ready)(_FIRST_STATE_S)

    def close(self) -> None:
        """Stop."""
        self._opened.close()

    @property
    def head(self) -> Head | None:
        """The head, while it is that of our run."""
        return head_or_none(self._head.get(self._keys.head), self._keys.run)

    @property
    def epoch(self) -> Entry | None:
        """The epoch."""
        return self._epoch.get(self._keys.epoch)

    def lease(self, key: str) -> Entry | None:
        """A lease."""
        return self._live.get(key)

    def rank(self, keys: set[str]) -> int:
        """How many live that come before the first of these leases."""
        with self._bell.mutex:
            return self._roll.rank(keys)

    def lost(self) -> list[Missing]:
        """The workers that have no lease, and should; by id."""
        with self._bell.mutex:
            return self._roll.lost()


def _nothing(_key: str, _entry: Entry | None) -> None:
    pass
