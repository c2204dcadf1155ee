"""A process that ends with open tasks says what it waits for, and leaves when it was told to."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

import latchwork
from latchwork.executor import Executor, ExecutorWorker
from latchwork.tasks import Functions, TaskContext

PROGRAM = """
import logging, sys
import latchwork
from latchwork.executor import Executor
from latchwork.tasks import task

logging.basicConfig(level=logging.INFO)

@task(name="exit.square")
def square(n: int) -> int:
    return n * n

store = latchwork.connect(sys.argv[1])
pool = Executor(store, wait_at_exit_s=eval(sys.argv[2]))
futures = [pool.submit(square, n) for n in range(5)]
"""
RUNNING = """
import logging, sys
import latchwork
from latchwork.executor import Executor
from latchwork.tasks import task

logging.basicConfig(level=logging.INFO)

@task(name="exit.endless")
def endless() -> None: ...

store = latchwork.connect(sys.argv[1])
pool = Executor(store, wait_at_exit_s=4.0)
future = pool.submit(endless)
while future.state().phase != "running":
    pass
"""
WORK = Functions()
STOPPED = threading.Event()


@WORK.task(name="exit.endless")
def endless(context: TaskContext) -> None:
    context.wait_for_stop()
    STOPPED.set()


@WORK.task(name="exit.slow")
def slow() -> int:
    time.sleep(1.5)
    return 7


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


def test_process_without_a_worker_leaves_after_the_given_time_and_names_its_tasks(url):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, "4.0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    assert time.monotonic() - began >= 4.0
    assert "WARNING:latchwork.executor.executor:waiting for 5 tasks ('exit.square'" in done.stderr
    assert "press Ctrl-C to leave" in done.stderr
    assert "WARNING:latchwork.executor.executor:gave up 5 tasks" in done.stderr


def test_process_names_a_running_task_at_info_level_and_asks_it_to_stop_when_it_leaves(url):
    with latchwork.connect(url) as store, ExecutorWorker(store, functions=WORK, slots=1):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", RUNNING, url], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done
        assert time.monotonic() - began >= 4.0
        assert (
            "INFO:latchwork.executor.executor:waiting for 1 task ('exit.endless'); press Ctrl-C to leave" in done.stderr
        )
        assert "WARNING:latchwork.executor.executor:gave up 1 task ('exit.endless') after 4 s" in done.stderr
        assert STOPPED.wait(20.0)


def test_shutdown_waits_for_a_task_longer_than_for_the_exit():
    with latchwork.connect("memory://shutdown") as store, ExecutorWorker(store, functions=WORK, slots=1):
        executor = Executor(store, functions=WORK, wait_at_exit_s=0.1)
        future = executor.submit(slow)
        executor.shutdown()
        assert future.result(timeout=0) == 7


def test_process_waits_for_its_tasks_by_default_and_says_so(url):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, url, "None"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("waiting for 5 tasks" in line for line in lines)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("wait_at_exit_s", [-1.0, True, "2", float("nan")])
def test_a_wait_that_is_no_time_is_refused(wait_at_exit_s):
    with latchwork.connect("memory://exit") as store, pytest.raises(ValueError, match="wait_at_exit_s must be None or"):
        Executor(store, wait_at_exit_s=wait_at_exit_s)
