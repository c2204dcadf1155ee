"""Workflows as people write them: Python and YAML say the same, and what is wrong is told by its place."""

import json
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchwork.schedules import Cron
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model.builder import Workflow, add_task, shell, task, workflow
from latchwork_workflows.model.definition import Definition, build_plan
from latchwork_workflows.model.settings.usage import StoredSettings
from latchwork_workflows.model.templates import fill_references
from latchwork_workflows.model.validate import check_definition, find_problems
from latchwork_workflows.model.values import RunContext, compute_values
from latchwork_workflows.model.yaml_format import format_yaml, parse_yaml
from latchwork_workflows.types import TaskTypes
from workflows.flows import extract, load, nightly

TYPES = TaskTypes()
NIGHTLY = """
name: nightly
description: Every night.
schedule:
  cron: 0 3 * * *
  tz: Europe/Berlin
params:
  day: ${logical_date}
on_failure: end
tasks:
- name: extract
  type: python
  params:
    function: workflows.flows:extract
    args:
      day: ${day}
  retries: 3
  retry_interval_s: 30
  timeout_s: 600
- name: load
  type: python
  params:
    function: workflows.flows:load
    args:
      rows: ${extract.rows}
  after:
  - extract
- name: report
  type: shell
  params:
    script: report.sh "$day"
  after:
  - extract
  worker_group: reports
"""


def test_python_and_yaml_say_the_same():
    assert nightly.definition == check_definition(parse_yaml(NIGHTLY), TYPES).definition


def test_what_is_written_is_read_back_the_same():
    assert check_definition(parse_yaml(format_yaml(nightly.definition)), TYPES).definition == nightly.definition
    assert check_definition(json.loads(nightly.definition.to_json()), TYPES).definition == nightly.definition


def test_a_task_outside_a_workflow_is_the_function():
    assert extract("2026-01-01") == {"rows": 10}


def test_a_second_call_is_numbered_and_options_are_of_one_call():
    @workflow
    def twice():
        first = extract("a")
        second = extract.options(retries=0, name="other")("b")
        third = extract("c")
        third.after(first, second)
        first >> load(second["rows"])

    names = [each.name for each in twice.definition.tasks]
    assert names == ["extract", "other", "extract-2", "load"]
    assert twice.definition.task("other").retries == 0
    assert twice.definition.task("extract-2").after == ("extract", "other")
    assert twice.definition.task("load").after == ("other", "extract")


def test_text_of_python_code_is_meant_as_it_stands():
    @workflow(params={"day": "x"})
    def literal(day):
        load(1, table="${day} is not filled in")

    args = literal.definition.task("load").params["args"]
    assert fill_references(args, {"day": 1}, MOMENT) == {"rows": 1, "table": "${day} is not filled in"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda got: bool(got["rows"]), "has no value while the workflow is built"),
        (lambda got: got["rows"] == 3, "has no value while the workflow is built"),
        (lambda got: list(got["rows"]), "has no value while the workflow is built"),
        (lambda got: load(object()), "object is not a plain value"),
        (lambda got: got.after("load"), "after takes tasks"),
        (lambda got: shell("x", colour="red"), "a task has no option 'colour'"),
        (lambda got: [shell("x", name="same"), shell("y", name="same")], "two tasks are called 'same'"),
    ],
)
def test_what_cannot_be_built_says_why(body, message):
    with pytest.raises((TypeError, DefinitionInvalid), match=message):

        @workflow
        def wrong():
            body(extract("a"))


def test_a_task_of_another_workflow_is_refused():
    kept = []

    @workflow
    def one():
        kept.append(extract("a"))

    with pytest.raises(DefinitionInvalid, match="of another workflow, 'one'"):

        @workflow
        def two():
            shell("x", after=kept)


def test_shell_outside_a_workflow_says_where_it_belongs():
    with pytest.raises(RuntimeError, match=r"call it inside a function with @workflow"):
        shell("x")


def test_a_function_inside_a_function_is_no_task():
    with pytest.raises(TypeError, match="at the top level of the module"):
        task(lambda: None)


