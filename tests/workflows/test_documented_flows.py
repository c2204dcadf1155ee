"""The definitions in YAML that the documentation shows are valid, and run to their end."""

import re
from pathlib import Path

import pytest

from latchwork_workflows import shell, workflow
from latchwork_workflows.local_run import run_locally
from latchwork_workflows.model.defined import DEFINED
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.model.yaml_format import parse_yaml
from latchwork_workflows.types import TaskTypes

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
NOOP = "tasks:\n  - {name: a, type: noop}\n"


def found():
    """Each block of YAML that is of a workflow, made whole where the page shows a part."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            block = match.group(1)
            block = f"tasks:\n{block}" if block.lstrip().startswith("- ") else block
            if "tasks:" in block or block.startswith("alerts:"):
                whole = block if "tasks:" in block else block + NOOP
                line = text[: match.start()].count("\n") + 1
                name = f"{page.relative_to(REPOSITORY)}:{line}"
                yield pytest.param(whole if "name: " in whole.split("tasks:")[0] else f"name: shown\n{whole}", id=name)


EXAMPLES = list(found())


@workflow(name="archive", project="billing", params={"files": []})
def archive(files):
    shell("true")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The programs that the scripts call."""
    for name in ("pull", "load.sh", "report.sh", "alarm.sh"):
        (tmp_path / name).write_text("#!/bin/sh\necho one\necho two\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setitem(DEFINED, "billing.archive", archive)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_workflow_of_the_documentation_runs(text, programs):
    known = check_definition(parse_yaml(text), TaskTypes())
    run = run_locally(known.definition, known.order, {}).check()
    assert {each.state for each in run.tasks.values()} <= {"success", "skipped"}, run


def test_the_documentation_shows_workflows_in_yaml():
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize(("files", "state"), [(300, "skipped"), (1001, "success")])
def test_a_switch_of_the_documentation_chooses_by_the_number_of_files_that_a_shell_gave(programs, files, state):
    (text,) = (each.values[0] for each in EXAMPLES if "type: switch" in each.values[0])
    text = text.replace("[1,2]", str(list(range(files))).replace(" ", "")).replace('map: "${list.files}"', "map: [1]")
    known = check_definition(parse_yaml(text), TaskTypes())
    run = run_locally(known.definition, known.order, {}).check()
    assert run.tasks["archive"].state == state
