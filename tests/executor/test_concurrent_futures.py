"""CPython's own tests of executors and futures, run on ours: adapted only in how the executor is made.

See ``cpython`` for where they are.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import unittest
import uuid

import pytest

import latchwork
from executor.cpython import IS_LEFT_OUT, load
from latchwork.executor import Executor, ExecutorWorker, TaskFuture
from latchwork.executor.futures import Stage
from latchwork.store.steps import blocking
from latchwork.tasks import Functions, PickleCodec
from levels import LONG

#: Where each class is since 3.12; before, all are in one file.
PARTS = {
    "ExecutorTest": "executor",
    "ExecutorShutdownTest": "test_shutdown",
    "WaitTests": "test_wait",
    "AsCompletedTests": "test_as_completed",
    "FutureTests": "test_future",
}
#: What every run has; the others wait for seconds, and ask little of an executor.
SHORT = {"ExecutorTest", "ExecutorShutdownTest", "FutureTests"}
#: Left out, with the reason.
LEFT_OUT = {
    "test_interpreter_shutdown": "makes an executor of concurrent.futures in a script; ours is below",
    "test_submit_after_interpreter_shutdown": "likewise",
    "test_hang_gh83386": "likewise",
    "test_hang_gh94440": "likewise",
    "test_max_workers_negative": "an executor has no workers: its workers have slots",
    "test_repr": "has the name of the class Future in what it expects",
    "test_multiple_set_result": "likewise",
    "test_multiple_set_exception": "likewise",
    "test_cancel_futures": "wants one of 50 tasks begun when all are submitted; here none need be stored by then; see "
    "test_shutdown_with_cancel_futures_cancels_what_does_not_run",
    "test_cancel": "looks at the private state between cancelling and telling of it, which are one step here",
}


def classes():
    try:
        return {name: getattr(load(part), name) for name, part in PARTS.items()}
    except (ImportError, AttributeError, unittest.SkipTest):
        return {}


CLASSES = classes()
CASES = [
    (name, method)
    for name, kind in CLASSES.items()
    for method in unittest.TestLoader().getTestCaseNames(kind)
    if method not in LEFT_OUT and (LONG or name in SHORT)
]


class Pool(Executor):
    """An executor that has workers of its own, as a pool of threads has its threads."""

    def __init__(self, max_workers=5):
        self.mine = latchwork.connect(f"memory://futures-{uuid.uuid4().hex}")
        nothing = Functions()
        codec = PickleCodec(allow_pickle=True)
        super().__init__(self.mine, functions=nothing, codec=codec, allow_pickle=True)
        self.worker = ExecutorWorker(self.mine, slots=max_workers, functions=nothing, allow_pickle=True)
        self.worker.start()
        self.worker.wait_ready(60)
        self.submit(abs, 0).result(60)  # as a pool of threads is, it is ready when it is made

    def shutdown(self, wait=True, *, cancel_futures=False):
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self.worker.close()
            self.mine.close()


class Now:
    """Calls done-callbacks in the thread that ends their future, as a plain future does."""

    def call(self, fn, future):
        fn(future)


class Nobody:
    """Whose tasks nobody stores: they can be cancelled."""

    callbacks = Now()

    def missing_worker_hint(self):
        return ""

    @blocking
    async def cancel(self, ticket, *, interrupt):
        return True


class Ticket:
    id = ""
    stage = Stage.WAITING


def plain_future():
    return TaskFuture(Ticket(), Nobody())


def as_pool(kind):
    class Ours(kind, unittest.TestCase):
        executor_type = Pool
        worker_count = 5

        def setUp(self):
            super().setUp()
            self.executor = Pool(self.worker_count)

        def tearDown(self):
            self.executor.shutdown()
            self.executor = None
            super().tearDown()

    return Ours


def run(case):
    result = unittest.TestResult()
    case.run(result)
    for _, trouble in result.errors + result.failures:
        pytest.fail(trouble)
    assert result.testsRun == 1


def test_cpythons_tests_are_here():
    assert IS_LEFT_OUT or len(CASES) > 20, "run scripts/get_cpython_tests, or see executor/cpython.py"


@pytest.mark.parametrize(("name", "method"), CASES)
def test_cpythons_test_passes(name, method, monkeypatch):
    kind = CLASSES[name]
    if name != "FutureTests":
        run(as_pool(kind)(method))
        return
    monkeypatch.setattr(logging.getLogger("concurrent.futures"), "propagate", False)  # to stderr, not to pytest
    monkeypatch.setattr(sys.modules[kind.__module__], "Future", plain_future)
    if hasattr(sys.modules[kind.__module__], "create_future"):
        monkeypatch.setattr(sys.modules[kind.__module__], "create_future", create_future)
    run(kind(method))


def create_future(state="PENDING", exception=None, result=None):
    future = plain_future()
    future._state, future._exception, future._result = state, exception, result
    return future


def test_what_is_left_out_is_there_to_be_left_out():
    there = {method for kind in CLASSES.values() for method in unittest.TestLoader().getTestCaseNames(kind)}
    assert not CLASSES or set(LEFT_OUT) - there <= {"test_hang_gh94440", "test_hang_gh83386"}


SCRIPT = """
import latchwork, sys, time
from latchwork.executor import Executor, ExecutorWorker
from latchwork.tasks import Functions
work = Functions()
@work.task(name="show")
def show(text: str) -> None:
    time.sleep(0.3)
    print(text, flush=True)
store = latchwork.connect("memory://x")
worker = ExecutorWorker(store, functions=work, slots=2)
worker.start()
pool = Executor(store, functions=work)
"""


def said_by(script):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + script], capture_output=True, text=True, timeout=100, check=False
    )
    return done.stdout.split(), done.stderr


def test_the_interpreter_waits_at_its_end_for_what_was_submitted():
    assert said_by("pool.submit(show, 'apple')") == (["apple"], "")


def test_the_interpreter_waits_at_its_end_after_a_shutdown_that_did_not():
    assert said_by("pool.submit(show, 'apple'); pool.shutdown(wait=False)") == (["apple"], "")


def test_nothing_is_submitted_after_the_interpreters_end_began():
    script = "import atexit\natexit._run_exitfuncs()\npool.submit(show, 'late')"
    out, error = said_by(script)
    assert out == []
    assert "RuntimeError: cannot schedule new futures" in error
