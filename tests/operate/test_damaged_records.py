"""Each row of docs/operate/runbooks/damaged-records.md: what a damaged record does, and that the remedy ends it."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

import latchwork
from latchwork.errors import BadRecord
from latchwork.executor import Executor, ExecutorWorker, dead_tasks, drop_task, forget_task
from latchwork.jobs import Control, FixedDelay, Job, JobManager
from latchwork.jobs.options import InvalidSetting
from latchwork.jobs.stored import cluster_store
from latchwork.plans import Plans, PlanState, PlanWorker
from latchwork.store import system_namespace
from latchwork.tasks import Functions
from patience import eventually

DAMAGE = b"\xff{garbage"
WAIT_S = 30.0
FUNCTIONS = Functions()


@FUNCTIONS.task(name="square")
def square(n: int) -> int:
    return n * n


@pytest.fixture
def memory(request):
    with latchwork.connect(f"memory://{request.node.name[:100]}") as store:
        yield store


def damage(store, system, *parts):
    """Overwrite the only record of a system whose key has these parts; return its key."""
    records = system_namespace(store, system)
    (key,) = [each.key for each in records.list("", recursive=True) if all(part in f"{each.key}/" for part in parts)]
    records.put(key, DAMAGE)
    return key


def test_item_of_an_executor_becomes_a_dead_letter_and_its_task_fails(memory):
    with Executor(memory, functions=FUNCTIONS) as executor:
        lost, kept = executor.submit("square", 2), executor.submit("square", 3)
        executor.flush(WAIT_S)
        executor.detached("square", 4, id="x")
        damage(memory, "executor", "/items/", lost.id)
        damage(memory, "executor", "/items/", "/d.x.")
        with ExecutorWorker(memory, functions=FUNCTIONS):
            assert kept.result(WAIT_S) == 9
            letters = [each.letter for each in eventually(lambda: len(dead_tasks(memory)) == 2 and dead_tasks(memory))]
            for letter in letters:
                drop_task(memory, letter)
            assert dead_tasks(memory) == []
            with pytest.raises(BadRecord):
                lost.result(WAIT_S)
            assert forget_task(memory, "x")
            assert executor.detached("square", 4, id="x").result(WAIT_S) == 16


def test_record_of_a_detached_task_stays_damaged_and_its_result_comes(memory):
    with Executor(memory, functions=FUNCTIONS) as executor:
        ref = executor.detached("square", 4, id="x")
        damage(memory, "executor", "/detached/", "/d.x/")
        assert ref.state().phase == "gone"
        with ExecutorWorker(memory, functions=FUNCTIONS):
            assert ref.result(WAIT_S) == 16
            assert ref.state().phase == "done"
            assert forget_task(memory, "x")
            assert executor.detached("square", 5, id="x").result(WAIT_S) == 25


@pytest.fixture
def plans(memory):
    """Two plans that have not run."""
    plans = Plans(memory, functions=FUNCTIONS)
    for name in ("damaged", "good"):
        with plans.new(id=name) as plan:
            plan.add("square", plan.add("square", 4, name="first"), name="second")
    return plans


def test_item_of_a_plan_becomes_a_dead_letter_and_a_recovered_plan_completes(memory, plans):
    damage(memory, "plans", "/items/", "/damaged~")
    with PlanWorker(memory, functions=FUNCTIONS) as worker:
        assert plans.get("good").wait(WAIT_S).state is PlanState.COMPLETED
        eventually(lambda: worker.stats().dead_lettered == 1)
        assert plans.get("damaged").state() is PlanState.READY
        plans.get("damaged").cancel()
        assert plans.get("damaged").wait(WAIT_S).state is PlanState.CANCELLED
        plans.get("damaged").recover()
        assert plans.get("damaged").wait(WAIT_S).state is PlanState.COMPLETED


def test_damaged_plan_is_removed_and_started_again_while_others_continue(memory, plans):
    damage(memory, "plans", "/plans/damaged/")
    with PlanWorker(memory, functions=FUNCTIONS):
        assert plans.get("good").wait(WAIT_S).state is PlanState.COMPLETED
        with pytest.raises(BadRecord):
            plans.get("damaged").state()
        plans.get("damaged").remove()
        with plans.new(id="damaged") as plan:
            plan.add("square", 4)
        assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED


class Cluster:
    """Nodes of one job with the items a and b."""

    def __init__(self, store, stack):
        self.store, self._stack, self.records = store, stack, cluster_store(store)
        self.seen = set()

    def start(self, node_id="n1"):
        def run(context):
            self.seen.update(context.items)
            context.wait_for_stop(0.1)

        job = Job("j", work_pool=["a", "b"], run=run, schedule=FixedDelay(0.1), initial_delay_s=0)
        node = JobManager(
            self.store,
            node_id,
            job,
            session_ttl_s=3,
            lock_ttl_s=3,
            debounce_s=0.1,
            debounce_max_s=0.5,
            close_timeout_s=5,
        )
        self._stack.callback(node.close)
        return node.start()

    def runs(self):
        """Whether both items run from now on."""
        self.seen.clear()
        return eventually(lambda: self.seen == {"a", "b"}, WAIT_S)

    def ran(self, seconds=2.0):
        """The items that run in the next seconds."""
        self.seen.clear()
        time.sleep(seconds)
        return self.seen


@pytest.fixture
def cluster(memory):
    with ExitStack() as stack:
        yield Cluster(memory, stack)


def test_items_of_a_damaged_assignment_run_again(cluster):
    cluster.start()
    assert cluster.runs()
    cluster.records.put("workers/n1/assigned/j", DAMAGE)
    eventually(lambda: cluster.records.get("workers/n1/assigned/j").value != DAMAGE, WAIT_S)
    assert cluster.runs()


def test_items_of_a_damaged_work_pool_run_again_after_a_restart(cluster):
    node = cluster.start()
    assert cluster.runs()
    cluster.records.put("work-pool/j", DAMAGE)
    eventually(lambda: cluster.ran() == set(), WAIT_S)
    node.close()
    cluster.start()
    assert cluster.runs()


def test_damaged_settings_are_ignored_until_they_are_reset(cluster):
    cluster.start()
    cluster.records.put("settings/jobs/j", DAMAGE)
    assert cluster.runs()
    with pytest.raises(InvalidSetting):
        Control(cluster.store).disable("j")
    Control(cluster.store).reset_settings("j")
    Control(cluster.store).disable("j")
    eventually(lambda: cluster.ran() == set(), WAIT_S)


def test_damaged_lock_keeps_its_item_from_the_next_node_until_its_key_is_deleted(cluster):
    node = cluster.start()
    assert cluster.runs()
    cluster.records.put("locks/j/a", DAMAGE)
    assert cluster.runs()
    node.close()
    cluster.start()
    assert "a" not in cluster.ran(4.0)
    cluster.records.delete("locks/j/a")
    assert cluster.runs()
