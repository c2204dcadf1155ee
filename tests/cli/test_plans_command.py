"""`latchwork plans`, on a real store."""

from __future__ import annotations

import json
import signal

import pytest

import latchwork
from latchwork.plans import NoSuchPlan, Plans, PlanState
from latchwork.store import system_namespace
from latchwork.tasks import Functions

URL = "sqlite:///plans.db"
MODULE = """
from latchwork.tasks import task

@task(name="double")
def double(n: int) -> int:
    return 2 * n

@task(name="fails")
def fails(*_: object) -> int:
    raise ValueError("no such \\x1b[31mday")
"""
FUNCTIONS = Functions()


@FUNCTIONS.task(name="double")
def double(n: int) -> int:
    return 2 * n


@FUNCTIONS.task(name="fails")
def fails(*_: object) -> int:
    raise ValueError


@pytest.fixture
def store(cli):
    with latchwork.connect(f"sqlite:///{cli.folder}/plans.db") as opened:
        yield opened


@pytest.fixture
def command(cli, store):
    return lambda *args, **extra: cli("plans", *args, "--url", URL, **extra)


@pytest.fixture
def made(store):
    """A plan that has not run: two tasks in a row, and one that fails."""
    with Plans(store, functions=FUNCTIONS).new("week 47", id="w47", on_failure="continue") as plan:
        plan.add(double, plan.add(double, 4, name="first"), name="second")
        plan.add(fails, name="bad")
    return plan.handle


def test_a_plan_is_shown_with_what_waits_for_what(command, made):
    assert made.state() is PlanState.READY
    told = command("show", "w47")
    assert told.code == 0
    assert "w47 'week 47': ready, started " in told.out
    assert "tasks: 3 waiting" in told.out
    assert "waiting second: for first\n" in told.out
    assert command("show", "w47", "--json").json["waiting"] == {"bad": [], "first": [], "second": ["first"]}
    listed = command("list", "--json").json["plans"]
    assert [(each["plan"], each["name"], each["state"], each["tasks"]) for each in listed] == [
        ("w47", "week 47", "ready", 3)
    ]
    assert "week 47" in command("list").out
    assert command("list", "--state", "failed").out == "no plans that are failed\n"


def test_a_worker_runs_a_plan_and_ends_with_0_when_it_is_told_to(cli, command, made):
    (cli.folder / "days.py").write_text(MODULE)
    started = cli.start("plans", "worker", "--import", "days", "--slots", "2", "--url", URL)
    watched = command("show", "w47", "--watch", "--interval-s", "0.1", "--json")
    assert made.wait(30.0).state is PlanState.FAILED
    assert json.loads(watched.out.splitlines()[-1])["tasks"]["done"] == 2
    assert command("result", "w47", "second").out == "16\n"
    assert command("result", "w47", "second", "--json").json == {"plan": "w47", "task": "second", "result": 16}
    command("result", "w47", "bad").refused(1, "task bad failed", "no such")
    shown = command("show", "w47").out
    assert "failed bad: " in shown
    assert "\x1b" not in shown
    assert command("recover", "w47", "--json").json == {"plan": "w47", "state": "recovering"}
    assert made.wait(30.0) is not None
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == 0


@pytest.mark.parametrize(("form", "begins"), [("mermaid", "flowchart"), ("dot", "digraph"), ("svg", "<svg")])
def test_the_graph_of_a_plan_is_written(command, made, form, begins):
    told = command("graph", made.id, "--form", form)
    assert (told.code, told.out.startswith(begins)) == (0, True)
    assert "second" in told.out


def test_a_plan_is_cancelled_by_whoever_works_and_removed_without_a_worker(command, made):
    assert command("cancel", "w47").out == "w47: canceling\n"
    assert made.state() is PlanState.CANCELLING
    command("recover", "w47").refused(1, "w47", "cancelling")
    assert command("rm", "w47").out == "w47: removed\n"
    with pytest.raises(NoSuchPlan):
        made.state()


def test_a_sweep_says_how_many_plans_it_concerned(command, store):
    system_namespace(store, "plans").create("default/tasks/gone/t00000", b"{}")
    assert command("sweep").out == "swept 1 plan\n"
    assert command("sweep", "--json").json == {"plans": 0}


@pytest.mark.parametrize("what", [("show",), ("cancel",), ("recover",), ("rm",), ("graph",), ("show", "-w")])
def test_a_plan_that_is_not_there_is_a_usage_error(command, what):
    command(what[0], "nope", *what[1:]).refused(2, "there is no plan 'nope'")


def test_a_task_that_is_not_there_and_one_that_has_not_ended_are_told_apart(command, made):
    command("result", made.id, "third").refused(2, "no task 'third'")
    command("result", made.id, "first").refused(1, "has not ended")


def test_a_worker_says_what_it_cannot_import(cli):
    (cli.folder / "empty.py").write_text("")
    cli("plans", "worker", "--import", "nothing", "--url", URL).refused(2, "there is no module 'nothing'")
    cli("plans", "worker", "--import", "empty", "--url", URL).refused(2, "empty has no @task functions")


def test_a_plan_whose_record_is_damaged_is_removed(command, store, made):
    system_namespace(store, "plans").put("default/plans/w47", b"no record")
    command("show", "w47").refused(2, "the record of plan 'w47' is damaged; remove the plan")
    assert command("rm", "w47").out == "w47: removed\n"
    command("show", "w47").refused(2, "there is no plan 'w47'")
