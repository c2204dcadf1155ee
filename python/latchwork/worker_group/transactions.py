"""What each transaction on a job checks and writes, from the state that was read. Pure, no I/O.

Every one checks the job's head as it was read, and all but those on a barrier write it, so that they are one after the
other. docs/design/worker-groups.md has the table and the race that each check closes, and
``tests/worker_group/test_transactions.py`` fails without any one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from latchwork.errors import BadRecord
from latchwork.store.session import Session
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Fence, Op, Put
from latchwork.worker_group.keys import RunKeys
from latchwork.worker_group.records import (
    COMPLETED,
    FAILED,
    FULLY_FAILED,
    KEPT_EVENTS,
    LOST,
    TERMINATED,
    Event,
    GroupHead,
    WorkerInfo,
    epoch_body,
    live_body,
    read_epoch,
    restarted_as,
    told_as,
)

#: So many ids are removed in one transaction when a job is scaled down.
MOST_REMOVED = 40


@dataclass(frozen=True, slots=True)
class Txn:
    """One transaction.

    Attributes:
        checks: what must still be as it was read.
        ops: what is written.
        head: the head that is written; None when it is deleted, or left as it is.
    """

    checks: Sequence[Check]
    ops: Sequence[Op]
    head: GroupHead | None = None


@dataclass(frozen=True, slots=True)
class EpochState:
    """An epoch: its key as it was read, and whether its first and its last barrier have passed.

    Attributes:
        entry: the epoch as it was read.
        checks: that neither barrier has changed.
        is_initialised: whether the init barrier has passed.
        is_over: whether the final barrier has.
        is_told: whether it was told that everybody was at the start line.
    """

    entry: Entry
    checks: tuple[Check, ...]
    is_initialised: bool
    is_over: bool
    is_told: bool = True

    @property
    def number(self) -> int:
        """Of the epoch."""
        return read_epoch(self.entry)

    @property
    def is_healthy(self) -> bool:
        """True while the loss of a worker sends all back to the start."""
        return self.is_initialised and not self.is_over

    def all_checks(self) -> list[Check]:
        """That nothing of it has changed."""
        return [At(self.entry), *self.checks]


@dataclass(frozen=True, slots=True)
class BarrierArrivals:
    """The arrivals of one worker at all open barriers of an epoch.

    Attributes:
        checks: that these barriers are as they were read, and that no other one was opened since.
        ops: the arrivals.
    """

    checks: Sequence[Check]
    ops: Sequence[Op]


@dataclass(frozen=True, slots=True)
class Scene:
    """What every transaction begins with.

    Attributes:
        keys: of the run.
        at: the head as it was read.
        now: in seconds since the epoch, for people.
    """

    keys: RunKeys
    at: Entry
    now: float

    @property
    def head(self) -> GroupHead:
        """The head."""
        return GroupHead.of(self.at)


@dataclass(slots=True)
class _Log:
    """Events that a transaction adds, and the head that counts them."""

    keys: RunKeys
    head: GroupHead
    now: float = 0.0
    epoch: int = 0
    ops: list[Op] = field(default_factory=list)

    def add(self, kind: str, number: int = -1, why: str = "") -> None:
        n = self.head.events + 1
        self.head = replace(self.head, events=n)
        self.ops.append(Create(self.keys.event(n), Event(kind, n, number, self.epoch, self.now, why).to_bytes()))
        if n > KEPT_EVENTS:
            self.ops.append(Delete(self.keys.event(n - KEPT_EVENTS)))

    def txn(self, checks: Iterable[Check], *ops: Op) -> Txn:
        return Txn(tuple(checks), (Put(self.keys.head, self.head.to_bytes()), *ops, *self.ops), self.head)


def submitted(keys: RunKeys, head: GroupHead, old: Entry | None) -> Txn:
    """A new run; of the one before nobody lives."""
    free: Check = Absent(keys.head) if old is None else At(old)
    write = Create(keys.head, head.to_bytes()) if old is None else Put(keys.head, head.to_bytes())
    return Txn((free,), (write, Create(keys.epoch, epoch_body(0))), head)


def joined(scene: Scene, info: WorkerInfo, session: Session, ticket: Sequence[str] = ()) -> Txn:
    """A worker that nobody knows gets the next id, which its info has; its ticket, if any, goes."""
    keys, at = scene.keys, scene.at
    head = scene.head
    log = _Log(keys, replace(head, next=info.id + 1), scene.now)
    log.add("joined", info.id)
    if log.head.has_all:
        log.add("all_joined")
    return log.txn(
        [At(at), Absent(keys.member(info.key))],
        Create(keys.member(info.key), info.to_bytes()),
        Create(keys.live_of(info.id), live_body(info), session),
        *map(Delete, ticket),
    )


def rejoined(scene: Scene, member: Entry, info: WorkerInfo, session: Session, standing: EpochState) -> Txn:
    """A worker comes back with its id, and a run that was on begins again. ``info`` has the new incarnation."""
    keys, at = scene.keys, scene.at
    old = WorkerInfo.of(member)
    new = restarted_as(old, info, info.incarnation)
    log = _Log(keys, scene.head, scene.now, standing.number)
    ops: list[Op] = []
    if old.status == COMPLETED:
        new = replace(old, incarnation=info.incarnation)
    else:
        ops = _told_late(log, standing)
        log.add("restarted", old.id)
        ops += _fault(log, standing)
    return log.txn(
        [At(at), At(member), *standing.all_checks()],
        Put(keys.member(old.key), new.to_bytes()),
        Put(keys.live_of(old.id), live_body(new), session),
        *ops,
    )


def exceeded(scene: Scene, member: Entry, why: str) -> Txn:
    """A worker that may not come back again: its job has failed."""
    keys, at = scene.keys, scene.at
    old = WorkerInfo.of(member)
    log = _failing(scene, old.id, why)
    return log.txn([At(at), At(member)], Put(keys.member(old.key), replace(old, status=FULLY_FAILED).to_bytes()))


def lost(scene: Scene, member: Entry, standing: EpochState) -> Txn:
    """A worker has no lease any more."""
    keys, at = scene.keys, scene.at
    old = WorkerInfo.of(member)
    log = _Log(keys, scene.head, scene.now, standing.number)
    ops = _told_late(log, standing)
    log.add("lost", old.id)
    ops += _fault(log, standing)
    return log.txn(
        [At(at), Absent(keys.live_of(old.id)), At(member), *standing.all_checks()],
        Put(keys.member(old.key), replace(old, status=LOST).to_bytes()),
        *ops,
    )


def _fault(log: _Log, standing: EpochState) -> list[Op]:
    if not standing.is_healthy:
        return []
    log.epoch += 1
    log.add("faulty")
    return [Put(log.keys.epoch, epoch_body(log.epoch))]


def _told_late(log: _Log, standing: EpochState) -> list[Op]:
    """That all had begun is told before the fault, if whose turn it was is lost before it did."""
    if standing.is_told or not standing.is_healthy:
        return []
    log.add("healthy")
    return [Create(log.keys.healthy(log.epoch), b"")]


def completed(scene: Scene, member: Entry, fence: Fence, epoch: int, arrivals: BarrierArrivals) -> Txn:
    """A worker has done its part, and arrives at the barriers that wait for it; the last one completes the job."""
    keys, at = scene.keys, scene.at
    info, head = WorkerInfo.of(member), scene.head
    done = head.completed + 1
    log = _Log(keys, replace(head, completed=done), scene.now, epoch)
    log.add("completed", info.id)
    if done >= head.n:
        log.head = replace(log.head, state=COMPLETED, ended=scene.now)
        log.add("ended")
    return log.txn(
        [fence, At(at), At(member), *arrivals.checks],
        Put(keys.member(info.key), replace(info, status=COMPLETED).to_bytes()),
        *arrivals.ops,
    )


def failed(scene: Scene, member: Entry, fence: Fence, why: str) -> Txn:
    """A worker has failed for good, and its job with it."""
    keys, at = scene.keys, scene.at
    info = WorkerInfo.of(member)
    log = _failing(scene, info.id, why)
    return log.txn(
        [fence, At(at), At(member)], Put(keys.member(info.key), replace(info, status=FULLY_FAILED).to_bytes())
    )


def _failing(scene: Scene, number: int, why: str) -> _Log:
    log = _Log(scene.keys, scene.head, scene.now)
    log.add("failed", number, why)
    if not log.head.is_final:
        log.head = replace(log.head, state=FAILED, ended=scene.now, why=why)
        log.add("ended", why=why)
    return log


def executed_again(keys: RunKeys, member: Entry, fence: Fence) -> Txn:
    """A worker runs its function once more."""
    info = WorkerInfo.of(member)
    more = replace(info, executions=info.executions + 1)
    return Txn((fence, At(member)), (Put(keys.member(info.key), more.to_bytes()),))


def told(keys: RunKeys, member: Entry, info: WorkerInfo, fence: Fence) -> Txn:
    """A worker says something else of itself."""
    return Txn((fence, At(member)), (Put(keys.member(info.key), told_as(WorkerInfo.of(member), info).to_bytes()),))


def healthy(scene: Scene, fence: Fence, epoch: int) -> Txn:
    """Everybody is at the start line: told once in an epoch, by who passed first."""
    keys, at = scene.keys, scene.at
    log = _Log(keys, scene.head, scene.now, epoch)
    log.add("healthy")
    told = keys.healthy(epoch)
    return log.txn([fence, At(at), Absent(told)], Create(told, b""))


def left(scene: Scene, number: int, live: Sequence[str], fence: Fence) -> Txn:
    """A worker leaves; the last one of a job that has ended removes it. ``live`` was read after the head."""
    keys, at = scene.keys, scene.at
    head, mine = scene.head, keys.live_of(number)
    if head.is_final and list(live) == [mine]:
        gone = Put(keys.job.ended, head.to_bytes())
        return Txn((fence, At(at)), (Delete(mine), Delete(keys.head), gone))
    log = _Log(keys, head, scene.now)
    log.add("left", number)
    return log.txn([fence, At(at)], Delete(mine))


def removed(scene: Scene, state: str, why: str) -> Txn:
    """The job is no more: an operator ended it, or nobody is left in it."""
    keys, at = scene.keys, scene.at
    head = scene.head
    if not head.is_final:
        head = replace(head, state=state, ended=scene.now, why=why)
    return Txn((At(at),), (Delete(keys.head), Put(keys.job.ended, head.to_bytes())))


def terminated(scene: Scene, why: str) -> Txn:
    """An operator ends the job."""
    return removed(scene, TERMINATED, why)


def scaled_up(scene: Scene, n: int) -> Txn:
    """The job gets more ids."""
    keys, at = scene.keys, scene.at
    log = _Log(keys, replace(scene.head, n=n), scene.now)
    log.add("scaled", why=f"to {n}")
    return log.txn([At(at)])


def scaled_down(scene: Scene, n: int, members: Sequence[Entry]) -> Txn:
    """The job loses its highest ids, at most ``MOST_REMOVED``: of these members, which were read after the head."""
    keys, at = scene.keys, scene.at
    head = scene.head
    gone = [info for entry in members if (info := WorkerInfo.or_none(entry)) is not None and info.id >= n]
    done = sum(info.status == COMPLETED for info in gone)
    fewer = replace(head, n=n, next=min(head.next, n), completed=head.completed - done, shrinks=head.shrinks + 1)
    log = _Log(keys, fewer, scene.now)
    log.add("scaled", why=f"to {n}")
    ops = [op for info in gone for op in (Delete(keys.live_of(info.id)), Delete(keys.member(info.key)))]
    if log.head.completed >= n and not log.head.is_final:
        log.head = replace(log.head, state=COMPLETED, ended=scene.now)
        log.add("ended")
    return log.txn([At(at)], *ops)


def first_master(scene: Scene, term: Fence, seen: str) -> Txn:
    """The run has its first master: who becomes it later is told as a restart."""
    return Txn((term, At(scene.at)), (Put(seen, scene.head.run.encode()),))


def master_restarted(scene: Scene, term: Fence) -> Txn:
    """Another process has become the master."""
    keys, at = scene.keys, scene.at
    log = _Log(keys, scene.head, scene.now)
    log.add("master_restarted")
    return log.txn([term, At(at)])


def read_members(entries: Iterable[Entry]) -> list[WorkerInfo]:
    """The workers, by id; records that are none are left out."""
    found = (WorkerInfo.or_none(entry) for entry in entries)
    return sorted((info for info in found if info is not None), key=lambda info: info.id)


def head_or_none(entry: Entry | None, run: str = "") -> GroupHead | None:
    """The head of a job, if there is one of this run; None also for a record that is none."""
    if entry is None:
        return None
    try:
        head = GroupHead.of(entry)
    except BadRecord:
        return None
    return head if not run or head.run == run else None
