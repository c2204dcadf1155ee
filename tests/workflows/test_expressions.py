"""The expressions of switches: what they can say, and that none takes noticeable time or memory."""

import time
import tracemalloc

import pytest

from latchwork_workflows.model.definition import TaskSpec
from latchwork_workflows.model.expressions import MAX_STEPS, Budget, Expression, ExpressionError
from latchwork_workflows.model.master_tasks import choose_branch
from latchwork_workflows.model.settings.usage import StoredSettings
from latchwork_workflows.model.validate import find_problems
from latchwork_workflows.model.yaml_format import parse_yaml
from latchwork_workflows.types import TaskTypes

NAMES = {
    "rows": 17,
    "share": 0.5,
    "day": "sunday",
    "files": ["a", "b"],
    "nothing": None,
    "done": True,
    "list": {"files": [1, [2, {"x": "y"}]], "size-of": 3},
}


def value(source, **names):
    return Expression(source).evaluate({**NAMES, **names})


def refused(source, **names):
    with pytest.raises(ExpressionError) as error:
        value(source, **names)
    return str(error.value)


VALUES = {
    "rows > 10 and day == 'sunday'": True,
    "0 < rows <= 17": True,
    "0 < rows < 17 < 1 / 0": False,
    "not files or rows != 17": False,
    "rows % 5 + rows // 5 * 2 - -1": 9,
    "share / 2 + +rows": 17.25,
    "len(files) + len(day) + len(list)": 10,
    "'a' in files and 'c' not in files and 'sun' in day and 'files' in list": True,
    "day in ['saturday', 'sunday'] and rows in (16, 17)": True,
    "list.files[1][-1].x + list['files'][1][1]['x']": "yy",
    "list['size-of'] == 3 and list.files == [1, [2, {}]]".replace("{}", "list.files[1][1]"): True,
    "min(rows, 3) + max([1, 2]) + abs(-4)": 9,
    "min('b', 'a') + str(rows) + str(done)": "a17True",
    "int('-12') + int(3.9) + float(' 2.5e1 ')": 16.0,
    "nothing == None and rows != None": True,
    "files == ['a', 'b'] and files != ['a', 1]": True,
    "(rows >\n 10)": True,
}


@pytest.mark.parametrize("source", VALUES)
def test_an_expression_has_the_value_that_its_text_says(source):
    assert value(source) == VALUES[source]


WITHOUT_VALUE = {
    "nobody > 1": "there is no 'nobody'",
    "list.nobody": "list has no 'nobody'; it has files, size-of",
    "files[2]": "files has 2 items, none of them at 2",
    "files.x": "files is a list, which has no field 'x'",
    "files[True]": "has no field True",
    "1 / (rows - 17)": "1 / (rows - 17): division by zero",
    "rows + day": "'+' cannot be used here: rows is a number 17, and day is text 'sunday'; write int(day)",
    "day % 3": "'%' cannot be used here: day is text 'sunday', and 3 is a number",
    "day * 3": "'*' cannot be used here",
    "files + files": "'+' cannot be used here: files is a list, and files is a list",
    "-day": "'-' cannot be used here: day is text 'sunday'",
    "files < files": "'<' cannot be used here",
    "done == 1": "'==' cannot be used here: done is a boolean True, and 1 is a number",
    "rows in day": "'in' cannot be used here",
    "int('3.5')": "int() takes a number, or text that is a whole one; '3.5' is text",
    "int('" + "1" * 39 + "')": "int() takes a number",
    "float('nan')": "float() takes a number",
    "float('1e999')": "inf is not a finite number",
    "len(rows)": "len() takes text, a list or an object; rows is a number 17",
    "str(files)": "str() takes text, a number",
    "abs(day)": "abs() takes a number",
    "min(rows, day)": "min() takes numbers or texts, not a number and text",
    "max([])": "max() takes several values, or a list of some",
    "9223372036854775807 + 1": "a whole number has more than 64 bits",
    "1e308 * 10": "inf is not a finite number",
}


@pytest.mark.parametrize("source", WITHOUT_VALUE)
def test_an_expression_without_a_value_says_what_its_operands_are(source):
    assert WITHOUT_VALUE[source] in refused(source)


@pytest.mark.parametrize("operator", ["==", "!=", "<", "<=", ">", ">="])
def test_a_comparison_of_text_with_a_number_names_task_field_and_operand(operator):
    task = TaskSpec(name="size", type="switch", params={"cases": [{"when": f"list.rows {operator} 10", "then": []}]})
    with pytest.raises(ValueError, match="cannot be used here") as error:
        choose_branch(task, {}, {"list": {"rows": "17"}})
    said = "list.rows is text '17', and 10 is a number; write int(list.rows) if it is a number"
    assert str(error.value).startswith("task 'size', params.cases[0].when, 'list.rows")
    assert str(error.value).endswith(said)


