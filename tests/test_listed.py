"""The lists of what executor, plans and workflows promise: each line has its tests, and these are there."""

import re

import pytest

from listed import DESIGN, missing, named_in, rows_of, sources_in

PAGES = {
    "J": ("0027-executor-behaviours.md", 14, ("Behaviours", "What is built", "Trouble")),
    "P": ("0028-plan-behaviours.md", 9, ("Behaviours", "What is built", "Done when")),
    "D": ("0026-workflow-behaviours.md", 17, ("Behaviours", "Trouble", "Done when")),
}
ROWS = {letter: rows_of(page, *sections) for letter, (page, _, sections) in PAGES.items()}
ISSUES = sorted(set(re.findall(r"#\d{3,}", (DESIGN / PAGES["D"][0]).read_text(encoding="utf-8"))))
SOURCES = sources_in(".")
#: What is not built has no tests.
NONE_YET = "none yet"


@pytest.mark.parametrize("row", [row for rows in ROWS.values() for row in rows], ids=lambda row: row[0])
def test_a_line_has_tests_that_are_there(row):
    assert named_in(row) or row[-1].startswith(NONE_YET)
    assert missing(row, SOURCES) == []


@pytest.mark.parametrize("letter", PAGES)
def test_each_behaviour_has_a_line(letter):
    behaviours = [row[0] for row in ROWS[letter] if re.fullmatch(rf"{letter}\d+", row[0])]
    assert behaviours == [f"{letter}{number}" for number in range(1, PAGES[letter][1] + 1)]


@pytest.mark.parametrize("issue", ISSUES)
def test_each_issue_stands_in_a_test_that_its_line_names(issue):
    (row,) = [row for row in ROWS["D"] if re.search(rf"{issue}\b", row[1])]
    files = [text for text in SOURCES.values() if re.search(rf"{issue}\b", text)]
    assert any(f"def {name}(" in text for text in files for name in named_in(row))
