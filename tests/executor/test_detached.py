"""Detached tasks: they outlive their submitter, and are known by their ids to everybody."""

from __future__ import annotations

import concurrent.futures

import pytest

from executor.conftest import PATIENCE_S
from executor.work import WORK, blob, boom, length, mark, square, wait
from latchwork.errors import InvalidKey, LatchworkError
from latchwork.executor import Executor, Member, NoSuchTask, TaskExists
from latchwork.testing.faults import FaultyStore


def starts(store, key):
    return [store.get(f"{key}/starts/{name}").value.decode() for name in store.children(f"{key}/starts")]


def test_a_detached_task_runs_after_its_submitter_has_gone(workers, pools, connect):
    with pools(store=connect()) as gone:
        ref = gone.detached(square, 6, id="nightly-7")
    assert ref.id == "d.nightly-7"
    workers()
    assert pools(store=connect()).ref("nightly-7").result(PATIENCE_S) == 36


def test_a_detached_task_of_a_killed_submitter_runs(processes, workers, pool, store, eventually):
    submitter = processes("serve_submitter", {"session_ttl_s": 2.0})
    submitter.detached("mark", "detached")
    submitter.kill()
    eventually(lambda: not store.children("@executor/default/subs"))
    workers("n1")
    assert pool.ref("one").result(PATIENCE_S) == "n1"


def test_the_same_id_is_one_task(workers, pool, store):
    refs = [pool.detached(mark, "once", id="once") for _ in range(3)]
    workers()
    assert {ref.result(PATIENCE_S) for ref in refs} == {"n1"}
    pool.detached(mark, "once", id="once")
    assert len(starts(store, "once")) == 1
    with pytest.raises(TaskExists, match="'mark'"):
        pool.detached(square, 1, id="once")


def test_a_result_stays_until_it_is_forgotten(workers, pool, store):
    workers()
    ref = pool.detached(square, 3)
    assert ref.result(PATIENCE_S) == ref.result(PATIENCE_S) == 9
    assert ref.state().phase == "done"
    assert ref.forget()
    assert not ref.forget()
    with pytest.raises(NoSuchTask):
        ref.state()
    assert store.children("@executor/default/detached") == store.children("@executor/default/outcomes") == []


@pytest.mark.parametrize("is_put_again", [False, True], ids=["forgotten", "replaced"])
def test_a_result_is_not_waited_for_once_it_was_forgotten_before_a_watch_reported_it(
    workers, pool, connect, eventually, is_put_again
):
    ref = pool.detached(square, 3, id="short")
    with (
        FaultyStore(connect()) as cut,
        Executor(cut, functions=WORK) as other,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        result = threads.submit(other.ref("short").result, 20.0)
        eventually(lambda: {f"@executor/default/{each}" for each in ("outcomes", "detached")} <= watched(cut, ref.id))
        cut.cut_watches(silent_s=2.0)
        worker = workers()
        assert ref.result(PATIENCE_S) == 9
        worker.close(5.0)
        assert ref.forget()
        if is_put_again:
            pool.detached(square, 4, id="short")
        assert isinstance(result.exception(PATIENCE_S), NoSuchTask)


def watched(faulty, task_id):
    """The folders of keys of a task whose watches have reported a state."""
    prefixes = [call.keys[0] for call in faulty.calls if call.op == "event"]
    return {each.rpartition("/")[0].rpartition("/")[0] for each in prefixes if each.endswith(f"/{task_id}")}


def test_a_detached_task_that_is_not_over_is_not_forgotten(pool):
    ref = pool.detached(square, 3)
    assert ref.state().phase == "queued"
    with pytest.raises(LatchworkError, match="cancel it before"):
        ref.forget()
    with pytest.raises(TimeoutError, match="has not ended"):
        ref.result(0.05)


def test_a_detached_task_is_cancelled_queued_and_running(workers, pool, store, eventually):
    queued = pool.detached(mark, "queued", id="queued")
    assert queued.cancel()
    workers()
    running = pool.detached(wait, "running", id="running")
    eventually(lambda: starts(store, "running"))
    assert not running.cancel()
    assert running.cancel(interrupt=True)
    eventually(lambda: store.children("running/stops"))
    for ref in (queued, running):
        assert ref.state().phase == "cancelled"
        with pytest.raises(concurrent.futures.CancelledError):
            ref.result(PATIENCE_S)
        assert not ref.cancel(interrupt=True)
    assert starts(store, "queued") == []


def test_a_failed_detached_task_raises_for_everybody(workers, pool):
    workers()
    ref = pool.detached(boom, "again")
    for _ in range(2):
        with pytest.raises(ValueError, match="again"):
            ref.result(PATIENCE_S)
    assert ref.state().phase == "failed"
    assert "again" in ref.state().why


def test_large_values_of_detached_tasks_are_deleted_when_they_are_forgotten(workers, pool, store, eventually):
    workers()
    refs = [pool.detached(length, b"x" * 200_000), pool.detached(blob, 200_000)]
    assert refs[0].result(PATIENCE_S) == 200_000
    assert len(refs[1].result(PATIENCE_S)) == 200_000
    for ref in refs:
        ref.forget()
    eventually(lambda: store.children("@executor/default/data") == [])


def test_a_detached_task_may_wait_for_its_member(workers, pool):
    ref = pool.with_options(target=Member("later", "wait")).detached("where")
    workers("other")
    assert ref.state().phase == "queued"
    workers("later")
    assert ref.result(PATIENCE_S) == "later"


def test_ids_that_cannot_be_keys_are_refused(pool):
    for bad in ("a/b", "", "x" * 101):
        with pytest.raises(InvalidKey, match="task id"):
            pool.detached(square, 1, id=bad)
