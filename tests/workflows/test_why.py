"""Why a task or a run is where it is: each reason, and who of several is named."""

import re

import pytest

from latchwork.primitives import Group
from latchwork.types import Create
from latchwork_workflows import cluster
from latchwork_workflows.explain import (
    FullPool,
    GroupWorkers,
    QueuePosition,
    RunFacts,
    TaskFacts,
    explain_run,
    explain_task,
    find_failed_upstream_tasks,
)
from latchwork_workflows.keys import ItemName
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.services import explanations
from latchwork_workflows.state import Outcome, RunState, TaskState
from latchwork_workflows.types import TaskTypes
from patience import eventually
from workflows.hands import a_workflow

FLOW = a_workflow(tasks={"a": [], "b": ["a"], "c": ["b"], "d": {"pool": "few"}}).definition
RUNS = RunState.RUNNING
CREW = GroupWorkers(2, 2, 8, 3)
FULL = FullPool("few", 2, ("'x' of run 1", "'y' of run 2"))


def known(state, run_id=RUNS, **more):
    return TaskFacts(
        state, more.pop("n", 1), more.pop("failures", 0), None, run_id, more.pop("task_states", {}), "m", **more
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (known(TaskState.RUNNING, worker="w-1"), "It is running, attempt 1, on worker w-1."),
        (known(TaskState.RUNNING), "It is running, attempt 1."),
        (
            known(TaskState.FAILURE, failures=1),
            "It failed after 1 of 1 attempt. Recover the run, or mark the task as successful.",
        ),
        (
            known(TaskState.FAILURE, failures=1, error="\nno space\nleft"),
            "1 of 1 attempt: no space. Rec",
        ),
        (known(TaskState.FAILURE, failures=1, error="x" * 900), f"attempt: {'x' * 300}... Recover"),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(0, 0, 0, 0)),
            "the worker group 'default', which has no worker: start one",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(1, 0, 4, 0)),
            "whose worker does not support the task type 'shell'",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(2, 0, 4, 0)),
            "none of whose 2 workers supports the task type 'shell'",
        ),
        (known(TaskState.SUBMITTED, group_workers=CREW), "it waits for a worker of the group 'default'."),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(2, 2, 8, 3, 1)),
            "it waits for a worker of the group 'default'.",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(1, 1, 4, 0, 1)),
            "whose worker runs no tasks without a tenant: set a `tenant` of the workflow that they list",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(2, 2, 8, 8)),
            "all 8 slots of the 2 workers of the group 'default' are busy",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(1, 1, 1, 1)),
            "the slot of the 1 worker of the group 'default' is busy",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=CREW, full_pools=[FULL]),
            "all 2 slots of the pool 'few' are in use by 'x' of run 1",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=CREW, full_pools=[FullPool("@p", 1, ())]),
            "the one slot of the pool '@p' is in use.",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=CREW, ahead=QueuePosition(0)),
            "It is next in the queue; it waits for",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(1, 1, 1, 1), ahead=QueuePosition(1)),
            "It is queued behind 1 task; the slot of",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=CREW, full_pools=[FULL], ahead=QueuePosition(200, is_more=True)),
            "It is queued behind more than 200 tasks; all 2 slots of the pool 'few'",
        ),
        (
            known(TaskState.SUBMITTED, group_workers=GroupWorkers(0, 0, 0, 0), ahead=QueuePosition(5)),
            "queued for the worker group 'default', wh",
        ),
        (
            known(TaskState.RUNNING, RunState.READY_STOP, worker="w-1", cancel_sent_at=88.0),
            "It is being stopped, attempt 1: a cancel request was sent to worker w-1 12 s ago.",
        ),
        (known(TaskState.RUNNING, cancel_sent_at=0.0), "attempt 1: a cancel request was sent to its worker."),
        (
            known(TaskState.SUBMITTED, group_workers=CREW, cancel_sent_at=90.0),
            "It was canceled 10 s ago: no worker claims it",
        ),
        (known(TaskState.SUCCESS, cancel_sent_at=90.0), "It has succeeded."),
    ],
)
def test_a_task_says_what_holds_it_up_and_what_would_change_that(given, said):
    assert said in explain_task("a", given, FLOW, 100.0)


