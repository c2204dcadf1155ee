"""The referee of the chaos runs catches what it must, and forgives what it may."""

from __future__ import annotations

import pytest

from chaos.referee import Fault, judge

ITEM = "job/a"


def run(start, end, token, pid=1, item=ITEM, **more):
    about = {"item": item, "token": token, "pid": pid, "node": f"n{pid}"}
    events = [{"event": "start", "time": start, "job": "job", **about, **more}]
    return events + ([] if end is None else [{"event": "end", "time": end, "job": "job", **about}])


def wrote(time, token, commit, pid=1):
    return [{"event": "wrote", "time": time, "item": ITEM, "token": token, "commit": commit, "pid": pid}]


def verdict(events, faults=(), **more):
    given = {"items": [("job", ITEM)], "ended_at": 100.0, "bound_s": 200.0, **more}
    return judge(events, faults, **given)


def test_runs_one_after_the_other_are_fine():
    found = verdict(run(1, 2, 10) + run(2.1, 3, 10) + run(3.5, 4, 12, pid=2))
    assert (found.violations, found.runs, found.forgiven) == ([], 3, 0)


@pytest.mark.parametrize(
    ("events", "faults", "word"),
    [
        (run(1, 3, 10) + run(2, 4, 12, pid=2), [], "twice at a time"),
        (run(1, None, 10) + run(2, 4, 12, pid=2), [], "twice at a time"),
        (run(1, 3, 10) + run(2, 4, 12), [Fault("freeze worker", 1.5, 2.5, 1)], "twice at a time"),
        (run(1, 3, 10) + run(2, 4, 12, pid=2), [Fault("freeze worker", 5.0, 6.0, 1)], "twice at a time"),
        (
            run(1, 3, 10) + run(2, 4, 12, pid=2) + wrote(2.9, 10, 13),
            [Fault("freeze worker", 1.5, 2.5, 1)],
            "wrote at 13",
        ),
        (run(1, 2, 12) + run(3, 4, 10, pid=2), [], "older token"),
    ],
)
def test_what_must_not_happen_is_a_violation(events, faults, word):
    assert any(word in line for line in verdict(events, faults).violations)


@pytest.mark.parametrize("faults", [[Fault("freeze worker", 1.5, 2.5, 1)], [Fault("freeze manager", 0.5, 1.2, 1)]])
def test_an_overlap_of_a_frozen_process_whose_later_writes_were_refused_is_forgiven(faults):
    found = verdict(run(1, 3, 10) + run(2, 4, 12, pid=2) + wrote(1.1, 10, 11), faults)
    assert (found.violations, found.forgiven) == ([], 1)


def test_a_process_that_was_starved_counts_as_frozen():
    stall = [{"event": "stall", "since": 1.5, "time": 2.9, "pid": 1}]
    assert verdict(run(1, 3, 10) + run(2, 4, 12, pid=2) + stall).violations == []


def test_a_run_ends_with_its_process():
    assert verdict(run(1, None, 10) + run(2, 4, 12, pid=2), [Fault("kill worker", 1.8, 1.9, 1)]).violations == []


def test_an_item_that_does_not_run_again_in_time_is_a_violation():
    fault = Fault("kill worker", 10.0, 10.0, 1)
    assert verdict(run(12, 13, 10, pid=2), [fault], bound_s=5.0).violations == []
    late = verdict(run(16, 17, 10, pid=2), [fault], bound_s=5.0).violations
    assert late == [f"{ITEM} ran again after 6.0 s, 5.0 s were allowed after the last fault"]
    assert verdict(run(1, 2, 10), [fault], bound_s=5.0).violations[0].startswith(f"{ITEM} ran again not at all")


def test_fire_times_never_go_back():
    found = verdict(run(1, 2, 10, fire=60.0) + run(3, 4, 10, fire=30.0), once_per_fire=frozenset({"job"}))
    assert any("older fire time" in line for line in found.violations)
