"""`Workflow.test()`: a whole run in this process, by the same rules, without waiting."""

import pytest

from latchwork.errors import LatchworkError
from latchwork_workflows.model.branches import On, conditions, dependent, switch
from latchwork_workflows.model.builder import shell, task, workflow
from workflows import flows

CALLS = []


@task(retries=3, retry_interval_s=3600)
def flaky(day: str) -> dict:
    CALLS.append(day)
    print("try", len(CALLS))
    if len(CALLS) < 3:
        raise OSError("not yet")
    return {"rows": 7}


@task
def load(rows: int) -> None:
    assert rows == 7


@task
def broken() -> None:
    raise ValueError("no such table")


@workflow(params={"day": "${logical_date}"})
def nightly(day: str):
    got = flaky(day)
    load(got["rows"])
    shell('echo "report of $day with $rows rows"; echo "lines=2" >> "$LATCHWORK_OUTPUT"', name="report", after=[got])


@workflow
def failing():
    shell("echo never", name="after", after=[broken()])


def test_a_run_retries_without_waiting_and_hands_outputs_on():
    CALLS.clear()
    run = nightly.test(day="2026-11-22").check()
    assert (run.state, list(run.tasks)) == ("success", ["flaky", "load", "report"])
    assert run.tasks["flaky"].attempts == 3
    assert run.took_s >= 7200
    assert "try 3" in run.tasks["flaky"].log
    assert run.outputs == {"flaky": {"rows": 7}, "load": {}, "report": {"lines": 2}}
    assert run.tasks["report"].log == "report of 2026-11-22 with 7 rows\n"
    assert CALLS == ["2026-11-22"] * 3


def test_parameters_have_their_defaults_and_unknown_ones_are_refused():
    CALLS[:] = [1, 2]
    nightly.test(schedule_time=86_400.0).check()
    assert CALLS[-1] == "1970-01-01"
    with pytest.raises(LatchworkError, match="no parameter 'month'; it has day"):
        nightly.test(month="x")


def test_a_failure_is_there_with_its_trace():
    run = failing.test()
    assert run.state == "failure"
    assert run.tasks["after"].state == "waiting"
    with pytest.raises(LatchworkError, match=r"task 'broken': ValueError: no such table\n(.|\n)*Traceback"):
        run.check()


def test_what_a_task_uses_can_be_replaced(monkeypatch):
    monkeypatch.setattr(flows.extract, "__wrapped__", lambda day: {"rows": 41})
    run = flows.nightly.test(day="x")
    assert "loaded 41 into facts" in run.tasks["load"].log


# Tasks that a master holds


@task
def files(count: int) -> dict:
    return {"files": [f"f{each}" for each in range(count)]}


@task
def size(name: str, factor: int = 1) -> int:
    return len(name) * factor


@task(name="one")
def fails_for(name: str) -> None:
    raise ValueError(name)


@task
def told(what: str = "") -> str:
    return what


@workflow
def inner(count: int = 1, day: str = "none"):
    files(count)
    told(day)


@workflow
def outer(count: int = 2):
    ready = dependent(On("billing.close"))
    got = inner(count=count).after(ready)
    sizes = got.map(size, "files", factor=10)
    many, few = told.options(name="many")("many"), told.options(name="few")("few")
    switch(sizes, {"len(result) > 2": many}, default=few)
    bad = fails_for("x")
    good, mended = told.options(name="good")("good"), told.options(name="mended")("mended")
    conditions(bad, success=good, failure=mended)
    got.map(inner, "files", parallel=1)


def test_a_whole_run_knows_sub_processes_dependents_maps_switches_and_conditions():
    run = outer.test(count=3)
    assert run.state == "failure"  # `inner` takes a number first, and gets the name of a file
    assert run.outputs["inner"] == {"files": ["f0", "f1", "f2"], "result": "none"}
    assert run.outputs["size"] == {"result": [20, 20, 20]}
    states = {name: each.state for name, each in run.tasks.items()}
    assert states["size[2]"] == "success"
    assert [states[each] for each in ("many", "few", "good", "mended", "one")] == [
        "success",
        "skipped",
        "skipped",
        "success",
        "failure",
    ]
    assert "inner-2[0]" in run.tasks
    assert outer.test(count=0).outputs["size"] == {}
