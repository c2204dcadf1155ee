"""An error that follows from one run ends that run, at whichever step of a turn it comes; the others go on."""

import importlib

import pytest
import sqlalchemy as sa

from latchwork.errors import Unavailable, ValueTooLarge
from latchwork_workflows.db import attempts, runs
from latchwork_workflows.db.commands import CommandType, send_command
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.schedules import ScheduleRow
from latchwork_workflows.db.tables import attempt, command, event, schedule, task
from latchwork_workflows.master.dispatcher import Dispatcher
from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow

MARK_S = 86_399.0
WRITING, PARCELS = "latchwork_workflows.master.writer", "latchwork_workflows.master.dispatcher"


class Fault:
    """Raises an error whenever a step is about one run, or so many times."""

    def __init__(self, monkeypatch, error, left=10**9):
        self.monkeypatch, self.error, self.left, self.hits = monkeypatch, error, left, 0

    def at(self, target, name, is_bad):
        owner = importlib.import_module(target) if isinstance(target, str) else target
        before = getattr(owner, name)

        def injected(*args, **kwargs):
            if self.left > self.hits and is_bad(*args):
                self.hits += 1
                raise self.error
            return before(*args, **kwargs)

        self.monkeypatch.setattr(owner, name, injected)


def on_advance(fault, bad, rows):
    fault.at(WRITING, "advance", lambda plan, *_: plan.timeout_s == MARK_S)


def on_write(fault, bad, rows):
    fault.at(runs, "save_run", lambda connection, before, *_: before.id == bad)


def on_history(fault, bad, rows):
    fault.at(attempts, "save_attempts", lambda connection, saved, *_: any(each.task in rows for each in saved))


def on_prepare(fault, bad, rows):
    fault.at(PARCELS, "build_message", lambda run, *_: run.run_id == bad)


def on_dispatch(fault, bad, rows):
    fault.at(Dispatcher, "_ops_of", lambda self, task_item: task_item.place.item.task in rows)


def two(stage):
    """A run that something will be wrong with, and another; their first tasks are taken by the worker."""
    bad, good = stage.apply(a_workflow("bad", timeout_s=MARK_S)), stage.apply(a_workflow("good"))
    return stage.start(bad), stage.start(good)


def taken(hand, *run_ids):
    """What the worker has of each of these runs."""
    found = {}

    def look():
        found.update({hand.spec(claim).head.run_id: claim for claim in hand.take_all().values()})
        return found.keys() == set(run_ids)

    eventually(look)
    return found


def reasons(stage, run_id):
    """What is told of why a run ended."""
    with stage.database.read() as connection:
        told = sa.select(event.c.details).where(event.c.run_id == run_id, event.c.kind == "error")
        found = [each["error"] for each in connection.execute(told).scalars()]
        of_run = sa.select(task.c.id).where(task.c.run_id == run_id)
        errors = sa.select(attempt.c.error).where(attempt.c.task.in_(of_run), attempt.c.error.is_not(None))
        return found + list(connection.execute(errors).scalars())


def ends(stage, hand, run_id, claim):
    """The run goes on to its end."""
    hand.end(claim)
    hand.end(taken(hand, run_id)[run_id])
    stage.until(run_id, "success")


