"""Joiner a group: the next id, or the one that this worker had before; and what each write of it checks.

The threads of one process join one after the other, and each passes what it read of the group on to the next.
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
from latchwork.worker_group.errors import GroupFull, GroupTerminated, RestartsExceeded, WrongRun
from latchwork.worker_group.keys import FINAL, INIT, GroupKeys, RunKeys
from latchwork.worker_group.records import (
    COMPLETED,
    FULLY_FAILED,
    GroupRecord,
    WorkerInfo,
    new_member,
    read_epoch,
    read_incarnation,
)
from latchwork.worker_group.transactions import EpochState, GroupSnapshot, GroupTxn, record_or_none

_log = logging.getLogger(__name__)

_join_locks: WeakKeyDictionary[Store, dict[str, JoinLock]] = WeakKeyDictionary()

#: After an interrupt a join that was on its way may land for so many seconds: looked at then.
_ABANDON_PAUSES_S = (0.5, 2.0, 10.0)
#: With so many count_behind it in its process, who has no turn draws a ticket; and for so long it is the turn of all of them.
_TICKET_THRESHOLD, _SHARED_TURN_S = 3, 0.25


@dataclass(frozen=True, slots=True)
class WorkerMembership:
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
    lease: Entry
    events: int
    is_new: bool

    def fence(self, store: Store, epoch: Entry | None = None) -> Fence:
        """That we still are this worker; with an epoch, that it goes on."""
        more = () if epoch is None else (At(epoch),)
        token = max(self.lease.token, epoch.token if epoch is not None else 0)
        return store.fence(token, At(self.lease), self.session.fence, *more)


async def read_epoch_state(store: Store, keys: RunKeys) -> EpochState | None:
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
    is_healthy_recorded = not passed[0] or await ask(store.get, keys.healthy(read_epoch(entry))) is not None
    is_initialized, has_ended = passed
    return EpochState(entry, tuple(checks), is_initialized, has_ended, is_healthy_recorded)


def resolve_key(key: str | None, info: WorkerInfo, what: str) -> WorkerInfo:
    """What a worker says of itself, with its key."""
    if key is None:
        port = next((info.ports[name] for name in sorted(info.ports)), None)
        if not info.ip or port is None:
            raise ValueError(
                f"{what}: give a key, or an info with an ip and a port: it is known by that after a restart"
            )
        key = f"{info.ip}:{port}"
    return replace(info, key=check_member(key, "worker key"))


class JoinLock:
    """Through which the threads of one process join one group on one store: one at a time. Safe to share.

    Attributes:
        record: the group's record, as the last to join has written it; a cached, it may have changed.
        epoch: the epoch, as one of them has read it; a cached, too: what was over by then is refused, and told.
        shared_until: by the store's clock, until when one of us keeps its turn for all of us.
    """

    def __init__(self, on_empty: Callable[[JoinLock], object] = bool) -> None:
        self.record: Entry | None = None
        self.epoch: Entry | None = None
        self.shared_until = 0.0
        self._emptied = Signal()
        self._on_empty = on_empty
        self._lock = mutex()
        self._queue: list[Signal] = []

    def enqueue(self, turn: Signal) -> None:
        """Stand in line; the signal is set once it is our turn."""
        with self._lock:
            self._queue.append(turn)
            first = self._queue[0]
        first.set()

    def leave(self, turn: Signal) -> None:
        """Go, before our turn, in it or after it: the next is told. Twice is fine."""
        with self._lock:
            if turn in self._queue:
                self._queue.remove(turn)
            first = self._queue[:1]
        for each in first:
            each.set()
        if not first:
            self._emptied.set()
            self._on_empty(self)

    def count_behind(self, turn: Signal) -> int:
        """How many stand count_behind us; 0 if we do not stand in line."""
        with self._lock:
            return len(self._queue) - 1 - self._queue.index(turn) if turn in self._queue else 0

    def share_turn(self, turn: Signal, until: float) -> Signal:
        """Go, and keep the turn that we have among all processes for those count_behind us; set once there are none."""
        emptied = self._emptied = Signal()
        self.shared_until = until
        self.leave(turn)
        return emptied


def join_lock_for(store: Store, keys: GroupKeys) -> JoinLock:
    """The doorway of a group: the same one for all threads that share a store, one of its own for a task."""
    if current() is not None:  # its loop may end in the middle
        return JoinLock()
    registry = _join_locks.setdefault(store, {})

    def forget(one: JoinLock) -> None:  # whoever has it still uses it: two lines only cost more
        if registry.get(keys.record) is one:
            registry.pop(keys.record, None)

    return registry.setdefault(keys.record, JoinLock(forget))


class Joiner:
    """Joins a group, once. One thread only.

    Args:
        store: the store.
        keys: of the group.
        info: what the worker says of itself, with its key.
        run: refuse any other; None takes the one there is.
        create: the record of the group to create if there is none; None waits for somebody to submit it.
        replace_live: whether a live namesake is fenced out; else its end is waited for.

    Attributes:
        epoch: the epoch we have joined in; None before.
    """

    def __init__(
        self,
        store: Store,
        keys: GroupKeys,
        info: WorkerInfo,
        *,
        run: str | None,
        create: GroupRecord | None,
        replace_live: bool,
    ) -> None:
        self._store = store
        self._group = keys
        self._what = f"group {keys.group!r}"
        self._info = info
        self.epoch: Entry | None = None
        self._join_lock = JoinLock()
        self._turn = Signal()
        self._run = run
        self._create = create
        self._replace = replace_live
        self._position: QueuePosition | None = None
        self._queue: TicketQueue | None = None

    async def join(self, waiter: Waiter, patience: Patience) -> WorkerMembership:
        """Join; see ``GroupWorker.join``. What an interrupt leaves of it is gone soon: see ``abandon``."""
        self._info = replace(self._info, incarnation=uuid.uuid4().hex[:12])
        self._join_lock, backoff = join_lock_for(self._store, self._group), Backoff()
        try:
            while True:
                await self._enqueue(waiter, patience)
                cached = self._cached_record()
                if cached is not None and self._needs_ticket():
                    await self._wait_for_turn(self._group.for_run(self._decode(cached).run), waiter, patience)
                    cached = self._join_lock.record = None
                entry = cached
                if entry is None:
                    entry = await waiter.keep_trying(partial(self._read_or_create, waiter, patience), patience)
                snapshot = GroupSnapshot(self._group.for_run(self._decode(entry).run), entry, time.time())
                is_new = cached is not None
                membership = await waiter.keep_trying(
                    partial(self._try, snapshot, waiter, patience, is_new=is_new), patience
                )
                if membership is not None:
                    await waiter.keep_trying(partial(self._read_epoch, membership), patience)
                    await self._share_turn()
                    return membership
                self._join_lock.record = None
                if cached is not None:
                    continue
                self._raise_if_over(patience, waiter, "the others kept joiner")
                if self._is_turn_shared:
                    continue
                if self._position is not None:  # those without a ticket are not told by ours
                    await waiter.pause(patience.left_s(backoff.next_s()))
                await self._wait_for_turn(snapshot.keys, waiter, patience)
        finally:
            self._dequeue()
            if self._position is not None and self._queue is not None:
                await self._queue.leave(self._position)

    async def _read_epoch(self, membership: WorkerMembership) -> None:
        """The epoch we have joined in: for one that is new, as another one of our process has just read it."""
        known = self._join_lock.epoch
        if known is None or known.key != membership.keys.epoch or not membership.is_new:
            known = self._join_lock.epoch = await ask(self._store.get, membership.keys.epoch)
        if known is None:
            raise GroupTerminated(f"{self._what}: the group is no more")
        self.epoch = known

    @property
    def _is_turn_shared(self) -> bool:
        """Whether one of our process keeps its turn for us."""
        return self._store.clock.now() < self._join_lock.shared_until

    def _needs_ticket(self) -> bool:
        """Whether so many stand count_behind us that we draw a ticket before anybody is in our way."""
        return (
            self._position is None
            and not self._is_turn_shared
            and self._join_lock.count_behind(self._turn) >= _TICKET_THRESHOLD
        )

    async def _share_turn(self) -> None:
        """We have joined: those count_behind us in our process have our turn for a moment; then our ticket goes."""
        if self._position is not None:
            emptied = self._join_lock.share_turn(self._turn, self._store.clock.now() + _SHARED_TURN_S)
            await Pause(self._store.clock, emptied, _SHARED_TURN_S)

    async def _enqueue(self, waiter: Waiter, patience: Patience) -> None:
        """Wait for those of our process that came before us; who has no more time does not, and tries once.

        Nor does who has a ticket: one before us may wait for ours to go.
        """
        if self._turn.is_set() or self._position is not None or patience.is_over:
            return
        self._join_lock.enqueue(self._turn)
        take_back = waiter.off.call_when_set(self._turn.set)
        try:
            await Pause(self._store.clock, self._turn, patience.left_s())
        finally:
            take_back()
        waiter.session.ensure_usable()

    def _cached_record(self) -> Entry | None:
        """The record as the last one of our process to join has left it, if that is enough for a worker that is new."""
        entry = self._join_lock.record
        record = record_or_none(entry)
        is_enough = (
            record is not None and not record.is_final and not record.is_full and self._run in {None, record.run}
        )
        return entry if is_enough else None

    def _dequeue(self) -> None:
        turn, self._turn = self._turn, Signal()
        self._join_lock.leave(turn)

    async def abandon(self, hurry: Signal) -> None:
        """Nobody will be this worker: its lease goes, also one that is about to be written."""
        for pause_s in (*_ABANDON_PAUSES_S, 0.0):
            with suppress(LatchworkError):
                await self._abandon()
            if not hurry.is_set():
                await Pause(self._store.clock, hurry, pause_s)

    async def _abandon(self) -> None:
        entry = await ask(self._store.get, self._group.record)
        record = record_or_none(entry)
        if entry is None or record is None:
            return
        keys = self._group.for_run(record.run)
        member = await ask(self._store.get, keys.member(self._info.key))
        info = None if member is None else WorkerInfo.or_none(member)
        if info is None or info.incarnation != self._info.incarnation:
            return
        live = await ask(self._store.get, keys.lease(info.rank))
        if live is not None and read_incarnation(live) == info.incarnation:
            await ask(self._store.delete, live.key, version=live.version)

    # The group

    async def _read_or_create(self, waiter: Waiter, patience: Patience) -> Entry:
        """The record of the group: as it is, or of one that we create or wait for."""
        while True:
            entry = await ask(self._store.get, self._group.record)
            if entry is not None:
                return entry
            self._dequeue()
            if self._run is not None:
                raise WrongRun(f"{self._what} is not there any more, nor its run {self._run}; do not start this worker")
            if self._create is not None:
                await self._submit(self._create, None)
                continue
            if patience.is_over or not await waiter.follow(self._group.record, bool, patience):
                self._raise_if_over(patience, waiter, "nobody has submitted it")

    def _decode(self, entry: Entry) -> GroupRecord:
        record = GroupRecord.of(entry)
        if self._run is not None and record.run != self._run:
            raise WrongRun(f"{self._what} is in run {record.run}, not in {self._run}; do not start this worker again")
        return record

    def _raise_if_over(self, patience: Patience, waiter: Waiter, why: str) -> None:
        if waiter.is_off:
            waiter.session.ensure_usable()
            raise Closed(f"{self._what} was not joined: the worker was closed; make another one")
        if patience.is_over:
            raise WaitTimeout(f"{self._what} could not be joined in time: {why}; nothing of us is left count_behind")

    # One try

    async def _try(
        self, snapshot: GroupSnapshot, waiter: Waiter, patience: Patience, *, is_new: bool
    ) -> WorkerMembership | None:
        """Join the group as it was read, with ``is_new`` as one that nobody knows; None when that is not so."""
        session = waiter.session
        if is_new:
            return await self._take_next_rank(snapshot, session)
        member = await ask(self._store.get, snapshot.keys.member(self._info.key))
        if member is None:
            return await self._take_next_rank(snapshot, session)
        old = WorkerInfo.of(member)
        live = await ask(self._store.get, snapshot.keys.lease(old.rank))
        if old.incarnation == self._info.incarnation:  # the answer to an earlier try was lost
            return self._resume(snapshot, old, session, live)
        if live is not None and not self._replace:
            return await self._wait_for_predecessor(live, old, waiter, patience)
        return await self._rejoin(snapshot, member, old, session)

    async def _take_next_rank(self, snapshot: GroupSnapshot, session: Session) -> WorkerMembership | None:
        record = snapshot.record
        if record.is_final:
            if self._create is not None and not await ask(self._store.children, snapshot.keys.leases):
                if await self._submit(self._create, snapshot.entry):
                    await ask(self._store.delete_tree, snapshot.keys.prefix)
                return None
            raise GroupTerminated(f"{self._what} has ended: {record.state}; submit it anew")
        if record.is_full:
            raise GroupFull(
                f"all {record.workers} ids of {self._what} are taken, and none by {self._info.key!r}; scale it up first"
            )
        info = new_member(self._info, record.next_rank, self._info.key, self._info.incarnation)
        is_last = self._position is not None and not self._join_lock.count_behind(self._turn)
        ticket = (self._position.ticket.key,) if self._position is not None and is_last else ()
        membership = await self._commit(
            snapshot, transactions.join(snapshot, info, session, ticket), info, session, is_new=True
        )
        if membership is not None and ticket:
            self._position = None  # its ticket is gone
        return membership

    async def _submit(self, record: GroupRecord, old: Entry | None) -> bool:
        """Create the group, in place of one that has ended and that nobody is in; False if another was faster."""
        record = replace(record, run=uuid.uuid4().hex[:12], created=time.time())
        txn = transactions.create_group(self._group.for_run(record.run), record, old)
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            return False
        return True

    async def _rejoin(
        self, snapshot: GroupSnapshot, member: Entry, old: WorkerInfo, session: Session
    ) -> WorkerMembership | None:
        record = snapshot.record
        if old.status == FULLY_FAILED or (record.is_final and old.status != COMPLETED):
            raise GroupTerminated(f"{self._what} has ended: {record.why or record.state}; submit it anew")
        if old.restarts >= record.max_restarts and old.status != COMPLETED:
            why = f"worker {old.rank} ({old.key}) was started again more than {record.max_restarts} times"
            txn = transactions.fail_restarts(snapshot, member, why)
            try:
                await ask(self._store.commit, txn.checks, txn.ops)
            except Conflict:
                return None
            raise RestartsExceeded(f"{why}: {self._what} has failed; find out why it dies, and submit the group anew")
        epoch_state = await read_epoch_state(self._store, snapshot.keys)
        if epoch_state is None:
            return None
        info = replace(self._info, rank=old.rank)
        txn = transactions.rejoin(snapshot, member, info, session, epoch_state)
        return await self._commit(snapshot, txn, info, session, is_new=False)

    async def _commit(
        self, snapshot: GroupSnapshot, txn: GroupTxn, info: WorkerInfo, session: Session, *, is_new: bool
    ) -> WorkerMembership | None:
        try:
            done = await ask(self._store.commit, [*txn.checks, session.fence], txn.ops)
        except Conflict:
            session.ensure_usable()
            return None
        self._join_lock.record = done.entries[0] if done.entries[0].key == self._group.record else None
        written = {entry.key: entry for entry in done.entries}
        info = WorkerInfo.of(written[snapshot.keys.member(info.key)])
        live = written[snapshot.keys.lease(info.rank)]
        _log.info("worker %r has joined %s as %d", info.key, self._what, info.rank)
        return WorkerMembership(snapshot.keys, info, session, live, snapshot.record.event_count, is_new)

    def _resume(
        self, snapshot: GroupSnapshot, info: WorkerInfo, session: Session, live: Entry | None
    ) -> WorkerMembership:
        if live is None or read_incarnation(live) != info.incarnation or live.owner != session.id:
            raise NodeIdInUse(
                f"another process has joined {self._what} as {info.key!r} just now; give each its own key"
            )
        return WorkerMembership(
            snapshot.keys, info, session, live, max(0, snapshot.record.event_count - 1), not info.restarts
        )

    async def _wait_for_predecessor(
        self, live: Entry, old: WorkerInfo, waiter: Waiter, patience: Patience
    ) -> WorkerMembership | None:
        self._dequeue()

        def is_gone(batch: object) -> bool:
            return all(change.entry is None for change in batch)  # type: ignore[attr-defined]

        if patience.is_over or not await waiter.follow(live.key, is_gone, patience):
            waiter.session.ensure_usable()
            raise NodeIdInUse(
                f"worker {old.rank} ({old.key}) of {self._what} is alive elsewhere; use another key, or replace it"
            )
        return None

    async def _wait_for_turn(self, keys: RunKeys, waiter: Waiter, patience: Patience) -> None:
        """Wait until it is our turn to join: who comes without a ticket may still be faster, once."""
        if self._position is not None:
            return
        self._queue = TicketQueue(self._store, keys.join_queue, self._what, self._info.key)
        try:
            self._position = await waiter.keep_trying(lambda: self._join_queue(waiter.session), patience)
            await waiter.keep_trying(lambda: self._await_turn(waiter, patience), patience)
        except BadRecord:
            _log.warning("%s: somebody else wrote among the tickets of those that join", self._what)

    async def _join_queue(self, session: Session) -> QueuePosition:
        assert self._queue is not None
        return await self._queue.join(session)

    async def _await_turn(self, waiter: Waiter, patience: Patience) -> bool:
        assert self._queue is not None
        assert self._position is not None
        return await await_turn(self._queue, self._position, waiter, patience)
