"""Sub-processes, dependents, conditions, switches and maps as people write them: in Python, in YAML, and wrong."""

import pytest

from latchwork_workflows import On, conditions, dependent, shell, sub_process, switch, task, workflow
from latchwork_workflows.errors import DefinitionInvalid, WrongState
from latchwork_workflows.model.validate import check_definition, find_problems_in_text
from latchwork_workflows.model.yaml_format import format_yaml, parse_yaml
from latchwork_workflows.types import TaskTypes
from patience import eventually

TYPES = TaskTypes()


@task
def listed(day: str) -> dict:
    return {"files": [day]}


@task
def load(file: str, table: str = "facts") -> None: ...


@workflow(params={"day": "none"})
def close(day: str):
    shell("true")


@workflow(name="all_of_them", params={"day": "${logical_date}"})
def python_flow(day: str):
    ready = dependent(On(close) & (On("sales.load", task="facts", window="yesterday") | On("x")), wait_s=60)
    got = listed(day).after(ready)
    loaded = got.map(load, "files", parallel=3, table="raw")
    got.map(close, "files")
    sub_process("billing.close", {"day": got["files"]}, name="billing", after=[loaded])
    good, bad = shell("true", name="good"), shell("true", name="bad")
    conditions(loaded, good, [bad], when={"all": ["load"]})
    many, few = shell("true", name="many"), shell("true", name="few")
    switch(got, {"len(files) > 10": [many]}, default=few)
    close(day=day)


YAML_FLOW = """
name: all_of_them
params: {day: "${logical_date}"}
tasks:
- name: dependent
  type: dependent
  params:
    on:
      all:
      - {workflow: default.close, window: today}
      - any:
        - {workflow: sales.load, window: yesterday, task: facts}
        - {workflow: x, window: today}
    on_failure: wait
    wait_s: 60
- name: listed
  type: python
  params: {function: "HERE:listed", args: {day: "${day}"}}
  after: [dependent]
- name: load
  type: python
  params:
    function: HERE:load
    args: {file: "${item}", table: raw}
  after: [listed]
  map: ${listed.files}
  map_parallel: 3
- {name: close, type: sub_process, params: {workflow: default.close, params: {day: "${item}"}}, after: [listed],
   map: "${listed.files}"}
- {name: billing, type: sub_process, params: {workflow: billing.close, params: {day: "${listed.files}"}},
   after: [load, listed]}
- {name: good, type: shell, params: {script: "true"}, after: [conditions]}
- {name: bad, type: shell, params: {script: "true"}, after: [conditions]}
- name: conditions
  type: conditions
  params: {success: [good], failure: [bad], when: {all: [load]}}
  after: [load]
- {name: many, type: shell, params: {script: "true"}, after: [switch]}
- {name: few, type: shell, params: {script: "true"}, after: [switch]}
- name: switch
  type: switch
  params: {cases: [{when: len(files) > 10, then: [many]}], default: [few]}
  after: [listed]
- {name: close-2, type: sub_process, params: {workflow: default.close, params: {day: "${day}"}}}
"""


def test_python_and_yaml_say_the_same_and_what_is_written_is_read_back():
    assert check_definition(parse_yaml(YAML_FLOW.replace("HERE", __name__)), TYPES).definition == python_flow.definition
    assert check_definition(parse_yaml(format_yaml(python_flow.definition)), TYPES).definition == python_flow.definition


