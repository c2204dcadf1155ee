"""A worker's own record: what it says of itself, that it has done its part or failed, that it leaves.

Each is a transaction that is tried until it is done, or refused for good. Nobody outside the workers imports this.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from latchwork.errors import Conflict, LatchworkError, OutcomeUnknown
from latchwork.store.backoff import Backoff
from latchwork.store.steps import Pause, Signal, ask
from latchwork.store.store import Store
from latchwork.types import Entry, Fence
from latchwork.workers import plans
from latchwork.workers.errors import JobTerminated, Removed
from latchwork.workers.meeting import Attempt
from latchwork.workers.membership import Seat
from latchwork.workers.plans import Plan, Scene, head_or_none
from latchwork.workers.records import COMPLETED, FULLY_FAILED, WorkerInfo
from latchwork.workers.watching import why_out, why_refused


class OwnRecord:
    """What one worker writes of itself. Safe to share between threads.

    Args:
        store: the store.
        seat: who it is.
        what: the worker in words, for messages.
        lost: set once it is not in the job any more: then nothing is waited for.
    """

    def __init__(self, store: Store, seat: Seat, what: str, lost: Signal) -> None:
        self._store = store
        self._seat = seat
        self._what = what
        self._lost = lost

    async def scene(self) -> Scene:
        """The head as it is now, for a transaction."""
        entry = await ask(self._store.get, self._seat.keys.head)
        if entry is None or head_or_none(entry, self._seat.keys.run) is None:
            raise await self._why_out() or JobTerminated(f"{self._what}: the job is no more")
        return Scene(self._seat.keys, entry, time.time())

    async def refuse(self, epoch: int | None) -> None:
        """Raise why a write was refused, if that is for good."""
        error = await (self._why_out() if epoch is None else why_refused(self._store, self._seat, epoch))
        if error is not None:
            raise error

    async def complete(self, attempt: Attempt) -> None:
        """Its part is done, in an epoch that goes on: no barrier waits for it any more."""

        async def plan(scene: Scene, member: Entry) -> Plan:
            return plans.completed(scene, member, attempt.fence, attempt.epoch, await attempt.arrivals())

        await self._become(COMPLETED, plan, attempt.epoch)

    async def fail(self, fence: Fence, epoch: int | None, why: str) -> None:
        """It cannot go on; with an epoch, unless that is over."""

        async def plan(scene: Scene, member: Entry) -> Plan:
            return plans.failed(scene, member, fence, why[:1000])

        await self._become(FULLY_FAILED, plan, epoch)

    async def tell(self, info: WorkerInfo, fence: Fence, epoch: int) -> None:
        """It says something else of itself."""
        backoff = Backoff()
        while True:
            plan = plans.told(self._seat.keys, await self._member(), replace(info, key=self._seat.info.key), fence)
            if await self._commit(plan, epoch, backoff):
                return

    async def count_execution(self, fence: Fence, epoch: int) -> str:
        """Its function is run once more; why not, when that is too often."""
        scene, member = await self.scene(), await self._member()
        if WorkerInfo.of(member).executions >= scene.head.max_executions:
            info = self._seat.info
            return f"worker {info.id} ({info.key}) was run again more than {scene.head.max_executions} times"
        plan = plans.executed_again(self._seat.keys, member, fence)
        try:
            await ask(self._store.commit, plan.checks, plan.ops)
        except Conflict:
            await self.refuse(epoch)
        return ""

    async def leave(self) -> None:
        """It leaves; the last one of a job that has ended removes it."""
        seat, backoff = self._seat, Backoff()
        while await self._why_out() is None:
            scene = await self.scene()
            live = [entry.key for entry in await ask(self._store.list, seat.keys.live)]
            plan = plans.left(scene, seat.info.id, live, seat.fence(self._store))
            try:
                await ask(self._store.commit, plan.checks, plan.ops)
            except (Conflict, OutcomeUnknown):
                await Pause(self._store.clock, self._lost, backoff.next_s())
                continue
            if plan.head is None:
                await ask(self._store.delete_tree, seat.keys.folder)
            return

    async def _become(self, status: str, plan: Callable[[Scene, Entry], Awaitable[Plan]], epoch: int | None) -> None:
        """Have a status, as a plan says."""
        backoff = Backoff()
        while True:
            scene, member = await self.scene(), await self._member()
            info = WorkerInfo.of(member)
            if info.status == status and info.incarnation == self._seat.info.incarnation:
                return
            if await self._commit(await plan(scene, member), epoch, backoff):
                return

    async def _commit(self, plan: Plan, epoch: int | None, backoff: Backoff) -> bool:
        """Commit once; False if it has to be planned anew, after a pause."""
        try:
            await ask(self._store.commit, plan.checks, plan.ops)
        except (Conflict, OutcomeUnknown):
            await self.refuse(epoch)
            await Pause(self._store.clock, self._lost, backoff.next_s())
            return False
        return True

    async def _member(self) -> Entry:
        member: Entry | None = await ask(self._store.get, self._seat.keys.member(self._seat.info.key))
        if member is None:
            raise await self._why_out() or Removed(f"{self._what} was removed")
        return member

    async def _why_out(self) -> LatchworkError | None:
        return await why_out(self._store, self._seat)
