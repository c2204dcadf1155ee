"""Jobs seen from outside: submitted, found, looked at, scaled, ended. Whoever does this need not be a worker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from latchwork.checks import check_store, is_number
from latchwork.errors import Conflict, OutcomeUnknown, WaitTimeout
from latchwork.primitives import Barrier
from latchwork.primitives.waiting import Patience, check_member, check_name, check_text, check_whole
from latchwork.store.backoff import Backoff
from latchwork.store.steps import Pause, Signal, ask, driven, steps_of
from latchwork.store.store import Store, system_namespace
from latchwork.types import Entry
from latchwork.worker_group import transactions
from latchwork.worker_group.errors import JobAlreadyRunning, WrongRun
from latchwork.worker_group.keys import INIT, JobKeys
from latchwork.worker_group.records import AT_WORK, COMPLETED, MOST_WORKERS, RUNNING, GroupHead, read_epoch
from latchwork.worker_group.transactions import Scene, Txn, head_or_none, read_members

#: The namespace of jobs, unless another is given.
NAMESPACE = "default"


def workers_store(store: Store, what: str) -> Store:
    """The store in which workers have their keys: below ``@workers``."""
    check_store(store, what)
    return system_namespace(store, "workers")


def check_job(store: Store, job: str, namespace: str) -> tuple[Store, JobKeys]:
    """The store and the keys of a job; ``InvalidKey`` before any I/O for a name that cannot be used."""
    keys = JobKeys(check_name(namespace, "workers namespace"), check_member(job, "job"))
    return workers_store(store, "a job of workers"), keys


def check_count(workers: int) -> int:
    """The number itself, if a job can have so many workers."""
    if not 1 <= check_whole(workers, "the number of workers") <= MOST_WORKERS:
        raise ValueError(f"a job has from 1 to {MOST_WORKERS} workers, not {workers}")
    return workers


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job is, or how it ended.

    Attributes:
        name: of the job.
        run: which of its runs.
        state: ``RUNNING``, ``COMPLETED``, ``FAILED`` or ``TERMINATED``.
        n: how many workers it has.
        joined: how many ids are taken.
        running: how many workers live.
        completed: how many have completed.
        faulty: whether its workers are about to begin again, after one was lost.
        epoch: how often they had to.
        missing: the ids that are not taken, or whose worker is at work and does not live; sorted.
        restarts: how often processes of it were started again, in all.
        created: when it was submitted, in seconds since the epoch.
        ended: when it ended; None while it runs.
        why: why it ended, if not by completing.
        labels: what its submitter wrote.
    """

    name: str
    run: str
    state: str
    n: int
    joined: int
    running: int
    completed: int
    faulty: bool
    epoch: int
    missing: tuple[int, ...]
    restarts: int
    created: float
    ended: float | None
    why: str
    labels: Mapping[str, str]


