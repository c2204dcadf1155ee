"""A meeting point: members wait until all are there, again and again.

Keys:  <name>/board             the open generation, who is expected, how the last ones ended; as JSON
       <name>/arrived/<member>  at which generation a member has arrived; bound to no session
Rule:  a generation passes once as many members as expected, counted by their ids, have arrived at it; or it is broken,
       for all that wait in it, and the next one is open.
"""

from __future__ import annotations

from latchwork.primitives.meeting.meeting import Meeting
from latchwork.primitives.meeting.phases import Board
from latchwork.primitives.waiting.common import Closes
from latchwork.store.steps import driven


class Barrier(Meeting, Closes):
    """One member of a barrier: ``Barrier(store, "phase", parties=3, member_id="n1").wait(timeout_s=60)``.

    A member is its id: an arrival outlives the process, so one that dies and comes back counts once, and if its
    generation passed meanwhile, and it was not told, is let through at once. Whoever loses patience breaks the
    generation for all. Construction does no I/O. Safe to share between threads, which are then one member.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which it is stored.
        parties: how many members have to come, or the ids of those that have to. The same at every member.
        member_id: who we are: the same after a restart, and nobody else's.
        session: whose end wakes our waits; it stays the caller's. None takes the store's primary session.
    """

    @driven
    async def wait(self, timeout_s: float | None = None, *, generation: int | None = None) -> int:
        """Arrive, and wait until all have.

        Args:
            timeout_s: seconds to wait; None waits for ever. When it is over the generation is broken for everybody.
            generation: which one is meant, for members that keep that themselves: one that has passed lets through at
                once. None means the one that is open, or the one at which our process had arrived before a restart if
                that has passed and we did not hear of it.
        Returns:
            The generation that has passed: 0 for the first.
        Raises:
            BarrierBroken: time was over, here or elsewhere, or it was aborted; ``missing`` says who had not come. The
                next generation is open.
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

        return await self._meet(choose, timeout_s)

    @driven
    async def abort(self, why: str = "") -> None:
        """Break the open generation: everybody who waits gets ``BarrierBroken``, and the next one is open."""
        await self._abort(why)

    @driven
    async def generation(self) -> int:
        """The open generation."""
        return (await self._now()).phase

    @driven
    async def arrived(self) -> list[str]:
        """The members that have arrived at the open generation, sorted; may be empty."""
        return await self._here()
