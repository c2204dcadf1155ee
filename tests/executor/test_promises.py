"""The page about the executor names a test for each promise: each is there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "design" / "0022-executor.md"


def test_every_test_that_the_page_names_is_there():
    proof = PAGE.read_text().partition("## The proof")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", proof))
    there = {
        name
        for file in HERE.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(named) > 25
    assert named - there == set()
