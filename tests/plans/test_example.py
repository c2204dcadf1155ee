"""The example of plans is what its tutorial shows, block by block; that runs with the other pages."""

from __future__ import annotations

import pytest

from test_docs import BLOCKS, REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "standard_library"


@pytest.mark.parametrize("name", ["library.py", "plan.py"])
def test_the_tutorial_shows_the_example_as_it_is(name):
    (block,) = [each for each in BLOCKS[REPOSITORY / "docs" / "tutorial-plans.md"] if each.how == f"file={name}"]
    assert block.body == (EXAMPLE / name).read_text(encoding="utf-8")


def test_the_tutorial_runs_what_it_shows():
    assert [each for each in BLOCKS[REPOSITORY / "docs" / "tutorial-plans.md"] if each.how == "runnable"]
