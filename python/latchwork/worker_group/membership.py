"""Joining a job: the next id, or the one that this worker had before; and what each write of it checks.

The threads of one process join one after the other, and each passes what it read of the job on to the next.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from latchwork.callers import current
from latchwork.errors import BadRecord, Closed, Conflict, LatchworkError, NodeIdInUse, WaitTimeout
from latchwork.interrupts import mutex
from latchwork.primitives import Barrier
from latchwork.primitives.fair import QueuePosition, TicketQueue, await_turn
from latchwork.primitives.waiting import Patience, Waiter, check_member
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import Pause, Signal, ask, steps_of
from latchwork.store.store import Store
from latchwork.types import At, Entry, Fence
from latchwork.worker_group import transactions
from latchwork.worker_group.errors import JobFull, JobTerminated, RestartsExceeded, WrongRun
from latchwork.worker_group.keys import FINAL, INIT, JobKeys, RunKeys
from latchwork.worker_group.records import (
    COMPLETED,
    FULLY_FAILED,
    GroupHead,
    WorkerInfo,
    joined_as,
    read_epoch,
    read_incarnation,
)
from latchwork.worker_group.transactions import EpochState, Scene, Txn, head_or_none

_log = logging.getLogger(__name__)

_doorways: WeakKeyDictionary[Store, dict[str, Doorway]] = WeakKeyDictionary()

#: After an interrupt a join that was on its way may land for so many seconds: looked at then.
_SETTLES_S = (0.5, 2.0, 10.0)
#: With so many behind it in its process, who has no turn draws a ticket; and for so long it is the turn of all of them.
_MANY_BEHIND, _KEEPS_S = 3, 0.25


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


async def standing_of(store: Store, keys: RunKeys) -> EpochState | None:
    """The epoch, and whether its first and last barriers have passed; None when the run is gone."""
    entry = await ask(store.get, keys.epoch)
    if entry is None:
        return None
    passed: list[bool] = []
    checks = []
    for name in (INIT, FINAL):
        barrier = Barrier(
            store, keys.barrier(read_epoch(entry), name), parties=1, member_id="look", per_generation=True
        )
        has_passed, check = await steps_of(barrier.check)()
        passed.append(has_passed)
        checks.append(check)
    is_told = not passed[0] or await ask(store.get, keys.healthy(read_epoch(entry))) is not None
    is_initialised, is_over = passed
    return EpochState(entry, tuple(checks), is_initialised, is_over, is_told)


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


class Doorway:
    """Through which the threads of one process join one job on one store: one at a time. Safe to share.

    Attributes:
        head: the job's head, as the last to join has written it; a hint, it may have changed.
        epoch: the epoch, as one of them has read it; a hint, too: what was over by then is refused, and told.
        ours_until: by the store's clock, until when one of us keeps its turn for all of us.
    """

    def __init__(self, on_empty: Callable[[Doorway], object] = bool) -> None:
        self.head: Entry | None = None
        self.epoch: Entry | None = None
        self.ours_until = 0.0
        self._emptied = Signal()
        self._on_empty = on_empty
        self._lock = mutex()
        self._line: list[Signal] = []

    def line_up(self, turn: Signal) -> None:
        """Stand in line; the signal is set once it is our turn."""
        with self._lock:
            self._line.append(turn)
            first = self._line[0]
        first.set()

    def leave(self, turn: Signal) -> None:
        """Go, before our turn, in it or after it: the next is told. Twice is fine."""
        with self._lock:
            if turn in self._line:
                self._line.remove(turn)
            first = self._line[:1]
        for each in first:
            each.set()
        if not first:
            self._emptied.set()
            self._on_empty(self)

    def behind(self, turn: Signal) -> int:
        """How many stand behind us; 0 if we do not stand in line."""
        with self._lock:
            return len(self._line) - 1 - self._line.index(turn) if turn in self._line else 0

    def keep(self, turn: Signal, until: float) -> Signal:
        """Go, and keep the turn that we have among all processes for those behind us; set once there are none."""
        emptied = self._emptied = Signal()
        self.ours_until = until
        self.leave(turn)
        return emptied


def doorway_of(store: Store, keys: JobKeys) -> Doorway:
    """The doorway of a job: the same one for all threads that share a store, one of its own for a task."""
    if current() is not None:  # its loop may end in the middle
        return Doorway()
    shelf = _doorways.setdefault(store, {})

    def forget(one: Doorway) -> None:  # whoever has it still uses it: two lines only cost more
        if shelf.get(keys.head) is one:
            shelf.pop(keys.head, None)

    return shelf.setdefault(keys.head, Doorway(forget))


class Joining:
    """Joins a job, once. One thread only.

    Args:
        store: the store.
        keys: of the job.
        info: what the worker says of itself, with its key.
        run: refuse any other; None takes the one there is.
        create: the head of the job to create if there is none; None waits for somebody to submit it.
        replace_live: whether a live namesake is fenced out; else its end is waited for.

    Attributes:
        epoch: the epoch we have joined in; None before.
    """

    def __init__(
        self,
        store: Store,
        keys: JobKeys,
        info: WorkerInfo,
        *,
        run: str | None,
        create: GroupHead | None,
        replace_live: bool,
    ) -> None:
        self._store = store
        self._job = keys
        self._what = f"job {keys.job!r}"
        self._info = info
        self.epoch: Entry | None = None
        self._door = Doorway()
        self._turn = Signal()
        self._run = run
        self._create = create
        self._replace = replace_live
        self._place: QueuePosition | None = None
        self._queue: TicketQueue | None = None

    async def join(self, waiter: Waiter, patience: Patience) -> Seat:
        """Join; see ``Worker.join``. What an interrupt leaves of it is gone soon: see ``abandon``."""
        self._info = replace(self._info, incarnation=uuid.uuid4().hex[:12])
        self._door, backoff = doorway_of(self._store, self._job), Backoff()
        try:
            while True:
                await self._line_up(waiter, patience)
                hint = self._hint()
                if hint is not None and self._needs_turn():
                    await self._take_turn(self._job.of_run(self._read(hint).run), waiter, patience)
                    hint = self._door.head = None
                entry = hint
                if entry is None:
                    entry = await waiter.keep_trying(partial(self._find, waiter, patience), patience)
                scene = Scene(self._job.of_run(self._read(entry).run), entry, time.time())
                is_new = hint is not None
                seat = await waiter.keep_trying(partial(self._try, scene, waiter, patience, is_new=is_new), patience)
                if seat is not None:
                    await waiter.keep_trying(partial(self._read_epoch, seat), patience)
                    await self._let_others_in()
                    return seat
                self._door.head = None
                if hint is not None:
                    continue
                self._refuse_over(patience, waiter, "the others kept joining")
                if self._is_turn_kept:
                    continue
                if self._place is not None:  # those without a ticket are not told by ours
                    await waiter.pause(patience.left_s(backoff.next_s()))
                await self._take_turn(scene.keys, waiter, patience)
        finally:
            self._leave_line()
            if self._place is not None and self._queue is not None:
                await self._queue.leave(self._place)

    async def _read_epoch(self, seat: Seat) -> None:
        """The epoch we have joined in: for one that is new, as another one of our process has just read it."""
        known = self._door.epoch
        if known is None or known.key != seat.keys.epoch or not seat.is_new:
            known = self._door.epoch = await ask(self._store.get, seat.keys.epoch)
        if known is None:
            raise JobTerminated(f"{self._what}: the job is no more")
        self.epoch = known

    @property
    def _is_turn_kept(self) -> bool:
        """Whether one of our process keeps its turn for us."""
        return self._store.clock.now() < self._door.ours_until

    def _needs_turn(self) -> bool:
        """Whether so many stand behind us that we draw a ticket before anybody is in our way."""
        return self._place is None and not self._is_turn_kept and self._door.behind(self._turn) >= _MANY_BEHIND

    async def _let_others_in(self) -> None:
        """We have joined: those behind us in our process have our turn for a moment; then our ticket goes."""
        if self._place is not None:
            emptied = self._door.keep(self._turn, self._store.clock.now() + _KEEPS_S)
            await Pause(self._store.clock, emptied, _KEEPS_S)

    async def _line_up(self, waiter: Waiter, patience: Patience) -> None:
        """Wait for those of our process that came before us; who has no more time does not, and tries once.

        Nor does who has a ticket: one before us may wait for ours to go.
        """
        if self._turn.is_set() or self._place is not None or patience.is_over:
            return
        self._door.line_up(self._turn)
        take_back = waiter.off.call_when_set(self._turn.set)
        try:
            await Pause(self._store.clock, self._turn, patience.left_s())
        finally:
            take_back()
        waiter.session.ensure_usable()

    def _hint(self) -> Entry | None:
        """The head as the last one of our process to join has left it, if that is enough for a worker that is new."""
        entry = self._door.head
        head = head_or_none(entry)
        is_enough = head is not None and not head.is_final and not head.has_all and self._run in {None, head.run}
        return entry if is_enough else None

    def _leave_line(self) -> None:
        turn, self._turn = self._turn, Signal()
        self._door.leave(turn)

    async def abandon(self, hurry: Signal) -> None:
        """Nobody will be this worker: its lease goes, also one that is about to be written."""
        for pause_s in (*_SETTLES_S, 0.0):
            with suppress(LatchworkError):
                await self._abandon()
            if not hurry.is_set():
                await Pause(self._store.clock, hurry, pause_s)

    async def _abandon(self) -> None:
        entry = await ask(self._store.get, self._job.head)
        head = head_or_none(entry)
        if entry is None or head is None:
            return
        keys = self._job.of_run(head.run)
        member = await ask(self._store.get, keys.member(self._info.key))
        info = None if member is None else WorkerInfo.or_none(member)
        if info is None or info.incarnation != self._info.incarnation:
            return
        live = await ask(self._store.get, keys.live_of(info.id))
        if live is not None and read_incarnation(live) == info.incarnation:
            await ask(self._store.delete, live.key, version=live.version)

    # The job

    async def _find(self, waiter: Waiter, patience: Patience) -> Entry:
        """The head of the job: as it is, or of one that we create or wait for."""
        while True:
            entry = await ask(self._store.get, self._job.head)
            if entry is not None:
                return entry
            self._leave_line()
            if self._run is not None:
                raise WrongRun(f"{self._what} is not there any more, nor its run {self._run}; do not start this worker")
            if self._create is not None:
                await self._submit(self._create, None)
                continue
            if patience.is_over or not await waiter.follow(self._job.head, bool, patience):
                self._refuse_over(patience, waiter, "nobody has submitted it")

    def _read(self, entry: Entry) -> GroupHead:
        head = GroupHead.of(entry)
        if self._run is not None and head.run != self._run:
            raise WrongRun(f"{self._what} is in run {head.run}, not in {self._run}; do not start this worker again")
        return head

    def _refuse_over(self, patience: Patience, waiter: Waiter, why: str) -> None:
        if waiter.is_off:
            waiter.session.ensure_usable()
            raise Closed(f"{self._what} was not joined: the worker was closed; make another one")
        if patience.is_over:
            raise WaitTimeout(f"{self._what} could not be joined in time: {why}; nothing of us is left behind")

    # One try

    async def _try(self, scene: Scene, waiter: Waiter, patience: Patience, *, is_new: bool) -> Seat | None:
        """Join the job as it was read, with ``is_new`` as one that nobody knows; None when that is not so."""
        session = waiter.session
        if is_new:
            return await self._take_next(scene, session)
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
        is_last = self._place is not None and not self._door.behind(self._turn)
        ticket = (self._place.ticket.key,) if self._place is not None and is_last else ()
        seat = await self._commit(scene, transactions.joined(scene, info, session, ticket), info, session, is_new=True)
        if seat is not None and ticket:
            self._place = None  # its ticket is gone
        return seat

    async def _submit(self, head: GroupHead, old: Entry | None) -> bool:
        """Create the job, in place of one that has ended and that nobody is in; False if another was faster."""
        head = replace(head, run=uuid.uuid4().hex[:12], created=time.time())
        txn = transactions.submitted(self._job.of_run(head.run), head, old)
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            return False
        return True

    async def _come_back(self, scene: Scene, member: Entry, old: WorkerInfo, session: Session) -> Seat | None:
        head = scene.head
        if old.status == FULLY_FAILED or (head.is_final and old.status != COMPLETED):
            raise JobTerminated(f"{self._what} has ended: {head.why or head.state}; submit it anew")
        if old.restarts >= head.max_restarts and old.status != COMPLETED:
            why = f"worker {old.id} ({old.key}) was started again more than {head.max_restarts} times"
            txn = transactions.exceeded(scene, member, why)
            try:
                await ask(self._store.commit, txn.checks, txn.ops)
            except Conflict:
                return None
            raise RestartsExceeded(f"{why}: {self._what} has failed; find out why it dies, and submit the job anew")
        standing = await standing_of(self._store, scene.keys)
        if standing is None:
            return None
        info = replace(self._info, id=old.id)
        txn = transactions.rejoined(scene, member, info, session, standing)
        return await self._commit(scene, txn, info, session, is_new=False)

    async def _commit(self, scene: Scene, txn: Txn, info: WorkerInfo, session: Session, *, is_new: bool) -> Seat | None:
        try:
            done = await ask(self._store.commit, [*txn.checks, session.fence], txn.ops)
        except Conflict:
            session.ensure_usable()
            return None
        self._door.head = done.entries[0] if done.entries[0].key == self._job.head else None
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
        self._leave_line()

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

    async def _join_queue(self, session: Session) -> QueuePosition:
        assert self._queue is not None
        return await self._queue.join(session)

    async def _await_turn(self, waiter: Waiter, patience: Patience) -> bool:
        assert self._queue is not None
        assert self._place is not None
        return await await_turn(self._queue, self._place, waiter, patience)