INVALID = {
    "9 ** 9 ** 9": "'9 ** 9 ** 9' is not supported",
    "1 << 9999": "is not supported",
    "len('%999999999d' % 1) > 0 if 1 else 2": "is not supported",
    "'a'.zfill(999999999)": "'a'.zfill\" is not a function",
    "str.format('{0.__class__}', 1)": "str.format' is not a function",
    "open('/etc/passwd')": "'open' is not a function; there are len, int, float, str, abs, min, max",
    "len(x=1)": "len() takes values, without names",
    "len(*files)": "without names or stars",
    "len(files, 1)": "len() takes one value, not 2",
    "int()": "int() takes one value, not 0",
    "min(files, key=str.upper)": "min() takes values, without names",
    "[each for each in files]": "is not supported",
    "lambda: 1": "is not supported",
    "f'{rows}'": "is not supported",
    "rows[1:2]": "is not supported",
    "{'a': 1}": "is not supported",
    "(rows := 1)": "is not supported",
    "rows is None": "is not supported",
    "b'x' == 1": "is not a number, text",
    "1j": "is not a number, text",
    "...": "is not a number, text",
    "99999999999999999999": "more than 64 bits",
    "1e999": "inf is not a finite number",
    "${rows} > 1": "an expression uses plain names",
    "rows >": "is not an expression",
    "x" * 1001: "string should have at most 1000 characters",
    "-" * 400 + "1": "nested more than 40 deep",
    "(" * 300 + "1" + ")" * 300: "is not an expression",
    "not " * 200 + "1": "nested more than 40 deep",
    "+".join(["1"] * 400): "nested more than 40 deep",
    "\0": "text contains a NUL",
    "": "string should have at least 1 character",
    " ": "is not an expression",
}


@pytest.mark.parametrize("source", INVALID)
def test_what_no_expression_has_is_refused_when_a_workflow_is_applied(source):
    case = {"when": source, "then": []}
    flow = {"name": "flow", "tasks": [{"name": "s", "type": "switch", "params": {"cases": [case]}}]}
    found = find_problems(flow, TaskTypes())
    said = [each.message for each in found if each.path == "tasks[0].params.cases[0].when"]
    assert any(INVALID[source] in each for each in said), found


def test_the_attributes_of_python_are_no_fields_of_values():
    for source in ("rows.__class__", "day.__class__.__mro__", "files.append", "list.items", "done.real"):
        assert "has no" in refused(source)


def test_a_name_that_no_task_before_can_have_put_out_is_refused_when_a_workflow_is_applied():
    flow = parse_yaml("""
name: flow
params: {limit: 3}
tasks:
- {name: list, type: noop}
- {name: other, type: noop}
- {name: s, type: switch, after: [list], params: {cases: [{when: "list.rows > limit and other.rows > 1", then: []}]}}
- {name: first, type: switch, params: {cases: [{when: "len(rows) > limit", then: []}]}}
""")
    found = [str(each) for each in find_problems(flow, TaskTypes(), StoredSettings())]
    assert found == [
        "tasks[2].params.cases[0].when: 'other.rows' is of 'other', which is not upstream; add it to 'after'",
        "tasks[3].params.cases[0].when: 'rows' is not a parameter, and no task precedes 'first'",
    ]


LARGE = {
    "text": "x" * 64_000,
    "many": list(range(120_000)),
    "deep": [[[["x"] * 10] * 10] * 10] * 30,
    "nested": None,
    "whole": 2**60,
}
LARGE["nested"] = LARGE["deep"]
for _ in range(60):
    LARGE["nested"] = [LARGE["nested"]]
BOMBS = [
    "text + text + text",
    " or ".join(["text < text"] * 60),
    " or ".join(["'y' in text"] * 60),
    " or ".join(["-1 in many"] * 60),
    " or ".join(["deep != deep"] * 60),
    "nested == nested",
    "min(many) + min(many) > 0",
    "whole * whole",
    "-9223372036854775807 - 2",
]


@pytest.mark.parametrize("source", BOMBS)
def test_no_expression_takes_noticeable_time_or_memory(source):
    case = {"when": source, "then": []}
    task = TaskSpec(name="s", type="switch", params={"cases": [case] * 100})
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(ValueError, match=r"steps|at most|more than") as error:
        choose_branch(task, LARGE, {})
    took_s, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(error.value).startswith("task 's', params.cases[")
    assert took_s < 5  # memory is traced
    assert peak < 2_000_000


def test_all_expressions_of_a_switch_share_one_budget():
    budget, half = Budget(), {"many": list(range(MAX_STEPS // 2 - 10))}
    for _ in range(2):
        assert not Expression("-1 in many").is_true(half, budget)
    with pytest.raises(ExpressionError, match="it takes more than 100,000 steps"):
        Expression("-1 in many").is_true(half, budget)
