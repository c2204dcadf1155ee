"""What a worker owns in one epoch: its fence, work that depends on it, and its barriers. It ends as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from latchwork.errors import BarrierBroken, Closed, OutcomeUnknown, Unavailable
from latchwork.interrupts import mutex
from latchwork.primitives import Barrier
from latchwork.primitives.meeting import Expected, arrivals_at
from latchwork.primitives.waiting import Ownership
from latchwork.store.steps import ask, driven, steps_of
from latchwork.store.store import Store
from latchwork.types import Absent, At, Entry, Fence, Put
from latchwork.workers.errors import JobFaulty
from latchwork.workers.keys import arrival_id
from latchwork.workers.membership import Seat
from latchwork.workers.plans import Arrivals, head_or_none, read_members
from latchwork.workers.records import COMPLETED, read_epoch, shown


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

    async def arrivals(self) -> Arrivals:
        """Return what makes this worker arrive at every open barrier of the epoch, as a part of a transaction."""
        keys = self._keys
        opened = await ask(self._store.get, keys.opened)  # before the barriers: any that is opened later changes it
        names = await ask(self._store.children, keys.barriers(self.epoch))
        barriers = [keys.barrier(self.epoch, name) for name in names]
        checks, ops = await arrivals_at(self._store, barriers, arrival_id(self._seat.info.id))
        return Arrivals([Absent(keys.opened) if opened is None else At(opened), *checks], ops)

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
