"""The list of what plans promise: each line has its tests, and these are there."""

import re

import pytest

from listed import missing, named_in, rows_of, sources_in

ROWS = rows_of("0028-plan-behaviours.md", "Behaviours", "What is built", "Done when")
SOURCES = sources_in(".")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_line_has_tests_that_are_there(row):
    assert named_in(row)
    assert missing(row, SOURCES) == []


def test_each_behaviour_has_a_line():
    assert [row[0] for row in ROWS if re.fullmatch(r"P\d+", row[0])] == [f"P{number}" for number in range(1, 10)]