def test_a_tenant_that_no_worker_lists_is_named_with_what_to_start():
    flow = a_workflow(tasks={"a": []}, tenant="etl").definition
    told = explain_task("a", known(TaskState.SUBMITTED, group_workers=GroupWorkers(3, 2, 8, 0, 2)), flow, 0.0)
    assert told == (
        "It is queued for the worker group 'default', whose 2 workers run no tasks as the user 'etl': start a worker "
        "there as root with --group default --tenants etl."
    )


def test_workers_are_asked_for_the_tenant_of_the_workflow(stage, client):
    stage.hand()
    labels = {"groups": "default", "slots": "2", "types": "shell", "tenants": "web,-"}
    session = stage.hands[0].session
    with stage.master(), Group(stage.store, stage.keys.workers, member_id="w-1", labels=labels, session=session):
        flows = {each: a_workflow(f"flow-{each}", tasks={"a": []}, tenant=each) for each in ("etl", "web", None)}
        runs = {each: stage.start(stage.apply(flow)) for each, flow in flows.items()}
        eventually(lambda: len(stage.items()) == 3)
        told = {each: client.runs.explain(run).tasks["a"] for each, run in runs.items()}
    assert "runs no tasks as the user 'etl'" in told["etl"]
    assert all("waits for a worker of the group" in told[each] for each in ("web", None))


def test_a_task_far_behind_a_failure_names_it():
    states = {"a": TaskState.FAILURE, "b": TaskState.WAITING, "c": TaskState.WAITING, "d": TaskState.SUCCESS}
    assert find_failed_upstream_tasks(FLOW, states) == {"b": "a", "c": "a"}
    assert find_failed_upstream_tasks(FLOW, {**states, "c": TaskState.SKIPPED}) == {"b": "a"}
    assert find_failed_upstream_tasks(FLOW, {**states, "a": TaskState.SUCCESS}) == {}
    told = explain_task("c", known(TaskState.WAITING, task_states=states, failed_upstream="a"), FLOW, 0.0)
    assert told == "It waits for 'b', behind 'a', which failed: recover the run."
    near = explain_task("b", known(TaskState.WAITING, task_states=states, failed_upstream="a"), FLOW, 0.0)
    assert near == "It waits for 'a', which failed: it starts only if the run is recovered."


def test_who_is_to_blame_is_found_in_a_moment_also_in_a_large_workflow():
    names = [f"t{number}" for number in range(2000)]
    rows = [{"name": each, "type": "noop", "after": names[max(0, at - 20) : at]} for at, each in enumerate(names)]
    large = check_definition({"name": "large", "tasks": rows}, TaskTypes()).definition
    states = dict.fromkeys(names, TaskState.WAITING) | {"t0": TaskState.FAILURE, "t1": TaskState.FAILURE}
    found = find_failed_upstream_tasks(large, states)
    assert found["t1999"] == "t0"
    assert len(found) == 1998


ONE, GOES = {"a": TaskState.RUNNING}, RunFacts(owner="m")


