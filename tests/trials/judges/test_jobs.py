"""The referee of the chaos runs catches what it must, and forgives what it may."""

from __future__ import annotations

import pytest

from trials.judges.faults import Fault
from trials.judges.jobs import judge

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


def stalls(*times):
    return [{"event": "stall", "since": since, "time": until, "pid": 1} for since, until in times]


@pytest.mark.parametrize("times", [[(0.5, 1.1)], [(0.2, 0.5), (1.5, 1.8)]])
def test_a_process_that_was_starved_for_as_long_as_the_locks_leave_to_stop_in_counts_as_frozen(times):
    found = verdict(run(0, 3, 10) + run(2, 4, 12, pid=2) + stalls(*times))
    assert (found.violations, found.forgiven, found.starved) == ([], 1, 1)


@pytest.mark.parametrize("times", [[(0.5, 0.9)], [(0.2, 0.4), (1.5, 1.7)], [(8.0, 9.0)]])
def test_a_shorter_stall_or_one_at_another_time_excuses_nothing(times):
    found = verdict(run(0, 13, 10) + run(12, 14, 12, pid=2) + stalls(*times))
    assert any("twice at a time" in line for line in found.violations)


def test_a_freeze_long_before_the_other_run_began_excuses_nothing():
    found = verdict(run(0, 13, 10) + run(12, 14, 12, pid=2), [Fault("freeze worker", 1.0, 3.0, 1)])
    assert any("twice at a time" in line for line in found.violations)


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


ONCE = {"once_per_fire": frozenset({"job"})}


def twice(*more):
    """One fire time run to its end by two processes, ten seconds apart."""
    return run(10, 11, 10, fire=60.0) + run(20, 21, 12, pid=2, fire=60.0) + list(more)


def told(time, pid=1):
    return {"event": "told", "time": time, "item": ITEM, "pid": pid}


@pytest.mark.parametrize(
    ("events", "faults"),
    [
        (twice(), []),
        (twice(told(15)), []),
        (twice(told(10.5, pid=2)), []),
        (twice(), [Fault("cut worker", 10, 12, 7)]),
        (twice(), [Fault("freeze worker", 10, 12, 7)]),
        (twice(), [Fault("kill server", 2, 4)]),
        (twice(), [Fault("kill server", 13, 14)]),
        (twice(told(11.4)), []),
        (twice(), [Fault("kill worker", 15, 15, 1)]),
        (run(10, 11, 10, fire=60.0) + run(12, 13, 10, fire=60.0), []),
        ([*run(1, 2, 9, fire=60.0), told(1.5), *twice()], []),
        (run(10, 11, 10, fire=60.0) + run(12, 13, 10, fire=61.0) + run(14, 15, 11, pid=2, fire=60.0), []),
    ],
)
def test_a_fire_time_that_is_started_again_after_a_run_that_nothing_cut_short_is_a_violation(events, faults):
    assert any("twice for one fire time" in line for line in verdict(events, faults, **ONCE).violations)


def test_each_further_start_of_a_fire_time_is_a_violation_of_its_own():
    events = twice() + run(30, 31, 14, pid=3, fire=60.0)
    assert len(verdict(events, **ONCE).violations) == 2


@pytest.mark.parametrize(
    ("events", "faults"),
    [
        (twice(told(10.5)), []),
        (twice(told(11.1)), []),
        (twice(), [Fault("cut worker", 10, 12, 1)]),
        (twice(), [Fault("kill server", 9, 10)]),
        (twice(), [Fault("kill worker", 11.2, 11.2, 1)]),
        (run(10, None, 10, fire=60.0) + run(20, 21, 12, pid=2, fire=60.0), [Fault("kill worker", 10.5, 10.5, 1)]),
    ],
)
def test_a_run_that_was_cut_short_or_whose_end_could_not_be_written_is_made_again(events, faults):
    found = verdict(events, faults, **ONCE)
    assert (found.violations, found.again) == ([], 1)


def test_nodes_that_share_a_file_are_all_held_up_by_a_frozen_one():
    found = verdict(twice(), [Fault("freeze worker", 10, 12, 7)], one_file=True, **ONCE)
    assert found.violations == []


def test_a_fire_time_that_is_left_out_is_a_violation_where_each_has_to_be_made_up_for():
    events = run(1, 2, 10, fire=60.0) + run(3, 4, 10, fire=61.0) + run(5, 6, 10, fire=63.0)
    assert verdict(events, **ONCE).violations == []
    found = verdict(events, every_fire_s={"job": 1.0}, **ONCE)
    assert found.violations == [f"{ITEM} left out the fire times between 61 and 63"]
