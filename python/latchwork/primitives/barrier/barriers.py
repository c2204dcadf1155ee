"""Barriers: members wait until all have arrived, again and again; a double barrier has an entrance and an exit.

Keys:  <name>/board             the open generation or phase, who is expected, how the last ones ended; as JSON
       <name>/arrived/<member>  at which generation or phase a member has arrived; bound to no session
Rule:  a generation passes once as many members as expected, counted by their ids, have arrived at it; or it is broken,
       for all that wait in it, and the next one is open. A double barrier has two phases per round (even: entering,
       odd: leaving). A broken phase ends its round.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial

from latchwork.errors import LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives.barrier.meeting import Choice, Lacking, Meeting
from latchwork.primitives.barrier.phases import Board
from latchwork.primitives.waiting.common import Closes
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import ask, driven, steps_of, undone_if_interrupted
from latchwork.store.store import Store
from latchwork.types import Absent, At, Check

_log = logging.getLogger(__name__)


class Barrier(Meeting, Closes):
    """One member of a barrier: ``Barrier(store, "phase", parties=3, member_id="n1").wait(timeout_s=60)``.

    A member is its id: an arrival outlives the process, so one that dies and comes back counts once, and if its
    generation passed meanwhile, and it was not told, is let through at once. Whoever loses patience breaks the
    generation for all. Construction does no I/O. Safe to share between threads, which are then one member.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which it is stored.
        parties: how many members have to come, or the ids of those that have to. The same at every member, unless
            ``per_generation`` is set: then the first to arrive at a generation decides for all, until that has ended.
            With it, also a function that is called when we are the first, and returns ``Expected``: the parties, and
            what must still hold when they are written down.
        member_id: who we are: the same after a restart, and nobody else's.
        session: whose end wakes our waits; it stays the caller's. None takes the store's primary session.
        per_generation: whether parties, and the time to wait, are those of the first to arrive at each generation. All
            members of a barrier have to agree on this.
    """

    @driven
    async def wait(
        self, timeout_s: float | None = None, *, generation: int | None = None, checks: Sequence[Check] = ()
    ) -> int:
        """Arrive, and wait until all have.

        Args:
            timeout_s: seconds to wait; None waits for ever. When it is over the generation is broken for everybody.
                With ``per_generation`` nobody waits longer than the first to arrive would, each by its own clock from
                when it saw the generation open: the first may have died.
            generation: which one is meant, for members that keep that themselves: one that has passed lets through at
                once. None means the one that is open, or the one at which our process had arrived before a restart if
                that has passed and we did not hear of it.
            checks: what must hold when our arrival is written. Not looked at when that is there already, by an earlier
                call or an earlier process of this member.
        Returns:
            The generation that has passed: 0 for the first.
        Raises:
            BarrierBroken: time was over, here or elsewhere, or it was aborted; ``missing`` says who had not come. The
                next generation is open.
            Conflict: one of the checks did not hold; we have not arrived.
            SessionLost: our session ended; the arrival still counts, wait again.
            Closed: the barrier, its session or its store was closed; the arrival still counts.
            Unavailable, OutcomeUnknown: the server could not be reached in time; the arrival may count, wait again.
            LatchworkError: the barrier expects others than we were told, or this is a callback.
            ValueError: that generation is to come.
        """

        def choose(board: Board, last: int) -> int:
            if generation is not None:
                return generation
            end = board.how_ended(last)
            return last if end is not None and not end.broken else board.phase

        return await self._meet(choose, timeout_s, checks)

    @driven
    async def abort(self, why: str = "", *, lacking: Lacking | None = None) -> None:
        """Break the open generation: everybody who waits gets ``BarrierBroken``, and the next one is open.

        Args:
            why: the reason that the others get.
            lacking: a function of ``Expected.basis`` of the open generation that returns ids of members. If given,
                break the generation only if a member has arrived in it and one of these ids has not.
        """
        await self._abort(why, lacking)

    @driven
    async def check(self, generation: int = 0) -> tuple[bool, At | Absent]:
        """Whether a generation, or a later one, has passed; and a check for transactions that depend on that answer.

        The check is refused once any generation has been opened, has passed or was broken since.
        """
        self._waits.check()
        entry = await ask(self._store.get, self._board_key)
        if entry is None:
            return False, Absent(self._board_key)
        return self._read(entry).has_passed(generation), At(entry)

    @driven
    async def generation(self) -> int:
        """The open generation."""
        return (await self._now()).phase

    @driven
    async def arrived(self) -> list[str]:
        """The members that have arrived at the open generation, sorted; may be empty."""
        return await self._here()


class DoubleBarrier(Meeting):
    """One member of a double barrier: ``with DoubleBarrier(store, "join", parties=3, member_id="n1"): work()``.

    A member is its id: one that dies inside and comes back is let in again at once, and counts once when it leaves. One
    that does not come back keeps the others from leaving until one of them loses patience: that ends the round for all,
    and the next is usable. A call that is cancelled or interrupted ends the round too. Construction does no I/O.

    Safe to share between threads, which are then one member.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which it is stored.
        parties: how many members have to come, or the ids of those that have to. The same at every member.
        member_id: who we are: the same after a restart, and nobody else's.
        session: whose end wakes our waits; it stays the caller's. None takes the store's primary session.
        timeout_s: seconds that ``with`` waits to enter, and again to leave; None for ever.
    """

    _kind, _cycle = "double barrier", 2

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        parties: int | Collection[str],
        member_id: str,
        session: Session | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(store, name, parties=parties, member_id=member_id, session=session)
        self._timeout_s = timeout_s
        self._round: int | None = None

    @driven
    async def __enter__(self) -> DoubleBarrier:
        await steps_of(self.enter)(self._timeout_s)
        return self

    @driven
    async def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, *_: object) -> None:
        if exc_type is None:
            await steps_of(self.leave)(self._timeout_s)
            return
        try:
            await steps_of(self.abort)(f"the work of {self.member_id!r} failed: {exc!r}")
        except LatchworkError as error:  # the failure of the work is what the caller has to see
            _log.warning("%s could not be aborted, others wait until their time is over: %s", self, error)

    @driven
    async def enter(self, timeout_s: float | None = None) -> int:
        """Wait until all have entered. Arguments and errors as for ``Barrier.wait``.

        While a round is on whose part we are not any more, it is waited for.

        Returns:
            The round: 0 for the first.
        """
        phase = await self._meet_or_end(self._to_enter, timeout_s)
        self._round = phase // 2
        return self._round

    @driven
    async def leave(self, timeout_s: float | None = None) -> int:
        """Wait until all have left. Arguments and errors as for ``Barrier.wait``.

        Returns:
            The round that has ended.
        Raises:
            LatchworkError: we have not entered.
        """
        phase = await self._meet_or_end(self._to_leave, timeout_s)
        self._round = None
        return phase // 2

    @driven
    async def abort(self, why: str = "") -> None:
        """End the round: everybody who waits gets ``BarrierBroken``, and the next round is open."""
        await self._abort(why)
        self._round = None

    @driven
    async def round(self) -> int:
        """The open round."""
        return (await self._now()).phase // 2

    @driven
    async def members(self) -> list[str]:
        """Who is inside, sorted; before all have entered, who has arrived."""
        board = await self._now()
        if board.phase % 2 == 0:
            return await self._here()
        return sorted(set(board.regulars) - set(await self._here()))

    async def _meet_or_end(self, choose: Choice, timeout_s: float | None) -> int:
        """Meet; if the call is cancelled or interrupted, end the round that it was for, in the background.

        Nobody would leave it: if all its members were cancelled, it would keep every later round from beginning.
        """
        chosen: int | None = None

        def choose_and_note(board: Board, last: int) -> int | None:
            nonlocal chosen
            chosen = choose(board, last)
            return chosen

        def end_later() -> None:
            if chosen is not None:
                self._store.cleanup.add(partial(self._end_round, chosen, Backoff()))

        with undone_if_interrupted(end_later):
            return await self._meet(choose_and_note, timeout_s)

    async def _end_round(self, phase: int, backoff: Backoff) -> float | None:
        """Try once to end the round of a phase at which we may have arrived; a ``CleanupJob``.

        An arrival that is still on its way is refused afterwards: it depends on the board, which this changes.
        """
        why = f"a call of {self.member_id!r} was cancelled"
        try:
            board = await self._break(phase, why)
            if board.phase == phase + 1 and board.phase % 2 == 1 and self.member_id in board.regulars:
                await self._break(board.phase, why)  # everybody had come after all
        except (Unavailable, OutcomeUnknown) as error:
            _log.info("%s: the round of a cancelled call has not ended yet: %s", self, error)
            return backoff.next_s()
        return None

    def _to_enter(self, board: Board, last: int) -> int | None:
        if board.phase % 2 == 0:
            return board.phase
        if self.member_id not in board.regulars or last == board.phase:
            return None  # the round of others, or ours that we have left already
        return board.phase - 1

    def _to_leave(self, board: Board, last: int) -> int:
        if self._round is not None:
            return 2 * self._round + 1
        end = board.how_ended(last)
        if last % 2 == 1 and end is not None and not end.broken:
            return last
        if board.phase % 2 == 0 or self.member_id not in board.regulars:
            raise LatchworkError(f"{self.member_id!r} has not entered {self._what}; enter first")
        return board.phase
