"""Conditions, switches and maps on a real master: what goes on, what is left out, and what each item is."""

import threading
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.tables import task
from latchwork_workflows.master import dispatcher
from latchwork_workflows.model.master_tasks import choose_branch
from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow


def test_a_failure_that_conditions_look_at_leads_to_its_branch_and_is_none_of_the_run(stage, client):
    tasks = {
        "a": [],
        "check": {"type": "conditions", "params": {"success": ["good"], "failure": ["bad"]}, "after": ["a"]},
        "good": ["check"],
        "bad": ["check"],
    }
    version = stage.apply(a_workflow(tasks=tasks, on_failure="end"))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"), Outcome.FAILURE)
        bad = hand.wait("bad")
        assert "no branch that leads to it was chosen" in client.runs.explain(made).tasks["good"]
        hand.end(bad)
        stage.until(made, "success")
    assert stage.states(made) == {"a": "failure", "check": "success", "good": "skipped", "bad": "success"}


def test_a_switch_takes_the_first_case_that_is_true_of_parameters_and_outputs(stage):
    cases = [
        {"when": "a.rows > limit and len(files) > 1", "then": ["many"]},
        {"when": "rows > 0", "then": ["few"]},
    ]
    tasks = {
        "a": [],
        "s": {"type": "switch", "params": {"cases": cases, "default": ["none"]}, "after": ["a"]},
        **{name: ["s"] for name in ("many", "few", "none")},
        "join": ["many", "few", "none"],
    }
    version = stage.apply(a_workflow(tasks=tasks, params={"limit": 10}))
    hand = stage.hand()
    with stage.master():
        for rows, branch in ((11, "many"), (10, "few"), (0, "none")):
            made = stage.start(version)
            hand.end(hand.wait("a"), outputs={"rows": rows, "files": ["x", "y"]})
            hand.end(hand.wait(branch))
            hand.end(hand.wait("join"))
            stage.until(made, "success")
            assert sum(state == "skipped" for state in stage.states(made).values()) == 2


def test_an_expression_without_a_value_fails_its_switch_with_the_reason(stage):
    wrong = ["nobody > 1", "rows > 'x'", "1 / 0", "rows.__class__"]
    params = [{"cases": [{"when": each, "then": []}]} for each in wrong]
    tasks = {"a": [], **{f"s{i}": {"type": "switch", "params": each, "after": ["a"]} for i, each in enumerate(params)}}
    version = stage.apply(a_workflow(tasks=tasks))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"), outputs={"rows": 1})
        stage.until(made, "failure")
    found = [error for *_, outcome, _, error in stage.attempts() if outcome == "failure"]
    assert len(found) == len(wrong)
    assert all(each.startswith(f"task 's{i}', params.cases[0].when") for i, each in enumerate(sorted(found)))


def a_switch(when="rows > 10"):
    cases = [{"when": when, "then": ["many"]}]
    switch = {"type": "switch", "params": {"cases": cases, "default": ["few"]}, "after": ["a"]}
    return a_workflow(tasks={"a": [], "s": switch, "many": ["s"], "few": ["s"]})


def test_expressions_are_evaluated_while_no_transaction_is_open(stage, monkeypatch):
    def write():
        with stage.database.write() as connection:
            connection.execute(sa.update(task).values(n=task.c.n))

    def evaluate(*args):
        writer = threading.Thread(target=write)
        writer.start()
        writer.join(20.0)
        seen.append(not writer.is_alive())
        return choose_branch(*args)

    seen = []
    monkeypatch.setattr(dispatcher, "choose_branch", evaluate)
    version = stage.apply(a_switch("1 > 0"))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"), outputs={"rows": 11})
        hand.end(hand.wait("many"))
        stage.until(made, "success")
    assert seen == [True]


