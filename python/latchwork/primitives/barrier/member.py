"""The loop behind both barriers. Its decisions are in ``phases``.

Keys:  <name>/board             the open phase, the expected members, the last results; as JSON
       <name>/arrived/<member>  as JSON, not bound to a session: the phase at which a member has arrived, host and PID,
                                and whether it ``follows`` the other arrivals

An arrival is written on condition that the board is unchanged, so it counts for the open phase. While a phase is open,
arrivals are only added. A member that has seen enough of them may therefore end the phase, on condition that the board
is unchanged. If each phase has its own parties, the first arrival writes them to the board in its transaction.
docs/design/groups-and-queues.md has the races.

With few members all watch the arrivals, and the last one to arrive ends the phase. With more than ``MANY`` members,
each member would see each arrival: n x n events. Each member then decides at random before its arrival whether it
watches, so that about ``FOLLOWERS`` members do. The first of them ends the phase. The others watch only the board and
decide again now and then, in case all watching members have died.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from latchwork._base.text import utc_text
from latchwork._base.validation import check_store
from latchwork.errors import BarrierBroken, Conflict, InvalidKey, LatchworkError
from latchwork.primitives.barrier.local_members import LocalMember, get_local_members
from latchwork.primitives.barrier.phases import (
    MANY,
    BarrierRecord,
    Expected,
    Opening,
    encode_arrival,
    find_arrived,
    parse_arrival,
    watches_arrivals,
)
from latchwork.primitives.waiting.common import Deadline, Identity, check_integer, check_name, check_text
from latchwork.primitives.waiting.waits import Waiter, WaiterRegistry, check_member, get_or_create
from latchwork.store.session import Session
from latchwork.store.steps import ask, call_library
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import Absent, At, Change, Check, Entry, Op, Put

_log = logging.getLogger(__name__)

#: Average number of members that follow the arrivals. There is no follower once in e^8 times; see ``AGAIN_S``.
FOLLOWERS = 8
#: A member that watches the board alone draws again after this many seconds, then after twice as long, and so on.
AGAIN_S = (2.0, 5.0)

#: Returns the requested phase, given the board and the phase of our last arrival (-1: none). None: wait for another.
Choice = Callable[[BarrierRecord, int], int | None]
#: Seconds after which another member ends the phase, too, because the last one to arrive may have died.
_BACKUP_PAUSE_S = (0.2, 0.6)
#: On slow links it comes later by so many times the time of a look: the last one looks before it ends the phase.
_BACKUP_LOOKS = 4.0
#: Maximum random wait before a member opens a phase: of many members, one write is enough.
_SPREAD_S = 0.03
#: Returns the members without which the phase is broken, given the basis of the open phase.
Lacking = Callable[[int], Collection[str]]
#: The number of members or their IDs, or a function that is called when the first has arrived at a generation.
Parties = int | Collection[str] | Callable[[], Expected]


def is_many(parties: int) -> bool:
    """Return whether a barrier has too many members for each of them to watch all arrivals."""
    return parties > MANY


def should_watch_arrivals(parties: int) -> bool:
    """Decide whether a member watches the arrivals of the others: always with few members, at random with many.

    Args:
        parties: The number of members of the barrier.
    """
    return not is_many(parties) or random.random() < FOLLOWERS / parties


class ArrivalWatcher:
    """Collects the arrivals at a phase from a watch, until the phase has ended or all have arrived. Single-threaded.

    Attributes:
        phase: The phase.
        board: The state of the barrier, once the phase has ended.
    """

    def __init__(self, board_key: str, arrivals: str, parties: int, phase: int) -> None:
        self.board: BarrierRecord | None = None
        self._board_key = board_key
        self._arrivals = arrivals
        self._parties = parties
        self.phase = phase
        self._arrived_at: dict[str, int] = {}
        self._followers: dict[str, int] = {}

    def __call__(self, batch: Batch) -> bool:
        """Apply a batch of changes. Return True once there is nothing to wait for."""
        for change in batch:
            entry = change.entry
            if entry is None:
                continue
            if change.key == self._board_key:
                board = BarrierRecord.from_entry(entry)
                self.board = board if board.phase > self.phase else None
            elif change.key.rpartition("/")[0] == self._arrivals and parse_arrival(entry)[1] == self.phase:
                self._arrived_at[change.key] = entry.token
                if is_many(self._parties) and watches_arrivals(entry):
                    self._followers[change.key] = entry.token
        return self.board is not None or len(self._arrived_at) >= self._parties

    @property
    def arrived(self) -> set[str]:
        """The IDs of the members that have arrived."""
        return {key.rpartition("/")[2] for key in self._arrived_at}

    def should_end_phase(self, key: str) -> bool:
        """Return whether the member with this arrival key should write the end of the phase.

        With few members this is the last one to arrive. With many it is the first one that watches the arrivals.
        """
        if is_many(self._parties):
            return key in self._followers and self._followers[key] <= min(self._followers.values())
        return self._arrived_at.get(key, 0) >= max(self._arrived_at.values(), default=0)


class PhaseEndWatcher:
    """Detects the end of a phase from a watch of the barrier's state. Single-threaded.

    Attributes:
        board: The state of the barrier, once the phase has ended.
    """

    def __init__(self, phase: int) -> None:
        self.board: BarrierRecord | None = None
        self._phase = phase

    def __call__(self, batch: Batch) -> bool:
        """Apply a batch of changes. Return True once the phase has ended."""
        entries = [change.entry for change in batch if change.entry is not None]
        if entries:
            board = BarrierRecord.from_entry(entries[-1])
            self.board = board if board.phase > self._phase else None
        return self.board is not None


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
            raise TypeError(f"{self._kind} {name!r}: parties that are asked for need per_generation=True")
        self.name = check_name(name, self._kind)
        self.member_id = check_member(member_id, "member")
        self._what = f"{self._kind} {name!r}"
        self._waits = WaiterRegistry(store, self._what, session)
        self._store = store
        self._expect = parties if callable(parties) else None
        self._parties = 0 if callable(parties) else _check_parties(parties, member_id, self._what)
        self._initial = (
            BarrierRecord.for_separate_phases() if per_generation else BarrierRecord.for_parties(self._parties)
        )
        self._identity = Identity()
        self._board_key = f"{name}/board"
        self._arrivals = f"{name}/arrived"
        self._mine = f"{self._arrivals}/{member_id}"
        self._last_ended = -1
        self._keeps_arrival = keeps_arrival
        self._is_absent = False  # we have not arrived at the open phase

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.member_id!r}>"

    def close(self) -> None:
        """End all waits of this object. An arrival that was written still counts. Thread-safe and idempotent."""
        self._waits.close()

    async def _read_board(self) -> BarrierRecord:
        """Read the state of the barrier. Return the initial state if the barrier was never used."""
        self._waits.check()
        entry = await ask(self._store.get, self._board_key)
        return self._initial if entry is None else BarrierRecord.from_entry(entry)

    async def _arrived(self) -> list[str]:
        """Return the IDs of the members that have arrived at the open phase, sorted."""
        phase = (await self._read_board()).phase
        return sorted(find_arrived(await self._list_arrivals(), phase))

    async def _list_arrivals(self) -> list[Entry]:
        found: list[Entry] = await ask(self._store.list, self._arrivals)
        return found

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
                        return await self._await_end(arrival.phase, arrival, waiter, deadline, local)
                    await self._wait_for_another_phase(arrival.board.phase, waiter, deadline)

    async def _break_phase(self, why: str, lacking: Lacking | None = None) -> None:
        """Break the open phase, so that all waiting members raise ``BarrierBroken``.

        Args:
            why: The reason, shown to the other members.
            lacking: Returns IDs of required members, given the basis of the open phase. The phase is broken only if one
                of them has not arrived. None breaks it in any case.
        """
        self._waits.check()
        check_text(why, "the reason")
        why = why or f"{self.member_id!r} broke it"
        if lacking is None:
            board = await self._end_as_broken((await self._get_or_create_board())[1].phase, why)
            if board.phase % self._cycle:  # all had arrived after all, which has begun the round to be ended
                await self._end_as_broken(board.phase, why)
            return
        entry = await ask(self._store.get, self._board_key)
        if entry is None or not (board := self._read(entry)).is_open:
            return
        missing = set(lacking(0 if board.opening is None else board.opening.basis))
        if missing:
            await self._end(
                board.phase,
                lambda board, arrived: board.after_breaking(why, arrived, self._cycle) if missing - arrived else None,
            )

    # Arriving

    async def _get_or_create_board(self) -> tuple[Entry, BarrierRecord]:
        entry = await get_or_create(self._store, self._board_key, self._initial.to_bytes())
        return entry, self._read(entry)

    def _read(self, entry: Entry) -> BarrierRecord:
        board = BarrierRecord.from_entry(entry)
        if board.expects_same_as(self._initial):
            return board
        expects = ", ".join(board.names) or ("others each time" if board.is_per_phase else f"{board.parties} members")
        raise LatchworkError(f"{self._what} expects {expects}; make it with the same parties, or use another name")

    async def _arrive(
        self, choose: Choice, checks: Sequence[Check], waiter: Waiter, timeout_s: float | None, local: LocalMember
    ) -> _Arrival:
        """Try to arrive at the phase that ``choose`` returns, until the arrival is written or there is none to write.

        Args:
            choose: Returns the phase at which to arrive. None to wait for another phase.
            checks: Further preconditions of the transaction that writes the arrival.
            waiter: The waiting call.
            timeout_s: Timeout that the first arrival sets for the phase. None for no limit.
            local: This member among the members of this process.
        """
        has_paused = False
        while True:
            names = [self._board_key] if self._is_absent else [self._board_key, self._mine]
            entry, mine, *_ = *await local.members.get_many(names), None
            if entry is None and not self._initial.is_per_phase:
                entry, _ = await self._get_or_create_board()
            board = self._initial if entry is None else self._read(entry)
            last = parse_arrival(mine)[1] if mine is not None else -1
            phase = choose(board, last if last > self._last_ended else -1)
            if phase is None or phase < board.phase or last == phase:
                ours = mine if last == phase else None
                return _Arrival(
                    phase, entry, board, ours, ours is None or watches_arrivals(ours) or not is_many(board.parties)
                )
            if phase > board.phase:
                raise ValueError(f"{self._what}: that is to come; open is {board.phase // self._cycle}")
            if not board.is_open and not has_paused and not await local.claim_opening(phase, waiter):
                continue
            expected = Expected(()) if board.is_open else await self._resolve_expected()
            count = expected.parties if isinstance(expected.parties, int) else len(expected.parties)
            if not has_paused and not board.is_open and is_many(count):
                has_paused = True
                if await waiter.pause(random.uniform(0.0, _SPREAD_S)):
                    continue  # of many that arrive at once, one has opened it by now
            try:
                arrival = await self._encode_arrival(entry, board, expected, checks, timeout_s, local=local)
            finally:
                local.finish_opening()
            if arrival is not None:
                _log.debug("%s: %r has arrived at phase %d", self._what, self.member_id, phase)
                return arrival

    async def _encode_arrival(
        self,
        entry: Entry | None,
        board: BarrierRecord,
        expected: Expected,
        checks: Sequence[Check],
        timeout_s: float | None,
        *,
        local: LocalMember,
    ) -> _Arrival | None:
        """Write this member's arrival at the open phase. The first arrival also opens the phase.

        Args:
            entry: Entry of the barrier's state. None if there is none yet.
            board: The decoded state.
            expected: The expected members, if this arrival opens the phase.
            checks: Further preconditions of the transaction.
            timeout_s: Timeout that the first arrival sets for the phase. None for no limit.
            local: This member among the members of this process.
        Returns:
            The arrival. None if the state of the barrier has changed, so that the caller must try again.
        """
        ours: list[Check] = [Absent(self._board_key) if entry is None else At(entry)]
        ops: list[Op] = []
        is_first = not board.is_open
        if is_first:
            ours += expected.checks
            board = board.after_opening(expected.parties, Opening(timeout_s, time.time(), expected.basis))
            ops += [Put(self._board_key, board.to_bytes()), *expected.ops]
        is_follower = is_first or should_watch_arrivals(board.parties)
        if is_follower and is_many(board.parties):
            is_follower = local.claim_watching(board.phase) or is_first
        about: dict[str, object] = {"host": self._identity.host, "pid": self._identity.pid}
        if is_follower and is_many(board.parties):
            about["follows"] = True
        ops.append(Put(self._mine, encode_arrival(board.phase, about)))
        self._is_absent = False
        try:
            written = await local.members.commit([*ours, *checks], ops)
        except Conflict as error:
            if any(each in ours for each in error.failed):
                return None
            raise
        return _Arrival(board.phase, written[0] if is_first else entry, board, written[-1], is_follower)

    async def _resolve_expected(self) -> Expected:
        """Return the members that a new phase expects. Call the function for ``parties``, if the caller gave one."""
        if self._expect is None:
            return Expected(self._parties)
        expected = await call_library(self._expect)
        if not isinstance(expected, Expected):
            raise TypeError(f"{self._what}: parties has to return Expected(...), not {expected!r}")
        return replace(expected, parties=_check_parties(expected.parties, self.member_id, self._what))

    # Waiting

    async def _wait_for_another_phase(self, seen: int, waiter: Waiter, deadline: Deadline) -> None:
        """Wait until the phase ``seen`` is not open any more."""
        if await waiter.keep_trying(lambda: self._end_if_complete(seen), deadline) is not None:
            return  # it had ended, but the last member died before it wrote that
        if not await waiter.watch_until(self._board_key, PhaseEndWatcher(seen), deadline):
            self._waits.raise_if_ended(waiter)
            raise BarrierBroken(f"{self._what} is in use by a round that {self.member_id!r} has no part in; meet later")

    async def _await_end(
        self, phase: int, arrival: _Arrival, waiter: Waiter, deadline: Deadline, local: LocalMember
    ) -> int:
        board = arrival.board if arrival.board.phase != phase else None
        if board is None:
            deadline = Deadline(self._store.clock, deadline.left_s(arrival.deadline_s))
            board = await self._watch_arrivals(phase, arrival, waiter, deadline, local)
        return await self._finish(phase, board, arrival.mine, local)

    async def _watch_arrivals(
        self, phase: int, arrival: _Arrival, waiter: Waiter, deadline: Deadline, local: LocalMember
    ) -> BarrierRecord:
        """Watch the arrivals until the phase has ended, or end it when all members have arrived.

        Args:
            phase: The phase.
            arrival: The arrival of this member.
            waiter: The waiting call.
            deadline: When to break the phase.
            local: This member among the members of this process.
        Returns:
            The state of the barrier after the phase.
        """
        board, parties, look_s = None, arrival.board.parties, 0.0
        seen = ArrivalWatcher(self._board_key, self._arrivals, parties, phase)
        if not arrival.follows:
            board = await self._watch_board(phase, parties, waiter, deadline, local)
        elif not is_many(parties):  # the last to arrive need not watch
            began = self._store.clock.now()
            found = await waiter.keep_trying(self._list_arrivals, deadline)
            look_s = self._store.clock.now() - began
            if seen(tuple(Change(entry.key, entry) for entry in found)):
                board = await self._end_in_turn(seen, arrival, waiter, deadline, look_s)
        while board is None and await waiter.watch_until(
            self.name, seen := ArrivalWatcher(self._board_key, self._arrivals, parties, phase), deadline
        ):
            board = await self._end_in_turn(seen, arrival, waiter, deadline, look_s)
        if board is not None:
            return board
        self._waits.raise_if_ended(waiter)
        late = f"{self.member_id!r} had no more time{_since(arrival.board)}"
        return await waiter.keep_trying(lambda: self._end_as_broken(phase, late), deadline)

    async def _end_in_turn(
        self, seen: ArrivalWatcher, arrival: _Arrival, waiter: Waiter, deadline: Deadline, look_s: float
    ) -> BarrierRecord | None:
        """End a phase at which all have arrived. First leave that to the one member whose turn it is, for a moment.

        Args:
            seen: The arrivals that were seen.
            arrival: Our arrival. The board is probably unchanged since then; otherwise the commit is refused.
            waiter: Waits for the other member.
            deadline: End of all waits.
            look_s: Seconds that a look at the arrivals has taken.
        Returns:
            The state of the barrier if the phase has ended.
        """
        if seen.board is not None:
            return seen.board
        if not seen.should_end_phase(self._mine):
            pause_s = random.uniform(*_BACKUP_PAUSE_S) + _BACKUP_LOOKS * look_s
            end = PhaseEndWatcher(seen.phase)
            pause = Deadline(self._store.clock, deadline.left_s(pause_s))
            if await waiter.watch_until(self._board_key, end, pause, single_key=True):
                return end.board
        known = [(arrival.entry, arrival.board)] if arrival.entry is not None else []
        return await waiter.keep_trying(partial(self._end_if_complete, seen.phase, seen.arrived, known), deadline)

    async def _watch_board(
        self, phase: int, parties: int, waiter: Waiter, deadline: Deadline, local: LocalMember
    ) -> BarrierRecord | None:
        """Wait for the end of a phase by watching only the state of the barrier, not the arrivals.

        Returns:
            The state after the phase. None if the deadline has passed or this member must watch the arrivals itself.
        """
        longest_s = random.uniform(*AGAIN_S)
        if await local.members.wait_for_phase_end(phase, waiter.cancelled, deadline.left_s(longest_s)):
            (entry,) = await waiter.keep_trying(lambda: local.members.get_many([self._board_key]), deadline)
            board = None if entry is None else self._read(entry)
            if board is not None and board.phase > phase:
                return board
        while not await waiter.watch_until(
            self._board_key,
            seen := PhaseEndWatcher(phase),
            Deadline(self._store.clock, deadline.left_s(longest_s)),
            single_key=True,
        ):
            if waiter.is_cancelled or deadline.has_passed or should_watch_arrivals(parties):
                return None
            longest_s *= 2.0
        return seen.board

    async def _end_if_complete(
        self, phase: int, arrived: set[str] | None = None, known: Iterable[tuple[Entry, BarrierRecord]] = ()
    ) -> BarrierRecord | None:
        """End a phase as passed if all members have arrived.

        Args:
            phase: The phase.
            arrived: Members that were seen to arrive while the phase was open. None reads the arrivals.
            known: Entries of the barrier's state that were read before.
        Returns:
            The state of the barrier if the phase has ended, otherwise None.
        """
        return await self._end(
            phase,
            lambda board, arrived: board.after_passing(arrived) if board.is_complete(arrived) else None,
            known,
            arrived,
        )

    async def _end_as_broken(self, phase: int, why: str) -> BarrierRecord:
        """End a phase as broken, or as passed if all members have arrived. Return the state of the barrier.

        Args:
            phase: The phase.
            why: The reason, shown to the other members.
        """
        board = await self._end(
            phase,
            lambda board, arrived: (
                board.after_passing(arrived)
                if board.is_complete(arrived)
                else board.after_breaking(why, arrived, self._cycle)
            ),
        )
        assert board is not None
        return board

    async def _end(
        self,
        phase: int,
        decide: Callable[[BarrierRecord, set[str]], BarrierRecord | None],
        known: Iterable[tuple[Entry, BarrierRecord]] = (),
        arrived: set[str] | None = None,
    ) -> BarrierRecord | None:
        boards = iter(known)
        while True:
            entry, board = next(boards, None) or await self._get_or_create_board()
            if board.phase != phase:
                return board
            after = decide(board, arrived or find_arrived(await self._list_arrivals(), phase))
            if after is None:
                return None
            with contextlib.suppress(Conflict):
                await ask(self._store.commit, [At(entry)], [Put(self._board_key, after.to_bytes())])
                return after

    # After the end of a phase

    async def _finish(self, phase: int, board: BarrierRecord, mine: Entry | None, local: LocalMember) -> int:
        end = board.find_result(phase)
        self._last_ended = max(self._last_ended, phase)
        if self._keeps_arrival:
            self._is_absent = True
        else:
            await self._delete_arrival(mine, local)
        if end is None:
            raise LatchworkError(f"{self._what}: how phase {phase} ended is forgotten, it is too long ago")
        if not end.broken:
            return phase
        missing = ", ".join(end.missing)
        who = f": {missing}" if missing else ""
        raise BarrierBroken(
            f"{self._what} was broken: {end.broken}; {end.lacking} of {end.parties or board.parties} missing{who}; "
            "meet again",
            end.missing,
            end.arrived,
        )

    async def _delete_arrival(self, mine: Entry | None, local: LocalMember) -> None:
        """Delete the arrival of this member after the end of the phase.

        After a restart, an arrival that is left would mean that this member has not been notified of the end.

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
            _log.info("%s: the arrival of %r is left behind: %s", self._what, self.member_id, error)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The result of an attempt to arrive.

    Attributes:
        phase: The phase at which the member has arrived. None if it must wait for another phase first.
        entry: Entry of the barrier's state at that time. None if there was none.
        board: The decoded state at that time.
        mine: Entry of this member's arrival. None if none was written.
        follows: Whether this member watches the arrivals of the others.
    """

    phase: int | None
    entry: Entry | None
    board: BarrierRecord
    mine: Entry | None
    follows: bool

    @property
    def deadline_s(self) -> float | None:
        """The timeout of the phase in seconds, set by the first arrival. None for no limit."""
        return None if self.board.opening is None else self.board.opening.deadline_s


def _since(board: BarrierRecord) -> str:
    return "" if board.opening is None else f", it was open since {utc_text(board.opening.at)}"


def _check_parties(parties: int | Collection[str], member_id: str, what: str) -> int | Collection[str]:
    if not isinstance(parties, Collection):
        if check_integer(parties, f"the number of parties of {what}") < 1:
            raise ValueError(f"{what} needs at least 1 party, not {parties}")
        return parties
    names = {check_member(each, "member") for each in parties}
    if member_id not in names:
        raise InvalidKey(f"member {member_id!r} is none of the parties of {what}: {', '.join(sorted(names))}")
    return names
