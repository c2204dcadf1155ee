"""A shard's master: what it puts, takes in, takes back and cancels, and what it finds when it comes anew."""

import threading
import time

import pytest
import sqlalchemy as sa

from latchwork.types import Create
from latchwork_workflows.db import runs
from latchwork_workflows.db.tables import attempt, definition_version, shard
from latchwork_workflows.errors import NotOwner, StoreMismatch
from latchwork_workflows.installation import adopt_store, join_store
from latchwork_workflows.keys import format_attempt_key
from latchwork_workflows.master import store_reader
from latchwork_workflows.master.dispatcher import Dispatcher
from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow


def test_a_run_runs_to_its_end_in_the_order_of_its_tasks(stage):
    version = stage.apply(a_workflow())
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        a = hand.wait("a")
        stage.until_task(made, a="running")
        assert hand.take() == {}
        hand.end(a, outputs={"rows": 3})
        hand.end(hand.wait("b"))
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])
    assert stage.attempts() == [(1, "first", "success", "hand", None)] * 2
    assert stage.events(made) == ["begin", "success"]


def test_outputs_and_parameters_reach_the_tasks_behind(stage):
    tasks = {"a": [], "b": {"after": ["a"], "env": {"ROWS": "${a.rows}"}}}
    version = stage.apply(a_workflow(tasks=tasks, params={"day": "${logical_date}", "where": "here"}))
    hand = stage.hand()
    with stage.master():
        stage.start(version, params={"where": "there"}, schedule_time=86_400.0)
        hand.end(hand.wait("a"), outputs={"rows": 3})
        from_a = hand.spec(hand.wait("b"))
    assert from_a.values["a.rows"] == from_a.values["rows"] == 3
    assert from_a.values["day"] == "1970-01-01"
    assert from_a.values["where"] == "there"
    assert from_a.env == {"ROWS": "${a.rows}"}


def test_a_spec_too_large_for_its_item_has_a_key_of_its_own_which_goes_with_the_item(stage):
    version = stage.apply(a_workflow(tasks={"a": {"params": {"script": "# " + "x" * 50_000}}}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        claim = hand.wait("a")
        assert len(hand.spec(claim).params["script"]) == 50_002
        hand.end(claim)
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])


def test_a_task_that_nobody_can_be_given_fails_with_the_reason(stage):
    version = stage.apply(a_workflow(environment="lost"))
    with stage.master():
        made = stage.start(version)
        stage.until(made, "failure")
    ((_, _, outcome, _, error),) = stage.attempts()
    assert outcome == "fatal"
    assert "no environment 'lost'" in error


def test_a_result_that_nobody_could_have_written_ends_its_attempt_and_strange_keys_go(stage):
    version = stage.apply(a_workflow())
    hand = stage.hand()
    stage.store.put(f"{stage.keys.results_prefix(0)}/nonsense", b"x")
    stage.store.put(f"{stage.keys.results_prefix(0)}/999.1", b"x")
    with stage.master():
        made = stage.start(version)
        claim = hand.wait("a")
        row = stage.rows(made)["a"]
        claim.ack(ops=[Create(stage.keys.result_key(0, format_attempt_key(row, 1)), b"\xff")])
        stage.until(made, "failure")
        eventually(lambda: stage.store.list(stage.keys.results_prefix(0)) == [])
    assert any("cannot be read" in (error or "") for *_, error in stage.attempts())


def test_a_run_that_raises_fails_and_its_shard_goes_on(stage, monkeypatch):
    poisoned, healthy = stage.apply(a_workflow("poisoned")), stage.apply(a_workflow("healthy"))
    hand = stage.hand()
    with stage.master():
        sick, well = stage.start(poisoned), stage.start(healthy)
        found = {}
        eventually(lambda: found.update(hand.take_all()) or len(found) == 2)
    with stage.database.write() as connection:  # a version that this program cannot read
        mine = definition_version.c.code == poisoned.code
        connection.execute(sa.update(definition_version).where(mine).values(body='{"nonsense": 1}'))
    with stage.master():
        for claim in found.values():
            hand.end(claim)
        stage.until(sick, "failure")
        hand.end(hand.wait("b"))
        stage.until(well, "success")
    assert "error" in stage.events(sick)


def test_a_row_that_the_database_refuses_ends_its_run_and_not_its_shard(stage, monkeypatch):
    version = stage.apply(a_workflow())
    hand, save = stage.hand(), runs.save_run
    with stage.master():
        sick, well = stage.start(version), stage.start(version)
        found = {}
        eventually(lambda: found.update(hand.take_all()) or len(found) == 2)

        def refuse(connection, before, after, now, **more):
            if before.id == sick and more.get("outputs"):
                connection.execute(sa.text("INSERT INTO shard (id) VALUES (0)"))
            return save(connection, before, after, now, **more)

        monkeypatch.setattr(runs, "save_run", refuse)
        for claim in found.values():
            hand.end(claim, outputs={"rows": 1})
        stage.until(sick, "failure")
        stage.until_task(well, a="success")
        hand.end(hand.wait("b"))
        stage.until(well, "success")


# Crashes and doubts


