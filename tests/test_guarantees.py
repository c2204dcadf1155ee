"""Each row of the guarantees names tests, and these exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "guarantees.md"


def rows():
    """Yield the first and the last cell of each row of a table that says where a promise is tested."""
    header = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            header = None
        elif header is None:
            header = cells
        elif header[-1] == "tested in" and not set(line) <= set("|-"):
            yield cells[0], cells[-1]


def found(name):
    """Return the test files and folders that a name means: a path, a pattern, or the name of a file or a function."""
    if name.startswith("tests/"):
        return list(TESTS.parent.glob(name))
    if name.endswith(".py"):
        return _below(name)
    return [path for path in _below("test_*.py") if f"def {name}(" in path.read_text(encoding="utf-8")]


def _below(pattern):
    """Files below the tests, with those of the conformance kit: a link, which rglob does not follow."""
    return [*TESTS.rglob(pattern), *(TESTS / "conformance").glob(pattern)]


@pytest.mark.parametrize(("promise", "where"), [pytest.param(*row, id=row[0][:60]) for row in rows()])
def test_a_promise_names_tests_that_exist(promise, where):
    names = re.findall(r"`(tests/[^`]+|[^` ]+\.py|test_\w+)`", where)
    assert names, f"{promise!r} names no test"
    assert [name for name in names if not found(name)] == []
