"""Outputs that are known already: whose they may be, and when they are not what a task would put out."""

from datetime import date

import pytest
import sqlalchemy as sa

from latchwork_workflows.db import result_cache as result_cache_db
from latchwork_workflows.db.tables import parameter, result_cache, workflow_run
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.master.cleanup import Cleanup
from latchwork_workflows.model.cache_key import compute_cache_key
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.model.values import RunContext
from latchwork_workflows.state import Outcome
from latchwork_workflows.types import TaskTypes
from patience import eventually
from workflows.hands import a_workflow


@pytest.fixture
def clock():
    return [1_000.0]


@pytest.fixture
def flow(stage):
    """One that is cached, and one behind it that is not."""
    tasks = {"a": {"cache_s": 100}, "b": ["a"]}
    return stage.apply(a_workflow(tasks=tasks, params={"day": "monday"}))


def first_run(stage, hand, flow, **args):
    made = stage.start(flow, **args)
    hand.end(hand.wait("a"), outputs={"rows": 7})
    hand.end(hand.wait("b"))
    stage.until(made, "success")
    return made


def test_a_task_whose_outputs_are_known_has_them_without_a_worker_and_says_of_which_run(stage, client, flow):
    hand = stage.hand()
    with stage.master():
        before = first_run(stage, hand, flow)
        made = stage.start(flow)
        assert stage.states(made)["a"] == "success"  # in the transaction that made it
        b = hand.wait("b")
        assert hand.spec(b).values["rows"] == 7
        hand.end(b)
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])
    assert f"without running: its outputs are the cached ones of run {before}" in client.runs.explain(made).tasks["a"]
    assert [(row.name, row.outcome, row.cached_from) for row in client.runs.attempts(made)][::-1] == [
        ("a", "success", before),
        ("b", "success", None),
    ]
    assert "cached" in stage.events(made)


def test_other_values_and_a_success_that_is_too_old_are_no_reason_not_to_run(stage, flow, clock):
    hand = stage.hand()
    with stage.master(now=lambda: clock[0]):
        first_run(stage, hand, flow)
        first_run(stage, hand, flow, params={"day": "tuesday"})
        clock[0] += 101
        first_run(stage, hand, flow)
    assert stage.count(result_cache) == 2


def test_a_failure_is_kept_for_nobody(stage, flow):
    hand = stage.hand()
    with stage.master():
        made = stage.start(flow)
        hand.end(hand.wait("a"), Outcome.FAILURE)
        stage.until(made, "failure")
    assert stage.count(result_cache) == 0


def test_a_run_without_the_cache_runs_everything_and_renews_what_is_known(stage, client, flow):
    hand = stage.hand()
    with stage.master():
        first_run(stage, hand, flow)
        made = first_run(stage, hand, flow, no_cache=True)
        client.commands.wait(client.runs.rerun(made))
        hand.end(hand.wait("b"))
        stage.until(made, "success")
        assert [row.cached_from for row in client.runs.attempts(made) if row.round == 2 and row.name == "a"] == [made]
        client.commands.wait(client.runs.rerun(made, no_cache=True))
        hand.end(hand.wait("a"))
        hand.end(hand.wait("b"))
        stage.until(made, "success")


def test_what_somebody_starts_by_force_runs(stage, client, flow):
    hand = stage.hand()
    with stage.master():
        waiting = stage.start(flow)
        eventually(stage.items)
        first = stage.start(flow)
        eventually(lambda: len(stage.items()) == 2)
        claims = hand.take_all()
        one, other = claims.values()
        mine, its = (one, other) if hand.spec(one).head.run_id == first else (other, one)
        hand.end(mine)
        stage.until_task(first, a="success")
        hand.release(its)
        eventually(lambda: stage.states(waiting)["a"] == "submitted")
        client.commands.wait(client.tasks.force_start(stage.rows(waiting)["a"]))
        eventually(lambda: stage.known(waiting).tasks["a"].n == 2)
        assert stage.states(waiting)["a"] in {"submitted", "running"}


def test_a_whole_chain_and_each_item_of_a_map_are_known(stage):
    tasks = {
        "list": {"cache_s": 100},
        "each": {"cache_s": 100, "map": "${list.files}", "after": ["list"], "params": {"script": "echo $item"}},
        "last": {"cache_s": 100, "after": ["each"]},
    }
    version = stage.apply(a_workflow(tasks=tasks))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("list"), outputs={"files": ["x", "y"]})
        for name, claim in hand.wait("each[0]", "each[1]").items():
            hand.end(claim, outputs={"size": name})
        hand.end(hand.wait("last"))
        stage.until(made, "success")
        again = stage.start(version)
        assert stage.state(again) == "success"
        assert stage.items() == set()
        shorter = stage.start(version, no_cache=True)
        hand.end(hand.wait("list"), outputs={"files": ["y"]})
        stage.until_task(shorter, **{"each[0]": "submitted"})  # fresh is for the whole run


def test_what_is_kept_is_kept_by_what_the_worker_was_given(stage, flow, monkeypatch):
    """A parameter of the project that is changed between the queue and the result is no part of what was run."""
    hand = stage.hand()
    with stage.database.write() as connection:
        connection.execute(sa.insert(parameter).values(project="default", name="region", value="eu"))
    with stage.master():
        made = stage.start(flow)
        a = hand.wait("a")
        with stage.database.write() as connection:
            connection.execute(sa.update(parameter).values(value="us"))
        hand.end(a, outputs={"rows": 1})
        hand.end(hand.wait("b"))
        stage.until(made, "success")
        first_run(stage, hand, flow)  # which has the other region
    assert stage.count(result_cache) == 2


