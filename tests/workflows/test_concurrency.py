"""How many runs of a workflow, and tasks of a project, go at a time; what a start does while there are as many."""

import pytest

from latchwork.types import Create
from latchwork_workflows import WrongState
from latchwork_workflows.db import pools
from latchwork_workflows.errors import BadRequest, NotFound
from latchwork_workflows.keys import build_partition, build_pool_key, get_workflows_store, list_pool_keys
from latchwork_workflows.state import RunState
from latchwork_workflows.state.concurrency import ActiveRun, StartDecision, decide_start
from latchwork_workflows.worker.pools import PoolSlots
from patience import eventually
from workflows.hands import a_workflow

#: Where the tasks of the project `default` wait while it has a pool.
LANES = ("default", "default~=default")
ONE, TWO, ENDS = (
    ActiveRun(number, 0, state)
    for number, state in enumerate((RunState.RUNNING, RunState.PAUSED, RunState.READY_STOP), 1)
)
WAITS = ActiveRun(9, 0, RunState.SERIAL_WAIT)


# Runs of a workflow


@pytest.mark.parametrize(
    ("policy", "others", "expected"),
    [
        ("parallel", [ONE], (StartDecision.RUN, ())),
        ("parallel", [ONE, TWO], (StartDecision.WAIT, ())),
        ("wait", [ONE, WAITS], (StartDecision.WAIT, ())),
        ("discard", [ONE, TWO], (StartDecision.DISCARD, ())),
        ("priority", [ONE, TWO], (StartDecision.WAIT, (ONE,))),
        ("priority", [ONE, ENDS], (StartDecision.WAIT, ())),
        ("priority", [ONE, TWO, WAITS], (StartDecision.WAIT, (ONE, WAITS))),
    ],
)
def test_what_becomes_of_a_start_of_a_workflow_of_which_two_runs_go(policy, others, expected):
    assert decide_start(policy, others, max_runs=2)[:2] == expected


def test_so_many_runs_go_at_a_time_and_the_next_when_one_has_ended(stage, client):
    stage.apply(a_workflow(tasks={"a": []}, max_runs=2))
    hand = stage.hand()
    with stage.master():
        runs = [client.runs.start("flow").id() for _ in range(4)]
        assert [stage.state(each) for each in runs] == ["running", "running", "serial_wait", "serial_wait"]
        for claim in hand.take_all().values():
            hand.end(claim)
        eventually(lambda: [stage.state(each) for each in runs[2:]] == ["running", "running"])
        with pytest.raises(WrongState, match="only 2 go at a time"):
            client.commands.wait(client.runs.rerun(runs[0]))


# Tasks of a project


def test_tasks_of_a_project_with_a_pool_need_a_slot_of_it_and_earlier_ones_do_not(stage, client):
    version = stage.apply(a_workflow(tasks={"a": [], "b": {"pool": "few"}}))
    hand = stage.hand()
    with stage.master():
        before = stage.start(version)
        client.pools.set("@default", 2)
        eventually(lambda: stage.store.get(stage.keys.pool_size_key("=default")))
        made = stage.start(version)
        eventually(lambda: len(stage.items()) == 4)
        lanes = sorted(each.split("/partitions/")[1].split("/")[0] for each in stage.items())
        assert lanes == ["default", "default~=default", "default~few", "default~few~=default"]
        assert client.pools.list()[0].model_dump() == {
            "name": "@default",
            "size": 2,
            "admission": "suspend",
            "used": 0,
            "waiting": 2,
            "active": 4,
            "workflows": [],
        }
        client.commands.wait(client.tasks.force_start(stage.rows(made)["b"]))  # which needs no slot
        eventually(lambda: hand.backlog.size("default") == 2)
        client.pools.remove("@default")
        eventually(lambda: stage.store.get(stage.keys.pool_size_key("=default")).value == b"10000")
        assert stage.state(before) == stage.state(made) == "running"