@pytest.mark.parametrize(
    ("state", "tasks", "held", "around", "expected"),
    [
        (RunState.SUBMITTED, {}, (), RunFacts(), [("", "No master owns its shard yet: start one.")]),
        (RunState.SUBMITTED, {}, (), GOES, [("", "Its master has not started it yet.")]),
        (RunState.SUBMITTED, {}, (), RunFacts(backfill=3), [("", "It belongs to backfill 3, whose earlier dates")]),
        (RunState.SERIAL_WAIT, {}, (), RunFacts((4,)), [("", "run 4 of its workflow is active.")]),
        (
            RunState.SERIAL_WAIT,
            {},
            (),
            RunFacts((4, 5, 6, 7)),
            [("", "runs 4, 5, 6 and 1 more of its workflow are active.")],
        ),
        (RunState.SERIAL_WAIT, {}, (), RunFacts(), [("", "the pool of its project has room")]),
        (RunState.PAUSED, ONE, (), GOES, [("", "It is paused: resume or stop it.")]),
        (RunState.READY_PAUSE, ONE, (), GOES, [("", "It pauses when 'a' has ended; no more tasks start.")]),
        (RunState.READY_STOP, {}, (), GOES, [("", "It stops; no more tasks start.")]),
        (RUNS, {**ONE, "b": TaskState.RETRY_WAIT}, (), GOES, []),
        (RUNS, {**ONE, "b": TaskState.RETRY_WAIT}, ("a",), GOES, [("a", "why a"), ("b", "why b")]),
        (RunState.FAILURE, {"a": TaskState.SUCCESS, "b": TaskState.FAILURE}, (), GOES, [("b", "why b")]),
        (RunState.SUCCESS, {"a": TaskState.SUCCESS}, (), GOES, []),
    ],
)
def test_a_run_says_why_it_does_not_go_on_or_why_it_failed(state, tasks, held, around, expected):
    found = explain_run(state, tasks, frozenset(held), {name: f"why {name}" for name in tasks}, around)
    assert [each.task for each in found] == [task for task, _ in expected]
    assert all(text in each.text for each, (_, text) in zip(found, expected, strict=True))


def test_of_many_failed_tasks_some_are_named_and_the_others_counted():
    states = {f"t{number}": TaskState.FAILURE for number in range(9)}
    found = explain_run(RunState.FAILURE, states, frozenset(), dict.fromkeys(states, "it failed"), GOES)
    assert [each.task for each in found] == ["t0", "t1", "t2", ""]
    assert "to 6 more tasks" in found[-1].text


def test_a_failed_run_says_by_which_task_and_with_which_error_it_failed(stage, client):
    hand = stage.hand()
    with stage.master():
        made = stage.start(stage.apply(a_workflow(tasks={"a": [], "b": ["a"], "c": ["b"]})))
        eventually(lambda: client.runs.explain(made).cause)
        assert client.runs.explain(made).cause[0].task == "a"  # queued, and nothing is at work
        hand.end(hand.wait("a"), Outcome.FAILURE, error="exit code 3: no such table")
        stage.until(made, "failure")
    explained = client.runs.explain(made)
    cause, tasks = explained.cause, explained.tasks
    assert [each.task for each in cause] == ["a"]
    assert "1 of 1 attempt: exit code 3: no such table. Recover" in cause[0].why
    assert tasks["c"] == "It waits for 'b', behind 'a', which failed: recover the run."
    assert client.runs.explain(made).tasks == tasks


def a_worker(stage):
    """One that lives, of two slots; nothing is taken by it."""
    labels = {"groups": "default", "slots": "2", "types": "shell"}
    return Group(stage.store, stage.keys.workers, member_id="w-1", labels=labels, session=stage.hands[0].session)