def test_a_lost_answer_leaves_one_success_and_one_row(stage, flow, monkeypatch):
    hand = stage.hand()
    lost = stage.lose_answers(monkeypatch, every=3, limit=5)
    with stage.master(poll_s=0.5):
        first_run(stage, hand, flow)
        made = stage.start(flow)
        hand.end(hand.wait("b"))
        stage.until(made, "success")
    assert lost
    assert stage.count(result_cache) == 1


def test_what_is_too_old_is_deleted_and_what_is_not_stays(stage):
    with stage.database.write() as connection:
        made = {
            "a" * 64: result_cache_db.CacheEntry(1, 1.0, 50.0, {}),
            "b" * 64: result_cache_db.CacheEntry(1, 1.0, 150.0, {}),
        }
        result_cache_db.save_cache_entries(connection, made)
    gone = Cleanup(stage.database, None, now=lambda: 100.0).run()
    assert gone.outputs == 1
    with stage.database.read() as connection:
        assert list(result_cache_db.find_cache_entries(connection, made)) == ["b" * 64]


# Keys


def key_of(task=None, *, params=None, index=-1, outputs=None, at=0.0, **fields):
    plain = {"type": "shell", "params": {"script": "go"}, "cache_s": 5, **(task or {})}
    tasks = [{"name": "before", "type": "noop"}, {"name": "a", "after": ["before"], **plain}]
    definition = check_definition({"name": "flow", "tasks": tasks, **fields}, TaskTypes()).definition
    quoted = TaskTypes().get(plain["type"]).quoted
    run = RunContext(definition, 1, at, params or {})
    return compute_cache_key(run, definition.task("a"), 1, outputs or {}, quoted=quoted, index=index)


PYTHON = {"type": "python", "params": {"function": "m:f", "args": {"day": "${day}"}}}
DAY = {"params": {"day": "x"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"task": {"params": {"script": "go"}}}, {"task": {"params": {"script": "stop"}}}),
        ({"tenant": None}, {"tenant": "etl"}),
        ({"project": "a"}, {"project": "b"}),
        ({**DAY, "at": 0.0}, {"params": {"day": "y"}}),
        ({"outputs": {"before": {"rows": 1}}}, {"outputs": {"before": {"rows": 2}}}),
        ({"task": {"env": {"A": "1"}}}, {"task": {"env": {"A": "2"}}}),
        (
            {"task": {"params": {"script": "echo $logical_date"}}, "at": 0.0},
            {"task": {"params": {"script": "echo $logical_date"}}, "at": 86_400.0},
        ),
        ({"task": {"type": "noop", "params": {}}}, {"task": {"type": "shell"}}),
        (
            {"task": {"type": "python", "params": {"function": "m:f", "bundle": "a" * 64}}},
            {"task": {"type": "python", "params": {"function": "m:f", "bundle": "b" * 64}}},
        ),
    ],
    ids=["script", "tenant", "project", "value", "output", "variable", "date in a script", "type", "code"],
)
def test_what_a_task_puts_out_may_differ_where_this_differs(one, other):
    keys = {key_of(**{k: v for k, v in given.items() if v is not None}) for given in (one, other)}
    assert None not in keys
    assert len(keys) == 2


def test_what_a_task_does_not_look_at_makes_no_other_key():
    assert key_of(at=0.0) == key_of(at=86_400.0, name="flow", description="another", priority="high")
    assert key_of(PYTHON, **DAY) == key_of(PYTHON, outputs={"before": {"rows": 2}}, **DAY)


def test_what_a_secret_is_a_part_of_is_refused_by_its_place():
    for where in ({"params": {"script": "true"}, "env": {"P": "${secret:pw}"}}, {"env": {"P": "a${secret:pw}b"}}):
        with pytest.raises(
            DefinitionInvalid, match=r"tasks\[0\].cache_s: outputs of a task with secrets are not cached"
        ):
            a_workflow(tasks={"a": {"cache_s": 5, **where}})


def test_a_task_without_cache_s_has_no_key():
    assert key_of({"cache_s": None}) is None


@pytest.mark.parametrize("no_cache", [False, True])
def test_a_backfill_takes_what_is_known_or_runs_it_all_also_for_those_that_follow(stage, client, no_cache):
    stage.apply(a_workflow(tasks={"a": {"cache_s": 10_000}}, params={"day": "monday"}))
    behind = {"type": "dependent", "params": {"on": {"workflow": "flow", "window": "today"}}}
    stage.apply(a_workflow("after", tasks={"ready": behind, "b": ["ready"]}))
    hand, days = stage.hand(), [date(2025, 10, 1), date(2025, 10, 2)]
    with stage.master():
        made = client.runs.start("flow").id()
        hand.end(hand.wait("a"))
        stage.until(made, "success")
        client.backfills.start("flow", days, no_cache=no_cache, dependents="direct").id()
        taken = []

        def is_over():
            for name, claim in hand.take().items():
                taken.append(name)
                hand.end(claim)
            return len(client.backfills.list()) == 2 and all(each.has_ended for each in client.backfills.list())

        eventually(is_over)
    assert sorted(taken) == ["a"] * 2 * no_cache + ["b"] * 2
    assert [each.counts for each in client.backfills.list()] == [{"success": 2}] * 2
    with stage.database.read() as connection:
        fresh = connection.execute(
            sa.select(workflow_run.c.fresh).where(workflow_run.c.backfill.is_not(None))
        ).scalars()
        assert list(fresh) == [no_cache] * 4
