"""Members that meet: the loop behind both barriers. What it decides by is in ``phases``.

Keys:  <name>/board             the open phase, who is expected, how the last phases ended; as JSON
       <name>/arrived/<member>  the phase at which a member has arrived, host and pid; as JSON; bound to no session

An arrival is written on condition that the board is unchanged, so it counts for the open phase. While a phase is open
its arrivals only become more, so a member that has seen enough of them may end it, again on condition that the board is
unchanged. docs/design/0011 has the races.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from latchwork.checks import check_store
from latchwork.errors import BarrierBroken, Conflict, InvalidKey, LatchworkError
from latchwork.primitives.meeting.phases import Board, arrived_at, read_arrival, write_arrival
from latchwork.primitives.waiting.common import Identity, Patience, check_name, check_text, check_whole
from latchwork.primitives.waiting.waiter import Waiter, get_or_create
from latchwork.primitives.waiting.waits import Waits, check_member
from latchwork.store.session import Session
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import At, Entry, Put

_log = logging.getLogger(__name__)

#: From the board and the phase of our last arrival (-1: none) to the phase that is meant; None: wait for another.
Choice = Callable[[Board, int], int | None]
#: A member that was not the last to arrive ends the phase too, after such a pause: the last one may have died.
_STAND_IN_S = (0.2, 0.6)


class Meeting:
    """One member of a barrier: the base of both kinds, which document its arguments. Safe to share between threads."""

    #: For messages; and how many phases a round has.
    _kind, _cycle = "barrier", 1

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        parties: int | Collection[str],
        member_id: str,
        session: Session | None = None,
    ) -> None:
        check_store(store, f"a {self._kind}")
        self.name = check_name(name, self._kind)
        self.member_id = check_member(member_id, "member")
        self._what = f"{self._kind} {name!r}"
        self._waits = Waits(store, self._what, session)
        self._store = store
        self._fresh = Board.expecting(_check_parties(parties, member_id, self._what))
        self._identity = Identity()
        self._board_key = f"{name}/board"
        self._arrivals = f"{name}/arrived"
        self._mine = f"{self._arrivals}/{member_id}"
        self._heard = -1

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.member_id!r}>"

    def close(self) -> None:
        """Call off who waits through this object. An arrival still counts. From any thread; twice is fine."""
        self._waits.close()

    async def _now(self) -> Board:
        """The state now; a barrier that nobody has used has the one it will begin with."""
        self._waits.check()
        entry = await ask(self._store.get, self._board_key)
        return self._fresh if entry is None else Board.of(entry)

    async def _here(self) -> list[str]:
        """Who has arrived at the open phase, sorted."""
        phase = (await self._now()).phase
        return sorted(arrived_at(await ask(self._store.list, self._arrivals), phase))

    async def _meet(self, choose: Choice, timeout_s: float | None) -> int:
        """Arrive at a phase, and wait until it has passed.

        Raises:
            BarrierBroken: it ended without everybody, for lack of time here or elsewhere.
        """
        async with self._waits.begin(timeout_s) as (waiter, patience):
            while True:
                arrival = await waiter.keep_trying(lambda: self._arrive(choose), patience)
                if arrival.phase is not None:
                    return await self._await_end(arrival.phase, arrival, waiter, patience)
                await self._await_change(arrival.board.phase, waiter, patience)

    async def _abort(self, why: str) -> None:
        """Break the open phase for everybody who waits in it."""
        self._waits.check()
        check_text(why, "the reason")
        why = why or f"{self.member_id!r} broke it"
        board = await self._break((await self._board())[1].phase, why)
        if board.phase % self._cycle:  # everybody had come after all: that has begun the round, which is to end
            await self._break(board.phase, why)

    # Arriving

    async def _board(self) -> tuple[Entry, Board]:
        entry = await get_or_create(self._store, self._board_key, self._fresh.to_bytes())
        return entry, self._read(entry)

    def _read(self, entry: Entry) -> Board:
        board = Board.of(entry)
        if not board.is_like(self._fresh):
            expects = ", ".join(board.names) or f"{board.parties} members"
            raise LatchworkError(f"{self._what} expects {expects}; make it with the same parties, or use another name")
        return board

    async def _arrive(self, choose: Choice) -> _Arrival:
        """Arrive once at the phase that is meant."""
        while True:
            entry, mine = await ask(self._store.get_many, [self._board_key, self._mine])
            entry, board = await self._board() if entry is None else (entry, self._read(entry))
            last = read_arrival(mine)[1] if mine is not None else -1
            phase = choose(board, last if last > self._heard else -1)
            if phase is None or phase < board.phase or last == phase:
                return _Arrival(phase, entry, board, mine if last == phase else None)
            if phase > board.phase:
                raise ValueError(f"{self._what}: that is to come; open is {board.phase // self._cycle}")
            about = {"host": self._identity.host, "pid": self._identity.pid}
            try:
                done = await ask(self._store.commit, [At(entry)], [Put(self._mine, write_arrival(phase, about))])
            except Conflict:
                continue
            _log.debug("%s: %r has arrived at phase %d", self._what, self.member_id, phase)
            return _Arrival(phase, entry, board, done.entries[0])

    # Waiting

    async def _await_change(self, seen: int, waiter: Waiter, patience: Patience) -> None:
        """Wait until another phase is open than the one that was seen: perhaps it is already."""
        if await waiter.keep_trying(lambda: self._open(seen), patience) is not None:
            return  # it had ended, but the last to come was gone before it said so
        if not await waiter.follow(self._board_key, lambda batch: _phase(batch, seen) != seen, patience):
            self._waits.refuse_ended(waiter)
            raise BarrierBroken(f"{self._what} is in use by a round that {self.member_id!r} has no part in; meet later")

    async def _await_end(self, phase: int, arrival: _Arrival, waiter: Waiter, patience: Patience) -> int:
        known = [(arrival.entry, arrival.board)]  # as it was before we arrived: still so, or the commit is refused
        board = await waiter.keep_trying(lambda: self._open(phase, known), patience)
        if board is None:  # who is not the last to come has to wait
            board = await self._follow(phase, waiter, patience)
        return await self._told(phase, board, arrival.mine)

    async def _follow(self, phase: int, waiter: Waiter, patience: Patience) -> Board:
        """Wait until the phase has ended, or end it; the board after that."""
        while await waiter.follow(
            self.name, seen := _Seen(self._board_key, self._arrivals, self._fresh.parties, phase), patience
        ):
            if seen.board is not None:
                return seen.board
            if not seen.is_last(self._mine):
                pause = Patience(self._store.clock, patience.left_s(random.uniform(*_STAND_IN_S)))
                await waiter.follow(self._board_key, lambda batch: _phase(batch, phase) != phase, pause)
            board = await waiter.keep_trying(lambda: self._open(phase), patience)
            if board is not None:
                return board
        self._waits.refuse_ended(waiter)
        late = f"{self.member_id!r} had no more time"
        return await waiter.keep_trying(lambda: self._break(phase, late), patience)

    async def _open(self, phase: int, known: Iterable[tuple[Entry, Board]] = ()) -> Board | None:
        """End the phase as passed, unless not everybody is here; the board once it has ended, else None."""
        return await self._end(
            phase, lambda board, here: board.passed(here) if board.is_complete(here) else None, known
        )

    async def _break(self, phase: int, why: str) -> Board:
        """End the phase as broken, or as passed if everybody is here after all; the board after that."""
        board = await self._end(
            phase,
            lambda board, here: board.passed(here) if board.is_complete(here) else board.broken(why, here, self._cycle),
        )
        assert board is not None
        return board

    async def _end(
        self,
        phase: int,
        decide: Callable[[Board, set[str]], Board | None],
        known: Iterable[tuple[Entry, Board]] = (),
    ) -> Board | None:
        boards = iter(known)
        while True:
            entry, board = next(boards, None) or await self._board()
            if board.phase != phase:
                return board
            after = decide(board, arrived_at(await ask(self._store.list, self._arrivals), phase))
            if after is None:
                return None
            with contextlib.suppress(Conflict):
                await ask(self._store.commit, [At(entry)], [Put(self._board_key, after.to_bytes())])
                return after

    # Hearing how it ended

    async def _told(self, phase: int, board: Board, mine: Entry | None) -> int:
        end = board.how_ended(phase)
        self._heard = max(self._heard, phase)
        await self._forget(mine)
        if end is None:
            raise LatchworkError(f"{self._what}: how phase {phase} ended is forgotten, it is too long ago")
        if not end.broken:
            return phase
        missing = ", ".join(end.missing)
        who = f": {missing}" if missing else ""
        raise BarrierBroken(
            f"{self._what} was broken: {end.broken}; {end.lacking} of {board.parties} missing{who}; meet again",
            end.missing,
            end.arrived,
        )

    async def _forget(self, mine: Entry | None) -> None:
        """Delete our arrival. If it stays, our process believes after a restart that it did not hear of the end."""
        if mine is None:
            return
        try:
            with contextlib.suppress(Conflict):  # we have arrived anew, in another thread
                await ask(self._store.delete, self._mine, version=mine.version)
        except LatchworkError as error:
            _log.info("%s: the arrival of %r is left behind: %s", self._what, self.member_id, error)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The phase that is meant, None when it has to be waited for; the board by which we arrived, and our arrival."""

    phase: int | None
    entry: Entry
    board: Board
    mine: Entry | None