@pytest.mark.parametrize(
    ("inject", "error"),
    [
        (on_advance, RecursionError("too deep")),
        (on_advance, UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")),
        (on_write, MemoryError("no room")),
        (on_write, sa.exc.DataError("INSERT", {}, ValueError("no room"))),
        (on_history, OverflowError("too large")),
        (on_prepare, MemoryError("no room")),
        (on_prepare, TypeError("no text")),
        (on_dispatch, ValueTooLarge("a value of 2 MB")),
        (on_dispatch, RecursionError("too deep")),
    ],
)
def test_an_error_of_one_run_ends_that_run_and_names_it_while_the_others_go_on(stage, monkeypatch, inject, error):
    hand = stage.hand()
    with stage.master(poll_s=0.1) as run_of_shard:
        bad, good = two(stage)
        claims = taken(hand, bad, good)
        stage.until_task(bad, a="running")
        inject(Fault(monkeypatch, error), bad, set(stage.rows(bad).values()))
        hand.end(claims[bad])
        ends(stage, hand, good, claims[good])
        stage.until(bad, "failure")
        third = stage.start(stage.apply(a_workflow("good")))
        ends(stage, hand, third, taken(hand, third)[third])
        iterations = run_of_shard.iterations
        eventually(lambda: stage.left() == [])
        assert run_of_shard.iterations < iterations + 200  # nothing is tried again and again
    assert any(type(error).__name__ in each or str(error) in each for each in reasons(stage, bad))


@pytest.mark.parametrize("inject", [on_advance, on_write, on_history, on_prepare, on_dispatch])
@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), Unavailable("the store is away")])
def test_an_error_of_database_or_store_ends_no_run(stage, monkeypatch, inject, error):
    hand = stage.hand()
    monkeypatch.setattr("latchwork_workflows.master.shard._AGAIN_S", 0.01)
    with stage.master(poll_s=0.1):
        bad, good = two(stage)
        claims = taken(hand, bad, good)
        stage.until_task(bad, a="running")
        fault = Fault(monkeypatch, error, left=3)
        inject(fault, bad, set(stage.rows(bad).values()))
        ends(stage, hand, bad, claims[bad])
        ends(stage, hand, good, claims[good])
    assert fault.hits == 3
    assert reasons(stage, bad) == []


def test_an_error_of_the_database_in_a_careful_turn_ends_no_run(stage, monkeypatch):
    """The turn is repeated run by run after one error, and the disk is full just then."""
    hand = stage.hand()
    monkeypatch.setattr("latchwork_workflows.master.shard._AGAIN_S", 0.01)
    with stage.master(poll_s=0.1):
        bad, good = two(stage)
        claims = taken(hand, bad, good)
        stage.until_task(bad, a="running")
        full = sa.exc.OperationalError("INSERT", {}, Exception("database or disk is full"))
        fault = Fault(monkeypatch, RuntimeError("a defect"), left=3)
        save = runs.save_run

        def injected(connection, before, *args, **kwargs):
            if before.id == bad and fault.hits < 3:
                fault.hits += 1
                raise fault.error if fault.hits == 1 else full
            return save(connection, before, *args, **kwargs)

        monkeypatch.setattr(runs, "save_run", injected)
        ends(stage, hand, bad, claims[bad])
        ends(stage, hand, good, claims[good])
    assert fault.hits == 3


def test_a_run_that_cannot_be_read_ends_when_a_master_takes_its_shard(stage):
    hand = stage.hand()
    with stage.master():
        bad, good = two(stage)
        claims = taken(hand, bad, good)
        stage.until_task(bad, a="running")
        stage.until_task(good, a="running")
    with stage.database.write() as connection:
        connection.execute(sa.update(task).where(task.c.run_id == bad, task.c.name == "b").values(state="nonsense"))
    with stage.master():
        ends(stage, hand, good, claims[good])
        eventually(lambda: "'nonsense' is not a valid TaskState" in "".join(reasons(stage, bad)))
        eventually(lambda: stage.is_cancelled(claims[bad]))
        hand.end(claims[bad], Outcome.KILLED)
        eventually(lambda: stage.left() == [])
    with stage.database.read() as connection:
        states = sa.select(task.c.name, task.c.state).where(task.c.run_id == bad)
        assert dict(list(connection.execute(states))) == {"a": "killed", "b": "killed"}


def test_a_child_that_cannot_be_read_fails_the_task_of_its_parent(stage):
    stage.apply(a_workflow("inner", tasks={"x": []}))
    sub = {"type": "sub_process", "params": {"workflow": "inner"}}
    version = stage.apply(a_workflow("outer", tasks={"s": sub}))
    hand = stage.hand()
    with stage.master():
        outer = stage.start(version)
        claim = hand.wait("x")
        inner = hand.spec(claim).head.run_id
        stage.until_task(inner, x="running")
    with stage.database.write() as connection:
        connection.execute(sa.update(task).where(task.c.run_id == inner).values(state="nonsense"))
    with stage.master():
        stage.until(outer, "failure")
    assert f"run {inner}, its child, is failure" in reasons(stage, outer)


