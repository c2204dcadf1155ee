"""The demo's pure parts: what is counted, how the outcome is judged, how it is shown."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from latchwork.demo.corpus import (
    BROKEN_ITEM,
    Counts,
    count_files,
    count_serially,
    find_items,
    write_broken_item,
)
from latchwork.demo.outcome import Facts, Rerun, judge
from latchwork.demo.processes import Kill
from latchwork.demo.records import AssignmentRecord, Result, Start
from latchwork.demo.view import LiveView, NodeProgress, PlainView, Progress

ONE = Counts(files=1, lines=10)
VICTIM, OTHER = 100, 200


def facts(**changes):
    """Ten items; w1 did four, was killed in `e`; w2 did the rest, `e` again among them."""
    items = "abcdefghij"
    results = {item: Result("w1", VICTIM, ONE) for item in items[:4]}
    results |= {item: Result("w2", OTHER, ONE) for item in items[4:]}
    starts = {item: [Start("w1", VICTIM, 1.0)] for item in items[:5]}
    starts["e"].append(Start("w2", OTHER, 12.0))
    starts |= {item: [Start("w2", OTHER, 13.0)] for item in items[5:]}
    found = Facts(
        items=10,
        kill=Kill("w1", VICTIM, was_leader=False, item="e", at_s=10.0, done=4, owned=("e", "f")),
        results=results,
        starts=starts,
        assignments=[
            AssignmentRecord("w1", 0.5, tuple("abcdef")),
            AssignmentRecord("w2", 11.5, ("e",)),
            AssignmentRecord("w2", 12.5, ("e", "f")),
        ],
        serial=Counts(files=10, lines=100),
        leader_s=None,
    )
    return replace(found, **changes)


def judged(**changes):
    return judge(facts(**changes), seconds=1.0, store="sqlite:///x", kept=False)


def test_a_demo_in_which_everything_held_has_no_problem():
    report = judged()
    assert report.ok
    assert report.reruns == (Rerun("e", "w1", "w2"),)
    assert report.by_node == {"w1": 4, "w2": 6}
    takeover = report.takeover
    assert (takeover.items, takeover.interrupted_s, takeover.owned_s, takeover.last_start_s) == (2, 2.0, 2.5, 3.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"serial": Counts(files=10, lines=101)}, "100 lines, the serial count is 101"),
        ({"items": 11}, "1 items have no result"),
        ({"kill": None}, "no process was killed"),
        ({"kill": replace(facts().kill, done=8)}, "not halfway"),
        ({"kill": replace(facts().kill, done=2)}, "not halfway"),
        ({"starts": {**facts().starts, "e": [Start("w1", VICTIM, 1.0)]}}, "e was not run again"),
        ({"results": {**facts().results, "e": Result("w1", VICTIM, ONE)}}, "w1 had finished e"),
    ],
)
def test_whatever_does_not_hold_is_a_problem(changes, words):
    report = judged(**changes)
    assert not report.ok
    assert any(words in problem for problem in report.problems), report.problems


def test_items_that_never_found_a_new_owner_show_as_never():
    assert judged(assignments=[]).takeover.owned_s is None


def test_counting_sees_nested_functions_and_classes_and_survives_what_cannot_be_parsed(tmp_path):
    good, broken, binary = tmp_path / "good.py", tmp_path / "broken.py", tmp_path / "binary.py"
    good.write_text("class A:\n    def f(self):\n        async def g(): ...\n        class B: ...\n", encoding="utf-8")
    broken.write_text("def half(:\n", encoding="utf-8")
    binary.write_bytes(b"x = 1\n\0\n")
    assert count_files([good]) == Counts(files=1, lines=4, functions=2, classes=2)
    assert count_files([broken]) == Counts(files=1, lines=1, unparsable=1)
    assert count_files([binary]).unparsable == 1
    assert count_serially({"x": (good,), "y": (broken, binary)}) == Counts(3, 7, 2, 2, 2)


def test_items_are_the_standard_library_without_tests_and_the_broken_one(tmp_path):
    write_broken_item(tmp_path)
    items = find_items(tmp_path)
    assert {"ast", "asyncio", "json", BROKEN_ITEM} <= set(items)
    assert "test" not in items
    assert "site-packages" not in items
    assert len(items) > 100
    assert all(files for files in items.values())
    assert not [path for files in items.values() for path in files if {"test", "tests"} & set(path.parts)]
    assert count_files(items[BROKEN_ITEM]) == Counts(files=1, lines=5, unparsable=1)


PROGRESS = Progress(
    2.0,
    3,
    9,
    [NodeProgress("w1", 1, "manager", 5, 2, "json"), NodeProgress("w2", 2, "killed", 0, 1, None)],
)


def test_the_live_view_shows_each_worker_its_items_and_its_progress():
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=100, color_system=None))
    view.show(PROGRESS)
    view.say("kill -9 2: w2")
    view.close()
    view.close()
    for words in ("w1", "manager", "json", "w2", "killed", "3/9 items, 2.0 s", "kill -9 2: w2"):
        assert words in out.getvalue()


def test_the_plain_view_prints_a_line_a_second_and_the_last_state():
    out = io.StringIO()
    view = PlainView(Console(file=out, width=400))
    for elapsed_s, done in ((2.0, 3), (2.2, 4), (3.1, 5), (3.2, 9)):
        view.show(replace(PROGRESS, elapsed_s=elapsed_s, done=done))
    lines = out.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["3/9", "5/9", "9/9"]
    assert "w1 (manager) 2 done running json, w2 (killed) 1 done" in lines[0]