def test_queued_tasks_say_how_many_are_before_them_and_no_more_than_some_hundred_are_counted(
    stage, client, monkeypatch
):
    hand = stage.hand()
    with stage.master(), a_worker(stage):
        low = stage.start(stage.apply(a_workflow("low", tasks={"a": [], "b": [], "c": []}, priority="low")))
        high = stage.start(stage.apply(a_workflow("high", tasks={"x": [], "y": []}, priority="high")))
        eventually(lambda: len(stage.items()) == 5)
        told = {**client.runs.explain(high).tasks, **client.runs.explain(low).tasks}
        place = ["next in the queue;", *(f"behind {n} task{'s' if n > 1 else ''};" for n in range(1, 5))]
        assert all(each in told[name] for name, each in zip("xyabc", place, strict=True)), told
        hand.take(limit=1)
        eventually(
            lambda: "next in the queue" in client.runs.explain(high).tasks["y"]
        )  # what is taken is before nobody
        monkeypatch.setattr(explanations, "MAX_AHEAD", 2)
        told = client.runs.explain(low).tasks
        assert ("behind 1 task;" in told["a"], "behind 2 tasks;" in told["b"]) == (True, True)
        assert "It is queued behind more than 2 tasks;" in told["c"]
        hand.take(limit=2)
        monkeypatch.setattr(cluster, "_MAX_TAKEN", 1)
        assert "It is queued; it waits" in client.runs.explain(low).tasks["c"]  # too many are taken to say


def test_a_task_that_is_being_ended_says_that_its_cancel_was_sent_when_and_to_whom(stage, client):
    hand = stage.hand("w-7")
    with stage.master():
        run = stage.start(stage.apply(a_workflow(tasks={"a": []})))
        claim = hand.wait("a")
        stage.until_task(run, a=TaskState.RUNNING)
        assert client.runs.explain(run).tasks["a"] == "It is running, attempt 1, on worker w-7."
        stage.send("stop", run)
        eventually(lambda: stage.is_cancelled(claim))
        wanted = r"It is being stopped, attempt 1: a cancel request was sent to worker w-7 \d s ago\."
        assert re.fullmatch(wanted, client.runs.explain(run).tasks["a"])
        key = stage.keys.cancel_key(ItemName.parse(claim.item.id).attempt_key)
        stage.store.put(key, b"\xff{nonsense")
        assert (
            client.runs.explain(run).tasks["a"]
            == "It is being stopped, attempt 1: a cancel request was sent to worker w-7."
        )
        hand.end(claim, Outcome.KILLED)
        stage.until(run, "stopped")


def test_who_has_the_slots_of_a_group_and_who_is_next_is_seen(stage, client):
    tasks = {f"t{number}": {"pool": "few"} for number in range(4)}
    low = stage.apply(a_workflow("low", tasks=tasks, priority="low"))
    high = stage.apply(a_workflow("high", tasks={"x": {"pool": "few"}, "free": []}, priority="high"))
    client.pools.set("few", 1)
    hand = stage.hand()
    with stage.master():
        first = stage.start(low)
        got = {}
        eventually(lambda: got.update(hand.take(lanes=["default~few"], limit=1)) or got)
        rows = stage.rows(first)
        (name,) = got
        stage.store.commit(
            [], [Create(stage.keys.slot_key("few", 0), f"{rows[name]}.1".encode(), session=hand.session)]
        )
        second = stage.start(high)
        eventually(lambda: client.pools.get("few").waiting == 4)
        eventually(lambda: stage.known(first).tasks[name].state is TaskState.RUNNING)
        found = client.pools.get("few")
        assert (found.size, found.used, found.waiting) == (1, 1, 4)
        assert found.workflows == ["default.high", "default.low"]
        assert [(each.name, each.run, each.workflow, each.worker) for each in found.holders] == [
            (name, first, "default.low", "hand")
        ]
        assert next(each.name for each in found.queue) == "x"  # of a run that comes first
        assert [each.run for each in found.queue] == [second, first, first, first]
        first_two = client.pools.get("few", limit=2)
        assert (first_two.queue, first_two.waiting) == (found.queue[:2], 4)
        assert client.pools.list()[0].model_dump() == found.model_dump(exclude={"holders", "queue"})
        told = client.runs.explain(second).tasks
        assert "has no worker" in told["x"]  # which is said first: a free slot would be of no use
        stage.store.put(stage.keys.slot_key("few", 7), b"nonsense")
        holders = client.pools.get("few").holders
        assert [each.name for each in holders] == [name, ""]  # nobody of ours took that one
