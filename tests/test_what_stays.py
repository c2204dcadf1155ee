"""Each primitive and system is used and closed; what stays is what the tables "What stays" of the reference say."""

from __future__ import annotations

import re

import pytest

import latchwork
from latchwork.executor import Executor, ExecutorWorker
from latchwork.jobs import Control, Cron, Job, JobManager
from latchwork.plans import Plans, PlanWorker
from latchwork.store import system_namespace
from latchwork.tasks import Functions
from latchwork.worker_group import GroupWorker
from patience import eventually
from primitives import test_forget as primitives
from test_docs import REPOSITORY

pytestmark = pytest.mark.threads
WAIT_S = 60.0
FUNCTIONS = Functions()
SYSTEMS = ("executor", "plans", "workers", "jobs", "locks")


@FUNCTIONS.task(name="square")
def square(number: int) -> int:
    return number * number


def use_executor(store):
    worker = ExecutorWorker(store, primitives.NAME, functions=FUNCTIONS, slots=1)
    with worker, Executor(store, primitives.NAME, functions=FUNCTIONS) as pool:
        assert pool.submit(square, 3).result(WAIT_S) == 9
        assert pool.detached(square, 4).result(WAIT_S) == 16


def use_plans(store):
    with PlanWorker(store, "week", functions=FUNCTIONS):
        with Plans(store, "week", functions=FUNCTIONS).new() as plan:
            plan.add(square, plan.add(square, 3))
        plan.handle.wait(WAIT_S)


def use_worker_group(store):
    with GroupWorker(store, "train", workers=1, key="a") as worker:
        worker.complete()


def use_jobs(store):
    ran = []
    job = Job("report", work_pool=["a"], run=ran.append, schedule=Cron("* * * * * *"))
    with JobManager(store, "n1", [job]):
        Control(store).enable("report")
        eventually(lambda: ran)


#: What is used, by the rows of the tables that name it.
USES = {
    "Lock": primitives.use_lock,
    "ReadWriteLock": primitives.use_rwlock,
    "Election": primitives.use_election,
    "LeaderLatch": primitives.use_latch,
    "Semaphore": primitives.use_semaphore,
    "Barrier": primitives.use_barrier,
    "DoubleBarrier": primitives.use_double_barrier,
    "Counter": primitives.use_counter,
    "Sequence": primitives.use_sequence,
    "RateLimiter": primitives.use_rate_limiter,
    "Once": primitives.use_once,
    "Group": primitives.use_group,
    "Queue": primitives.use_queue,
    "PriorityQueue": primitives.use_priority_queue,
    "WorkQueue": primitives.use_work_queue,
    "PersistentLock": primitives.use_persistent_lock,
    "Executor": use_executor,
    "Plans": use_plans,
    "worker groups": use_worker_group,
    "jobs": use_jobs,
}
#: Keys that the tables name and that need not stay: operators make one, and takers remove the others in time.
OPTIONAL = {
    "@jobs/nodes/<node>",
    "@executor/<n>/backlog/partitions/<partition>/sort_keys/<sort key>",
    "@plans/<n>/queue/partitions/plans/sort_keys/<sort key>",
}


def rows():
    """The keys that the tables name, by what they name in their first column."""
    text = (
        (REPOSITORY / "docs" / "reference" / "primitives.md")
        .read_text(encoding="utf-8")
        .partition("## What stays\n")[2]
    )
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[2] != "for how long":
            for name in re.findall(r"`([^`]*)`", cells[0]) or [cells[0]]:
                found[name] = set(re.findall(r"`([^`]*)`", cells[1]))
    return found


def left(store):
    """All keys of the root and of the systems."""
    keys = [entry for entry in store.list("", recursive=True) if not entry.key.startswith("@")]
    below = [(name, entry) for name in SYSTEMS for entry in system_namespace(store, name).list("", recursive=True)]
    return [(entry.key, entry) for entry in keys] + [(f"@{name}/{entry.key}", entry) for name, entry in below]


def test_the_tables_name_each_primitive_and_system():
    assert rows().keys() - {"LockKeeper", "store.create(sequential=True)"} == USES.keys()


@pytest.mark.parametrize("name", USES)
def test_exactly_the_keys_of_the_table_stay(backend_url, store, name):
    with latchwork.connect(backend_url) as used:
        USES[name](used)
    eventually(lambda: not any(entry.owner for _, entry in left(store)))
    named = {key: key.replace("<n>", f"(?:{primitives.NAME}|week)") for key in rows()[name]}
    wanted = {key: re.sub(r"<[^>]*>", ".+", pattern) for key, pattern in named.items()}
    keys = [key for key, _ in left(store)]
    assert [key for key in keys if not any(re.fullmatch(each, key) for each in wanted.values())] == []
    missing = {key for key, each in wanted.items() if not any(re.fullmatch(each, found) for found in keys)}
    assert missing - OPTIONAL == set()
