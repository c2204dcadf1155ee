"""Barriers: members wait until all have arrived, repeatedly. A double barrier has an entrance and an exit.

Keys:  <name>/barrier           the open generation or phase, the expected members, the last results; as JSON
       <name>/opening           the expected members of the generation, if each has its own; as JSON
       <name>/arrived-<member>  the generation or phase at which a member has arrived; not bound to a session
Rule:  a generation passes once as many members as expected, counted by ID, have arrived; or it is broken for all
       waiting members, and the next one is open. A double barrier has two phases per round (even: entering, odd:
       leaving). A broken phase ends its round.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial

from latchwork.errors import LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives.barrier.member import BarrierMember, Choice, Lacking
from latchwork.primitives.barrier.phases import BarrierRecord
from latchwork.primitives.waiting.closable import Closable
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of, undone_if_interrupted
from latchwork.store.store import Store
from latchwork.types import Check

_log = logging.getLogger(__name__)


class Barrier(BarrierMember, Closable):
    """A member of a barrier: ``Barrier(store, "phase", parties=3, member_id="n1").wait(timeout_s=60)``.

    A member is its ID: an arrival outlives its process, so a member that dies and returns counts once. If its
    generation passed in the meantime and it was not notified, it passes at once. A timeout of one member breaks the
    generation for all. Construction does no I/O. Thread-safe; all threads are one member.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the barrier.
        parties: The number of members, or the IDs of all members. The same for all members, unless
            ``per_generation`` is set: then the first arrival decides for its generation, and this may also be a
            function that returns ``Expected``: the parties, and checks of the transaction that writes them.
        member_id: The ID of this member: unique, and the same after a restart.
        session: The session whose end ends our waits; the caller closes it. None uses the store's primary session.
        per_generation: Whether the first arrival at each generation decides its parties and timeout. All members must
            agree on this.
        keeps_arrival: Whether our arrival stays when its generation has ended. ``wait`` then returns one request
            earlier. Only for an ID that no restarted process uses at this barrier: it would believe that it was not
            notified.
    """

    @blocking
    async def wait(
        self, timeout_s: float | None = None, *, generation: int | None = None, checks: Sequence[Check] = ()
    ) -> int:
        """Arrive at the barrier, and wait until all members have arrived.

        Args:
            timeout_s: Seconds to wait. None waits forever. After the timeout the generation is broken for everybody.
                With ``per_generation``, the timeout of the first member that arrives limits the wait of every other
                member too, counted from when that member saw the first arrival.
            generation: The generation, for members that track it themselves; one that has passed returns at once. None
                means the open one, or the one at which our process had arrived before a restart if that has passed
                without our notice.
            checks: Checks of the transaction that writes our arrival. They are ignored if an earlier call or process
                has written it.
        Returns:
            The generation that has passed, from 0.
        Raises:
            BarrierBroken: A timeout here or elsewhere, or it was aborted. ``missing`` names the missing members.
                The next generation is open.
            Conflict: A check failed. We have not arrived. With ``per_generation``, our parties and timeout may be those
                of the generation if a check held just before.
            SessionLost: Our session ended. The arrival counts; wait again.
            Closed: The barrier, its session or its store was closed. The arrival counts.
            Unavailable, OutcomeUnknown: The server could not be reached in time. The arrival may count; wait again.
            LatchworkError: The barrier expects other parties, or the call is inside a callback.
            ValueError: The generation is in the future.
        """

        def choose(state: BarrierRecord, last: int) -> int:
            if generation is not None:
                return generation
            end = state.find_result(last)
            return last if end is not None and not end.broken else state.phase

        return await self._arrive_and_wait(choose, timeout_s, checks)

    @blocking
    async def abort(self, why: str = "", *, lacking: Lacking | None = None) -> None:
        """Break the open generation: all waiting members get ``BarrierBroken``, and the next generation opens.

        Args:
            why: The reason, shown to the other members.
            lacking: Breaks the generation only if a required member is missing. Called with the ``Expected.basis`` that
                the first member has stored; returns the IDs of the required members. The generation is broken only if
                a member has stored it and one of these has not arrived. None breaks it in any case.
        """
        await self._break_phase(why, lacking)

    @blocking
    async def check(self, generation: int = 0) -> tuple[bool, Check]:
        """Return whether a generation or a later one has passed, and a precondition under which the answer stays true.

        Args:
            generation: The number of the generation.
        Returns:
            Whether it has passed; and a check for transactions that rely on it, which fails if a generation has passed
                or was broken since.
        """
        self._waits.ensure_usable()
        snapshot = self._build_snapshot(await ask(self._store.get, self._keys.state_key), None)
        return snapshot.state.has_passed(generation), snapshot.phase_open_check

    @blocking
    async def generation(self) -> int:
        """Return the number of the generation that is open now, from 0."""
        return (await self._read_state()).phase

    @blocking
    async def arrived(self) -> list[str]:
        """Return the IDs of the members that have arrived at the current generation, which has not passed, sorted."""
        return await self._arrived()


class DoubleBarrier(BarrierMember):
    """A member of a double barrier: ``with DoubleBarrier(store, "join", parties=3, member_id="n1"): work()``.

    A member is its ID: one that dies inside and returns enters at once, and counts once when it leaves. One that does
    not return keeps the others from leaving until one of them times out, which ends the round for all; the next one is
    usable. A call that is cancelled or interrupted ends the round, too. Construction does no I/O.

    Thread-safe; all threads are one member.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of the barrier.
        parties: The number of members, or the IDs of the members that must arrive. The same for all members.
        member_id: The ID of this member: unique, and the same after a restart.
        session: The session whose end ends our waits; the caller closes it. None uses the store's primary session.
        timeout_s: Seconds that ``with`` waits to enter, and again to leave. None waits forever.
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

    @blocking
    async def __enter__(self) -> DoubleBarrier:
        await coroutine_of(self.enter)(self._timeout_s)
        return self

    @blocking
    async def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, *_: object) -> None:
        if exc_type is None:
            await coroutine_of(self.leave)(self._timeout_s)
            return
        try:
            await coroutine_of(self.abort)(f"the work of {self.member_id!r} failed: {exc!r}")
        except LatchworkError as error:  # the failure of the work is what the caller has to see
            _log.warning("%s could not be aborted; the other members wait until their timeout: %s", self, error)

    @blocking
    async def enter(self, timeout_s: float | None = None) -> int:
        """Wait until all members have entered. A round that is in progress without this member must end first.

        Arguments and errors are those of ``Barrier.wait``.

        Returns:
            The number of the round, from 0.
        """
        phase = await self._arrive_or_end_round(self._choose_phase_to_enter, timeout_s)
        self._round = phase // 2
        return self._round

    @blocking
    async def leave(self, timeout_s: float | None = None) -> int:
        """Wait until all members have left. Arguments and errors are those of ``Barrier.wait``.

        Returns:
            The number of the round that has ended.
        Raises:
            LatchworkError: This member has not entered.
        """
        phase = await self._arrive_or_end_round(self._choose_phase_to_leave, timeout_s)
        self._round = None
        return phase // 2

    @blocking
    async def abort(self, why: str = "") -> None:
        """End the round: all waiting members get ``BarrierBroken``, and the next round opens.

        Args:
            why: The reason, shown to the other members.
        """
        await self._break_phase(why)
        self._round = None

    @blocking
    async def round(self) -> int:
        """Return the number of the round that is open now, from 0."""
        return (await self._read_state()).phase // 2

    @blocking
    async def members(self) -> list[str]:
        """Return the IDs of the members inside, sorted. While members are entering, return those that have arrived."""
        state = await self._read_state()
        if state.phase % 2 == 0:
            return await self._arrived()
        return sorted(set(state.regulars) - set(await self._arrived()))

    async def _arrive_or_end_round(self, choose: Choice, timeout_s: float | None) -> int:
        """Enter or leave the round. If the call is cancelled or interrupted, end the round in the background.

        Otherwise this member would never leave the round, and would block every later round.

        Args:
            choose: Returns the phase at which to arrive.
            timeout_s: Seconds to wait. None waits forever.
        """
        chosen: int | None = None

        def choose_and_note(state: BarrierRecord, last: int) -> int | None:
            nonlocal chosen
            chosen = choose(state, last)
            return chosen

        def end_later() -> None:
            if chosen is not None:
                self._store.cleanup.add(partial(self._end_round, chosen, Backoff()))

        with undone_if_interrupted(end_later):
            return await self._arrive_and_wait(choose_and_note, timeout_s)

    async def _end_round(self, phase: int, backoff: Backoff) -> float | None:
        """Try once to end a round after a cancelled call. Runs as a background cleanup.

        Args:
            phase: The phase at which this member may have arrived.
            backoff: The delays between attempts.
        Returns:
            Seconds until the next attempt. None if the round has ended.
        """
        why = f"a call of {self.member_id!r} was canceled"
        try:
            state = (await self._break_or_pass(phase, why)).state
            if state.phase == phase + 1 and state.phase % 2 == 1 and self.member_id in state.regulars:
                await self._break_or_pass(state.phase, why)  # everybody had come after all
        except (Unavailable, OutcomeUnknown) as error:
            _log.info("%s: the round of a canceled call has not ended yet: %s", self, error)
            return backoff.next_s()
        return None

    def _choose_phase_to_enter(self, state: BarrierRecord, last: int) -> int | None:
        if state.phase % 2 == 0:
            return state.phase
        if self.member_id not in state.regulars or last == state.phase:
            return None  # the round of others, or ours that we have left already
        return state.phase - 1

    def _choose_phase_to_leave(self, state: BarrierRecord, last: int) -> int:
        if self._round is not None:
            return 2 * self._round + 1
        end = state.find_result(last)
        if last % 2 == 1 and end is not None and not end.broken:
            return last
        if state.phase % 2 == 0 or self.member_id not in state.regulars:
            raise LatchworkError(f"{self.member_id!r} has not entered {self._what}; enter first")
        return state.phase
