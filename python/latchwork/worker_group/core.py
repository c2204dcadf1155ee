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
from latchwork.worker_group.epoch import RecordWriter, WorkerEpoch, name_missing
from latchwork.worker_group.errors import EpochEnded, GroupTerminated, RestartsExceeded
from latchwork.worker_group.events import EventListeners
from latchwork.worker_group.keys import FINAL, INIT, GroupKeys
from latchwork.worker_group.membership import Joiner, WorkerMembership
from latchwork.worker_group.observation import WorkerWatcher, epoch_ended, explain_refusal
from latchwork.worker_group.records import COMPLETED, WorkerInfo, read_epoch
from latchwork.worker_group.transactions import GroupSnapshot, read_members

_log = logging.getLogger(__name__)


class WorkerCore:
    """One worker, and the epoch it is in. Safe to share between threads.

    Attributes:
        what: the worker in words, for messages.
        waits: its waits.
        lost: set once it is not in the group any more, otherwise than by leaving.
        is_done: whether it has completed.
    """

    def __init__(self, store: Store, keys: GroupKeys, joiner: Joiner, session: Session | None) -> None:
        self.store = store
        self.keys = keys
        self.what = f"worker of group {keys.group!r}"
        self.waits = Waits(store, self.what, session)
        self.lost = Signal()
        self.is_done = False
        self._joiner = joiner
        self._lock = mutex()
        self._membership: WorkerMembership | None = None
        self._writer_or_none: RecordWriter | None = None
        self._current: WorkerEpoch | None = None
        self._watcher: WorkerWatcher | None = None
        self._events: EventListeners | None = None
        self._closing = Signal()
        self._undo_task: Background | None = None
        self._exit_error: LatchworkError | None = None
        self._failure: LatchworkError | None = None

    # Where we are

    @property
    def membership(self) -> WorkerMembership | None:
        """Who we are, once we have joined."""
        return self._membership

    @property
    def exit_error(self) -> LatchworkError | None:
        """Why we are not in the group any more; None while we are."""
        return self._exit_error

    @property
    def _writer(self) -> RecordWriter:
        self.require_membership()
        assert self._writer_or_none is not None
        return self._writer_or_none

    @property
    def events(self) -> EventListeners:
        """The listeners."""
        self.require_membership()
        assert self._events is not None
        return self._events

    def require_membership(self) -> WorkerMembership:
        """Who we are; raises before we have joined."""
        self.waits.home.check()
        if self._membership is None:
            raise LatchworkError(f"{self.what} has not joined; call join() first, or use it in a with")
        return self._membership

    def current_epoch(self) -> WorkerEpoch:
        """The epoch we are in; raises once that is over."""
        membership = self.require_membership()
        if self._exit_error is not None:
            raise self._exit_error
        current = self._current
        assert current is not None
        if self._failure is not None:
            raise self._failure
        if current.ownership.lost.is_set():
            raise epoch_ended(membership, current.epoch + 1)
        return current

    # Joiner and ending

    async def join(self, timeout_s: float | None) -> WorkerMembership:
        """Join, once."""
        if self._membership is not None:
            return self._membership
        with undone_if_interrupted(self._undo_join):
            async with self.waits.begin(timeout_s) as (waiter, patience):
                membership = await self._joiner.join(waiter, patience)
        entry = self._joiner.epoch
        assert entry is not None
        with self._lock:
            self._membership = membership
            self._writer_or_none = RecordWriter(self.store, membership, self.what, self.lost)
            self.is_done = membership.info.status == COMPLETED
            self._events = EventListeners(self.store, membership)
            self._current = WorkerEpoch(self.store, membership, entry)
        self._watcher = WorkerWatcher(
            self.store,
            membership,
            on_epoch=self._on_epoch,
            on_shrink=self._on_shrink,
            on_failed=self._on_failed,
            on_end=self._on_end,
            on_events=self._events.notify,
        )
        return membership

    def _undo_join(self) -> None:
        """An interrupt has ended ``join``: we are not in the group, or will not be soon. It may be joined again."""
        watcher, current, events = self._watcher, self._current, self._events
        self._membership = self._watcher = self._current = self._events = self._writer_or_none = None

        async def undo() -> None:
            if current is not None:
                current.end()
            if watcher is not None:
                await watcher.close()
            if events is not None:
                await events.close()
            await self._joiner.abandon(self._closing)

        self._undo_task = Background(undo, f"latchwork-not-joined-{self.keys.group}")

    async def _read_epoch(self, membership: WorkerMembership) -> Entry:
        entry = await ask(self.store.get, membership.keys.epoch)
        if entry is None:
            raise GroupTerminated(f"{self.what}: the group is no more")
        return entry

    async def complete(self) -> None:
        """Our part is done, in the epoch we are in."""
        if self.is_done:
            return
        current = self.current_epoch()
        await self._writer.complete(current)
        self.is_done = True

    async def fail(self, why: str) -> None:
        """We cannot go on."""
        await self._writer.fail(self.require_membership().fence(self.store), None, why)

    async def leave(self) -> None:
        """Leave; the last one of a group that has ended removes it."""
        if self._membership is None or self._exit_error is not None:
            return
        await self._writer.leave()
        self._set_exit_error(Closed(f"{self.what} has left; make another one"))

    async def close(self) -> None:
        """Leave if we are in, and stop. Twice is fine."""
        self._closing.set()
        try:
            await self.leave()
        except LatchworkError as error:
            _log.info("%s stays until its session ends: %s", self.what, error)
        self.waits.close()
        if self._watcher is not None:
            await self._watcher.close()
        if self._events is not None:
            await self._events.close()
        if self._current is not None:
            self._current.end()
        if self._undo_task is not None:
            await self._undo_task

    # The others

    async def members(self) -> list[WorkerInfo]:
        """Every worker that has an id, by id."""
        return read_members(await ask(self.store.list, self.require_membership().keys.members))

    async def update_info(self, info: WorkerInfo) -> None:
        """Say something else of ourselves."""
        current = self.current_epoch()
        await self._writer.update_info(info, current.fence, current.epoch)

    async def check(self) -> None:
        """Ask the store whether we are in the group, and the epoch goes on."""
        await self._writer.raise_if_refused(self.current_epoch().epoch)

    # Meeting

    async def wait_at_barrier(self, current: WorkerEpoch, name: str, timeout_s: float | None) -> int:
        """Meet the others at a barrier of an epoch."""
        membership = self.require_membership()
        if self.is_done:
            raise LatchworkError(f"{self.what} has completed; no barrier waits for it")
        while True:
            try:
                with current.use(name) as barrier:
                    if self._watcher is not None:
                        self._watcher.recheck_barriers()
                    return await steps_of(barrier.wait)(timeout_s, checks=[current.fence])
            except BarrierBroken as error:
                raise await name_missing(self.store, membership, name, error) from error
            except (Closed, Conflict, SessionLost) as error:
                if not isinstance(error, Conflict):
                    raise await self._explain_wait_error(current, error) from error
                await self._writer.raise_if_refused(current.epoch)

    async def _explain_wait_error(self, current: WorkerEpoch, error: LatchworkError) -> LatchworkError:
        """Why a wait was called off."""
        self.waits.check(error)
        if self._exit_error is not None:
            return self._exit_error
        if self._failure is not None:
            return self._failure
        membership = self.require_membership()
        try:
            return await explain_refusal(self.store, membership, current.epoch) or error
        except (Unavailable, OutcomeUnknown):
            if membership.session.remaining_s() > 0.0:
                return error
            return SessionLost(
                f"the session of worker {membership.info.rank} has ended, and the store is away; join again"
            )

    async def _enter_epoch(self, membership: WorkerMembership) -> WorkerEpoch:
        if self._exit_error is not None:
            raise self._exit_error
        entry = await self._read_epoch(membership)
        with self._lock:
            before, self._current = self._current, WorkerEpoch(self.store, membership, entry)
            current = self._current
        if before is not None:
            before.end()
        await self._writer.raise_if_refused(current.epoch)
        return current

    async def _record_healthy(self, current: WorkerEpoch) -> None:
        """Write the event, if we are the first of those that are here. If we die before, a fault is told with it."""
        assert self._watcher is not None
        if not self._watcher.is_first:
            return
        for _ in range(5):
            snapshot = await self.snapshot()
            txn = transactions.mark_healthy(snapshot, current.fence, current.epoch)
            try:
                await ask(self.store.commit, txn.checks, txn.ops)
            except Conflict:
                continue
            except (Unavailable, OutcomeUnknown) as error:
                _log.info("%s: that all have begun is not told: %s", self.what, error)
            return

    async def initialize(self, timeout_s: float | None, prepare: Callable[[], object] | None = None) -> WorkerEpoch:
        """Go to the start line of the epoch there is, and wait until all are there."""
        while True:
            current = await self._enter_epoch(self.require_membership())
            with suppress(EpochEnded):
                if prepare is not None:
                    await called(prepare)
                if not await self.has_passed(current, INIT):
                    await self.wait_at_barrier(current, INIT, timeout_s)
                    await self._record_healthy(current)
                return current
            # a fault while we waited: on to the start line of the next epoch

    async def has_passed(self, current: WorkerEpoch, name: str) -> bool:
        """Whether a barrier of the epoch has been passed."""
        try:
            return (await steps_of(current.barrier(name).check)())[0]
        except Closed as error:
            raise await self._explain_wait_error(current, error) from error

    # What the loop around a function needs

    async def start_epoch(self, prepare: Callable[[], object] | None) -> bool:
        """To the start line; False if there is nothing to run any more."""
        if self.is_done:
            return False
        return not await self.has_passed(await self.initialize(None, prepare), FINAL)

    async def wait_at_final_barrier(self) -> None:
        """Meet all others at the wait_at_final_barrier."""
        await self.wait_at_barrier(self.current_epoch(), FINAL, None)

    async def count_execution(self) -> None:
        """The function is run once more; raises when that is too often."""
        current = self.current_epoch()
        why = await self._writer.count_execution(current.fence, current.epoch)
        if why:
            await self.fail(why)
            raise RestartsExceeded(f"{why}: group {self.keys.group!r} has failed; find exit_error why workers are lost")

    async def report_failure(self, why: str) -> None:
        """We have failed for good, unless the epoch is over, or nobody can be told.

        Raises:
            EpochEnded: another worker was lost before: whatever failed here is to be done again.
        """
        try:
            current = self.current_epoch()
            await self._writer.fail(current.fence, current.epoch, why)
        except EpochEnded:
            raise
        except LatchworkError as error:
            _log.info("%s: that it has failed is not told: %s", self.what, error)

    # Below

    async def snapshot(self) -> GroupSnapshot:
        """The record as it is now, for a transaction."""
        return await self._writer.snapshot()

    def _on_epoch(self, entry: Entry) -> None:
        current = self._current
        if current is not None and current.epoch < read_epoch(entry):
            current.end()

    async def _on_shrink(self, n: int) -> None:
        current = self._current
        if current is not None:
            await current.shrink(n)

    def _on_failed(self, error: LatchworkError) -> None:
        """The group has failed: work and waits are called off. We still are in it, and leave it."""
        with self._lock:
            self._failure, current = error, self._current
        if current is not None:
            current.end()

    def _set_exit_error(self, error: LatchworkError) -> None:
        with self._lock:
            if self._exit_error is None:
                self._exit_error = error

    def _on_end(self, error: LatchworkError) -> None:
        self._set_exit_error(error)
        self.lost.set()
        current = self._current
        if current is not None:
            current.end()