def test_a_database_that_is_away_for_a_while_loses_nothing(stage, monkeypatch):
    version = stage.apply(a_workflow())
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        claim = hand.wait("a")
        stage.until_task(made, a="running")
        write = stage.cut_database(monkeypatch)
        hand.end(claim)
        assert stage.states(made)["a"] == "running"
        monkeypatch.setattr(stage.database, "write", write)
        hand.end(hand.wait("b"))
        stage.until(made, "success")


def test_a_commit_whose_answer_is_lost_is_read_again_and_done_once(stage, monkeypatch):
    version = stage.apply(a_workflow())
    hand = stage.hand()
    with stage.master():
        lost = stage.lose_answers(monkeypatch, every=3)
        made = stage.start(version)
        for name in ("a", "b"):
            hand.end(hand.wait(name))
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])
    assert lost
    assert stage.attempts() == [(1, "first", "success", "hand", None)] * 2


def test_a_run_whose_start_had_no_answer_is_found(stage, monkeypatch):
    version = stage.apply(a_workflow(tasks={"a": []}))
    hand = stage.hand()
    with stage.master():
        eventually(lambda: stage.owner() == "node")
        lost = stage.lose_answers(monkeypatch, every=1, limit=1)
        made = stage.start(version)
        assert lost
        hand.end(hand.wait("a"))
        stage.until(made, "success")
    assert stage.runs() == 1


def test_a_master_of_before_writes_nothing_once_another_has_the_shard(stage):
    version = stage.apply(a_workflow())
    with pytest.raises(NotOwner), stage.master() as zombie:
        made = stage.start(version)
        stage.until_task(made, a="submitted")
        with stage.database.write() as connection:
            connection.execute(sa.update(shard).values(token=2**60))
        stage.send("stop", made)
        eventually(lambda: stage.is_over(zombie))
    assert stage.state(made) == "running"
    assert len(stage.commands_open()) == 1


def test_a_store_that_knows_nothing_of_the_database_is_refused_until_it_is_adopted(stage):
    join_store(stage.database, stage.store, stage.keys)
    join_store(stage.database, stage.store, stage.keys)
    version = stage.apply(a_workflow())
    with stage.master():
        made = stage.start(version)
        stage.until_task(made, a="submitted")
    stage.store.delete_tree("default")
    with pytest.raises(StoreMismatch, match="emptied"):
        join_store(stage.database, stage.store, stage.keys)
    stage.store.put(stage.keys.id, b"another")
    with pytest.raises(StoreMismatch, match="another database"):
        join_store(stage.database, stage.store, stage.keys)
    adopt_store(stage.database, stage.store, stage.keys)
    join_store(stage.database, stage.store, stage.keys)
    hand = stage.hand()
    with stage.master():
        hand.end(hand.wait("a"))
        hand.end(hand.wait("b"))
        stage.until(made, "success")


def test_a_database_from_before_is_refused_where_results_were_deleted_since(stage):
    stage.store.put(stage.keys.restore_mark_key(0), b"17")
    with pytest.raises(StoreMismatch, match="restored from a backup"), stage.master() as run:
        eventually(lambda: stage.is_over(run))


def test_a_store_from_before_is_refused(stage):
    with stage.database.write() as connection:
        connection.execute(sa.update(shard).values(token=2**60))
    with pytest.raises(StoreMismatch, match="store was restored"), stage.master() as run:
        eventually(lambda: stage.is_over(run))


def test_the_history_of_a_run_that_is_over_still_gets_its_late_results(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        claim = hand.wait("a")
        stage.until_task(made, a="running")
        hand.end(claim, Outcome.FAILURE)
        stage.until(made, "failure")
        eventually(lambda: stage.left() == [])
        row = stage.rows(made)["a"]
        stage.store.put(stage.keys.result_key(0, format_attempt_key(row, 1)), stage.result(claim=2**61))
        eventually(lambda: stage.count(attempt) == 2)
        eventually(lambda: stage.left() == [])
    assert stage.state(made) == "failure"


# What comes before what


def test_the_next_task_is_put_before_what_has_ended_is_tidied(stage, monkeypatch):
    version = stage.apply(a_workflow())
    hand, tidied, tidy = stage.hand(), threading.Event(), Dispatcher.delete_results

    def late(*args):
        tidied.wait(30.0)
        tidy(*args)

    monkeypatch.setattr(Dispatcher, "delete_results", late)
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"))
        claim = hand.wait("b")
        tidied.set()
        hand.end(claim)
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])


def test_a_claim_alone_is_written_a_moment_later_and_with_its_end_if_that_comes_first(stage, monkeypatch):
    version = stage.apply(a_workflow())
    hand = stage.hand()
    with stage.master():
        monkeypatch.setattr(store_reader, "CLAIMS_S", 60.0)
        made = stage.start(version)
        claim = hand.wait("a")
        time.sleep(0.5)
        assert stage.states(made)["a"] == "submitted"
        hand.end(claim)
        claim = hand.wait("b")
        monkeypatch.setattr(store_reader, "CLAIMS_S", 0.05)
        stage.poke()
        stage.until_task(made, b="running")
        hand.end(claim)
        stage.until(made, "success")
    assert stage.attempts() == [(1, "first", "success", "hand", None)] * 2
