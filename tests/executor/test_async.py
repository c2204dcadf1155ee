"""``async def`` tasks: all of a worker on one loop of its own; each is cancelled when it has to stop, and ends once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from executor.conftest import PATIENCE_S
from executor.test_deaths import end_session, starts
from latchwork.executor import TaskDied
from latchwork.tasks import Functions, RemoteTraceback, Retry, TaskContext, TaskTimeout, current_task

WORK = Functions()
MET = {}


def _told(context: TaskContext, key: str, what: str) -> None:
    context.store.create(f"{key}/{what}/s", context.node_id.encode(), sequential=True)


def _until_go(context: TaskContext, key: str) -> None:
    while context.store.get(f"{key}/go") is None and not context.wait_for_stop(0.02):
        pass


@WORK.task(name="doubled")
async def doubled(n: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * n


@WORK.task(name="loop-of")
async def loop_of() -> tuple[int, str]:
    return id(asyncio.get_running_loop()), threading.current_thread().name


@WORK.task(name="meets")
async def meets(me: str, other: str) -> str:
    """Ends only once both are there: they run at the same time, and share an event."""
    for name in (me, other):
        MET.setdefault(name, asyncio.Event())
    MET[me].set()
    await MET[other].wait()
    return current_task().task_id


@WORK.task(name="lingers")
async def lingers(key: str, context: TaskContext) -> str:
    """Until somebody writes ``<key>/go``; says when it was cancelled, and that it has cleaned up."""
    try:
        await asyncio.to_thread(_told, context, key, "starts")
        await asyncio.to_thread(_until_go, context, key)
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        await asyncio.to_thread(_told, context, key, "stops")
        raise
    return context.node_id


@WORK.task(name="is-deaf")
async def is_deaf(key: str, context: TaskContext) -> str:
    """Goes on when it is cancelled, until somebody writes ``<key>/go``."""
    await asyncio.to_thread(_told, context, key, "starts")
    while True:
        try:
            if await asyncio.to_thread(context.store.get, f"{key}/go") is not None:
                return "late"
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            await asyncio.to_thread(_told, context, key, "stops")


@WORK.task(name="raises")
async def raises(text: str) -> None:
    await asyncio.sleep(0)
    raise ValueError(text)


@WORK.task(name="exits")
async def exits() -> None:
    await asyncio.sleep(0)
    raise SystemExit(3)


@WORK.task(name="leaves-what-exits")
async def leaves_what_exits() -> str:
    async def later() -> None:
        raise SystemExit(4)

    task = asyncio.get_running_loop().create_task(later())
    await asyncio.sleep(0.05)
    return str(task.done())


@WORK.task(name="cancels-itself")
async def cancels_itself() -> None:
    raise asyncio.CancelledError


@WORK.task(name="fails-once", retry=Retry(attempts=2, initial_s=0.01))
async def fails_once(context: TaskContext) -> int:
    if context.attempt == 1:
        raise OSError("the first try")
    return context.attempt


@pytest.fixture
def crew(workers):
    def start(node_id="n1", **options):
        return workers(node_id, functions=WORK, **options)

    return start


@pytest.fixture
def submit(pools):
    return pools(functions=WORK)


def test_all_async_tasks_of_a_worker_share_one_loop_in_a_thread_of_its_own(crew, submit):
    crew()
    seen = {future.result(PATIENCE_S) for future in [submit.submit(loop_of) for _ in range(6)]}
    assert len(seen) == 1
    assert next(iter(seen))[1] == "latchwork-task-loop-n1"


def test_the_loop_of_a_worker_outlives_its_session(crew, submit, eventually):
    """So what tasks have opened on it, and keep, can be used on."""
    worker = crew()
    before = submit.submit(loop_of).result(PATIENCE_S)
    end_session(worker)
    assert submit.submit(loop_of).result(PATIENCE_S) == before
    worker.close()
    eventually(lambda: "latchwork-task-loop-n1" not in {thread.name for thread in threading.enumerate()})


def test_async_tasks_run_at_the_same_time_and_know_which_they_are(crew, submit):
    MET.clear()
    crew(slots=2)
    futures = [submit.submit(meets, *pair) for pair in (("a", "b"), ("b", "a"))]
    assert [future.result(PATIENCE_S) for future in futures] == [future.id for future in futures]


def test_an_exception_of_an_async_task_comes_with_its_traceback(crew, submit):
    crew()
    with pytest.raises(ValueError, match="no such day") as raised:
        submit.submit(raises, "no such day").result(PATIENCE_S)
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert "in raises" in str(raised.value.__cause__)


def test_an_async_task_is_tried_again_as_its_function_says(crew, submit):
    crew()
    assert submit.submit(fails_once).result(PATIENCE_S) == 2


def test_an_async_task_whose_time_is_over_is_cancelled_and_its_submitter_told(crew, submit, store, eventually):
    crew()
    with pytest.raises(TaskTimeout, match="its timeout had passed"):
        submit.with_options(timeout_s=0.5).submit(lingers, "timed").result(PATIENCE_S)
    assert starts(store, "timed") == ["n1"]
    assert store.children("timed/stops"), "it had cleaned up before its submitter was told"


def test_an_interrupted_async_task_is_cancelled_and_cleans_up(crew, submit, store, eventually):
    crew(slots=1)
    future = submit.submit(lingers, "told")
    eventually(lambda: starts(store, "told"))
    assert future.cancel() is False
    assert future.cancel(interrupt=True)
    eventually(lambda: store.children("told/stops"))
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)
    assert submit.submit(doubled, 4).result(PATIENCE_S) == 8


def test_an_async_task_of_a_worker_that_closes_runs_elsewhere(crew, submit, store, eventually):
    first = crew("n1", own_store=True)
    future = submit.submit(lingers, "moved")
    eventually(lambda: starts(store, "moved") == ["n1"])
    crew("n2", own_store=True)
    first.close(10.0)
    assert len(store.children("moved/stops")) == 1
    eventually(lambda: starts(store, "moved") == ["n1", "n2"])
    store.put("moved/go", b"")
    assert future.result(PATIENCE_S) == "n2"


def test_an_async_task_of_a_lost_session_is_cancelled_and_runs_elsewhere(crew, submit, store, eventually):
    first = crew("n1", own_store=True)
    future = submit.submit(lingers, "lost")
    eventually(lambda: starts(store, "lost") == ["n1"])
    crew("n2", own_store=True)
    first.drain(0.0)
    end_session(first)
    eventually(lambda: starts(store, "lost") == ["n1", "n2"])
    eventually(lambda: len(store.children("lost/stops")) == 1)
    store.put("lost/go", b"")
    assert future.result(PATIENCE_S) == "n2"


def test_an_async_task_that_ignores_its_cancellation_holds_its_slot_and_nobody_elses(crew, submit, store, eventually):
    worker = crew(slots=2, stop_grace_s=0.3)
    said, timeout_s = "its time was over", 0.1
    while "its time was over" in said:  # before it was in the loop that ignores it: the machine is slow
        timeout_s *= 3
        with pytest.raises(TaskTimeout) as raised:
            submit.with_options(timeout_s=timeout_s).submit(is_deaf, "deaf").result(PATIENCE_S)
        said = str(raised.value)
    assert "did not end" in said
    assert len(worker.stats().stuck) == 1
    assert submit.submit(doubled, 21).result(PATIENCE_S) == 42
    store.put("deaf/go", b"")
    eventually(lambda: worker.stats().stuck == ())


def test_a_worker_closes_in_time_though_an_async_task_ignores_it(crew, submit, store, eventually):
    worker = crew(stop_grace_s=0.3)
    submit.submit(is_deaf, "forever")
    eventually(lambda: starts(store, "forever"))
    worker.close(5.0)
    store.put("forever/go", b"")  # so that its thread ends
    assert worker.stats().done == 0


def test_exit_in_an_async_task_is_its_failure_and_ends_no_other(crew, submit, store, eventually):
    crew()
    other = submit.submit(lingers, "beside")
    eventually(lambda: starts(store, "beside"))
    with pytest.raises(Exception, match="3"):
        submit.submit(exits).result(PATIENCE_S)
    assert submit.submit(leaves_what_exits).result(PATIENCE_S) == "True"
    store.put("beside/go", b"")
    assert other.result(PATIENCE_S) == "n1"


def test_an_async_task_that_cancels_itself_fails_and_is_not_taken_for_stopped(crew, submit):
    crew()
    future = submit.submit(cancels_itself)
    with pytest.raises(Exception, match="CancelledError") as raised:
        future.result(PATIENCE_S)
    assert not isinstance(raised.value, TaskDied)
    assert not future.cancelled()


@pytest.mark.slow
def test_async_tasks_run_in_processes_too(crew, submit):
    crew(run_in="process", slots=1)
    assert submit.submit(doubled, 3).result(PATIENCE_S) == 6
