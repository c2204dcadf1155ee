"""Joining a job: taking the next id, or the one that this worker had before; and what each write of it checks.

Many that join at once all write the head. Whoever finds it changed draws a ticket and waits for its turn; the join
deletes the ticket, so that the next one is told by it.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, replace

from latchwork.errors import BadRecord, Conflict, NodeIdInUse, WaitTimeout
from latchwork.primitives import Barrier
from latchwork.primitives.fair import Place, TicketQueue, await_turn
from latchwork.primitives.waiting import Patience, Waiter, check_member
from latchwork.store.session import Session
from latchwork.store.steps import ask, steps_of
from latchwork.store.store import Store
from latchwork.types import At, Entry, Fence
from latchwork.workers import plans
from latchwork.workers.errors import JobFull, JobTerminated, RestartsExceeded, WrongRun
from latchwork.workers.keys import FINAL, INIT, JobKeys, RunKeys
from latchwork.workers.plans import Plan, Scene, Standing
from latchwork.workers.records import COMPLETED, FULLY_FAILED, Head, WorkerInfo, joined_as, read_epoch, read_incarnation

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seat:
    """One incarnation of a worker that has joined.

    Attributes:
        keys: of the run.
        info: as it joined.
        session: the session it lives by.
        live: its lease.
        events: how many things had happened before it joined.
        is_new: whether it has joined for the first time.
    """

    keys: RunKeys
    info: WorkerInfo
    session: Session
    live: Entry
    events: int
    is_new: bool

    def fence(self, store: Store, epoch: Entry | None = None) -> Fence:
        """That we still are this worker; with an epoch, that it goes on."""
        more = () if epoch is None else (At(epoch),)
        token = max(self.live.token, epoch.token if epoch is not None else 0)
        return store.fence(token, At(self.live), self.session.fence, *more)


async def standing_of(store: Store, keys: RunKeys) -> Standing | None:
    """The epoch, and whether its first and last barriers have passed; None when the run is gone."""
    entry = await ask(store.get, keys.epoch)
    if entry is None:
        return None
    passed, checks = [], []
    for name in (INIT, FINAL):
        barrier = Barrier(
            store, keys.barrier(read_epoch(entry), name), parties=1, member_id="look", per_generation=True
        )
        has_passed, check = await steps_of(barrier.check)()
        passed.append(has_passed)
        checks.append(check)
    return Standing(entry, tuple(checks), *passed)


class Joining:
    """Joins a job, once. One thread only.

    Args:
        store: the store.
        keys: of the job.
        info: what the worker says of itself, with its key.
        run: refuse any other; None takes the one there is.
        create: the head of the job to create if there is none; None waits for somebody to submit it.
        replace_live: whether a live namesake is fenced out; else its end is waited for.
    """

    def __init__(
        self,
        store: Store,
        keys: JobKeys,
        info: WorkerInfo,
        *,
        run: str | None,
        create: Head | None,
        replace_live: bool,
    ) -> None:
        self._store = store
        self._job = keys
        self._what = f"job {keys.job!r}"
        self._info = replace(info, incarnation=uuid.uuid4().hex[:12])
        self._run = run
        self._create = create
        self._replace = replace_live
        self._place: Place | None = None
        self._queue: TicketQueue | None = None

    async def join(self, waiter: Waiter, patience: Patience) -> Seat:
        """Join; see ``Worker.join``."""
        try:
            while True:
                entry = await waiter.keep_trying(lambda: self._find(waiter, patience), patience)
                scene = Scene(self._job.of_run(self._read(entry).run), entry, time.time())
                seat = await waiter.keep_trying(lambda scene=scene: self._try(scene, waiter, patience), patience)  # type: ignore[misc]
                if seat is not None:
                    return seat
                self._refuse_over(patience, waiter, "the others kept joining")
                await self._take_turn(scene.keys, waiter, patience)
        finally:
            if self._place is not None and self._queue is not None:
                await self._queue.leave(self._place)

    # The job

    async def _find(self, waiter: Waiter, patience: Patience) -> Entry:
        """The head of the job: as it is, or of one that we create or wait for."""
        while True:
            entry = await ask(self._store.get, self._job.head)
            if entry is not None:
                return entry
            if self._run is not None:
                raise WrongRun(f"{self._what} is not there any more, nor its run {self._run}; do not start this worker")
            if self._create is not None:
                await self._submit(self._create, None)
                continue
            if patience.is_over or not await waiter.follow(self._job.head, bool, patience):
                self._refuse_over(patience, waiter, "nobody has submitted it")

    def _read(self, entry: Entry) -> Head:
        head = Head.of(entry)
        if self._run is not None and head.run != self._run:
            raise WrongRun(f"{self._what} is in run {head.run}, not in {self._run}; do not start this worker again")
        return head

    def _refuse_over(self, patience: Patience, waiter: Waiter, why: str) -> None:
        if waiter.is_off:
            waiter.session.ensure_usable()
        if patience.is_over:
            raise WaitTimeout(f"{self._what} could not be joined in time: {why}; nothing of us is left behind")

    # One try

    async def _try(self, scene: Scene, waiter: Waiter, patience: Patience) -> Seat | None:
        """Join the job as it was read; None when it has changed."""
        session = waiter.session
        member = await ask(self._store.get, scene.keys.member(self._info.key))
        if member is None:
            return await self._take_next(scene, session)
        old = WorkerInfo.of(member)
        live = await ask(self._store.get, scene.keys.live_of(old.id))
        if old.incarnation == self._info.incarnation:  # the answer to an earlier try was lost
            return self._seat(scene, old, session, live)
        if live is not None and not self._replace:
            return await self._await_namesake(live, old, waiter, patience)
        return await self._come_back(scene, member, old, session)

    async def _take_next(self, scene: Scene, session: Session) -> Seat | None:
        head = scene.head
        if head.is_final:
            if self._create is not None and not await ask(self._store.children, scene.keys.live):
                if await self._submit(self._create, scene.at):
                    await ask(self._store.delete_tree, scene.keys.folder)
                return None
            raise JobTerminated(f"{self._what} has ended: {head.state}; submit it anew")
        if head.has_all:
            raise JobFull(
                f"all {head.n} ids of {self._what} are taken, and none by {self._info.key!r}; scale it up first"
            )
        info = joined_as(self._info, head.next, self._info.key, self._info.incarnation)
        ticket = () if self._place is None else (self._place.ticket.key,)
        return await self._commit(scene, plans.joined(scene, info, session, ticket), info, session, is_new=True)

    async def _submit(self, head: Head, old: Entry | None) -> bool:
        """Create the job, in place of one that has ended and that nobody is in; False if another was faster."""
        head = replace(head, run=uuid.uuid4().hex[:12], created=time.time())
        plan = plans.submitted(self._job.of_run(head.run), head, old)
        try:
            await ask(self._store.commit, plan.checks, plan.ops)
        except Conflict:
            return False
        return True

    async def _come_back(self, scene: Scene, member: Entry, old: WorkerInfo, session: Session) -> Seat | None:
        head = scene.head
        if old.status == FULLY_FAILED or (head.is_final and old.status != COMPLETED):
            raise JobTerminated(f"{self._what} has ended: {head.why or head.state}; submit it anew")
        if old.restarts >= head.max_restarts and old.status != COMPLETED:
            why = f"worker {old.id} ({old.key}) was started again more than {head.max_restarts} times"
            plan = plans.exceeded(scene, member, why)
            try:
                await ask(self._store.commit, plan.checks, plan.ops)
            except Conflict:
                return None
            raise RestartsExceeded(f"{why}: {self._what} has failed; find out why it dies, and submit the job anew")
        standing = await standing_of(self._store, scene.keys)
        if standing is None:
            return None
        info = replace(self._info, id=old.id)
        plan = plans.rejoined(scene, member, info, session, standing)
        return await self._commit(scene, plan, info, session, is_new=False)

    async def _commit(
        self, scene: Scene, plan: Plan, info: WorkerInfo, session: Session, *, is_new: bool
    ) -> Seat | None:
        try:
            done = await ask(self._store.commit, [*plan.checks, session.fence], plan.ops)
        except Conflict:
            session.ensure_usable()
            return None
        if is_new:
            self._place = None  # its ticket is gone
        written = {entry.key: entry for entry in done.entries}
        info = WorkerInfo.of(written[scene.keys.member(info.key)])
        live = written[scene.keys.live_of(info.id)]
        _log.info("worker %r has joined %s as %d", info.key, self._what, info.id)
        return Seat(scene.keys, info, session, live, scene.head.events, is_new)

    def _seat(self, scene: Scene, info: WorkerInfo, session: Session, live: Entry | None) -> Seat:
        if live is None or read_incarnation(live) != info.incarnation or live.owner != session.id:
            raise NodeIdInUse(
                f"another process has joined {self._what} as {info.key!r} just now; give each its own key"
            )
        return Seat(scene.keys, info, session, live, max(0, scene.head.events - 1), not info.restarts)

    async def _await_namesake(self, live: Entry, old: WorkerInfo, waiter: Waiter, patience: Patience) -> Seat | None:
        def is_gone(batch: object) -> bool:
            return all(change.entry is None for change in batch)  # type: ignore[attr-defined]

        if patience.is_over or not await waiter.follow(live.key, is_gone, patience):
            waiter.session.ensure_usable()
            raise NodeIdInUse(
                f"worker {old.id} ({old.key}) of {self._what} is alive elsewhere; use another key, or replace it"
            )
        return None

    async def _take_turn(self, keys: RunKeys, waiter: Waiter, patience: Patience) -> None:
        """Wait until it is our turn to join: who comes without a ticket may still be faster, once."""
        if self._place is not None:
            return
        self._queue = TicketQueue(self._store, keys.joining, self._what, self._info.key)
        try:
            self._place = await waiter.keep_trying(lambda: self._join_queue(waiter.session), patience)
            await waiter.keep_trying(lambda: self._await_turn(waiter, patience), patience)
        except BadRecord:
            _log.warning("%s: somebody else wrote among the tickets of those that join", self._what)

    async def _join_queue(self, session: Session) -> Place:
        assert self._queue is not None
        return await self._queue.join(session)

    async def _await_turn(self, waiter: Waiter, patience: Patience) -> bool:
        assert self._queue is not None
        assert self._place is not None
        return await await_turn(self._queue, self._place, waiter, patience)


def check_key(key: str | None, info: WorkerInfo, what: str) -> WorkerInfo:
    """What a worker says of itself, with its key."""
    if key is None:
        port = next((info.ports[name] for name in sorted(info.ports)), None)
        if not info.ip or port is None:
            raise ValueError(
                f"{what}: give a key, or an info with an ip and a port: it is known by that after a restart"
            )
        key = f"{info.ip}:{port}"
    return replace(info, key=check_member(key, "worker key"))