PROBLEMS = {
    "name: 'bad name'": "name: 'bad name' is not a valid name",
    "colour: red": "colour: there is no such field",
    "on_failure: explode": "on_failure: input should be 'continue' or 'end', not 'explode'",
    "timeout_s: .inf": "timeout_s:",
    "schedule: {cron: 99 3 * * *}": "schedule.cron:",
    "schedule: {cron: 0 0 * * *, tz: Mars}": "schedule.tz: Cron time zone 'Mars'",
    "schedule: {cron: 0 0 30 2 *}": "schedule.cron:",
    "schedule: {cron: 0 0 * * *, start: 2026-01-02, end: 2026-01-01}": "schedule.end: it is not after",
    "schedule: {cron: 0 0 1 1 *, start: 2026-01-02, end: 2026-02-01}": "schedule: it never fires",
    "params: {a-b: 1}": "params.a-b: 'a-b' is not a valid variable name",
    "environment: prod": "environment: there is no environment 'prod' of project default or of all, nor any other",
    "params: {a: '${secret:b}'}": "params.a: '${secret:b}' is known to workers only",
    "params: {a: '${b}'}": "params.a: '${b}' is neither a parameter, nor stored, nor built in",
}
TASK_PROBLEMS = {
    "type: shel": "tasks[0].type: no task type 'shel'; did you mean 'shell'?",
    "params: {}": "tasks[0].params.script: this is required",
    "params: {script: x, colour: 1}": "tasks[0].params.colour: there is no such field",
    "after: [nobody]": "tasks[0].after[0]: there is no task 'nobody'",
    "after: [a]": "tasks: these tasks wait for each other: a -> a",
    "retries: -1": "tasks[0].retries:",
    "env: {A: '${'}": "tasks[0].env.A: '${' at character 1 is not closed",
    "env: {A: '${nobody}'}": "tasks[0].env.A: '${nobody}' is not a parameter",
    "env: {A: '${zz.rows}'}": "tasks[0].env.A: '${zz.rows}' names no task",
    "env: {A: '${time:%Y,-1q}'}": "tasks[0].env.A: '-1q' is not a time shift",
    "environment: prod": "tasks[0].environment: there is no environment 'prod'",
    "env: {A: '${connection:shop}'}": "tasks[0]: there is no connection 'shop' of project default or of all",
    "params: {script: 'x ${connection:shop}'}": "tasks[0].params.script: it cannot contain a secret",
    "name: b/c": "tasks[0].name: 'b/c' is not a valid name",
}


@pytest.mark.parametrize("line", PROBLEMS)
def test_a_problem_is_told_by_its_place(line):
    given = {"name": "x", "tasks": [{"name": "a", "type": "shell", "params": {"script": "true"}}], **parse_yaml(line)}
    found = [str(each) for each in find_problems(given, TYPES, StoredSettings())]
    assert any(each.startswith(PROBLEMS[line]) for each in found), found


@pytest.mark.parametrize("line", TASK_PROBLEMS)
def test_a_problem_of_a_task_is_told_by_its_place(line):
    given = {"name": "x", "tasks": [{"name": "a", "type": "shell", "params": {"script": "true"}, **parse_yaml(line)}]}
    found = [str(each) for each in find_problems(given, TYPES, StoredSettings())]
    assert any(each.startswith(TASK_PROBLEMS[line]) for each in found), found


def test_all_problems_are_told_at_once():
    given = {"name": "x y", "colour": 1, "tasks": [{"name": "a", "type": "shell", "retries": -1}]}
    assert [each.path for each in find_problems(given, TYPES)] == ["name", "tasks[0].retries", "colour"]


@pytest.mark.parametrize("size", [5_001])
def test_too_many_tasks_are_refused(size):
    given = {
        "name": "x",
        "tasks": [{"name": f"t{i}", "type": "shell", "params": {"script": "true"}} for i in range(size)],
    }
    assert "at most 5,000" in str(find_problems(given, TYPES)[0])


