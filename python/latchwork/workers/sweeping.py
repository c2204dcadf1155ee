"""What is left of jobs that nobody is in any more, removed by whoever looks.

A run that no head names is dead for good: its name is never used again. A job that has ended and has no live worker is
removed as its last worker would have. One that is on, and has had no live worker for long, was abandoned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from latchwork.errors import Conflict
from latchwork.primitives.waiting import check_name
from latchwork.store.steps import ask, driven, steps_of
from latchwork.store.store import Store
from latchwork.workers import plans
from latchwork.workers.keys import JobKeys
from latchwork.workers.plans import Scene, head_or_none
from latchwork.workers.records import TERMINATED
from latchwork.workers.submitting import NAMESPACE, workers_store

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


class Sweeper:
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
        plan = plans.removed(scene, TERMINATED, "nobody was in it any more")
        try:
            await ask(self._store.commit, plan.checks, plan.ops)
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
    return await steps_of(Sweeper(store, namespace=namespace).sweep)()
