"""An executor seen from outside; tasks that somebody else takes back; dead letters."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError

import pytest

from executor.conftest import PATIENCE_S
from executor.work import fail_then_wait, square, wait
from latchwork.errors import InvalidKey, LatchworkError
from latchwork.executor import (
    Member,
    NoSuchTask,
    cancel_task,
    dead_tasks,
    drop_task,
    find_task,
    inspect,
    list_tasks,
    requeue_task,
)
from latchwork.primitives import WorkQueue
from latchwork.store import system_namespace


def test_workers_lanes_and_tasks_are_seen_from_outside(workers, pool, store, eventually):
    workers("n1", slots=1, labels={"zone": "a"})
    to_one = pool.with_options(target=Member("n1"))
    first, second = to_one.submit(wait, "seen"), to_one.with_options(priority=7).submit(square, 2)
    eventually(lambda: store.children("seen/starts"))
    pool.flush(PATIENCE_S)
    state = inspect(store)
    (worker,) = state.workers
    assert worker.slots == 1
    assert (worker.id, worker.running, worker.queued, dict(worker.labels)) == ("n1", 1, 2, {"zone": "a"})
    assert "wait" in worker.functions
    assert [
        (partition.name, partition.tasks, partition.running, partition.is_orphan) for partition in state.partitions
    ] == [("m.n1", 2, 1, False)]
    assert (state.submitters, state.dead) == (1, 0)
    running, queued = list_tasks(store)
    assert (running.id, running.function, running.phase, running.running_on) == (first.id, "wait", "running", ("n1",))
    assert (queued.id, queued.phase, queued.priority, queued.partitions) == (second.id, "queued", 7, ("m.n1",))
    assert find_task(store, first.id).running_on == ("n1",)
    store.put("seen/go", b"")
    assert second.result(PATIENCE_S) == 4


def test_a_worker_says_how_many_tasks_it_runs_before_its_first(workers, store):
    workers(slots=3)
    assert [each.slots for each in inspect(store).workers] == [3]


def test_failed_attempts_are_told_after_a_release_for_another_reason(workers, pool, store, eventually):
    first = workers("n1")
    future = pool.submit(fail_then_wait, "told")
    eventually(lambda: len(store.children("told/starts")) == 2)
    first.close()
    (task,) = list_tasks(store)
    assert "the first try" not in task.why
    assert (task.phase, task.failures, find_task(store, future.id).failures) == ("queued", 1, 1)
    workers("n2")
    eventually(lambda: find_task(store, future.id).phase == "running")
    assert find_task(store, future.id).failures == 1
    store.put("told/go", b"")
    assert future.result(PATIENCE_S) == 2


def test_an_executor_that_nobody_uses_has_nothing(store):
    assert inspect(store).workers == ()
    assert list_tasks(store) == dead_tasks(store) == []


def test_a_queued_task_that_somebody_else_cancels_ends_its_future(pool, store):
    future = pool.submit(square, 2)
    pool.flush(PATIENCE_S)
    assert cancel_task(store, future.id)
    with pytest.raises(CancelledError):
        future.result(PATIENCE_S)
    assert future.cancelled()
    assert list_tasks(store) == []


def test_a_running_task_that_somebody_else_cancels_stops_only_when_interrupted(workers, pool, store, eventually):
    workers("n1")
    future = pool.submit(wait, "told")
    eventually(lambda: store.children("told/starts"))
    assert not cancel_task(store, future.id)
    assert not future.done()
    assert cancel_task(store, future.id, interrupt=True)
    with pytest.raises(CancelledError):
        future.result(PATIENCE_S)
    eventually(lambda: store.children("told/stops"))


def test_all_copies_of_a_task_are_taken_back_by_one_cancel(workers, pool, store, eventually):
    for number in range(2):
        workers(f"n{number}", steal_after_s=None)
    future = pool.with_options(copies=2).submit(wait, "copied")
    eventually(lambda: len(store.children("copied/starts")) == 2)
    (seen,) = list_tasks(store)
    assert (seen.running_on, sorted(seen.partitions)) == (("n0", "n1"), ["m.n0", "m.n1"])
    assert cancel_task(store, future.id, interrupt=True)
    with pytest.raises(CancelledError):
        future.result(PATIENCE_S)
    eventually(lambda: len(store.children("copied/stops")) == 2)


def test_a_detached_task_is_cancelled_by_its_id(pool, store):
    ref = pool.detached(square, 3, id="nightly")
    assert cancel_task(store, "d.nightly")
    assert find_task(store, "d.nightly").phase == "cancelled"
    with pytest.raises(CancelledError):
        ref.result(PATIENCE_S)
    assert cancel_task(store, "d.nightly") is False


def test_a_task_that_is_not_there_is_named(store):
    for known in ("d.none", "3f0c2a9d81b74e55.000000007"):
        with pytest.raises(NoSuchTask, match=known):
            cancel_task(store, known)
    for unknown in ("", "x", "x.1", "a/b.000000001", "d.", "x.\u0661"):
        with pytest.raises(InvalidKey):
            find_task(store, unknown)


def bury(store, task_id, why="its nodes died"):
    """As a worker would, after too many attempts."""
    (claim,) = WorkQueue(system_namespace(store, "executor"), "default/backlog").try_take(["any"])
    assert claim.item.id == f"{task_id}.0"
    claim.move_to_dead_letters(why)


def test_a_detached_dead_letter_is_put_back_and_runs(workers, pool, store):
    ref = pool.detached(square, 3, id="again")
    bury(store, ref.id)
    (dead,) = dead_tasks(store)
    assert (dead.id, dead.function, dead.attempts, dead.why) == ("d.again", "square", 1, "its nodes died")
    assert requeue_task(store, dead.letter) == "d.again"
    workers("n1")
    assert ref.result(PATIENCE_S) == 9
    assert dead_tasks(store) == []


def test_a_letter_that_is_put_back_has_all_its_tries_before_it(workers, pool, store):
    ref = pool.detached("fail-twice", "again", id="again")
    backlog = WorkQueue(system_namespace(store, "executor"), "default/backlog")
    for _ in range(3):
        backlog.try_take(["any"])[0].release("it failed", count=False, failed=True)
    bury(store, ref.id)
    requeue_task(store, dead_tasks(store)[0].letter)
    workers("n1")
    assert ref.result(PATIENCE_S) == 3
    assert len(store.children("again/starts")) == 3


def test_a_dead_letter_of_a_submitter_is_not_put_back_but_dropped(pool, store):
    future = pool.submit(square, 3)
    pool.flush(PATIENCE_S)
    bury(store, future.id)
    (dead,) = dead_tasks(store)
    with pytest.raises(LatchworkError, match="submit it again"):
        requeue_task(store, dead.letter)
    drop_task(store, dead.letter)
    assert dead_tasks(store) == []
    for act in (requeue_task, drop_task):
        with pytest.raises(NoSuchTask, match="no dead letter"):
            act(store, dead.letter)


@pytest.mark.slow
def test_an_idle_worker_writes_nothing(workers, pool, store, eventually):
    workers()
    assert pool.submit(square, 2).result(PATIENCE_S) == 4
    pool.shutdown()

    def versions():
        return {(entry.key, entry.version) for entry in system_namespace(store, "executor").list("", recursive=True)}

    seen = [versions(), set()]
    while seen[0] != seen[1]:  # what a worker has left to tidy
        time.sleep(2.5)
        seen = [versions(), seen[0]]
    time.sleep(6.0)
    assert versions() == seen[0]