def test_a_list_that_is_longer_than_a_map_may_be_is_refused_before_it_fails():
    given = {"name": "x", "tasks": [{"name": "t", "type": "noop", "params": {}, "map": list(range(1_001))}]}
    (problem,) = find_problems(given, TYPES)
    assert str(problem) == "tasks[0].map: it has 1,001 items; a map has at most 1,000"


LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))])
#: Python would make a list of all keys for each mention before any value is looked at.
MERGED = "\n".join(
    [
        "name: flow",
        f"keys: &keys {{{', '.join(f'k{each}: 1' for each in range(1_000))}}}",
        f"<<: [{', '.join(['*keys'] * 600)}]",
    ]
)
#: Exponential with PyYAML before 6.0.4, which keeps each merged key once.
NESTED = "\n".join(
    [
        "name: flow",
        "l0: &l0 {x: 1}",
        *(f"l{each}: &l{each}\n  <<: [{', '.join([f'*l{each - 1}'] * 10)}]" for each in range(1, 12)),
        "<<: *l11",
    ]
)
NO_DEFINITIONS = {
    "": "begins with 'name:'",
    "[]": "begins with 'name:'",
    "a: [": "line 1, column 5",
    "name: x\nname: y": "line 2, column 1: the key 'name' occurs twice",
    "? [1]\n: 2": "a key must be text",
    "!!python/object:os.system x": "could not determine a constructor",
    "{" * 5000: "more than 50 levels",
    "- " * 5000: "more than 50 levels",
    "a: &a [*a]": "recursive",
    LAUGHS: "more than 500,000 values",
    MERGED: "merges more than 500,000 values",
    "x" * 4_000_001: "the text has 4,000,001 characters",
}


@pytest.mark.parametrize("text", NO_DEFINITIONS, ids=lambda text: text[:12])
def test_text_that_is_no_definition_is_one_clear_error(text):
    with pytest.raises(DefinitionInvalid) as caught:
        parse_yaml(text)
    assert NO_DEFINITIONS[text] in str(caught.value)


def test_merges_of_merges_are_refused_or_stay_as_small_as_they_are():
    try:
        found = parse_yaml(NESTED)
    except DefinitionInvalid as error:
        found = str(error)
    small = {"name": "flow", **{f"l{each}": {"x": 1} for each in range(12)}, "x": 1}
    assert found == small or "merges more than 500,000 values" in found


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=12,
    )
)
def test_any_plain_values_are_a_definition_or_have_problems(given_):
    found = find_problems(given_, TYPES)
    assert found
    assert find_problems({"name": "x", "tasks": given_, "params": given_}, TYPES) is not None


MOMENT = datetime(2026, 3, 1, 4, 5, tzinfo=UTC)


def test_references_keep_types_alone_and_become_text_among_text():
    known = {"n": 3, "extract.rows": [1, 2]}
    assert fill_references("${n}", known, MOMENT) == 3
    assert fill_references(["${extract.rows}", "${n} rows, $${n}"], known, MOMENT) == [[1, 2], "3 rows, ${n}"]
    assert fill_references("${time:%Y-%m-%d,-1d}/${time:%H}", known, MOMENT) == "2026-02-28/04"
    with pytest.raises(KeyError, match="nobody"):
        fill_references("${nobody}", known, MOMENT)


def hours_of(day, zone):
    cron = Cron("0 * * * *", tz=zone)
    at = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp() - 1
    for _ in range(6):
        at = cron.fire_after(at)
        yield datetime.fromtimestamp(at, ZoneInfo(zone))


@pytest.mark.parametrize(
    ("zone", "day"),
    [("Europe/Berlin", "2026-03-29"), ("Europe/Berlin", "2026-10-25"), ("Australia/Lord_Howe", "2026-04-05")],
)
def test_a_time_moved_by_hours_is_so_much_earlier_though_the_clock_was_changed(zone, day):
    for moment in hours_of(day, zone):
        for shift, seconds in (("-1h", 3600), ("-90m", 5400), ("+3600s", -3600)):
            earlier = datetime.fromtimestamp(moment.timestamp() - seconds, ZoneInfo(zone))
            form = "%Y-%m-%dT%H:%M%z"
            assert fill_references(f"${{time:{form},{shift}}}", {}, moment) == earlier.strftime(form)