def test_a_task_of_two_pools_takes_a_slot_of_each_or_none(store):
    from latchwork_workflows.keys import Keys

    keys = Keys()
    store = get_workflows_store(store)
    store.put(keys.pool_size_key("few"), b"2")
    store.put(keys.pool_size_key("=p"), b"1")
    session = store.open_session(10.0)
    slots = PoolSlots(store, keys, ["default"], lambda: None, session)
    slots.start_watching(5.0)
    eventually(lambda: len(slots.list_available_partitions()) == 4)
    checks, ops = slots.reserve_slots("default~few~=p", "1.1")
    assert len(checks) == 2
    assert {each.key for each in ops if isinstance(each, Create)} == {keys.slot_key("few", 0), keys.slot_key("=p", 0)}
    store.commit(checks, ops)
    slots.confirm_slots("1.1")
    eventually(lambda: sorted(slots.list_available_partitions()) == ["default", "default~few"])
    assert slots.reserve_slots("default~few~=p", "2.1") is None
    assert slots.reserve_slots("default~=p", "2.1") is None
    assert slots.reserve_slots("default~few", "2.1") is not None
    store.commit([], slots.build_release_ops("1.1"))
    slots.forget_slots("1.1")
    eventually(lambda: "default~=p" in slots.list_available_partitions())
    slots.close()
    session.close()


def test_a_lane_names_what_a_task_of_it_needs():
    assert build_partition("w", "g", "@p") == "w~g~=p"
    assert list_pool_keys("w~g~=p") == ("g", "=p")
    assert list_pool_keys("w") == ()
    assert len(build_pool_key("@" + "p" * 100)) == 33


def test_a_start_is_refused_while_its_project_has_as_many_tasks_as_it_may(stage, client):
    stage.apply(a_workflow(tasks={"a": []}))
    client.pools.set("@default", 1, "fail")
    hand = stage.hand()
    with stage.master():
        first = client.runs.start("flow").id()
        with pytest.raises(
            WrongState, match="project default has 1 tasks queued or running, and its pool @default has a size of 1"
        ):
            client.runs.start("flow").id()
        hand.end(hand.wait("a", lanes=LANES))
        stage.until(first, "success")
        assert stage.state(client.runs.start("flow").id()) == "running"


def test_a_start_that_is_refused_for_its_project_ends_no_other(stage, client):
    stage.apply(a_workflow(tasks={"a": []}, serial="priority"))
    client.pools.set("@default", 1, "fail")
    with stage.master():
        first = client.runs.start("flow").id()
        with pytest.raises(WrongState, match="so starts are refused"):
            client.runs.start("flow").id()
        assert stage.state(first) == "running"
        assert not stage.commands_open()


def test_a_run_waits_until_its_tasks_fit_into_its_project(stage, client):
    stage.apply(a_workflow(tasks={"a": []}))
    stage.apply(a_workflow("wide", tasks={"x": [], "y": [], "last": ["x", "y"]}))
    client.pools.set("@default", 2, "precompute")
    hand = stage.hand()
    with stage.master(poll_s=0.2):
        first = client.runs.start("flow").id()
        wide = client.runs.start("wide").id()  # two side by side, and there is room for one
        assert stage.state(wide) == "serial_wait"
        assert "waits for the concurrency limit" in client.runs.explain(wide).tasks["x"]
        assert stage.state(client.runs.start("flow").id()) == "running"
        for _ in range(2):
            hand.end(eventually(lambda: hand.take(limit=1, lanes=LANES).get("a")))
        stage.until(first, "success")
        stage.until(wide, "running")


def test_active_tasks_are_counted_per_project(stage, client):
    stage.apply(a_workflow(tasks={"a": [], "b": ["a"]}))
    other = stage.apply(a_workflow("flow", tasks={"a": []}, project="other"))
    with stage.master():
        client.runs.start("flow").id()
        stage.start(other)
    with stage.database.read() as connection:
        assert pools.count_active_tasks(connection, "default") == 1


@pytest.mark.parametrize(("limit", "admission"), [(0, "suspend"), (10_001, "suspend"), (1, "maybe")])
def test_an_invalid_pool_of_a_project_is_refused(client, limit, admission):
    with pytest.raises(BadRequest):
        client.pools.set("@default", limit, admission)
    with pytest.raises(NotFound, match="there is no pool '@default'"):
        client.pools.remove("@default")


def test_only_the_pool_of_a_project_can_refuse_runs(client):
    with pytest.raises(BadRequest, match="only the pool of a project, such as @billing"):
        client.pools.set("few", 2, "fail")
    assert client.pools.list() == []
