"""Detached tasks that have ended: their list, their removal without an ID, and the end of their results."""

from __future__ import annotations

import concurrent.futures
import time
from contextlib import closing

import pytest

from executor.conftest import PATIENCE_S
from executor.work import blob, boom, square
from latchwork.errors import LatchworkError
from latchwork.executor import NoSuchTask, cancel_task, finished_tasks, forget_finished_tasks, forget_task
from latchwork.executor.finished import FinishedTasks
from latchwork.executor.keys import Keys
from latchwork.executor.stored import StoredTasks
from latchwork.executor.sweeper import ExecutorSweeper
from latchwork.primitives import WorkQueue
from latchwork.schedules.wall_clock import WallClock
from latchwork.store import system_namespace
from latchwork.store.steps import run

KEYS = Keys("default")


def stored(store):
    """The keys of detached tasks, and those of their large values."""
    below = [f"@executor/default/{each}" for each in ("detached", "outcomes", "finished", "data")]
    return [entry.key for prefix in below for entry in store.list(prefix, recursive=True)]


@pytest.fixture
def system(store):
    return system_namespace(store, "executor")


@pytest.fixture
def sweep(system):
    """Sweep once, and return the number of expired tasks."""
    with closing(WorkQueue(system, KEYS.backlog)) as backlog:
        sweeper = ExecutorSweeper(system, KEYS, backlog, unknown_after_s=60.0)
        yield lambda: run(sweeper.sweep(())).expired


def test_an_expired_result_is_swept_with_all_that_is_known_of_the_task(workers, pool, store, sweep, eventually):
    with pytest.raises(ValueError, match="result_ttl_s"):
        pool.detached(square, 3, result_ttl_s=-1.0)
    workers()
    short = [pool.detached(square, 3, result_ttl_s=0.2), pool.detached(blob, 200_000, result_ttl_s=0.2)]
    day, kept = pool.detached(square, 4), pool.detached(square, 5, result_ttl_s=None)
    for ref in (*short, day, kept):
        ref.result(PATIENCE_S)
    time.sleep(0.3)
    assert sweep() == 2
    assert [day.result(), kept.result(), sweep()] == [16, 25, 0]
    with pytest.raises(NoSuchTask, match="expired"):
        short[0].result(PATIENCE_S)
    day.forget()
    kept.forget()
    eventually(lambda: stored(store) == [])


def test_a_worker_sweeps_expired_results_by_itself(workers, pool, store, eventually):
    workers(unknown_after_s=1.0)  # which makes it sweep every second
    assert pool.detached(square, 3, result_ttl_s=0.1).result(PATIENCE_S) == 9
    eventually(lambda: stored(store) == [])


def test_finished_tasks_are_listed_however_they_ended(workers, pool, store):
    began_s = time.time()
    pool.detached(square, 1, id="queued").cancel()
    pool.detached(square, 1, id="other")
    cancel_task(store, "d.other")
    workers()
    pool.detached(square, 3, id="done").result(PATIENCE_S)
    with pytest.raises(ValueError, match="bad"):
        pool.detached(boom, "bad", id="failed", result_ttl_s=None).result(PATIENCE_S)
    found = finished_tasks(store)
    assert found[-1].id == "d.failed"
    assert {each.id: (each.function, each.phase) for each in found} == {
        "d.queued": ("square", "cancelled"),
        "d.other": ("square", "cancelled"),
        "d.done": ("square", "done"),
        "d.failed": ("boom", "failed"),
    }
    assert "bad" in found[-1].why
    assert found[-1].expires_at_s is None
    assert all(began_s - 1 <= each.ended_at_s <= time.time() + 1 for each in found)
    assert found[0].expires_at_s == pytest.approx(found[0].ended_at_s + 86_400)
    assert len(finished_tasks(store, limit=2)) == 2


def test_finished_tasks_are_removed_without_their_ids(workers, pool, store):
    pool.detached(square, 9, id="waits", result_ttl_s=None).cancel()
    workers()
    for number in range(30):  # more than one transaction removes
        pool.detached(square, number)
    eventually_finished(store, 31)
    assert forget_finished_tasks(store, older_than_s=3600.0) == 0
    assert forget_finished_tasks(store) == 31
    assert finished_tasks(store) == []
    assert stored(store) == []


def eventually_finished(store, count):
    until = time.monotonic() + PATIENCE_S
    while len(finished_tasks(store)) < count:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_one_task_is_removed_by_its_id_once_it_has_ended(pool, store):
    pool.detached(square, 3, id="one")
    with pytest.raises(LatchworkError, match="has not ended"):
        forget_task(store, "d.one")
    cancel_task(store, "d.one")
    assert forget_task(store, "one")
    assert not forget_task(store, "one")
    assert stored(store) == []


def test_a_task_that_was_put_again_under_the_id_of_an_expired_one_stays(workers, pool, store, system, monkeypatch):
    """Between the sweep's look and its removal another client forgets the task and puts another one."""
    workers()
    pool.detached(square, 3, id="again", result_ttl_s=0.1).result(PATIENCE_S)
    time.sleep(0.2)
    commit = type(system).commit

    def overtaken(self, checks=(), ops=()):
        monkeypatch.undo()
        assert pool.ref("again").forget()
        assert pool.detached(square, 4, id="again").result(PATIENCE_S) == 16
        return commit(self, checks, ops)

    with closing(WorkQueue(system, KEYS.backlog)) as backlog:
        finished = FinishedTasks(system, KEYS, StoredTasks(system, KEYS, backlog))
        monkeypatch.setattr(type(system), "commit", overtaken)
        assert run(finished.delete_expired(time.time())) == 0
    assert pool.ref("again").result(PATIENCE_S) == 16


def test_sweeps_and_forgetting_of_the_same_tasks_get_on(workers, pool, store, sweep):
    workers()
    refs = [pool.detached(square, number, result_ttl_s=0.0) for number in range(40)]
    eventually_finished(store, 40)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        swept = [threads.submit(sweep) for _ in range(2)]
        forgotten = [threads.submit(ref.forget) for ref in refs]
        count = sum(each.result() for each in swept) + sum(each.result() for each in forgotten)
    sweep()
    assert stored(store) == []
    assert count <= 40


def test_a_wall_clock_that_is_ahead_for_a_moment_removes_no_result(workers, pool, store, system, monkeypatch):
    workers()
    ref = pool.detached(square, 3)
    assert ref.result(PATIENCE_S) == 9
    ahead_s = [0.0]
    with closing(WorkQueue(system, KEYS.backlog)) as backlog:
        sweeper = ExecutorSweeper(system, KEYS, backlog, unknown_after_s=60.0)
        sweeper._wall_clock = WallClock(store.clock, lambda: time.time() + ahead_s[0])
        ahead_s[0] = 200_000.0
        assert run(sweeper.sweep(())).expired == 0
        monkeypatch.setattr("latchwork.schedules.wall_clock.CONFIRM_S", 0.0)
        assert run(sweeper.sweep(())).expired == 1  # the clock is right then, as far as anybody can know
