"""Packages whose names are imported when they are first asked for: all are there, and nobody pays for the others."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

DOORS = pytest.mark.parametrize("package", ["latchwork", "latchwork.spi", "latchwork.tasks"])


def imported(code: str) -> set[str]:
    """The modules of latchwork that a new interpreter has after it."""
    show = "import sys; print(*(name for name in sys.modules if name.startswith('latchwork')))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@DOORS
def test_every_public_name_is_there(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
    exec(f"from {package} import *", {})


@DOORS
def test_a_name_comes_from_where_type_checkers_see_it(package):
    path = Path(importlib.import_module(package).__file__)
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            seen = {(each.module, alias.name) for each in node.body for alias in each.names}
            (table,) = (each for each in ast.walk(ast.Module(node.orelse, [])) if isinstance(each, ast.Dict))
            late = {(module, name) for module, names in ast.literal_eval(table).items() for name in names}
            assert seen == late


@pytest.mark.parametrize("package", ["latchwork", "latchwork.tasks"])
def test_no_public_name_is_that_of_a_module_which_would_hide_it(package):
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if importlib.util.find_spec(f"{package}.{name}")] == []


@DOORS
def test_a_name_that_is_not_there_is_an_attribute_error_that_says_so(package):
    module = importlib.import_module(package)
    for name in ("nothing", "_private", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"module '{package}' has no attribute '{name}'"):
            getattr(module, name)
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {package} import nothing", {})


def test_a_module_of_the_package_is_there_without_an_import_of_its_own():
    assert "latchwork.store" in imported("import latchwork\nlatchwork.store.Session")


def test_the_process_of_a_task_imports_neither_stores_nor_primitives_nor_event_loops():
    program = "import latchwork.tasks.running.process_main\nfrom latchwork.tasks import TaskContext, current_task, task"
    found = imported(program)
    assert {name for name in found if name.startswith(("latchwork.store", "latchwork.primitives"))} == set()
    assert "latchwork.backends" not in found
    assert (
        "asyncio"
        not in subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, latchwork.tasks.running.process_main; print('asyncio' in sys.modules and 'asyncio')",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