class JobHandle:
    """One run of a job, for those who look at it and steer it. Safe to share between threads.

    Attributes:
        name: of the job.
        run: which of its runs. When that has ended, this is about how it ended.
    """

    def __init__(self, store: Store, keys: JobKeys, run: str) -> None:
        self.name = keys.job
        self.run = run
        self._store = store
        self._keys = keys.of_run(run)

    def __repr__(self) -> str:
        return f"<JobHandle {self.name!r} run {self.run}>"

    @driven
    async def status(self) -> JobStatus:
        """How it is now.

        Raises:
            WrongRun: nothing is known about this run any more.
        """
        entry = await ask(self._store.get, self._keys.head)
        head = head_or_none(entry, self.run)
        return await self._ended() if head is None else await self._status(head)

    @driven
    async def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until it has completed, failed, or was terminated.

        Raises:
            WaitTimeout: it still runs.
            WrongRun: as for ``status``.
        """
        patience = Patience(self._store.clock, timeout_s)
        with self._store.watch(self._keys.head) as watch:
            try:
                while True:
                    batch = await steps_of(watch.next)(patience.left_s())
                    head = head_or_none(batch[-1].entry if batch else None, self.run)
                    if head is None:
                        return await self._ended()
                    if head.is_final:
                        return await self._status(head)
            except WaitTimeout:
                raise WaitTimeout(f"job {self.name!r} still runs after {timeout_s:.3g} s") from None

    @driven
    async def scale(self, workers: int) -> None:
        """Change how many workers it has.

        More: new ids can be taken. Fewer: the highest ids are removed and their workers get ``Removed``. The workers
        that wait in a barrier for one of these break it once they see the change, also if this call fails after its
        commit.

        Raises:
            Conflict: the job has ended.
        """
        check_count(workers)
        while True:
            scene = await self._scene()
            if scene is None or scene.head.is_final:
                raise Conflict(f"job {self.name!r} has ended, it cannot be scaled; submit it anew")
            n = scene.head.n
            if n == workers:
                return
            if workers > n:
                await self._try(transactions.scaled_up(scene, workers))
                continue
            least = max(workers, n - transactions.MOST_REMOVED)
            members = await ask(self._store.list, self._keys.members)
            await self._try(transactions.scaled_down(scene, least, members))

    @driven
    async def terminate(self, why: str = "it was terminated") -> None:
        """End it: every worker gets ``JobTerminated``. Twice is fine."""
        backoff = Backoff()
        while (scene := await self._scene()) is not None:
            if await self._try(transactions.terminated(scene, why)):
                break
            await Pause(self._store.clock, Signal(), backoff.next_s())
        await ask(self._store.delete_tree, self._keys.folder)

    async def _scene(self) -> Scene | None:
        entry = await ask(self._store.get, self._keys.head)
        if entry is None or head_or_none(entry, self.run) is None:
            return None
        return Scene(self._keys, entry, time.time())

    async def _try(self, txn: Txn) -> bool:
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            return False
        return True

    async def _status(self, head: GroupHead) -> JobStatus:
        epoch = await ask(self._store.get, self._keys.epoch)
        members = read_members(await ask(self._store.list, self._keys.members))
        names = await ask(self._store.children, self._keys.live)
        number = read_epoch(epoch) if epoch is not None else 0
        faulty = bool(number) and head.state == RUNNING and not await self._has_begun(number)
        live = {int(name) for name in names if name.isdecimal()}
        at_work = {info.id for info in members if info.status in AT_WORK}
        done = {info.id for info in members if info.status == COMPLETED}
        return JobStatus(
            name=self.name,
            run=head.run,
            state=head.state,
            n=head.n,
            joined=head.next,
            running=len(live),
            completed=head.completed,
            faulty=faulty,
            epoch=number,
            missing=tuple(sorted(set(range(head.n)) - done - (at_work & live))) if not head.is_final else (),
            restarts=sum(info.restarts for info in members),
            created=head.created,
            ended=head.ended,
            why=head.why,
            labels=head.labels,
        )

    async def _has_begun(self, epoch: int) -> bool:
        name = self._keys.barrier(epoch, INIT)
        init = Barrier(self._store, name, parties=1, member_id="status", per_generation=True)
        return (await steps_of(init.check)())[0]

    async def _ended(self) -> JobStatus:
        head = head_or_none(await ask(self._store.get, self._keys.job.ended), self.run)
        if head is None:
            raise WrongRun(f"run {self.run} of job {self.name!r} is not there any more, nor how it ended")
        return JobStatus(
            name=self.name,
            run=head.run,
            state=head.state,
            n=head.n,
            joined=head.next,
            running=0,
            completed=head.completed,
            faulty=False,
            epoch=0,
            missing=(),
            restarts=0,
            created=head.created,
            ended=head.ended,
            why=head.why,
            labels=head.labels,
        )


@driven
async def submit(
    store: Store,
    job: str,
    workers: int,
    *,
    namespace: str = NAMESPACE,
    max_restarts: int = 5,
    max_executions: int = 5,
    keep_ended_s: float = 604_800.0,
    labels: Mapping[str, str] | None = None,
    replace: bool = False,
) -> JobHandle:
    """Create a job, so that workers can join it. What is left of an earlier run with no live worker is replaced.

    A job that somebody has submitted and that nobody has joined yet is no such rest: its workers are on their way.

    Args:
        store: the store, or a namespace of it.
        job: its name: one segment of a key.
        workers: how many it has, from 1 to 100,000.
        namespace: groups jobs: those of different namespaces may have the same name.
        max_restarts: how often the process of one worker may be started again before the job fails.
        max_executions: how often the function of one worker may be run again before the job fails.
        keep_ended_s: seconds for which it is kept how the job ended.
        labels: anything to be shown with it.
        replace: also take the place of a job that was submitted and that nobody has joined yet.
    Returns:
        What steers it.
    Raises:
        JobAlreadyRunning: it has live workers, or somebody else has submitted it and nobody has joined it yet.
        InvalidKey, ValueError: a name or a number cannot be used.
    """
    store, keys = check_job(store, job, namespace)
    head = GroupHead(
        uuid.uuid4().hex[:12],
        check_count(workers),
        created=time.time(),
        max_restarts=_check_limit(max_restarts, "max_restarts"),
        max_executions=_check_limit(max_executions, "max_executions"),
        keep_ended_s=_check_duration(keep_ended_s, "keep_ended_s"),
        labels=_check_labels(labels or {}),
    )
    return await submit_head(store, keys, head, replace_unjoined=replace)


async def submit_head(store: Store, keys: JobKeys, head: GroupHead, *, replace_unjoined: bool = False) -> JobHandle:
    """Create a job as its head says."""
    run = keys.of_run(head.run)
    seen = await ask(store.get, keys.head)
    entry: Entry | None = seen
    while True:
        old = head_or_none(entry)
        if entry is not None:
            await _refuse_running(store, keys, entry, seen, replace_unjoined=replace_unjoined)
        txn = transactions.submitted(run, head, entry)
        try:
            await ask(store.commit, txn.checks, txn.ops)
        except (Conflict, OutcomeUnknown) as error:
            entry = await ask(store.get, keys.head)
            if head_or_none(entry, head.run) is None:
                if isinstance(error, OutcomeUnknown):
                    raise
                continue
        if old is not None:
            await ask(store.delete_tree, keys.of_run(old.run).folder)
        return JobHandle(store, keys, head.run)


async def _refuse_running(
    store: Store, keys: JobKeys, entry: Entry, seen: Entry | None, *, replace_unjoined: bool
) -> None:
    head, before = GroupHead.of(entry), head_or_none(seen)
    names = await ask(store.children, keys.of_run(head.run).live)
    live = sorted(int(name) for name in names if name.isdecimal())
    if live:
        told = ", ".join(map(str, live[:10])) + (", ..." if len(live) > 10 else "")
        raise JobAlreadyRunning(
            f"job {keys.job!r} runs already: run {head.run} has live workers {told}; terminate it, or use another name",
            head.run,
            live,
        )
    if before is None or before.run != head.run:
        raise JobAlreadyRunning(f"job {keys.job!r} was submitted by somebody else just now: run {head.run}", head.run)
    if not (replace_unjoined or head.next or head.is_final):
        raise JobAlreadyRunning(
            f"job {keys.job!r} was submitted already, and nobody has joined it yet: run {head.run}; let its workers "
            "join, terminate it, or replace it",
            head.run,
        )


@driven
async def find(store: Store, job: str, *, namespace: str = NAMESPACE) -> JobHandle | None:
    """A job that runs, or whose workers have not all left; None if there is none.

    Raises:
        BadRecord: something else is stored in its place.
    """
    store, keys = check_job(store, job, namespace)
    entry = await ask(store.get, keys.head)
    return None if entry is None else JobHandle(store, keys, GroupHead.of(entry).run)


def _check_limit(value: int, what: str) -> int:
    if check_whole(value, what) < 0:
        raise ValueError(f"{what} must be at least 0, not {value}")
    return value


def _check_duration(value: float, what: str) -> float:
    if not is_number(value, 0.0):
        raise ValueError(f"{what} must be a number of at least 0 seconds, not {value!r}")
    return float(value)


def _check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        check_text(name, "a label's name")
        check_text(value, f"label {name!r}")
    return dict(labels)
