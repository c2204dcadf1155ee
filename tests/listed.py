"""Pages that list what must hold: each line names the tests that show it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
DESIGN = TESTS.parent / "docs" / "design"
_RULE = re.compile(r"^\|[\s|:-]+\|$")


def rows_of(page, *sections):
    """The cells of each line of the tables below these headings, without the lines that name the columns."""
    parts = {part.partition("\n")[0]: part for part in (DESIGN / page).read_text(encoding="utf-8").split("\n## ")[1:]}
    rows = []
    for lines in (parts[section].splitlines() for section in sections):
        cells = [line for line in lines if line.startswith("|")]
        rows += [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line, below in zip(cells, [*cells[1:], ""], strict=True)
            if not _RULE.match(line) and not _RULE.match(below)
        ]
    return rows


def named_in(row):
    """The tests that a line names, in its last cell."""
    return re.findall(r"`(test_\w+)`", row[-1])


def sources_in(*folders):
    """The text of each file of tests below these folders."""
    files = [path for folder in folders for path in (TESTS / folder).rglob("test_*.py")]
    return {path: path.read_text(encoding="utf-8") for path in files}


def missing(row, sources):
    """The tests that a line names, and that are not there."""
    return [name for name in named_in(row) if not any(f"def {name}(" in text for text in sources.values())]