class _Seen:
    """Follows a barrier until the phase has ended or everybody is here. One thread only."""

    def __init__(self, board_key: str, arrivals: str, parties: int, phase: int) -> None:
        self.board: Board | None = None  # once the phase has ended
        self._board_key = board_key
        self._arrivals = arrivals
        self._parties = parties
        self._phase = phase
        self._here: dict[str, int] = {}

    def __call__(self, batch: Batch) -> bool:
        for change in batch:
            entry = change.entry
            if entry is None:
                continue
            if change.key == self._board_key:
                board = Board.of(entry)
                self.board = board if board.phase != self._phase else None
            elif change.key.rpartition("/")[0] == self._arrivals and read_arrival(entry)[1] == self._phase:
                self._here[change.key] = entry.token
        return self.board is not None or len(self._here) >= self._parties

    def is_last(self, key: str) -> bool:
        """True for the arrival that came last."""
        return self._here.get(key, 0) >= max(self._here.values(), default=0)


def _phase(batch: Batch, before: int) -> int:
    """The open phase after a batch of changes of the board."""
    boards = [change.entry for change in batch if change.entry is not None]
    return Board.of(boards[-1]).phase if boards else before


def _check_parties(parties: int | Collection[str], member_id: str, what: str) -> int | Collection[str]:
    if not isinstance(parties, Collection):
        if check_whole(parties, f"the number of parties of {what}") < 1:
            raise ValueError(f"{what} needs at least 1 party, not {parties}")
        return parties
    names = {check_member(each, "member") for each in parties}
    if member_id not in names:
        raise InvalidKey(f"member {member_id!r} is none of the parties of {what}: {', '.join(sorted(names))}")
    return names