def test_a_time_moved_by_days_keeps_the_time_on_the_clock():
    after = datetime(2026, 3, 29, 12, 0, tzinfo=ZoneInfo("Europe/Berlin"))
    assert fill_references("${time:%d %H:%M %z,-1d}", {}, after) == "28 12:00 +0100"
    assert fill_references("${time:%d %H:%M %z,-1w}", {}, after) == "22 12:00 +0100"
    skipped = datetime(2026, 3, 30, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert fill_references("${time:%d %H:%M %z,-1d}", {}, skipped) == "29 03:30 +0200"


def test_parameters_that_have_each_other_many_times_are_refused_before_they_are_large():
    text = {"a": "x" * 1000, **{each: f"${{{before}}}" * 100 for before, each in pairwise("abcdef")}}
    values = {"a": ["x"] * 1000, **{each: [f"${{{before}}}"] * 100 for before, each in pairwise("abcdef")}}
    for params in (text, values):
        body = Definition(name="w", params=params, tasks=[{"name": "t", "type": "noop"}])
        with pytest.raises(ValueError, match="has more than 1,000,000 characters with its values filled in"):
            compute_values(RunContext(body, 1, 0.0, {}), body.task("t"), 1, {})


def test_an_output_that_is_too_large_for_a_variable_is_sent_to_tasks_that_name_it():
    outputs = {"near": {"files": ["x"] * 50_000, "rows": 2}}

    def found(**params):
        tasks = [{"name": "near", "type": "x"}, {"name": "t", "type": "x", "after": ["near"], "params": params}]
        body = Definition(name="w", tasks=tasks)
        return set(compute_values(RunContext(body, 1, 0.0, {}), body.task("t"), 1, outputs)) & {"files", "rows"}

    assert found(script="echo $rows") == {"rows"}
    assert found(script="echo $files") == found(x="${files}") == found(when="len(files) > 3") == {"files", "rows"}


def test_a_script_has_an_output_by_the_name_of_its_task_and_its_own_wherever_it_has_that_word():
    outputs = {"near": {"rows": 2, "sum": 9}, "far.off": {"rows": 1}, "beside": {"rows": 7}}

    def found(script):
        after = {"near": ["far.off"], "t": ["near"]}
        tasks = [{"name": each, "type": "x", "after": after.get(each, [])} for each in ("far.off", "near", "beside")]
        task = {"name": "t", "type": "x", "after": after["t"], "params": {"script": script}}
        body = Definition(name="w", tasks=[*tasks, task])
        values = compute_values(RunContext(body, 1, 0.0, {}), body.task("t"), 1, outputs)
        return {name: value for name, value in values.items() if "." in name or name == "rows"}

    assert found("echo\n$rows") == {"rows": 2}
    assert found("echo\n${near_rows}-$far_off_rows") == {"rows": 2, "near.rows": 2, "far.off.rows": 1}
    assert found("echo $beside_rows $near_rows_2") == {"rows": 2}


def test_the_plan_has_the_rules_of_the_tasks():
    plan = build_plan(nightly.definition, nightly.order)
    assert list(plan.rules) == ["extract", "load", "report"]
    assert plan.rules["extract"].retries == 3
    assert plan.rules["report"].after == ("extract",)


def test_a_definition_is_no_larger_than_a_megabyte():
    given = {"name": "x", "tasks": [{"name": "a", "type": "shell", "params": {"script": "x" * 400_000}}] * 1}
    given["tasks"] = [{**given["tasks"][0], "name": f"a{i}"} for i in range(3)]
    assert any("at most 1,000,000" in each.message for each in find_problems(given, TYPES))


def test_other_types_can_be_added_in_python():
    @workflow
    def plain():
        add_task("shell", {"script": "true", "interpreter": ["bash"]}, name="by-bash")

    assert isinstance(plain, Workflow)
    assert isinstance(plain.definition, Definition)
