"""A common piece of work: members wait until all have entered, and at its end until all have left.

Keys:  <name>/board             the open phase (even: entering, odd: leaving), who is expected, how the last ones ended
       <name>/arrived/<member>  at which phase a member has arrived; bound to no session
Rule:  as for ``Barrier``, with two phases per round. A broken phase ends its round.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from latchwork.errors import LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives.meeting.meeting import Choice, Meeting
from latchwork.primitives.meeting.phases import Board
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import OnInterrupt, driven, steps_of
from latchwork.store.store import Store

_log = logging.getLogger(__name__)


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

        await OnInterrupt(end_later)
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
