"""Tasks that turn on the process or the thread that runs them: each ends in an outcome that names what happened."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

import pytest

import executor.work
import latchwork
from executor.conftest import PATIENCE_S
from latchwork.executor import Executor, ExecutorWorker
from latchwork.tasks import Functions, TaskProcessDied, TaskTimeout
from patience import eventually
from trials.remote import Remote

WORK = Functions()
task = WORK.task
#: Ends the tasks that stay deaf, when their test has seen their outcome.
heard = threading.Event()


@task(name="pid")
def pid() -> int:
    return os.getpid()


@task(name="die")
def die() -> None:
    os._exit(3)


@task(name="close-files")
def close_files() -> int:
    os.closerange(3, 256)
    return 1


@task(name="fork-and-return")
def fork_and_return() -> tuple[str, int]:
    child = os.fork()
    if not child:
        return "child", 0
    return "parent", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@task(name="fork-and-exit")
def fork_and_exit() -> tuple[str, int]:
    who, code = fork_and_return()
    if who == "child":
        sys.exit(7)
    return who, code


@task(name="fork-and-raise")
def fork_and_raise() -> tuple[str, int]:
    who, code = fork_and_return()
    if who == "child":
        raise ValueError(who)
    return who, code


@task(name="fork-in-a-loop")
async def fork_in_a_loop() -> tuple[str, int]:
    return fork_and_return()


@task(name="deaf", timeout_s=0.5)
def deaf() -> None:
    heard.wait(PATIENCE_S)


@task(name="deaf-in-a-loop", timeout_s=0.5)
async def deaf_in_a_loop() -> None:
    until = time.monotonic() + PATIENCE_S
    while not heard.is_set() and time.monotonic() < until:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


@task(name="ignore-sigterm")
def ignore_sigterm() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 1


@task(name="trace")
def trace() -> int:
    threading.settrace(lambda *_: None)
    return 1


@pytest.fixture
def store():
    with latchwork.connect("memory://odd-tasks") as made:
        yield made


@pytest.fixture
def end(store, request):
    """Run a task to its end, in threads or in processes; then two more, one for each slot, that have to succeed."""

    def run(fn, run_in):
        options = {"session_ttl_s": 10.0, "stop_grace_s": 0.2, "max_attempts": 2}
        with (
            ExecutorWorker(store, functions=WORK, slots=2, run_in=run_in, **options) as worker,
            Executor(store, functions=WORK) as pool,
        ):
            worker.wait_ready(PATIENCE_S)
            future = pool.submit(fn)
            try:
                future.exception(PATIENCE_S)
            finally:
                heard.set()
            after = [pool.submit(pid) for _ in range(4)]
            assert all((each.result(PATIENCE_S) == os.getpid()) == (run_in == "thread") for each in after)
            return future

    heard.clear()
    yield run
    threading.settrace(None)


@pytest.mark.parametrize("run_in", ["thread", "process"])
@pytest.mark.parametrize("fn", [deaf, deaf_in_a_loop], ids=lambda fn: fn.__name__)
def test_a_task_that_ignores_its_timeout_has_timed_out(end, fn, run_in):
    assert isinstance(end(fn, run_in).exception(), TaskTimeout)


@pytest.mark.parametrize("run_in", ["thread", "process"])
@pytest.mark.parametrize(
    ("fn", "code"), [(fork_and_return, 0), (fork_and_exit, 7), (fork_and_raise, 1), (fork_in_a_loop, 0)]
)
def test_a_child_that_a_task_has_forked_ends_with_the_task_and_does_not_answer_for_it(end, fn, code, run_in):
    assert end(fn, run_in).result() == ("parent", code)


@pytest.mark.slow
@pytest.mark.parametrize(("fn", "code"), [(die, 3), (close_files, 1)])
def test_a_task_that_ends_its_process_has_failed_with_its_exit_code(end, fn, code):
    with pytest.raises(TaskProcessDied, match=f"ended with code {code}"):
        end(fn, "process").result()


def test_a_task_may_ignore_the_signal_that_stops_its_process(end):
    assert end(ignore_sigterm, "process").result() == 1


def test_a_task_in_a_thread_that_sets_a_signal_handler_has_failed(end):
    with pytest.raises(ValueError, match="main thread"):
        end(ignore_sigterm, "thread").result()


@pytest.mark.parametrize("run_in", ["thread", "process"])
def test_a_task_that_traces_threads_disturbs_no_other(end, run_in):
    assert end(trace, run_in).result() == 1


def test_a_task_in_a_thread_that_closes_the_files_of_its_node_ends_there_or_elsewhere(tmp_path):
    """The connections of the node are among them, and the pipe by which this test speaks to it."""
    url = f"sqlite:///{tmp_path}/odd.db"
    options = {"functions": executor.work.WORK}
    with latchwork.connect(url) as store, Executor(store, **options) as pool:
        future = pool.submit(executor.work.close_files, "files")
        node = Remote("executor.work:serve_worker", url, "n1", {"session_ttl_s": 2.0, "slots": 1}, report=print)
        try:
            eventually(lambda: store.children("files/starts"), PATIENCE_S)
            with ExecutorWorker(store, node_id="n2", **options):
                assert future.result(PATIENCE_S) in {"n1", "n2"}
        finally:
            node.kill()
