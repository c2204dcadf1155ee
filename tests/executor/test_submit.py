"""Submit, wait, map, cancel: a task has one result, and one that was cancelled before it began never runs."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import types

import pytest

from executor.conftest import PATIENCE_S, partitions
from executor.work import (
    blob,
    boom,
    cancelled_inside,
    fail_twice,
    length,
    mark,
    returned_error,
    square,
    unstorable,
    wait,
)
from latchwork.executor import AllFailed, Call, Executor, submitter
from latchwork.tasks import (
    NotSerializable,
    PickleCodec,
    RemoteTraceback,
    Retry,
    TaskStopped,
    TaskTimeout,
    UnknownFunction,
)


def starts(store, key):
    return [store.get(f"{key}/starts/{name}").value.decode() for name in store.children(f"{key}/starts")]


def test_submitter_gets_the_value(workers, pool):
    workers()
    assert pool.submit(square, 7).result(PATIENCE_S) == 49


def test_a_task_submitted_before_any_worker_is_there_is_run_by_the_first(workers, pool):
    future = pool.submit(square, 3)
    pool.flush(PATIENCE_S)
    assert future.state().phase == "queued"
    workers()
    assert future.result(PATIENCE_S) == 9


def test_exception_is_raised_at_the_submitter_with_the_remote_traceback(workers, pool):
    workers()
    with pytest.raises(ValueError, match="no such day") as raised:
        pool.submit(boom, "no such day").result(PATIENCE_S)
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert "in boom" in str(raised.value.__cause__)


def test_a_returned_exception_is_a_value(workers, pool):
    workers()
    value = pool.submit(returned_error, "x").result(PATIENCE_S)
    assert isinstance(value, ValueError)
    assert value.args == ("x",)


def test_two_submitters_never_share_a_task_id(workers, pools):
    workers()
    futures = [pool.submit(square, number) for pool in (pools(), pools()) for number in range(5)]
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 4, 9, 16] * 2
    assert len({future.id for future in futures}) == 10


def test_as_completed_wait_and_map_work_unchanged(workers, pool):
    workers()
    futures = [pool.submit(square, number) for number in range(8)]
    done = concurrent.futures.as_completed(futures, timeout=PATIENCE_S)
    assert sorted(future.result() for future in done) == [number * number for number in range(8)]
    assert concurrent.futures.wait(futures, timeout=PATIENCE_S).not_done == set()
    assert list(pool.map(square, range(20), timeout=PATIENCE_S)) == [number * number for number in range(20)]
    assert list(pool.map(square, range(20), buffersize=3)) == [number * number for number in range(20)]


def test_callbacks_are_called_once(workers, pool, eventually):
    workers()
    called = []
    future = pool.submit(square, 2)
    future.add_done_callback(called.append)
    future.result(PATIENCE_S)
    eventually(lambda: called == [future])
    future.add_done_callback(called.append)
    assert called == [future, future]


def test_a_cancelled_queued_task_never_runs(workers, pool, store, eventually):
    future = pool.submit(mark, "cancelled")
    pool.flush(PATIENCE_S)
    assert future.cancel()
    assert future.cancelled()
    workers()
    assert pool.submit(square, 1).result(PATIENCE_S) == 1
    assert starts(store, "cancelled") == []
    eventually(lambda: partitions(store) == [])


def test_a_running_task_is_not_cancelled_unless_it_is_interrupted(workers, pool, store, eventually):
    workers()
    future = pool.submit(wait, "running")
    eventually(lambda: starts(store, "running"))
    assert future.cancel() is False
    assert future.state().running_on == ("n1",)
    assert future.cancel(interrupt=True)
    eventually(lambda: store.children("running/stops"))
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)


def test_call_removes_the_task_everywhere_when_its_time_is_over(workers, pool, store, eventually):
    workers()
    with pytest.raises(TimeoutError, match="was cancelled"):
        pool.call(wait, "late", timeout_s=1.0)
    eventually(lambda: not partitions(store))
    if starts(store, "late"):
        eventually(lambda: store.children("late/stops"))


def test_first_gives_the_first_success_and_cancels_the_others(workers, pool, store, eventually):
    workers()
    assert pool.first([Call(boom, "a"), Call(wait, "first"), Call(square, 5)], timeout_s=PATIENCE_S) == 25
    eventually(lambda: not partitions(store))


def test_first_raises_all_errors_when_none_succeeds(workers, pool):
    workers()
    with pytest.raises(AllFailed) as raised:
        pool.first([Call(boom, "a"), Call(boom, "b")], timeout_s=PATIENCE_S)
    assert [str(error) for error in raised.value.errors] == ["a", "b"]


def test_shutdown_with_cancel_futures_cancels_what_does_not_run(workers, pools, store):
    pool = pools()
    futures = [pool.submit(mark, "never") for _ in range(20)]
    pool.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in futures)
    workers()
    assert starts(store, "never") == []


def test_shutdown_waits_for_what_was_submitted(workers, pools):
    workers()
    with pools() as pool:
        futures = [pool.submit(square, number) for number in range(10)]
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(square, 1)


def test_nothing_is_left_in_the_store_of_tasks_that_are_over(workers, pools, store, eventually):
    workers()
    with pools() as pool:
        assert list(pool.map(square, range(30))) == [number * number for number in range(30)]
    for left in ("backlog/data", "results", "subs", "data", "cancels"):
        assert store.children(f"@executor/default/{left}") == []
    # An empty shelf goes with the next look.
    eventually(lambda: partitions(store) == [])


def test_an_unregistered_function_is_refused_at_submit(pool):
    with pytest.raises(UnknownFunction, match="not registered"):
        pool.submit(lambda: 1)
    with pytest.raises(UnknownFunction, match="sqaure"):
        pool.submit("sqaure", 1)


def test_an_argument_that_cannot_be_stored_is_refused_at_submit_by_name(pool):
    with pytest.raises(NotSerializable, match="argument 'n' of 'square'"):
        pool.submit(square, object())
    with pytest.raises(TypeError, match="square"):
        pool.submit(square, 1, 2)


def test_a_result_that_cannot_be_stored_fails_its_task_alone(workers, pool):
    workers()
    with pytest.raises(NotSerializable, match="unstorable"):
        pool.submit(unstorable).result(PATIENCE_S)
    assert pool.submit(square, 4).result(PATIENCE_S) == 16


@pytest.mark.parametrize("size", [64 * 1024, 5 * 1024 * 1024])
def test_large_arguments_and_results_come_through_and_leave_nothing(workers, pool, store, eventually, size):
    workers()
    assert pool.submit(length, b"x" * size).result(PATIENCE_S) == size
    assert len(pool.submit(blob, size).result(PATIENCE_S)) == size
    eventually(lambda: store.children("@executor/default/data") == [])


def test_a_pickled_call_is_refused_by_workers_that_did_not_allow_it(workers, pools, eventually):
    pool = pools(codec=PickleCodec(allow_pickle=True), allow_pickle=True)
    workers("plain", unknown_after_s=0.2)
    future = pool.submit(lambda: "run")
    with pytest.raises(UnknownFunction, match="allow_pickle"):
        future.result(PATIENCE_S)


def test_a_pickled_call_runs_where_it_is_allowed(workers, pools):
    pool = pools(codec=PickleCodec(allow_pickle=True), allow_pickle=True)
    workers("open", allow_pickle=True)
    assert pool.submit(lambda n: n + 1, 4).result(PATIENCE_S) == 5


def test_a_task_is_tried_again_as_its_function_says(workers, pool):
    workers()
    assert pool.submit(fail_twice, "tries").result(PATIENCE_S) == 3


def test_a_task_is_not_tried_again_for_other_exceptions_than_its_submitter_named(workers, pool, store):
    workers()
    once = pool.with_options(retry=Retry(attempts=5, initial_s=0.01, on=(KeyError,)))
    with pytest.raises(ValueError, match="try 1"):
        once.submit(fail_twice, "other").result(PATIENCE_S)
    assert len(starts(store, "other")) == 1


def test_a_task_is_stopped_when_its_time_is_over(workers, pool, store):
    workers(stop_grace_s=0.5)
    with pytest.raises((TaskStopped, TaskTimeout)):
        pool.with_options(timeout_s=0.3).submit(wait, "timed").result(PATIENCE_S)
    assert store.children("timed/stops")


def test_priorities_run_before_others(workers, pool, store):
    futures = [pool.with_options(priority=priority).submit(mark, f"priority-{priority}") for priority in (9, 5, 0)]
    pool.flush(PATIENCE_S)
    workers(slots=1)
    concurrent.futures.wait(futures, PATIENCE_S)
    begun = {store.list(f"priority-{priority}/starts")[0].created: priority for priority in (9, 5, 0)}
    assert [begun[token] for token in sorted(begun)] == [0, 5, 9]


def test_a_wall_clock_that_is_set_back_does_not_reorder_tasks(workers, pool, store, monkeypatch):
    futures = [pool.submit(mark, "order-0")]
    pool.flush(PATIENCE_S)
    set_back = types.SimpleNamespace(time=lambda: time.time() - 3600.0)
    monkeypatch.setattr(submitter, "time", set_back)
    futures.append(pool.submit(mark, "order-1"))
    pool.flush(PATIENCE_S)
    workers(slots=1)
    assert len([future.result(PATIENCE_S) for future in futures]) == 2
    begun = [store.list(f"order-{number}/starts")[0].created for number in range(2)]
    assert begun == sorted(begun)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 10}, "priority"),
        ({"copies": 0}, "copies"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"priority": True}, "pri"),
    ],
)
def test_bad_options_are_refused(pool, options, message):
    with pytest.raises(ValueError, match=message):
        pool.with_options(**options)


def test_bad_arguments_of_map_are_refused_as_by_other_executors(pool):
    with pytest.raises(ValueError, match="chunksize"):
        pool.map(square, [1], chunksize=0)
    with pytest.raises(ValueError, match="buffersize"):
        pool.map(square, [1], buffersize=0)
    with pytest.raises(TypeError, match="not a URL"):
        Executor("memory://x")


def test_a_callback_that_blocks_holds_up_no_future_and_no_other_callback(workers, pool, caplog):
    workers()
    go, called = threading.Event(), threading.Event()

    def blocks_here(_):
        go.wait(PATIENCE_S)

    first = pool.submit(square, 2)
    first.add_done_callback(blocks_here)
    first.add_done_callback(lambda _: called.set())
    assert [pool.submit(square, n).result(PATIENCE_S) for n in (3, 4)] == [9, 16]
    assert called.wait(PATIENCE_S)
    go.set()
    pool.shutdown()
    (said,) = [record.getMessage() for record in caplog.records if "takes longer than 1 s" in record.getMessage()]
    assert "blocks_here" in said
    assert first.id in said


def test_a_callback_may_wait_for_another_task(workers, pool):
    workers()
    got = []
    done = threading.Event()

    def submits(_):
        got.append(pool.submit(square, 9).result(PATIENCE_S))
        done.set()

    pool.submit(square, 1).add_done_callback(submits)
    assert done.wait(PATIENCE_S)
    assert got == [81]


def test_a_shutdown_waits_for_callbacks_and_may_be_called_in_one(workers, pool):
    workers()
    called = []
    future = pool.submit(square, 1)
    future.add_done_callback(lambda _: (pool.shutdown(), called.append("shut down")))
    future.add_done_callback(lambda _: called.append("after"))
    future.result(PATIENCE_S)
    pool.shutdown()
    assert called == ["shut down", "after"]


def test_a_task_that_raises_cancelled_error_has_failed_and_was_not_cancelled(workers, pool):
    workers()
    future = pool.submit(cancelled_inside)
    with pytest.raises(concurrent.futures.CancelledError, match="an inner call"):
        future.result(PATIENCE_S)
    assert not future.cancelled()
    assert future.state().phase == "failed"
