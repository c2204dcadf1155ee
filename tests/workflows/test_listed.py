"""The list of behaviours and troubles: each line has its tests, and these are there."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "docs" / "design" / "0026-workflow-behaviours.md").read_text(encoding="utf-8")
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for folder in ("workflows", "trials/flows")
    for path in (TESTS / folder).rglob("test_*.py")
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for part in TEXT.split("\n## ")[1:3]
    for line in part.splitlines()
    if line.startswith("| ") and not line.startswith(("| |", "| trouble"))
]
#: What is not built has no tests.
NONE_YET = "none yet"


def named_in(row):
    return re.findall(r"`(test_\w+)`", row[-1])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_line_has_tests_that_are_there(row):
    named = named_in(row)
    assert named or row[-1].startswith(NONE_YET)
    for name in named:
        assert any(f"def {name}(" in text for text in SOURCES.values()), f"there is no {name}"


def test_each_behaviour_has_a_line():
    assert [row[0] for row in ROWS if re.fullmatch(r"D\d+", row[0])] == [f"D{number}" for number in range(1, 18)]


@pytest.mark.parametrize("issue", sorted(set(re.findall(r"#\d{3,}", TEXT))))
def test_each_issue_stands_in_a_test_that_its_line_names(issue):
    (row,) = [row for row in ROWS if re.search(rf"{issue}\b", row[1])]
    files = [text for text in SOURCES.values() if re.search(rf"{issue}\b", text)]
    assert any(f"def {name}(" in text for text in files for name in named_in(row))
