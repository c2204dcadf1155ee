"""`latchwork executor`, on a real store, with nodes in processes of their own."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

import latchwork
from latchwork.cli.systems.executor import progress_line
from latchwork.executor import Executor, TaskState
from latchwork.primitives import WorkQueue
from latchwork.store import system_namespace
from latchwork.tasks import Functions

URL = "sqlite:///tasks.db"
TASKS = """
import time
from decimal import Decimal

from latchwork.tasks import TaskContext, task


@task
def square(n: int) -> int:
    return n * n


@task(name="price")
def price(cents: int) -> Decimal:
    return Decimal(cents) / 100


@task
def fail() -> None:
    raise ValueError("bad\\x1b[31m data")


@task
def sleep(context: TaskContext) -> None:
    context.wait_for_stop(600)
"""


@pytest.fixture
def executor(cli):
    """The command on a store that is there, beside a module with tasks."""
    (cli.folder / "mytasks.py").write_text(TASKS)
    latchwork.connect(f"sqlite:///{cli.folder}/tasks.db").close()
    return lambda *args, **extra: cli("executor", *args, "--url", URL, **extra)


@pytest.fixture
def store(cli, executor):
    with latchwork.connect(f"sqlite:///{cli.folder}/tasks.db") as opened:
        yield opened


@pytest.fixture
def node(cli, executor, wait_until):
    """Start a node; the port of its probe is in its log."""

    def start(*args):
        command = ("executor", "run", "--import", "mytasks", "--node-id", "n1", "--slots", "2", "--probe-port", "0")
        started = cli.start(*command, "--url", URL, *args)
        wait_until(lambda: "runs up to" in started.log.read_text(), "the node takes tasks")
        return started

    return start


def port_of(started):
    return int(started.log.read_text().partition("http://127.0.0.1:")[2].partition("/")[0])


def asked(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_node_runs_what_the_shell_submits_and_answers_probes(executor, node):
    started = node("--label", "zone=a")
    done = executor("submit", "mytasks:square", "[12]", "--wait", "--timeout-s", "60")
    assert (done.code, done.out) == (0, "144\n")
    assert executor("submit", "price", '{"cents": 150}', "--import", "mytasks", "--wait", "--json").json == {
        "value": "Decimal('1.5')"
    }
    executor("submit", "mytasks:fail", "--wait").refused(1, "ValueError", "bad")
    assert executor("submit", "mytasks:square", "[5]", "--id", "five", "--detach").out == "d.five\n"
    assert executor("result", "d.five", "--timeout-s", "60").out == "25\n"
    (finished,) = executor("finished", "--json").json["tasks"]
    assert (finished["id"], finished["phase"], finished["function"]) == ("d.five", "done", "mytasks:square")
    assert "d.five" in executor("finished").out
    executor("forget").refused(2, "the ID of a task, or --finished")
    assert executor("forget", "--finished", "--older-than-s", "3600").out == "0 tasks forgotten\n"
    assert executor("forget", "five").out == "1 task forgotten\n"
    executor("forget", "five").refused(1, "no detached task 'five'")
    assert executor("submit", "mytasks:square", "[6]", "--id", "six", "--result-ttl-s", "60").out == "d.six\n"
    assert executor("result", "d.six", "--timeout-s", "60", "--forget").out == "36\n"
    assert executor("finished").out == "no finished tasks\n"
    executor("result", "d.five").refused(1, "no detached task 'd.five'")
    port = port_of(started)
    status, body = asked(port, "/healthz")
    assert (status, json.loads(body)["ok"], json.loads(body)["slots"]) == (200, True, 2)
    assert asked(port, "/readyz")[0] == 200
    assert 'latchwork_executor_done_total{name="default"} 5\n' in asked(port, "/metrics")[1]
    assert asked(port, "/other")[0] == 404
    (worker,) = executor("status", "--json").json["workers"]
    assert (worker["id"], worker["labels"]) == ("n1", {"zone": "a"})
    assert "mytasks:square" in worker["functions"]
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 0
    assert executor("status").out.startswith("default: 0 workers")


def test_a_task_that_runs_is_seen_and_cancelled_from_the_shell(executor, node, wait_until):
    started = node()
    made = executor("submit", "mytasks:sleep", "--json").json["id"]

    def seen():
        return [
            (each["id"], each["running_on"]) for each in executor("tasks", "--state", "running", "--json").json["tasks"]
        ]

    wait_until(lambda: seen() == [(made, ["n1"])], "it runs")
    assert "0 queued, 1 running" in executor("status").out
    executor("cancel", made).refused(1, "it is running", "--interrupt")
    assert executor("cancel", made, "--interrupt").out == f"{made}: canceled\n"
    executor("cancel", made).refused(1, "it is cancelled")
    executor("result", made).refused(1, "cancelled")
    assert executor("tasks").out == "no tasks\n"
    started.kill()


def test_dead_letters_are_listed_put_back_and_dropped(executor, store):
    assert executor("dead", "list").out == "no dead letters\n"
    assert executor("submit", "mytasks:square", "[2]", "--id", "two").code == 0
    (claim,) = WorkQueue(system_namespace(store, "executor"), "default/backlog").try_take(["any"])
    claim.move_to_dead_letters("its \x1b[31mnodes died")
    told = executor("dead", "list")
    assert "d.two.0" in told.out
    assert "\x1b" not in told.out
    assert executor("dead", "list", "--json").json["dead"][0]["function"] == "mytasks:square"
    assert executor("dead", "requeue", "d.two.0").out == "d.two: queued again\n"
    assert [each["id"] for each in executor("tasks", "--json").json["tasks"]] == ["d.two"]
    (claim,) = WorkQueue(system_namespace(store, "executor"), "default/backlog").try_take(["any"])
    claim.move_to_dead_letters("again")
    assert executor("dead", "drop", "d.two.0").out == "d.two.0: dropped\n"
    executor("dead", "drop", "d.two.0").refused(1, "no dead letter")


def test_a_task_that_ends_late_is_cancelled_by_who_waits_for_it(executor, store):
    executor("submit", "mytasks:square", "[2]", "--wait", "--timeout-s", "0.5").refused(1, "within 0.5 s", "canceled")
    assert executor("tasks").out == "no tasks\n"


def test_who_waits_at_a_terminal_sees_what_the_task_does_and_a_pipe_gets_the_value_alone(cli, executor, node):
    node()
    ours, theirs = pty.openpty()
    command = [cli.program, "executor", "submit", "mytasks:sleep", "--wait", "--timeout-s", "20", "--url", URL]
    waits = subprocess.Popen(command, cwd=cli.folder, env=cli.env(), stdout=subprocess.PIPE, stderr=theirs)
    shown = b""
    while b"mytasks:sleep running on n1" not in shown and waits.poll() is None:
        shown += os.read(ours, 65536) if select.select([ours], [], [], 0.1)[0] else b""
    assert b"mytasks:sleep running on n1" in shown
    waits.send_signal(signal.SIGINT)
    said, _ = waits.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert (waits.returncode, said) == (130, b"")
    assert executor("tasks").out == "no tasks\n"


def test_what_a_task_does_is_told_in_a_line():
    assert progress_line("t", TaskState("queued")) == "t queued"
    state = TaskState("running", ("n1", "n2"), attempts=2, why="its node died")
    assert progress_line("t", state) == "t running on n1, n2, taken 2 times: its node died"
    state = TaskState("queued", attempts=2, failures=1, why="its node closed")
    assert progress_line("t", state) == "t queued, taken 2 times, failed 1 time: its node closed"


def test_what_cannot_be_done_with_tasks_is_one_line(executor, store):
    executor("submit", "mytasks:square", "12").refused(2, "neither a list nor an object")
    executor("submit", "mytasks:square", "[1").refused(2, "not JSON")
    executor("submit", "mytasks:square", '["x"]').refused(2, "square")
    executor("submit", "mytasks:square", "[1, 2]").refused(2, "square")
    executor("submit", "mytasks:none", "[1]").refused(2, "mytasks:none")
    executor("submit", "nowhere:square", "[1]").refused(2, "no module 'nowhere'")
    executor("submit", "square", "[1]").refused(2, "--import")
    executor("submit", "mytasks:square", "[1]", "--wait", "--id", "x").refused(2, "--id")
    executor("run").refused(2, "--import")
    executor("run", "--import", "mytasks", "--label", "x").refused(2, "--label 'x'")
    executor("cancel", "d.none").refused(1, "no task 'd.none'")
    executor("cancel", "none").refused(2, "not a task ID")
    with Executor(store, functions=Functions()):
        assert executor("status").code == 0