def test_a_run_whose_tasks_cannot_be_taken_back_ends(stage, monkeypatch):
    hand = stage.hand()
    with stage.master(poll_s=0.1):
        bad, good = two(stage)
        claims = taken(hand, bad, good)
        stage.until_task(bad, a="running")
        ends(stage, hand, good, claims[good])
        hand.release(claims[bad])
        stage.until_task(bad, a="submitted")
        rows = set(stage.rows(bad).values())
        fault = Fault(monkeypatch, RuntimeError("a defect"))
        fault.at(
            Dispatcher, "withdraw_items", lambda self, places: any(each.item.task in rows for each in places.values())
        )
        stage.send("pause", bad)
        stage.until(bad, "failure")
    assert reasons(stage, bad) == [f"run {bad} cannot continue: RuntimeError: a defect"]


def test_a_run_whose_worker_cannot_be_looked_for_ends(stage, monkeypatch):
    first, second = stage.hand("first"), stage.hand("second")
    with stage.master(poll_s=0.1):
        bad, good = two(stage)
        taken(first, bad, good)
        stage.until_task(bad, a="running")
        stage.until_task(good, a="running")
        rows = set(stage.rows(bad).values())
        Fault(monkeypatch, RuntimeError("a defect")).at(
            Dispatcher, "did_worker_die", lambda self, place: place.item.task in rows
        )
        stage.lose(first)
        stage.until(bad, "failure")
        claims = {}
        eventually(
            lambda: (
                claims.update({second.spec(each).head.run_id: each for each in second.take_all().values()})
                or good in claims
            )
        )
        ends(stage, second, good, claims[good])
    assert reasons(stage, bad) == [f"run {bad} cannot continue: RuntimeError: a defect"]


def test_a_start_that_cannot_be_made_is_refused_and_leaves_no_run(stage, monkeypatch):
    bad, good = stage.apply(a_workflow("bad", timeout_s=MARK_S)), stage.apply(a_workflow("good"))
    hand = stage.hand()
    with stage.database.write() as connection:
        asked = [
            send_command(connection, CommandType.START, shard_id=0, args={"code": each.code, "version": 1}).id
            for each in (bad, good)
        ]
    fault = Fault(monkeypatch, OverflowError("too large"))
    fault.at(runs, "save_run", lambda connection, before, *_: before.code == bad.code)
    with stage.master():
        made = eventually(lambda: stage.command(asked[1]).run_id)
        ends(stage, hand, made, taken(hand, made)[made])
    assert "too large" in stage.command(asked[0]).error
    assert stage.runs() == 1


def test_a_schedule_that_cannot_be_computed_or_started_holds_up_no_other(stage, monkeypatch):
    at = 1_000_000_000.0
    every = {"cron": "* * * * *"}
    broken, refused, fine = (
        stage.apply(a_workflow(name, tasks={"a": []}, schedule=every)).code for name in ("broken", "refused", "fine")
    )
    with stage.database.write() as connection:
        connection.execute(sa.update(schedule).values(cursor=at))
    computed = Fault(monkeypatch, OverflowError("too large"))
    computed.at(ScheduleRow, "get_next_fire", lambda self, now: self.code == broken)
    started = Fault(monkeypatch, OverflowError("too large"))
    started.at(
        "latchwork_workflows.db.schedules", "start_scheduled_run", lambda connection, row, _: row.code == refused
    )
    with stage.master(now=lambda: at + 61, poll_s=0.02) as run:
        eventually(lambda: stage.runs() == 1)
        iterations = run.iterations
        eventually(lambda: run.iterations > iterations + 5)
    assert (computed.hits, started.hits) == (1, 2)  # undone, done again with care, and left out
    with stage.database.read() as connection:
        found = connection.execute(sa.select(command.c.args).where(command.c.type == "timer")).scalars().all()
    assert [each["code"] for each in found] == [fine]
