"""Jobs, workers and barriers inspected by people and programs that are no worker; removal of what ended jobs left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from latchwork.errors import BadRecord, Conflict
from latchwork.primitives.barrier import BarrierState, barrier_state
from latchwork.primitives.waiting import check_name
from latchwork.store.steps import ask, driven, steps_of
from latchwork.store.store import Store
from latchwork.worker_group import transactions
from latchwork.worker_group.keys import JobKeys
from latchwork.worker_group.master import MasterInfo, master
from latchwork.worker_group.records import TERMINATED, Event, GroupHead, WorkerInfo
from latchwork.worker_group.submission import NAMESPACE, JobHandle, JobStatus, check_job, workers_store
from latchwork.worker_group.transactions import Scene, head_or_none, read_members

#: A job that is on is abandoned when nobody of it was seen alive for so many seconds of watching.
ABANDON_S = 600.0


@dataclass(slots=True)
class Swept:
    """What a sweep has removed.

    Attributes:
        jobs: names of jobs that nobody was in.
        runs: what was left of runs that had ended, as ``job/run``.
        ended: names of jobs of which it was kept long enough how they ended.
    """

    jobs: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


class GroupSweeper:
    """Sweeps, again and again: it remembers since when it has seen nobody of a job. One thread only.

    Args:
        store: the store, or a namespace of it.
        namespace: groups jobs: those of different namespaces may have the same name.
        abandon_s: seconds, of its own watching, after which a job that is on and that nobody is in is removed.
    """

    def __init__(self, store: Store, *, namespace: str = NAMESPACE, abandon_s: float = ABANDON_S) -> None:
        self._store = workers_store(store, "sweep")
        self._namespace = check_name(namespace, "workers namespace")
        self._abandon_s = abandon_s
        self._since: dict[tuple[str, str, int], float] = {}

    @driven
    async def sweep(self) -> Swept:
        """Look at every job once, and remove what nobody is in."""
        swept = Swept()
        jobs = await ask(self._store.children, f"{self._namespace}/jobs")
        # Runs first, heads second: a run that is seen, and that no head names afterwards, is dead for good.
        runs = {job: await ask(self._store.children, JobKeys(self._namespace, job).runs) for job in jobs}
        before, self._since = self._since, {}
        for job in jobs:
            await self._look(JobKeys(self._namespace, job), runs[job], before, swept)
        for job in await ask(self._store.children, f"{self._namespace}/ended"):
            if await self._forget(JobKeys(self._namespace, job)):
                swept.ended.append(job)
        return swept

    async def _look(
        self, keys: JobKeys, runs: list[str], before: dict[tuple[str, str, int], float], swept: Swept
    ) -> None:
        entry = await ask(self._store.get, keys.head)
        head = head_or_none(entry)
        if entry is not None and head is None:
            return  # something else than a job: not ours to remove
        named = head.run if head is not None else ""
        for run in runs:
            if run != named:
                await ask(self._store.delete_tree, keys.of_run(run).folder)
                swept.runs.append(f"{keys.job}/{run}")
        if entry is None or head is None or await ask(self._store.children, keys.of_run(head.run).live):
            return
        if not head.is_final:
            seen = (keys.job, head.run, entry.token)
            now = self._store.clock.now()
            self._since[seen] = before.get(seen, now)
            if now - self._since[seen] < self._abandon_s:
                return
        scene = Scene(keys.of_run(head.run), entry, time.time())
        txn = transactions.removed(scene, TERMINATED, "nobody was in it any more")
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            return
        await ask(self._store.delete_tree, scene.keys.folder)
        swept.jobs.append(keys.job)

    async def _forget(self, keys: JobKeys) -> bool:
        """Delete how a job ended, if that was kept long enough."""
        entry = await ask(self._store.get, keys.ended)
        head = head_or_none(entry)
        if entry is None or head is None or time.time() - (head.ended or 0.0) < head.keep_ended_s:
            return False
        deleted: bool = await ask(self._store.delete, keys.ended, version=entry.version)
        return deleted


@driven
async def sweep(store: Store, *, namespace: str = NAMESPACE) -> Swept:
    """Remove, once, what is left of jobs that have ended and that nobody is in any more."""
    return await steps_of(GroupSweeper(store, namespace=namespace).sweep)()


@dataclass(frozen=True, slots=True)
class JobState:
    """One job, with all its workers.

    Attributes:
        status: how it is.
        workers: by id.
        live: the ids of those that live, sorted.
        barriers: of the epoch, by name: those at which somebody has been.
        master: its master, if it has one.
    """

    status: JobStatus
    workers: tuple[WorkerInfo, ...]
    live: tuple[int, ...]
    barriers: tuple[tuple[str, BarrierState], ...]
    master: MasterInfo | None


@dataclass(frozen=True, slots=True)
class WorkersState:
    """All jobs below a namespace.

    Attributes:
        jobs: how those are that run, or whose workers have not all left; by name.
        ended: how the last runs of the others ended; by name.
    """

    jobs: tuple[JobStatus, ...]
    ended: tuple[tuple[str, GroupHead], ...]


def inspect(store: Store, *, namespace: str = NAMESPACE) -> WorkersState:
    """All jobs."""
    store = workers_store(store, "inspection")
    check_name(namespace, "workers namespace")
    jobs, ended = [], []
    for job in store.children(f"{namespace}/jobs"):
        keys = JobKeys(namespace, job)
        head = head_or_none(store.get(keys.head))
        if head is not None:
            jobs.append(JobHandle(store, keys, head.run).status())
    there = {status.name for status in jobs}
    for job in store.children(f"{namespace}/ended"):
        head = head_or_none(store.get(JobKeys(namespace, job).ended))
        if head is not None and job not in there:
            ended.append((job, head))
    return WorkersState(tuple(jobs), tuple(ended))


def inspect_job(store: Store, job: str, *, namespace: str = NAMESPACE) -> JobState | None:
    """One job; None if there is none that runs, or whose workers have not all left."""
    store, keys = check_job(store, job, namespace)
    head = head_or_none(store.get(keys.head))
    if head is None:
        return None
    run = keys.of_run(head.run)
    status = JobHandle(store, keys, head.run).status()
    live = tuple(sorted(int(name) for name in store.children(run.live) if name.isdecimal()))
    barriers = []
    for name in store.children(run.barriers(status.epoch)):
        state = _barrier(store, run.barrier(status.epoch, name))
        if state is not None:
            barriers.append((name, state))
    members = tuple(read_members(store.list(run.members)))
    return JobState(status, members, live, tuple(barriers), master(store, job, namespace=namespace))


def _barrier(store: Store, name: str) -> BarrierState | None:
    try:
        return barrier_state(store, name)
    except BadRecord:
        return None


def list_events(store: Store, job: str, after: int = 0, *, namespace: str = NAMESPACE) -> list[Event]:
    """What has happened in a job's run, in order, after the event of a number; the last 1,000 are kept."""
    store, keys = check_job(store, job, namespace)
    head = head_or_none(store.get(keys.head))
    if head is None:
        return []
    run = keys.of_run(head.run)
    entries = store.list(run.events, start_after=run.event(after))
    found = (Event.or_none(entry) for entry in entries)
    return [event for event in found if event is not None]
