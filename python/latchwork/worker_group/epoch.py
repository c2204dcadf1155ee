"""A worker in one epoch: its fence, the work that depends on it, its barriers, and what it says of itself.

An attempt ends as a whole. In its own record a worker says that it has done its part or failed, and that it leaves.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from latchwork.errors import BarrierBroken, Closed, Conflict, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.interrupts import mutex
from latchwork.primitives import Barrier
from latchwork.primitives.barrier import Expected, arrivals_at
from latchwork.primitives.waiting import Ownership
from latchwork.store.backoff import Backoff
from latchwork.store.steps import Pause, Signal, ask, driven, steps_of
from latchwork.store.store import Store
from latchwork.types import Absent, At, Entry, Fence, Put
from latchwork.worker_group import transactions
from latchwork.worker_group.errors import JobFaulty, JobTerminated, Removed
from latchwork.worker_group.keys import arrival_id
from latchwork.worker_group.membership import Seat
from latchwork.worker_group.observation import why_out, why_refused
from latchwork.worker_group.records import COMPLETED, FULLY_FAILED, WorkerInfo, read_epoch, shown
from latchwork.worker_group.transactions import BarrierArrivals, Scene, Txn, head_or_none, read_members


class Attempt:
    """One worker in one epoch. Safe to share between threads.

    Attributes:
        epoch: which.
        fence: that we still are this worker, and that the epoch goes on.
        ownership: what work depends on; lost once the epoch is over, or we are not in the job any more.
    """

    def __init__(self, store: Store, seat: Seat, entry: Entry) -> None:
        self._store = store
        self._seat = seat
        self._keys = seat.keys
        self.epoch = read_epoch(entry)
        self.fence: Fence = seat.fence(store, entry)
        self.ownership = Ownership(
            f"epoch {self.epoch} of worker {seat.info.id} in job {seat.keys.job.job!r}",
            self.fence,
            ttl_s=seat.session.ttl_s,
            remaining_s=seat.session.remaining_s,
            error=JobFaulty,
            clock=store.clock,
        )
        self._lock = mutex()
        self._barriers: dict[str, Barrier] = {}
        self._used: list[Barrier] = []
        self._is_over = False

    def end(self) -> None:
        """The epoch is over, or we are not in the job any more: waits are called off, work is told to stop."""
        with self._lock:
            self._is_over = True
            barriers = list(self._barriers.values())
        self.ownership.lose()
        for barrier in barriers:
            barrier.close()

    def barrier(self, name: str) -> Barrier:
        """The barrier of a name.

        Raises:
            Closed: the epoch is over.
        """
        with self._lock:
            if self._is_over:
                raise Closed(f"{self.ownership.what} is over")
            if name not in self._barriers:
                self._barriers[name] = Barrier(
                    self._store,
                    self._keys.barrier(self.epoch, name),
                    parties=self._expected,
                    member_id=arrival_id(self._seat.info.id),
                    session=self._seat.session,
                    per_generation=True,
                )
            return self._barriers[name]

    @contextmanager
    def use(self, name: str) -> Iterator[Barrier]:
        """Wait at the barrier of a name inside the ``with``; ``shrink`` covers it from here on.

        Raises:
            Closed: the epoch is over.
        """
        barrier = self.barrier(name)
        self._used.append(barrier)
        try:
            yield barrier
        finally:
            self._used.remove(barrier)

    async def shrink(self, n: int) -> None:
        """Break the barriers in use that wait for an id from ``n`` on: the job was scaled down."""

        def removed(basis: int) -> list[str]:
            return [arrival_id(number) for number in range(n, basis)]

        for barrier in list(self._used):
            with suppress(Closed):
                await steps_of(barrier.abort)(f"the job was scaled down to {n} workers", lacking=removed)

    async def arrivals(self) -> BarrierArrivals:
        """Return what makes this worker arrive at every open barrier of the epoch, as a part of a transaction."""
        keys = self._keys
        opened = await ask(self._store.get, keys.opened)  # before the barriers: any that is opened later changes it
        names = await ask(self._store.children, keys.barriers(self.epoch))
        barriers = [keys.barrier(self.epoch, name) for name in names]
        checks, ops = await arrivals_at(self._store, barriers, arrival_id(self._seat.info.id))
        return BarrierArrivals([Absent(keys.opened) if opened is None else At(opened), *checks], ops)

    @driven
    async def _expected(self) -> Expected:
        """All workers but those that have completed: these are never run again."""
        entry = await ask(self._store.get, self._keys.head)
        head = head_or_none(entry, self._keys.run)
        if entry is None or head is None:
            raise Closed(f"job {self._keys.job.job!r} is no more; stop the work")
        opened = [Put(self._keys.opened, b"")]
        return Expected(max(1, head.n - head.completed), [At(entry)], opened, basis=head.n)


async def who_broke(store: Store, seat: Seat, name: str, error: BarrierBroken) -> BarrierBroken:
    """The error of a barrier that was broken, with the workers that had not come, and how they are."""
    keys = seat.keys
    try:
        infos = read_members(await ask(store.list, keys.members))
        head = head_or_none(await ask(store.get, keys.head), keys.run)
    except (Unavailable, OutcomeUnknown):
        return error
    done = {info.id for info in infos if info.status == COMPLETED}
    came = {int(each) for each in error.arrived if each.isdecimal()}
    missing = sorted(set(range(head.n if head is not None else 0)) - done - came)
    known = {info.id: f"{info.id} ({info.key}, {info.status})" for info in infos}
    who = shown([known.get(number, f"{number} (never joined)") for number in missing])
    why = str(error).partition("; ")[0]
    told = f"{why}; missing: {who}" if missing else str(error)
    return BarrierBroken(
        f"job {keys.job.job!r}, barrier {name!r}: {told}", tuple(map(str, missing)), tuple(map(str, sorted(came)))
    )


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

        async def make(scene: Scene, member: Entry) -> Txn:
            return transactions.completed(scene, member, attempt.fence, attempt.epoch, await attempt.arrivals())

        await self._become(COMPLETED, make, attempt.epoch)

    async def fail(self, fence: Fence, epoch: int | None, why: str) -> None:
        """It cannot go on; with an epoch, unless that is over."""

        async def make(scene: Scene, member: Entry) -> Txn:
            return transactions.failed(scene, member, fence, why[:1000])

        await self._become(FULLY_FAILED, make, epoch)

    async def tell(self, info: WorkerInfo, fence: Fence, epoch: int) -> None:
        """It says something else of itself."""
        backoff = Backoff()
        while True:
            told = replace(info, key=self._seat.info.key)
            txn = transactions.told(self._seat.keys, await self._member(), told, fence)
            if await self._commit(txn, epoch, backoff):
                return

    async def count_execution(self, fence: Fence, epoch: int) -> str:
        """Its function is run once more; why not, when that is too often."""
        scene, member = await self.scene(), await self._member()
        if WorkerInfo.of(member).executions >= scene.head.max_executions:
            info = self._seat.info
            return f"worker {info.id} ({info.key}) was run again more than {scene.head.max_executions} times"
        txn = transactions.executed_again(self._seat.keys, member, fence)
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            await self.refuse(epoch)
        return ""

    async def leave(self) -> None:
        """It leaves; the last one of a job that has ended removes it."""
        seat, backoff = self._seat, Backoff()
        while await self._why_out() is None:
            scene = await self.scene()
            live = [entry.key for entry in await ask(self._store.list, seat.keys.live)]
            txn = transactions.left(scene, seat.info.id, live, seat.fence(self._store))
            try:
                await ask(self._store.commit, txn.checks, txn.ops)
            except (Conflict, OutcomeUnknown):
                await Pause(self._store.clock, self._lost, backoff.next_s())
                continue
            if txn.head is None:
                await ask(self._store.delete_tree, seat.keys.folder)
            return

    async def _become(self, status: str, make: Callable[[Scene, Entry], Awaitable[Txn]], epoch: int | None) -> None:
        """Write a status with the transaction that ``make`` returns for what was read; again until it is there."""
        backoff = Backoff()
        while True:
            scene, member = await self.scene(), await self._member()
            info = WorkerInfo.of(member)
            if info.status == status and info.incarnation == self._seat.info.incarnation:
                return
            if await self._commit(await make(scene, member), epoch, backoff):
                return

    async def _commit(self, txn: Txn, epoch: int | None, backoff: Backoff) -> bool:
        """Commit once. False, after a pause: read again, and make another transaction."""
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
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