PROBLEMS = """
{name: a, type: noop, map_parallel: 2} | tasks[0].map_parallel: without 'map' it has no effect
{name: a, type: noop, map: "one"} | tasks[0].map: 'one' is not a list
{name: a, type: noop, map: "${nobody.files}"} | tasks[0].map: '${nobody.files}' names no task
{name: a, type: dependent, map: [1], params: {on: x}} | tasks[0].map: a dependent decides once
{name: a, type: sub_process, params: {workflow: flow}} | tasks[0].params.workflow: default.flow would start itself
{name: a, type: sub_process, params: {}} | tasks[0].params.workflow: this is required
{name: a, type: sub_process, retries: 3, params: {workflow: b}} | tasks[0].retries: a sub_process is decided by its
{name: a, type: sub_process, timeout_s: 3, params: {workflow: b}} | tasks[0].timeout_s: a sub_process has none; give
{name: a, type: sub_process, params: {workflow: b, params: {x: "${secret:y}"}}} | tasks[0].params.params: only workers
{name: a, type: dependent, params: {on: {workflow: b, window: soon}}} | tasks[0].params.on.window: value error, there is
{name: a, type: dependent, params: {on: {all: [b, {task: c}]}}} | tasks[0].params.on.all[1]: value error, give one of
{name: a, type: dependent, params: {on: {any: []}}} | tasks[0].params.on: value error, 'any' is empty
{name: a, type: dependent, params: {on: b, wait_s: 5}} | tasks[0].params: value error, wait_s is required with
{name: a, type: dependent, worker_group: g, params: {on: b}} | tasks[0].worker_group: a dependent is decided by its
{name: a, type: conditions, params: {}} | tasks[0].after: conditions evaluate earlier tasks; name them
{name: a, type: conditions, params: {when: z, success: [b]}} | tasks[0].params.when: it looks at 'z', which is not in
{name: a, type: conditions, params: {success: [b]}} | tasks[0].params.success[0]: there is no task 'b'
{name: a, type: conditions, params: {failure: [last]}} | tasks[0].params.failure[0]: 'last' does not come after 'a'
{name: a, type: switch, params: {cases: []}} | tasks[0].params.cases: tuple should have at least 1 item
{name: a, type: switch, params: {cases: [{when: "x >", then: []}]}} | tasks[0].params.cases[0].when: 'x >' is not
{name: a, type: switch, params: {cases: [{when: "${x} > 1", then: []}]}} | tasks[0].params.cases[0].when: an expression
{name: a, type: switch, params: {cases: [{when: "x", then: [last]}]}} | tasks[0].params.cases[0].then[0]: 'last' does
"""


@pytest.mark.parametrize("line", [each for each in PROBLEMS.splitlines() if each])
def test_a_problem_of_a_logical_task_is_told_by_its_place(line):
    given, told = line.split(" | ")
    found = [
        str(each)
        for each in find_problems_in_text(f"name: flow\ntasks:\n- {given}\n- {{name: last, type: noop}}", TYPES)
    ]
    assert any(each.startswith(told) for each in found), found


def test_a_condition_has_no_value_while_the_workflow_is_built():
    with pytest.raises(TypeError, match="no value while the workflow is built"):
        _ = On("a") and On("b")


# With a database


def a_sub(name, of):
    return {"name": name, "tasks": [{"name": "sub", "type": "sub_process", "params": {"workflow": of}}]}


def test_a_workflow_that_would_start_itself_through_others_is_refused_with_the_way(stage, client):
    client.workflows.apply(a_sub("one", "two"))
    client.workflows.apply(a_sub("two", "three"))
    with pytest.raises(DefinitionInvalid) as refused:
        client.workflows.apply(a_sub("three", "default.one"))
    (problem,) = refused.value.problems
    assert problem.path == "tasks[0].params.workflow"
    assert "default.three -> default.one -> default.two -> default.three" in problem.message
    client.workflows.apply(a_sub("three", "four"))


def test_why_says_which_run_a_sub_process_waits_for_and_a_child_is_mended_by_its_parent(stage, client):
    client.workflows.apply({"name": "child", "tasks": [{"name": "a", "type": "noop"}]})
    client.workflows.apply(a_sub("parent", "child"))
    with stage.master():
        client.runs.start("parent")
        made = eventually(lambda: begun(client))
        child = eventually(lambda: [each.id for each in client.runs.list("child")])[0]
        assert client.runs.explain(made).tasks["sub"] == f"It waits for its run {child}, which is running."
        client.runs.pause(child)
        stage.until(child, "paused")
        assert client.runs.explain(made).tasks["sub"].endswith("which is paused; resume it, or stop this run.")
        client.runs.stop(made)
        stage.until(made, "stopped")
        assert f"Its run {child} is stopped: recover this run" in client.runs.explain(made).tasks["sub"]
        with pytest.raises(WrongState, match=f"run {child} is a part of run {made}; recover that run"):
            client.runs.recover(child)


def begun(client):
    found = client.runs.list("parent")
    return found[0].id if found else None
