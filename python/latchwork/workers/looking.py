"""Jobs, workers and barriers as they are stored, for people and programs that are no worker. Only reads."""

from __future__ import annotations

from dataclasses import dataclass

from latchwork.errors import BadRecord
from latchwork.primitives.meeting import BarrierState, barrier_state
from latchwork.primitives.waiting import check_name
from latchwork.store.store import Store
from latchwork.workers.keys import JobKeys
from latchwork.workers.master import MasterInfo, master
from latchwork.workers.plans import head_or_none, read_members
from latchwork.workers.records import Event, Head, WorkerInfo
from latchwork.workers.submitting import NAMESPACE, JobHandle, JobStatus, check_job, workers_store


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
    ended: tuple[tuple[str, Head], ...]


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