def test_a_switch_that_was_held_when_its_master_ended_is_decided_by_the_next_one(stage, monkeypatch):
    monkeypatch.setattr(dispatcher, "choose_branch", lambda *_: stage.refused())
    version = stage.apply(a_switch())
    hand = stage.hand()
    with stage.master(node="first"):
        made = stage.start(version)
        hand.end(hand.wait("a"), outputs={"rows": 11})
        stage.until_task(made, s="running")
    assert stage.states(made) == {"a": "success", "s": "running", "many": "waiting", "few": "waiting"}
    monkeypatch.setattr(dispatcher, "choose_branch", choose_branch)
    with stage.master(node="second"):
        hand.end(hand.wait("many"))
        stage.until(made, "success")
    assert stage.states(made)["few"] == "skipped"


@pytest.mark.parametrize("lost", [False, True])
def test_a_switch_is_decided_once_though_the_write_of_its_choice_fails(stage, monkeypatch, lost):
    evaluated = []

    def evaluate(*args):
        evaluated.append(1)
        if len(evaluated) == 1:
            fail_next_write()
        return choose_branch(*args)

    def fail_next_write():
        write = stage.database.write

        @contextmanager
        def once():
            monkeypatch.setattr(stage.database, "write", write)
            with write() as connection:
                yield connection
                if not lost:
                    raise DatabaseUnavailable("before the commit")
            raise DatabaseUnavailable("after the commit")

        monkeypatch.setattr(stage.database, "write", once)

    monkeypatch.setattr(dispatcher, "choose_branch", evaluate)
    version = stage.apply(a_switch())
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"), outputs={"rows": 11})
        hand.end(hand.wait("many"))
        stage.until(made, "success")
    assert len(evaluated) == (1 if lost else 2)


def test_a_switch_without_a_choice_pauses_and_is_decided_when_its_run_goes_on(stage, client, monkeypatch):
    monkeypatch.setattr(dispatcher, "choose_branch", lambda *_: stage.refused())
    version = stage.apply(a_switch())
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"), outputs={"rows": 11})
        stage.until_task(made, s="running")
        client.runs.pause(made)
        stage.until(made, "paused")
        monkeypatch.setattr(dispatcher, "choose_branch", choose_branch)
        client.runs.resume(made)
        hand.end(hand.wait("many"))
        stage.until(made, "success")


def a_map(items="${list.files}", **fields):
    task = {"map": items, "after": ["list"], "env": {"ONE": "${item}"}, **fields}
    return a_workflow(tasks={"list": [], "fan": task, "behind": ["fan"]})


def test_a_map_is_a_task_for_each_item_whose_outputs_are_lists_in_the_order_of_the_items(stage, client):
    version = stage.apply(a_map())
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("list"), outputs={"files": ["x", "y", {"z": 1}]})
        found = hand.wait("fan[0]", "fan[1]", "fan[2]")
        specs = [hand.spec(found[f"fan[{each}]"]).values for each in range(3)]
        assert [each["item"] for each in specs] == ["x", "y", {"z": 1}]
        assert [each["map_index"] for each in specs] == [0, 1, 2]
        assert specs[2]["item.z"] == 1
        assert "files" not in specs[0]  # each of a thousand would have the list of all
        for index in (2, 0, 1):
            hand.end(found[f"fan[{index}]"], outputs={"rows": index} if index else {})
        behind = hand.wait("behind")
        assert hand.spec(behind).values["rows"] == [None, 1, 2]
        hand.end(behind)
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])
    assert list(client.runs.get(made).task_states) == ["list", "fan", "behind", "fan[0]", "fan[1]", "fan[2]"]


def test_a_map_goes_on_where_a_master_that_died_left_it_and_recovers_only_the_item_that_failed(stage, client):
    version = stage.apply(a_map())
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("list"), outputs={"files": ["x", "y"]})
        found = hand.wait("fan[0]", "fan[1]")
        stage.until_task(made, **{"fan[0]": "running"})
    with stage.master():
        hand.end(found["fan[0]"], outputs={"rows": 1})
        hand.end(found["fan[1]"], Outcome.FAILURE)
        stage.until(made, "failure")
        assert "1 of 2 items is done, 1 failed, 'fan[1]' first" in client.runs.explain(made).tasks["fan"]
        stage.send("recover", made)
        hand.end(hand.wait("fan[1]"), outputs={"rows": 2})
        behind = hand.wait("behind")
        assert hand.spec(behind).values["rows"] == [1, 2]


