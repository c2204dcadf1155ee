"""SIGTERM ends every command that runs until it, also when the system gives it to another thread than the main one.

A signal that comes right before the main thread waits has the same effect: it is noted, and ends no wait.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest

from latchwork._base.signals import end_signals, next_request
from latchwork._base.user_code import call_user
from latchwork.cli.outcome import Terminated, exit_on_sigterm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="chooses the thread of another process")

URL = "sqlite:///signals.db"
TASKS = """
from latchwork.tasks import task

@task(name="double")
def double(n: int) -> int:
    return 2 * n
"""
JOBS = """
from latchwork.jobs import FixedDelay, Job

job = Job("empty", work_pool=["a"], run=lambda context: None, schedule=FixedDelay(60.0))
"""
WORK = "trap 'exit 5' TERM; echo begun; while true; do sleep 0.1; done"
COMMANDS = {
    "plans": (("plans", "worker", "--import", "days", "--url", URL), "runs up to", 0),
    "executor": (("executor", "run", "--import", "days", "--url", URL), "runs up to", 0),
    "node": (("run", "jobs:job", "--url", URL, "--node-id", "n1"), "node n1 is started", 0),
    "lock": (("lock", "backup", "--url", URL, "--", "sh", "-c", WORK), "begun", 5),
    "elect": (("elect", "sched", "--url", URL, "--", "sh", "-c", WORK), "begun", 5),
    "serve": (("workflows", "serve", "--home", "home", "--port", "0"), "one-time sign-in link", 0),
}


def signal_another_thread(pid):
    """Send SIGTERM to a thread of a process that is not its main one."""
    other = max(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir() if int(path.name) != pid)
    assert ctypes.CDLL(None).tgkill(pid, other, signal.SIGTERM) == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_a_sigterm_that_another_thread_gets_ends_the_command(cli, wait_until, name):
    args, line, code = COMMANDS[name]
    cli.write("days.py", TASKS)
    cli.write("jobs.py", JOBS)
    process = cli.start(*args)
    wait_until(lambda: line in process.log.read_text(), line, 60.0)
    signal_another_thread(process.pid)
    assert process.wait(30) == code


def test_a_sigterm_in_user_code_of_the_main_thread_is_no_failure_of_that_code():
    with exit_on_sigterm(3), pytest.raises(Terminated) as raised:
        call_user(signal.raise_signal, signal.SIGTERM)
    assert raised.value.code == 3


def test_two_signals_are_requests_to_end_and_the_third_acts_as_before():
    requests, before = SimpleQueue(), []
    previous = signal.signal(signal.SIGTERM, lambda *_: before.append("third"))
    try:
        with end_signals(requests):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert (next_request(requests), next_request(requests), before) == ("SIGTERM", "SIGINT", [])
            signal.raise_signal(signal.SIGTERM)
        assert before == ["third"]
    finally:
        signal.signal(signal.SIGTERM, previous)
