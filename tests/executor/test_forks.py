"""A child of a fork: it has no task, waits for none, and is told so at once."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys

import pytest

from executor.conftest import PATIENCE_S
from executor.work import square, wait
from latchwork.executor import All
from latchwork_testkit.conformance.children import run_in_fork

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SCRIPT = """
import latchwork, os, sys
from latchwork.executor import Executor
from latchwork.tasks import Functions
work = Functions()
@work.task(name="one")
def one() -> int: return 1
pool = Executor(latchwork.connect("memory://x"), functions=work)
future = pool.submit(one)
pool.flush(60)
pid = os.fork()
if pid == 0:
    if sys.argv[1] == "with":
        with pool: sys.exit(3)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("how", ["plain", "with"])
def test_a_child_that_exits_does_not_wait_for_the_futures_of_its_parent(how):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, how], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_each_use_of_an_executor_in_a_child_is_refused_at_once(workers, pool, store, eventually):
    workers("n1")
    future = pool.submit(wait, "k")
    whole = pool.with_options(target=All()).submit(wait, "all")
    ended = pool.submit(square, 3)
    assert ended.result(PATIENCE_S) == 9
    told = []
    future.add_done_callback(told.append)
    said = run_in_fork(
        {
            "result": future.result,
            "whole": whole.result,
            "state": future.state,
            "cancel": lambda: future.cancel() or future.exception(),
            "wait": lambda: len(concurrent.futures.wait([future, whole]).done),
            "submit": lambda: pool.submit(square, 1),
            "flush": pool.flush,
            "shutdown": pool.shutdown,
            "ended": ended.result,
            "told": lambda: told,
        }
    )
    refused = dict.fromkeys(["result", "whole", "state", "submit", "flush", "shutdown"], "ForkedProcess")
    assert said.pop("cancel").startswith("ForkedProcess(")
    assert said == {**refused, "wait": "2", "ended": "9", "told": "[]"}
    store.put("k/go", b"")
    store.put("all/go", b"")
    assert future.result(PATIENCE_S) == "n1", "the parent goes on"
    assert whole.result(PATIENCE_S) == {"n1": "n1"}