def test_no_more_items_run_at_a_time_than_the_map_says_and_none_is_a_map_that_is_done(stage):
    version = stage.apply(a_map(map_parallel=2))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("list"), outputs={"files": list("abcd")})
        found = hand.wait("fan[0]", "fan[1]")
        stage.until_task(made, **{"fan[0]": "running", "fan[1]": "running", "fan[2]": "ready"})
        hand.end(found["fan[1]"])
        hand.end(hand.wait("fan[2]"))
        empty = stage.start(version)
        hand.end(hand.wait("fan[3]", "list")["list"], outputs={"files": []})
        hand.wait("behind")
        assert stage.states(empty)["fan"] == "success"


def test_items_that_are_no_list_or_too_many_fail_the_map_with_the_reason(stage):
    version = stage.apply(a_map())
    hand = stage.hand()
    with stage.master():
        for items, why in (("x", "must be a list, not 'x'"), (list(range(1001)), "1,001 items; a map has at most")):
            made = stage.start(version)
            hand.end(hand.wait("list"), outputs={"files": items})
            stage.until(made, "failure")
            assert any(why in (error or "") for *_, error in stage.attempts())


def test_a_map_of_sub_processes_has_a_child_for_each_item(stage):
    stage.apply(a_workflow("child", tasks={"inner": []}, params={"one": ""}))
    fan = {"type": "sub_process", "env": {}, "params": {"workflow": "child", "params": {"one": "${item}"}}}
    version = stage.apply(a_map(**fan))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("list"), outputs={"files": ["x", "y"]})
        found = {}
        eventually(lambda: found.update(hand.take_all()) or len(found) == 2)
        assert sorted(hand.spec(each).values["one"] for each in found.values()) == ["x", "y"]
        for each in found.values():
            hand.end(each, outputs={"got": hand.spec(each).values["one"]})
        assert hand.spec(hand.wait("behind")).values["got"] == ["x", "y"]
    assert stage.runs() == 3
    assert stage.states(made)["fan"] == "success"


def test_an_alarm_that_two_conditions_share_runs_when_one_of_them_chose_it(stage):
    looks = {"type": "conditions", "params": {"success": ["fine"], "failure": ["alarm"]}}
    tasks = {
        "a": [],
        "b": [],
        "check_a": {**looks, "after": ["a"]},
        "check_b": {**looks, "after": ["b"]},
        "fine": ["check_a", "check_b"],
        "alarm": ["check_a", "check_b"],
    }
    version = stage.apply(a_workflow(tasks=tasks))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        found = hand.wait("a", "b")
        hand.end(found["a"], Outcome.FAILURE)
        alarm = hand.wait("alarm")
    with stage.master():
        hand.end(found["b"], Outcome.FAILURE)
        hand.end(alarm)
        stage.until(made, "success")
    assert stage.states(made) | {"fine": "skipped", "alarm": "success"} == stage.states(made)


def test_a_recovered_map_waits_for_the_items_by_which_its_list_has_grown(stage):
    tasks = {"list": [], "fan": {"map": "${list.files}", "after": ["list"]}, "other": ["list"]}
    version = stage.apply(a_workflow(tasks=tasks))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("list"), outputs={"files": ["x"]})
        found = hand.wait("fan[0]", "other")
        stage.until_task(made, other="running")
        stage.send("stop", made)
        stage.until(made, "ready_stop")
        hand.end(found["fan[0]"])
        stage.until_task(made, fan="killed")
        hand.end(found["other"], Outcome.KILLED)
        stage.until(made, "stopped")
        with stage.database.write() as connection:
            grown = sa.update(task).where(task.c.run_id == made, task.c.name == "list")
            connection.execute(grown.values(outputs={"files": ["x", "y"]}))
    with stage.master():
        stage.send("recover", made)
        left = hand.wait("fan[1]", "other")
        hand.end(left["other"])
        stage.until_task(made, other="success")
        assert stage.states(made)["fan"] == "running"
        hand.end(left["fan[1]"])
        stage.until(made, "success")
