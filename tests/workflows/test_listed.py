"""The list of behaviours and troubles: each line has its tests, and these are there."""

import re

import pytest

from listed import DESIGN, TESTS, missing, named_in, rows_of, sources_in

PAGE = "0026-workflow-behaviours.md"
TEXT = (DESIGN / PAGE).read_text(encoding="utf-8")
TUTORIALS = TESTS / "test_tutorials.py"
SOURCES = {
    **sources_in("workflows", "trials/flows", "trials/protocols"),
    TUTORIALS: TUTORIALS.read_text(encoding="utf-8"),
}
ROWS = rows_of(PAGE, "Behaviours", "Trouble", "Done when")
#: What is not built has no tests.
NONE_YET = "none yet"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_line_has_tests_that_are_there(row):
    assert named_in(row) or row[-1].startswith(NONE_YET)
    assert missing(row, SOURCES) == []


def test_each_behaviour_has_a_line():
    assert [row[0] for row in ROWS if re.fullmatch(r"D\d+", row[0])] == [f"D{number}" for number in range(1, 18)]


@pytest.mark.parametrize("issue", sorted(set(re.findall(r"#\d{3,}", TEXT))))
def test_each_issue_stands_in_a_test_that_its_line_names(issue):
    (row,) = [row for row in ROWS if re.search(rf"{issue}\b", row[1])]
    files = [text for text in SOURCES.values() if re.search(rf"{issue}\b", text)]
    assert any(f"def {name}(" in text for text in files for name in named_in(row))
