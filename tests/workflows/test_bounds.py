"""Values that no run can have are refused wherever they come in, and a start reaches no master that was withdrawn."""

import json
from datetime import UTC, datetime

import pytest

from latchwork_workflows import DefinitionInvalid, WrongState
from latchwork_workflows.db.commands import withdraw_command
from latchwork_workflows.errors import BadRequest
from latchwork_workflows.model import parse_yaml
from latchwork_workflows.model.builder import Cron, shell, workflow
from patience import eventually
from workflows.hands import a_workflow

DEEP = json.loads("[" * 100 + "]" * 100)


@pytest.mark.parametrize("at", [float("inf"), float("nan"), -1.0, 1e15, 10**400, "soon"])
def test_a_start_for_a_time_that_no_run_can_have_is_refused(stage, client, at):
    stage.apply(a_workflow())
    with pytest.raises(BadRequest, match="schedule_time"):
        client.runs.start("flow", schedule_time=at)
    assert stage.commands_open() == []


@pytest.mark.parametrize("value", ["\ud800", "a\0b", float("nan"), 10**400, DEEP, {1: 2}, datetime.now(UTC)])
def test_a_parameter_that_cannot_be_stored_is_refused_by_starts_and_definitions(stage, client, value):
    plain = a_workflow(params={"day": ""}).definition.model_dump(mode="json", exclude_defaults=True)
    client.workflows.apply(plain)
    with pytest.raises(BadRequest, match=r"params\.day"):
        client.runs.start("flow", {"day": value})
    for wrong in ({**plain, "params": {"day": value}}, {**plain, "tasks": [{**plain["tasks"][0], "map": [value]}]}):
        with pytest.raises(DefinitionInvalid, match=r"params\.day|tasks\[0\]\.map\[0\]"):
            client.workflows.apply(wrong)


def test_parameters_of_more_than_a_task_can_get_are_refused(stage, client):
    stage.apply(a_workflow(params={"day": ""}))
    with pytest.raises(BadRequest, match="900,000 bytes"):
        client.runs.start("flow", {"day": "x" * 900_000})


def test_a_shift_out_of_the_calendar_is_refused_in_yaml_and_python(client):
    text = "{name: flow, tasks: [{name: a, type: shell, params: {script: x}, env: {D: '${time:%Y,-999999d}'}}]}"
    (problem,) = client.workflows.validate(text)
    assert str(problem).startswith("tasks[0].env.D: '-999999d' shifts a time too far")
    of_child = "{workflow: other, params: {day: '${time:%Y,-999999d}'}}"
    (problem,) = client.workflows.validate(
        f"{{name: flow, tasks: [{{name: a, type: sub_process, params: {of_child}}}]}}"
    )
    assert str(problem).startswith("tasks[0].params.params.day: '-999999d' shifts a time too far")

    with pytest.raises(DefinitionInvalid, match=r"params\.day: '\+999999w' shifts a time too far"):

        @workflow(params={"day": "${time:%Y,+999999w}"})
        def flow(day):
            shell("x")

    assert client.workflows.validate(parse_yaml(text.replace("-999999d", "-36525d"))) == []


@pytest.mark.parametrize("field", ["start", "end"])
def test_a_schedule_that_begins_or_ends_out_of_reach_is_refused(client, field):
    far = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    with pytest.raises(DefinitionInvalid, match=rf"schedule\.{field}: .* is too far away"):

        @workflow(schedule=Cron("0 3 * * *", **{field: far}))
        def flow():
            shell("x")

    schedule = {"cron": "0 3 * * *", field: far.isoformat()}
    tasks = [{"name": "a", "type": "noop"}]
    (problem,) = client.workflows.validate({"name": "flow", "schedule": schedule, "tasks": tasks})
    assert problem.path == f"schedule.{field}"


def test_a_start_that_no_master_has_done_can_be_stopped_and_makes_no_run(stage, client):
    stage.apply(a_workflow())
    withdrawn, wanted = client.runs.start("flow"), client.runs.start("flow")
    withdrawn.stop()
    hand = stage.hand()
    with stage.master():
        number = wanted.id()
        with pytest.raises(WrongState, match="stopped before it began"):
            withdrawn.id()
        with pytest.raises(WrongState, match="started no run"):
            withdrawn.stop()
        hand.wait("a")
        wanted.stop()
        eventually(lambda: stage.state(number) in {"ready_stop", "stopped"})
    assert stage.runs() == 1


def test_a_start_that_a_master_does_just_now_is_not_withdrawn(stage):
    version = stage.apply(a_workflow())
    with stage.master():
        made = stage.start(version)
        asked = stage.send("start", code=version.code, version=1)
        eventually(lambda: stage.command(asked).done_at is not None)
        with stage.database.write() as connection:
            assert not withdraw_command(connection, asked, 1.0, by="test")
    assert made


def test_what_was_asked_before_its_workflow_was_set_offline_is_not_started(stage, client):
    stage.apply(a_workflow())
    asked = client.runs.start("flow")
    backfill = client.backfills.start("flow", [datetime(2026, 3, 1, tzinfo=UTC).date()])
    client.workflows.set_online("flow", online=False)
    with stage.master():
        with pytest.raises(WrongState, match=r"default\.flow was set offline before it began"):
            asked.id()
        eventually(lambda: stage.commands_open() == [])
    assert stage.runs() == 0
    assert "offline" in stage.command(backfill.command).error


def test_a_stop_reaches_a_run_that_was_asked_to_go_on_and_has_not_yet(stage, client):
    version = stage.apply(a_workflow(tasks={"a": []}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"))
        stage.until(made, "success")
    with pytest.raises(WrongState):
        client.runs.stop(made)
    client.runs.rerun(made)
    client.runs.stop(made)
    with stage.master():
        stage.until(made, "stopped")
    assert stage.known(made).round == 2
