"""A meeting point: members wait until all are there, again and again.

Keys:  <name>/board             the open generation, who is expected, how the last ones ended; as JSON
       <name>/arrived/<member>  at which generation a member has arrived; bound to no session
Rule:  a generation passes once as many members as expected, counted by their ids, have arrived at it; or it is broken,
       for all that wait in it, and the next one is open.
"""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.primitives.meeting.meeting import Lacking, Meeting
from latchwork.primitives.meeting.phases import Board
from latchwork.primitives.waiting.common import Closes
from latchwork.store.steps import ask, driven
from latchwork.types import Absent, At, Check


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
