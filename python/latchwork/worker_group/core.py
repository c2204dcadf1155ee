"""What a worker does below its face: it joins, is in an epoch, meets, ends; and says why a write was refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from latchwork.errors import (
    BarrierBroken,
    Closed,
    Conflict,
    LatchworkError,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
)
from latchwork.interrupts import mutex
from latchwork.primitives.waiting import Waits
from latchwork.store.driving.background import Background
from latchwork.store.session import Session
from latchwork.store.steps import Signal, ask, called, steps_of, undone_if_interrupted
from latchwork.store.store import Store
from latchwork.types import Entry
from latchwork.worker_group import transactions
from latchwork.worker_group.epoch import Attempt, OwnRecord, who_broke
from latchwork.worker_group.errors import JobFaulty, JobTerminated, RestartsExceeded
from latchwork.worker_group.events import Events
from latchwork.worker_group.keys import FINAL, INIT, JobKeys
from latchwork.worker_group.membership import Joining, Seat
from latchwork.worker_group.observation import Watching, faulty, why_refused
from latchwork.worker_group.records import COMPLETED, WorkerInfo, read_epoch
from latchwork.worker_group.transactions import Scene, read_members

_log = logging.getLogger(__name__)


class WorkerCore:
    """One worker, and the epoch it is in. Safe to share between threads.

    Attributes:
        what: the worker in words, for messages.
        waits: its waits.
        lost: set once it is not in the job any more, otherwise than by leaving.
        is_done: whether it has completed.
    """

    def __init__(self, store: Store, keys: JobKeys, joining: Joining, session: Session | None) -> None:
        self.store = store
        self.keys = keys
        self.what = f"worker of job {keys.job!r}"
        self.waits = Waits(store, self.what, session)
        self.lost = Signal()
        self.is_done = False
        self._joining = joining
        self._lock = mutex()
        self._seat: Seat | None = None
        self._record: OwnRecord | None = None
        self._attempt: Attempt | None = None
        self._watching: Watching | None = None
        self._events: Events | None = None
        self._closing = Signal()
        self._undoing: Background | None = None
        self._out: LatchworkError | None = None
        self._failed: LatchworkError | None = None

    # Where we are

    @property
    def seat(self) -> Seat | None:
        """Who we are, once we have joined."""
        return self._seat

    @property
    def out(self) -> LatchworkError | None:
        """Why we are not in the job any more; None while we are."""
        return self._out

    @property
    def _own(self) -> OwnRecord:
        self.joined()
        assert self._record is not None
        return self._record

    @property
    def events(self) -> Events:
        """The listeners."""
        self.joined()
        assert self._events is not None
        return self._events

    def joined(self) -> Seat:
        """Who we are; raises before we have joined."""
        self.waits.home.check()
        if self._seat is None:
            raise LatchworkError(f"{self.what} has not joined; call join() first, or use it in a with")
        return self._seat

    def now(self) -> Attempt:
        """The epoch we are in; raises once that is over."""
        seat = self.joined()
        if self._out is not None:
            raise self._out
        attempt = self._attempt
        assert attempt is not None
        if self._failed is not None:
            raise self._failed
        if attempt.ownership.lost.is_set():
            raise faulty(seat, attempt.epoch + 1)
        return attempt

    # Joining and ending

    async def join(self, timeout_s: float | None) -> Seat:
        """Join, once."""
        if self._seat is not None:
            return self._seat
        with undone_if_interrupted(self._undo_join):
            async with self.waits.begin(timeout_s) as (waiter, patience):
                seat = await self._joining.join(waiter, patience)
        entry = self._joining.epoch
        assert entry is not None
        with self._lock:
            self._seat = seat
            self._record = OwnRecord(self.store, seat, self.what, self.lost)
            self.is_done = seat.info.status == COMPLETED
            self._events = Events(self.store, seat)
            self._attempt = Attempt(self.store, seat, entry)
        self._watching = Watching(
            self.store,
            seat,
            on_epoch=self._on_epoch,
            on_shrink=self._on_shrink,
            on_failed=self._on_failed,
            on_end=self._on_end,
            on_events=self._events.grown,
        )
        return seat

    def _undo_join(self) -> None:
        """An interrupt has ended ``join``: we are not in the job, or will not be soon. It may be joined again."""
        watching, attempt, events = self._watching, self._attempt, self._events
        self._seat = self._watching = self._attempt = self._events = self._record = None

        async def undo() -> None:
            if attempt is not None:
                attempt.end()
            if watching is not None:
                await watching.close()
            if events is not None:
                await events.close()
            await self._joining.abandon(self._closing)

        self._undoing = Background(undo, f"latchwork-not-joined-{self.keys.job}")

    async def _read_epoch(self, seat: Seat) -> Entry:
        entry = await ask(self.store.get, seat.keys.epoch)
        if entry is None:
            raise JobTerminated(f"{self.what}: the job is no more")
        return entry

    async def complete(self) -> None:
        """Our part is done, in the epoch we are in."""
        if self.is_done:
            return
        attempt = self.now()
        await self._own.complete(attempt)
        self.is_done = True

    async def fail(self, why: str) -> None:
        """We cannot go on."""
        await self._own.fail(self.joined().fence(self.store), None, why)

    async def leave(self) -> None:
        """Leave; the last one of a job that has ended removes it."""
        if self._seat is None or self._out is not None:
            return
        await self._own.leave()
        self._be_out(Closed(f"{self.what} has left; make another one"))

    async def close(self) -> None:
        """Leave if we are in, and stop. Twice is fine."""
        self._closing.set()
        try:
            await self.leave()
        except LatchworkError as error:
            _log.info("%s stays until its session ends: %s", self.what, error)
        self.waits.close()
        if self._watching is not None:
            await self._watching.close()
        if self._events is not None:
            await self._events.close()
        if self._attempt is not None:
            self._attempt.end()
        if self._undoing is not None:
            await self._undoing

    # The others

    async def members(self) -> list[WorkerInfo]:
        """Every worker that has an id, by id."""
        return read_members(await ask(self.store.list, self.joined().keys.members))

    async def tell(self, info: WorkerInfo) -> None:
        """Say something else of ourselves."""
        attempt = self.now()
        await self._own.tell(info, attempt.fence, attempt.epoch)

    async def check(self) -> None:
        """Ask the store whether we are in the job, and the epoch goes on."""
        await self._own.refuse(self.now().epoch)

    # Meeting

    async def meet(self, attempt: Attempt, name: str, timeout_s: float | None) -> int:
        """Meet the others at a barrier of an epoch."""
        seat = self.joined()
        if self.is_done:
            raise LatchworkError(f"{self.what} has completed; no barrier waits for it")
        while True:
            try:
                with attempt.use(name) as barrier:
                    if self._watching is not None:
                        self._watching.look_at_barriers()
                    return await steps_of(barrier.wait)(timeout_s, checks=[attempt.fence])
            except BarrierBroken as error:
                raise await who_broke(self.store, seat, name, error) from error
            except (Closed, Conflict, SessionLost) as error:
                if not isinstance(error, Conflict):
                    raise await self._why(attempt, error) from error
                await self._own.refuse(attempt.epoch)

    async def _why(self, attempt: Attempt, error: LatchworkError) -> LatchworkError:
        """Why a wait was called off."""
        self.waits.check(error)
        if self._out is not None:
            return self._out
        if self._failed is not None:
            return self._failed
        seat = self.joined()
        try:
            return await why_refused(self.store, seat, attempt.epoch) or error
        except (Unavailable, OutcomeUnknown):
            if seat.session.remaining_s() > 0.0:
                return error
            return SessionLost(f"the session of worker {seat.info.id} has ended, and the store is away; join again")

    async def _enter(self, seat: Seat) -> Attempt:
        if self._out is not None:
            raise self._out
        entry = await self._read_epoch(seat)
        with self._lock:
            before, self._attempt = self._attempt, Attempt(self.store, seat, entry)
            attempt = self._attempt
        if before is not None:
            before.end()
        await self._own.refuse(attempt.epoch)
        return attempt

    async def _tell_healthy(self, attempt: Attempt) -> None:
        """Write the event, if we are the first of those that are here. If we die before, a fault is told with it."""
        assert self._watching is not None
        if not self._watching.is_lowest:
            return
        for _ in range(5):
            scene = await self.scene()
            txn = transactions.healthy(scene, attempt.fence, attempt.epoch)
            try:
                await ask(self.store.commit, txn.checks, txn.ops)
            except Conflict:
                continue
            except (Unavailable, OutcomeUnknown) as error:
                _log.info("%s: that all have begun is not told: %s", self.what, error)
            return

    async def initialize(self, timeout_s: float | None, prepare: Callable[[], object] | None = None) -> Attempt:
        """Go to the start line of the epoch there is, and wait until all are there."""
        while True:
            attempt = await self._enter(self.joined())
            with suppress(JobFaulty):
                if prepare is not None:
                    await called(prepare)
                if not await self.has_passed(attempt, INIT):
                    await self.meet(attempt, INIT, timeout_s)
                    await self._tell_healthy(attempt)
                return attempt
            # a fault while we waited: on to the start line of the next epoch

    async def has_passed(self, attempt: Attempt, name: str) -> bool:
        """Whether a barrier of the epoch has been passed."""
        try:
            return (await steps_of(attempt.barrier(name).check)())[0]
        except Closed as error:
            raise await self._why(attempt, error) from error

    # What the loop around a function needs

    async def enter(self, prepare: Callable[[], object] | None) -> bool:
        """To the start line; False if there is nothing to run any more."""
        if self.is_done:
            return False
        return not await self.has_passed(await self.initialize(None, prepare), FINAL)

    async def finish(self) -> None:
        """Meet all others at the finish."""
        await self.meet(self.now(), FINAL, None)

    async def count_execution(self) -> None:
        """The function is run once more; raises when that is too often."""
        attempt = self.now()
        why = await self._own.count_execution(attempt.fence, attempt.epoch)
        if why:
            await self.fail(why)
            raise RestartsExceeded(f"{why}: job {self.keys.job!r} has failed; find out why workers are lost")

    async def give_up(self, why: str) -> None:
        """We have failed for good, unless the epoch is over, or nobody can be told.

        Raises:
            JobFaulty: another worker was lost before: whatever failed here is to be done again.
        """
        try:
            attempt = self.now()
            await self._own.fail(attempt.fence, attempt.epoch, why)
        except JobFaulty:
            raise
        except LatchworkError as error:
            _log.info("%s: that it has failed is not told: %s", self.what, error)

    # Below

    async def scene(self) -> Scene:
        """The head as it is now, for a transaction."""
        return await self._own.scene()

    def _on_epoch(self, entry: Entry) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.epoch < read_epoch(entry):
            attempt.end()

    async def _on_shrink(self, n: int) -> None:
        attempt = self._attempt
        if attempt is not None:
            await attempt.shrink(n)

    def _on_failed(self, error: LatchworkError) -> None:
        """The job has failed: work and waits are called off. We still are in it, and leave it."""
        with self._lock:
            self._failed, attempt = error, self._attempt
        if attempt is not None:
            attempt.end()

    def _be_out(self, error: LatchworkError) -> None:
        with self._lock:
            if self._out is None:
                self._out = error

    def _on_end(self, error: LatchworkError) -> None:
        self._be_out(error)
        self.lost.set()
        attempt = self._attempt
        if attempt is not None:
            attempt.end()
