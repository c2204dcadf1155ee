"""The loop behind both barriers. Its decisions are in ``phases``.

Keys:  <name>/barrier           the open phase, the last results, and the members if they are always the same; as JSON
       <name>/opening           the expected members of the newest phase, if each phase has its own; as JSON
       <name>/arrived-<member>  as JSON, not bound to a session: the phase at which a member has arrived, host and PID,
                                and whether it ``follows`` the other arrivals

An arrival is written on condition that the state is unchanged, so it counts for the open phase. While a phase is open,
arrivals are only added. A member that has seen enough of them may therefore end the phase, on condition that the state
is unchanged. If each phase has its own parties, a member that knows of no opening writes one. It sends its arrival at
the same time, because another member may be faster. An arrival counts only if it is not older than the opening. The
state stays as it is, so others that arrive at the same time need not read it again. After a phase, a member assumes
that its end is still the newest state, and arrives at the next phase without a read.
docs/design/groups-and-queues.md has the races.

With few members all watch the arrivals, and the last one to arrive ends the phase. With more than ``MANY`` members,
each member would see each arrival: n x n events. Each member then decides at random before its arrival whether it
watches, so that about ``FOLLOWERS`` members do. The first of them ends the phase. The others watch only the state and
decide again now and then, in case all watching members have died.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from latchwork._base.text import utc_text
from latchwork._base.validation import check_store
from latchwork.errors import BarrierBroken, Conflict, InvalidKey, LatchworkError
from latchwork.primitives.barrier.local_members import LocalMember, get_local_members
from latchwork.primitives.barrier.phases import (
    MANY,
    BarrierKeys,
    BarrierRecord,
    BarrierSnapshot,
    Expected,
    Opening,
    encode_arrival,
    find_arrived,
    is_arrival_watcher,
    parse_arrival,
)
from latchwork.primitives.waiting.arguments import check_integer, check_member, check_name, check_text
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.ownership import Identity
from latchwork.primitives.waiting.waiter import Waiter, WaiterRegistry
from latchwork.store.session import Session
from latchwork.store.steps import ask, call_library
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Check, Entry, Op, Put

_log = logging.getLogger(__name__)

#: Average number of members that follow the arrivals. There is no follower once in e^8 times; see ``AGAIN_S``.
FOLLOWERS = 8
#: A member that watches the state alone draws again after this many seconds, then after twice as long, and so on.
AGAIN_S = (2.0, 5.0)

#: Returns the requested phase, given the state and the phase of our last arrival (-1: none). None: wait for another.
Choice = Callable[[BarrierRecord, int], int | None]
#: Seconds after which another member ends the phase, too, because the last one to arrive may have died.
_BACKUP_PAUSE_S = (0.2, 0.6)
#: On slow links it comes later by so many times the time of a request.
_BACKUP_TRIPS = 4.0
#: Maximum random wait before a member opens a phase: of many members, one write is enough.
_SPREAD_S = 0.03
#: Returns the members without which the phase is broken, given the basis of the open phase.
Lacking = Callable[[int], Collection[str]]
#: The number of members or their IDs, or a function that is called when the first has arrived at a generation.
Parties = int | Collection[str] | Callable[[], Expected]


def exceeds_watch_limit(parties: int) -> bool:
    """Return whether a barrier has too many members for each of them to watch all arrivals."""
    return parties > MANY


def is_complete(opening: Opening | None, arrived: Collection[str]) -> bool:
    """Return whether all expected members have arrived.

    Args:
        opening: The expected members. None if they are unknown.
        arrived: The IDs of the members that have arrived.
    """
    return opening is not None and len(arrived) >= opening.parties


def should_watch_arrivals(parties: int) -> bool:
    """Decide whether a member watches the arrivals of the others: always with few members, at random with many.

    Args:
        parties: The number of members of the barrier.
    """
    return not exceeds_watch_limit(parties) or random.random() < FOLLOWERS / parties


class ArrivalWatcher:
    """Collects the arrivals at a phase from a watch, until the phase has ended or all have arrived. Single-threaded.

    Attributes:
        phase: The phase.
        snapshot: The newest state and opening of the barrier.
    """

    def __init__(self, snapshot: BarrierSnapshot, phase: int) -> None:
        self.phase = phase
        self.snapshot = snapshot
        self._arrived_at: dict[str, int] = {}
        self._followers: dict[str, int] = {}

    def __call__(self, batch: Batch) -> bool:
        """Apply a batch of changes. Return True once there is nothing to wait for."""
        for change in batch:
            entry, keys = change.entry, self.snapshot.keys
            if entry is None:
                continue
            if change.key == keys.state_key:
                self.snapshot = replace(self.snapshot, state=BarrierRecord.from_entry(entry), entry=entry)
            elif change.key == keys.opening_key:
                self.snapshot = replace(self.snapshot, opened=entry)
            elif (member_id := keys.find_member(change.key)) is not None and parse_arrival(entry) == self.phase:
                self._arrived_at[member_id] = entry.token
                if is_arrival_watcher(entry):
                    self._followers[member_id] = entry.token
        return self.is_done

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for: the phase has ended, or all members have arrived."""
        if self.has_ended:
            return True
        opening = self.snapshot.opening
        # Counting all arrivals first is cheap, and mostly enough to tell that members are missing.
        return is_complete(opening, self._arrived_at) and is_complete(opening, self.arrived)

    @property
    def has_ended(self) -> bool:
        """Whether the phase has passed or was broken."""
        return self.snapshot.state.phase > self.phase

    @property
    def arrived(self) -> set[str]:
        """The IDs of the members that have arrived."""
        oldest = self.snapshot.oldest_counted_token
        return {member_id for member_id, token in self._arrived_at.items() if token >= oldest}

    def should_end_phase(self, member_id: str) -> bool:
        """Return whether the member with this ID should write the end of the phase.

        With few members this is the last one to arrive. With many it is the first one that watches the arrivals.
        """
        opening = self.snapshot.opening
        if opening is not None and exceeds_watch_limit(opening.parties):
            return member_id in self._followers and self._followers[member_id] <= min(self._followers.values())
        return self._arrived_at.get(member_id, 0) >= max(self._arrived_at.values(), default=0)


class PhaseEndWatcher:
    """Detects the end of a phase from a watch of the barrier's state. Single-threaded.

    Attributes:
        snapshot: The newest state of the barrier.
    """

    def __init__(self, snapshot: BarrierSnapshot, phase: int) -> None:
        self.snapshot = snapshot
        self._phase = phase

    def __call__(self, batch: Batch) -> bool:
        """Apply a batch of changes. Return True once the phase has ended."""
        for change in batch:
            if change.entry is not None:
                state = BarrierRecord.from_entry(change.entry)
                self.snapshot = replace(self.snapshot, state=state, entry=change.entry)
        return self.snapshot.state.phase > self._phase


class BarrierMember:
    """A member of a barrier: the base class of both kinds, which document its arguments. Thread-safe."""

    #: For messages; and how many phases a round has.
    _kind, _cycle = "barrier", 1

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        parties: Parties,
        member_id: str,
        session: Session | None = None,
        per_generation: bool = False,
        keeps_arrival: bool = False,
    ) -> None:
        check_store(store, f"a {self._kind}")
        if callable(parties) and not per_generation:
            raise TypeError(f"{self._kind} {name!r}: parties given by a function need per_generation=True")
        self.name = check_name(name, self._kind)
        self.member_id = check_member(member_id, "member")
        self._what = f"{self._kind} {name!r}"
        self._waits = WaiterRegistry(store, self._what, session)
        self._store = store
        self._expect = parties if callable(parties) else None
        self._parties = 0 if callable(parties) else _check_parties(parties, member_id, self._what)
        self._initial = BarrierRecord(0) if per_generation else BarrierRecord.with_fixed_parties(self._parties)
        self._identity = Identity()
        self._keys = BarrierKeys(name)
        self._mine = self._keys.arrival_key(member_id)
        self._last_ended = -1
        self._keeps_arrival = keeps_arrival
        self._is_absent = False  # we have not arrived at the open phase
        self._guess: BarrierSnapshot | None = None  # the state after our last phase, until an arrival has relied on it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.member_id!r}>"

    def close(self) -> None:
        """End all waits of this object. An arrival that was written still counts. Thread-safe and idempotent."""
        self._waits.close()

    async def _read_state(self) -> BarrierRecord:
        """Read the state of the barrier. Return the initial state if the barrier was never used."""
        self._waits.ensure_usable()
        entry = await ask(self._store.get, self._keys.state_key)
        return self._initial if entry is None else BarrierRecord.from_entry(entry)

    async def _arrived(self) -> list[str]:
        """Return the IDs of the members that have arrived at the open phase, sorted."""
        self._waits.ensure_usable()
        snapshot, entries = await self._read_all()
        return sorted(find_arrived(snapshot, entries))

    async def _read_all(self) -> tuple[BarrierSnapshot, list[Entry]]:
        """Read the state, the newest opening, and all entries of the barrier."""
        entries: list[Entry] = await ask(self._store.list, self.name)
        found = {entry.key: entry for entry in entries}
        return self._build_snapshot(found.get(self._keys.state_key), found.get(self._keys.opening_key)), entries

    def _build_snapshot(self, entry: Entry | None, opening_entry: Entry | None) -> BarrierSnapshot:
        """Return the state and opening that these entries store.

        Raises:
            LatchworkError: The barrier was created for other members.
        """
        state = self._initial if entry is None else BarrierRecord.from_entry(entry)
        if not state.has_same_members(self._initial):
            expects = ", ".join(state.names) or (f"{state.parties} members" if state.parties else "others each time")
            raise LatchworkError(
                f"{self._what} expects {expects}; create it with the same parties, or use another name"
            )
        return BarrierSnapshot(self._keys, state, entry, opening_entry)

    async def _arrive_and_wait(self, choose: Choice, timeout_s: float | None, checks: Sequence[Check] = ()) -> int:
        """Arrive at a phase, and wait until all members have arrived. Return the number of the phase.

        Args:
            choose: Returns the phase at which to arrive.
            timeout_s: Seconds to wait. None waits forever.
            checks: Further preconditions of the transaction that writes the arrival.
        Raises:
            BarrierBroken: The phase ended before all members arrived, because one of them timed out or broke it.
        """
        local = LocalMember(get_local_members(self._store, self.name))
        async with self._waits.start(timeout_s) as (waiter, deadline):
            with local:
                while True:
                    arrive = partial(self._arrive, choose, checks, waiter, timeout_s, local)
                    arrival = await waiter.keep_trying(arrive, deadline)
                    if arrival.phase is not None:
                        seen = ArrivalWatcher(arrival.snapshot, arrival.phase)
                        arrival = await self._ensure_counted(arrival, seen, checks, waiter, deadline, local=local)
                        return await self._await_end(seen, arrival, waiter, deadline, local)
                    await self._wait_for_another_phase(arrival.snapshot, waiter, deadline)

    async def _break_phase(self, why: str, lacking: Lacking | None = None) -> None:
        """Break the open phase, so that all waiting members raise ``BarrierBroken``.

        Args:
            why: The reason, shown to the other members.
            lacking: Returns IDs of required members, given the basis of the open phase. The phase is broken only if one
                of them has not arrived. None breaks it in any case.
        """
        self._waits.ensure_usable()
        check_text(why, "the reason")
        why = why or f"{self.member_id!r} broke it"
        if lacking is None:
            phase = (await self._break_or_pass((await self._read_state()).phase, why)).state.phase
            if phase % self._cycle:  # all had arrived after all, which has begun the round to be ended
                await self._break_or_pass(phase, why)
            return
        snapshot, _ = await self._read_all()
        opening = snapshot.opening
        missing = set() if opening is None else set(lacking(opening.basis))
        if missing:
            await self._write_phase_end(
                snapshot.state.phase,
                lambda now, arrived: (
                    now.state.after_break(why, arrived, now.opening, cycle=self._cycle) if missing - arrived else None
                ),
            )

    # Arriving

    async def _arrive(
        self, choose: Choice, checks: Sequence[Check], waiter: Waiter, timeout_s: float | None, local: LocalMember
    ) -> _Arrival:
        """Write this member's arrival at the phase that ``choose`` returns. Retry while the barrier changes.

        Nothing is written if the member has arrived there before, if that phase has ended, or if it must wait first.

        Args:
            choose: Returns the phase at which to arrive. None to wait for another phase.
            checks: Further preconditions of the transaction that writes the arrival.
            waiter: The waiting call.
            timeout_s: Timeout that the first arrival sets for the phase. None for no limit.
            local: This member among the members of this process.
        """
        has_paused = False
        while True:
            guess, self._guess = self._guess if self._is_absent else None, None
            snapshot, mine = (guess, None) if guess is not None else await self._read_state_and_arrival(local)
            state = snapshot.state
            last = parse_arrival(mine) if mine is not None else -1
            phase = choose(state, last if last > self._last_ended else -1)
            if guess is not None and phase != state.phase:
                continue  # only a read shows what to do instead
            opening = snapshot.opening
            if phase is None or phase < state.phase or (mine is not None and snapshot.counts(mine)):
                return self._build_unwritten_arrival(phase, snapshot, mine if last == phase else None, waiter)
            if phase > state.phase:
                raise ValueError(f"{self._what}: not opened yet; the open one is {state.phase // self._cycle}")
            expected = None
            is_first = opening is None or snapshot.must_create_record
            if is_first and not has_paused and not await local.reserve_first_arrival(phase, waiter):
                continue
            if opening is None:
                expected = await self._get_expected_members()
                opening = expected.open_phase(phase, timeout_s, time.time())
                if not has_paused and exceeds_watch_limit(opening.parties):
                    has_paused = True
                    if await waiter.pause(random.uniform(0.0, _SPREAD_S)):
                        continue  # of many that arrive at once, one has opened it by now
            try:
                arrival = await self._write_arrival(snapshot, opening, expected, checks, waiter, local=local)
            finally:
                local.finish_first_arrival()
            if arrival is not None:
                _log.debug("%s: %r has arrived at phase %d", self._what, self.member_id, phase)
                return arrival

    async def _read_state_and_arrival(self, local: LocalMember) -> tuple[BarrierSnapshot, Entry | None]:
        """Read the state and the opening of the barrier, and the arrival of this member if it may have one.

        Returns:
            The snapshot of the barrier, and the entry of the arrival or None.
        """
        wanted = [self._keys.state_key, self._keys.opening_key]
        entry, opened, *mine = await local.members.get_many(wanted if self._is_absent else [*wanted, self._mine])
        return self._build_snapshot(entry, opened), mine[0] if mine else None

    async def _write_arrival(
        self,
        snapshot: BarrierSnapshot,
        opening: Opening,
        expected: Expected | None,
        checks: Sequence[Check],
        waiter: Waiter,
        *,
        local: LocalMember,
    ) -> _Arrival | None:
        """Write this member's arrival at the current phase, in one transaction.

        A member that knows of no opening, the record of the expected members, also writes it. It does so in a
        transaction of its own at the same time, so that its arrival need not wait until the opening is refused because
        another member was first. Of many members only one writes an opening, with its arrival.

        If this member is to watch the arrivals of the others, its watch is opened before the write, so that it misses
        none.

        Args:
            snapshot: The state of the barrier.
            opening: The expected members of the phase.
            expected: What to check and write with the opening. None if the phase has been opened.
            checks: Further preconditions of each transaction.
            waiter: The waiting call.
            local: This member among the members of this process.
        Returns:
            The arrival. None if the state of the barrier has changed, so that the caller must try again.
        """
        is_crowd = exceeds_watch_limit(opening.parties)
        follows = expected is not None or should_watch_arrivals(opening.parties)
        if follows and is_crowd:
            follows = local.try_become_watcher(opening.phase) or expected is not None
        about: dict[str, object] = {"host": self._identity.host, "pid": self._identity.pid}
        if follows:
            waiter.start_watching(self.name)
            if is_crowd:
                about["follows"] = True
        ours, ops, opening_ops = [snapshot.phase_open_check], list[Op](), list[Op]()
        if snapshot.must_create_record:
            ops.append(Put(self._keys.state_key, snapshot.state.to_bytes()))
        ops.append(Put(self._mine, encode_arrival(opening.phase, about)))
        if expected is not None:
            ours += [snapshot.opening_unchanged_check, *expected.checks]
            opening_ops += [Put(self._keys.opening_key, opening.to_bytes()), *expected.ops]
        self._is_absent, refused = False, None
        began = self._store.clock.now()
        try:
            if expected is None or is_crowd:
                written = await local.members.commit([*ours, *checks], [*opening_ops, *ops])
            else:
                written, refused = await local.members.commit_opening(
                    ([*ours, *checks], opening_ops), ([snapshot.phase_open_check, *checks], ops)
                )
        except Conflict as error:
            if not any(each in ours for each in error.failed):
                raise
            return None
        if refused is not None and not any(each in refused.failed for each in ours[:2]):
            return None  # perhaps no member has opened the phase; otherwise the watch shows its expected members
        took_s = self._store.clock.now() - began
        return _Arrival(opening.phase, snapshot.with_written_entries(written), written[-1], follows, took_s)

    async def _ensure_counted(
        self,
        arrival: _Arrival,
        seen: ArrivalWatcher,
        checks: Sequence[Check],
        waiter: Waiter,
        deadline: Deadline,
        *,
        local: LocalMember,
    ) -> _Arrival:
        """Arrive again if the opening of the phase is newer than our arrival. Return the arrival that counts.

        Args:
            arrival: The arrival of this member.
            seen: Collects what the watch shows. If another member has just opened the phase, this includes the expected
                members.
            checks: Further preconditions of the transaction.
            waiter: The waiting call.
            deadline: End of the wait.
            local: This member among the members of this process.
        """
        if not seen.has_ended and seen.snapshot.opening is None:
            await waiter.continue_watching(lambda batch: seen(batch) or seen.snapshot.opening is not None, deadline)
        now, mine = seen.snapshot, arrival.mine
        if seen.has_ended or now.opening is None or mine is None or now.counts(mine):
            return arrival
        arrive = partial(self._write_arrival, now, now.opening, None, checks, waiter, local=local)
        return await waiter.keep_trying(arrive, deadline) or arrival  # without another one, the phase has ended

    def _build_unwritten_arrival(
        self, phase: int | None, snapshot: BarrierSnapshot, mine: Entry | None, waiter: Waiter
    ) -> _Arrival:
        """Return the arrival for a call that writes nothing.

        The member has arrived before, the phase has ended, or the member must wait for another phase.

        Args:
            phase: The phase. None if the member must wait for another phase first.
            snapshot: The state of the barrier.
            mine: Entry of the arrival at this phase. None if there is none.
            waiter: The waiting call.
        """
        opening = snapshot.opening
        follows = (
            mine is None or opening is None or is_arrival_watcher(mine) or not exceeds_watch_limit(opening.parties)
        )
        if follows:
            waiter.start_watching(self.name)
        return _Arrival(phase, snapshot, mine, follows)

    async def _get_expected_members(self) -> Expected:
        """Return the members that a new phase expects: the given ones, or the result of the user's ``parties``
        function.
        """
        if self._expect is None:
            return Expected(self._parties)
        expected = await call_library(self._expect)
        if not isinstance(expected, Expected):
            raise TypeError(f"{self._what}: parties has to return Expected(...), not {expected!r}")
        return replace(expected, parties=_check_parties(expected.parties, self.member_id, self._what))

    # Waiting

    async def _wait_for_another_phase(self, snapshot: BarrierSnapshot, waiter: Waiter, deadline: Deadline) -> None:
        """Wait until the phase that was open in this snapshot is not open any more."""
        phase = snapshot.state.phase
        if await waiter.keep_trying(lambda: self._end_if_complete(phase), deadline) is not None:
            return  # it had ended, but the last member died before it wrote that
        if not await waiter.watch_until(self._keys.state_key, PhaseEndWatcher(snapshot, phase), deadline):
            self._waits.raise_if_ended(waiter)
            raise BarrierBroken(f"{self._what} is in use by a round without {self.member_id!r}; try again later")

    async def _await_end(
        self, seen: ArrivalWatcher, arrival: _Arrival, waiter: Waiter, deadline: Deadline, local: LocalMember
    ) -> int:
        after = seen.snapshot
        if not seen.has_ended:
            after = await self._watch_arrivals(seen, arrival, waiter, deadline, local)
        return await self._finish_wait(seen.phase, after, arrival.mine, local)

    async def _watch_arrivals(
        self, seen: ArrivalWatcher, arrival: _Arrival, waiter: Waiter, deadline: Deadline, local: LocalMember
    ) -> BarrierSnapshot:
        """Watch the arrivals until the phase has ended, or end it when all members have arrived.

        Args:
            seen: The phase, and the arrivals that the watch has shown.
            arrival: The arrival of this member.
            waiter: The waiting call.
            deadline: When to break the phase.
            local: This member among the members of this process.
        Returns:
            The state of the barrier after the phase.
        """
        phase, opening, after = seen.phase, seen.snapshot.opening, None
        if opening is not None:
            deadline = Deadline(self._store.clock, deadline.left_s(opening.deadline_s))
        if opening is not None and not arrival.follows:
            after = await self._watch_state(seen, opening.parties, waiter, deadline, local)
        is_done = after is None and (
            seen.is_done
            or await (
                waiter.continue_watching(seen, deadline)
                if arrival.follows
                else waiter.watch_until(self.name, seen, deadline)
            )
        )
        while is_done and (after := await self._end_complete_phase(seen, waiter, deadline, arrival.took_s)) is None:
            seen = ArrivalWatcher(seen.snapshot, phase)
            is_done = await waiter.watch_until(self.name, seen, deadline)
        if after is not None:
            return after
        self._waits.raise_if_ended(waiter)
        since = "" if opening is None or not opening.at else f", it was open since {utc_text(opening.at)}"
        late = f"{self.member_id!r} had no more time{since}"
        return await waiter.keep_trying(lambda: self._break_or_pass(phase, late), deadline)

    async def _end_complete_phase(
        self, seen: ArrivalWatcher, waiter: Waiter, deadline: Deadline, trip_s: float
    ) -> BarrierSnapshot | None:
        """End a phase at which all members have arrived.

        One of the members does so at once. The others wait a few round trips for it, and then do so themselves, because
        it may have died.

        Args:
            seen: The arrivals that were seen.
            waiter: Waits for the other member.
            deadline: End of all waits.
            trip_s: Seconds that a request has taken.
        Returns:
            The state of the barrier if the phase has ended.
        """
        if not seen.has_ended and not seen.should_end_phase(self.member_id):
            pause_s = random.uniform(*_BACKUP_PAUSE_S) + _BACKUP_TRIPS * trip_s
            pause = Deadline(self._store.clock, deadline.left_s(pause_s))
            await waiter.continue_watching(lambda batch: seen(batch) and seen.has_ended, pause)
        if seen.has_ended:
            return seen.snapshot
        return await waiter.keep_trying(partial(self._end_if_complete, seen.phase, seen), deadline)

    async def _watch_state(
        self, seen: ArrivalWatcher, parties: int, waiter: Waiter, deadline: Deadline, local: LocalMember
    ) -> BarrierSnapshot | None:
        """Wait for the end of a phase by watching only the state of the barrier, not the arrivals.

        Args:
            seen: The phase, and the state of the barrier when we arrived.
            parties: The number of expected members.
            waiter: The waiting call.
            deadline: End of the wait.
            local: This member among the members of this process.
        Returns:
            The state after the phase. None if the deadline has passed or this member must watch the arrivals itself.
        """
        longest_s = random.uniform(*AGAIN_S)
        if await local.members.wait_for_phase_end(seen.phase, waiter.cancelled, deadline.left_s(longest_s)):
            wanted = [self._keys.state_key, self._keys.opening_key]
            found = await waiter.keep_trying(lambda: local.members.get_many(wanted), deadline)
            after = self._build_snapshot(*found)
            if after.state.phase > seen.phase:
                return after
        while not await waiter.watch_until(
            self._keys.state_key,
            end := PhaseEndWatcher(seen.snapshot, seen.phase),
            Deadline(self._store.clock, deadline.left_s(longest_s)),
            single_key=True,
        ):
            if waiter.is_cancelled or deadline.has_passed or should_watch_arrivals(parties):
                return None
            longest_s *= 2.0
        return end.snapshot

    async def _end_if_complete(self, phase: int, seen: ArrivalWatcher | None = None) -> BarrierSnapshot | None:
        """End a phase as passed if all members have arrived.

        Args:
            phase: The phase.
            seen: The arrivals that were seen while the phase was open. None reads them.
        Returns:
            The state of the barrier if the phase has ended, otherwise None.
        """
        return await self._write_phase_end(
            phase,
            lambda now, arrived: now.state.after_pass(arrived) if is_complete(now.opening, arrived) else None,
            seen,
        )

    async def _break_or_pass(self, phase: int, why: str) -> BarrierSnapshot:
        """End a phase: as passed if all members have arrived, otherwise as broken. Return the state of the barrier.

        Args:
            phase: The phase.
            why: The reason, shown to the other members.
        """
        after = await self._write_phase_end(
            phase,
            lambda now, arrived: (
                now.state.after_pass(arrived)
                if is_complete(now.opening, arrived)
                else now.state.after_break(why, arrived, now.opening, cycle=self._cycle)
            ),
        )
        assert after is not None
        return after

    async def _write_phase_end(
        self,
        phase: int,
        decide: Callable[[BarrierSnapshot, set[str]], BarrierRecord | None],
        seen: ArrivalWatcher | None = None,
    ) -> BarrierSnapshot | None:
        """End a phase as ``decide`` says, if no other member has ended it. Retry if the state changes in between.

        Args:
            phase: The phase.
            decide: Returns the state after the phase, given the state now and the IDs of the members that have arrived.
                None to leave the phase open.
            seen: The state and the arrivals that were seen. None reads them.
        Returns:
            The state of the barrier after the phase. None if ``decide`` left the phase open.
        """
        while True:
            if seen is None:
                snapshot, entries = await self._read_all()
                arrived = find_arrived(snapshot, entries)
            else:
                snapshot, arrived, seen = seen.snapshot, seen.arrived, None
            if snapshot.state.phase != phase:
                return snapshot
            state = decide(snapshot, arrived)
            if state is None:
                return None
            write = Put(self._keys.state_key, state.to_bytes())
            with contextlib.suppress(Conflict):
                done = await ask(self._store.commit, [snapshot.phase_open_check], [write])
                return replace(snapshot, state=state, entry=done.entries[0])

    # After the end of a phase

    async def _finish_wait(self, phase: int, after: BarrierSnapshot, mine: Entry | None, local: LocalMember) -> int:
        end = after.state.find_result(phase)
        self._last_ended = max(self._last_ended, phase)
        self._guess = after
        if self._keeps_arrival:
            self._is_absent = True
        else:
            await self._delete_arrival(mine, local)
        if end is None:
            raise LatchworkError(
                f"{self._what}: how phase {phase} ended is no longer known, because it was too long ago"
            )
        if not end.broken:
            return phase
        missing = ", ".join(end.missing)
        who = f": {missing}" if missing else ""
        raise BarrierBroken(
            f"{self._what} was broken: {end.broken}; {end.lacking} of {end.parties} missing{who}; meet again",
            end.missing,
            end.arrived,
        )

    async def _delete_arrival(self, mine: Entry | None, local: LocalMember) -> None:
        """Delete the stored arrival of this member after it has learned how the phase ended.

        If it remained, a restarted process with this ID would believe that it has not learned this yet.

        Args:
            mine: Entry of the arrival. None if there is none.
            local: This member among the members of this process.
        """
        if mine is None:
            return
        try:
            with contextlib.suppress(Conflict):  # we have arrived again, in another thread
                await local.members.delete(mine)
                self._is_absent = True  # the next arrival need not read the key
        except LatchworkError as error:
            _log.info("%s: the arrival of %r could not be removed: %s", self._what, self.member_id, error)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The result of an attempt to arrive.

    Attributes:
        phase: The phase at which the member has arrived. None if it must wait for another phase first.
        snapshot: State and opening of the barrier at that time. Without the opening if another member opened the phase
            at the same time.
        mine: Entry of this member's arrival. None if none was written. It does not count if the opening is newer.
        follows: Whether this member watches the arrivals of the others. The waiter's watch shows them.
        took_s: Seconds that the request took that wrote the arrival.
    """

    phase: int | None
    snapshot: BarrierSnapshot
    mine: Entry | None
    follows: bool
    took_s: float = 0.0


def _check_parties(parties: int | Collection[str], member_id: str, what: str) -> int | Collection[str]:
    if not isinstance(parties, Collection):
        if check_integer(parties, f"the number of parties of {what}") < 1:
            raise ValueError(f"{what} needs at least 1 party, not {parties}")
        return parties
    names = {check_member(each, "member") for each in parties}
    if member_id not in names:
        raise InvalidKey(f"member {member_id!r} is not one of the parties of {what}: {', '.join(sorted(names))}")
    return names
