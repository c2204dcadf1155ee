"""Which fire time comes next, and how progress is written down."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchwork.errors import BadRecord
from latchwork.jobs import Cron
from latchwork.jobs.cron_progress import (
    ProgressRecord,
    decode_progress_record,
    find_newest_by_item,
    find_obsolete_records,
)
from latchwork.schedules.fires import FireProgress, Jitter, describe_rule, find_next_fire, find_next_step

MINUTE = 60.0


def cron(misfire="once", **options):
    return Cron("* * * * *", misfire=misfire, **options)


@pytest.mark.parametrize("misfire", ["once", "all", "skip"])
def test_what_is_settled_waits_for_the_next_fire_time(misfire):
    assert find_next_fire(cron(misfire), FireProgress(10 * MINUTE), 10.5 * MINUTE) == (11 * MINUTE, False)


@pytest.mark.parametrize("misfire", ["once", "all", "skip"])
def test_a_fire_time_that_has_just_come_is_run_for_itself(misfire):
    assert find_next_fire(cron(misfire), FireProgress(9 * MINUTE), 10 * MINUTE) == (10 * MINUTE, False)


@pytest.mark.parametrize(("misfire", "at"), [("once", 10 * MINUTE), ("all", 5 * MINUTE), ("skip", 11 * MINUTE)])
def test_the_policy_decides_what_becomes_of_missed_fire_times(misfire, at):
    assert find_next_fire(cron(misfire, on_time_s=20.0), FireProgress(4 * MINUTE), 10.5 * MINUTE) == (at, False)


@pytest.mark.parametrize(("misfire", "at"), [("once", 11 * MINUTE), ("all", 11 * MINUTE), ("skip", 11 * MINUTE)])
def test_what_is_later_than_the_longest_lateness_is_dropped_by_every_policy(misfire, at):
    assert find_next_fire(cron(misfire, max_lateness_s=10.0), FireProgress(0.0), 10.5 * MINUTE) == (at, False)


def test_all_runs_every_missed_one_the_oldest_first():
    fired, ran = FireProgress(7 * MINUTE), []
    while (at := find_next_fire(cron("all"), fired, 10.5 * MINUTE)[0]) <= 10.5 * MINUTE:
        ran.append(at / MINUTE)
        fired = fired.after_start(at).after_end()
    assert ran == [8, 9, 10]


def test_a_clock_that_is_set_back_repeats_no_fire_time():
    assert find_next_fire(cron(), FireProgress(20 * MINUTE), 10 * MINUTE) == (21 * MINUTE, False)


def test_an_interrupted_run_is_begun_again_for_its_fire_time_or_not_at_all():
    begun = FireProgress(9 * MINUTE).after_start(10 * MINUTE)
    assert find_next_fire(cron(), begun, 10.5 * MINUTE) == (10 * MINUTE, True)
    assert find_next_fire(cron(rerun_interrupted=False), begun, 10.5 * MINUTE) == (11 * MINUTE, False)
    assert find_next_fire(cron(max_lateness_s=10.0), begun, 10.5 * MINUTE) == (11 * MINUTE, False)


def test_items_that_owe_the_oldest_fire_time_go_first_and_together():
    progress = {"b": FireProgress(8 * MINUTE), "a": FireProgress(8 * MINUTE), "c": FireProgress(10 * MINUTE)}
    step = find_next_step(cron("all"), progress, 10.5 * MINUTE)
    assert (step.at, step.items, step.wait_s < 0) == (9 * MINUTE, ("a", "b"), True)


# Jitter


def starts(schedule, jitter, until):
    """When an item starts for which fire time, looked at each second from minute 1 on."""
    fired, found = FireProgress(MINUTE), []
    for now in range(60, until):
        while (step := find_next_step(schedule, {"a": fired}, float(now), jitter)).wait_s <= 0:
            found.append((now, step.at))
            fired = fired.after_start(step.at).after_end()
    return found


@pytest.mark.parametrize("delay_s", [0.0, 50.0, 90.0, 150.0, 1000.0])
@pytest.mark.parametrize("misfire", ["once", "all", "skip"])
def test_each_fire_time_starts_later_by_the_jitter_also_when_that_is_longer_than_the_period(misfire, delay_s):
    schedule = cron(misfire, on_time_s=2.0, max_lateness_s=5.0)
    found = starts(schedule, Jitter(delay_s, 1000.0), 2000)
    assert found == [(at + delay_s, at) for at in range(120, 2000 - int(delay_s), 60)]


@pytest.mark.parametrize(("late_s", "at"), [(69.0, 10), (71.0, 11)])
def test_lateness_counts_from_the_end_of_the_jitter_so_that_the_assignment_may_change_meanwhile(late_s, at):
    now = 10 * MINUTE + late_s
    assert find_next_fire(cron("skip", on_time_s=20.0), FireProgress(9 * MINUTE), now, Jitter(15.0, 50.0)) == (
        at * MINUTE,
        False,
    )
    limited = cron("once", max_lateness_s=20.0)
    assert find_next_fire(limited, FireProgress(9 * MINUTE), now, Jitter(15.0, 50.0)) == (at * MINUTE, False)


def test_an_interrupted_run_does_not_wait_for_the_jitter_again():
    step = find_next_step(
        cron(), {"a": FireProgress(9 * MINUTE).after_start(10 * MINUTE)}, 10 * MINUTE + 1, Jitter(50.0, 50.0)
    )
    assert (step.at, step.is_rerun, step.wait_s) == (10 * MINUTE, True, -1.0)


def test_the_jitter_of_a_run_is_the_same_on_every_node_and_those_of_many_are_spread_evenly():
    names = [f"report/item-{i}" for i in range(1000)]
    delays = sorted(Jitter.from_name(60.0, name).delay_s for name in names)
    assert Jitter.from_name(60.0, names[0]) == Jitter.from_name(60.0, names[0])
    assert all(abs(delay - 0.06 * rank) < 4.0 for rank, delay in enumerate(delays))


# A change of the schedule

DAILY, RULE = describe_rule(Cron("0 3 * * *")), describe_rule(cron("all"))


@pytest.mark.parametrize(
    ("before", "changed_s", "through"),
    [
        (FireProgress(60.0, rule=DAILY), None, 600.0),
        (FireProgress(60.0, rule=DAILY), 500.0, 500.0),
        (FireProgress(60.0, rule=RULE), None, 60.0),
        (FireProgress(60.0, rule=RULE), 500.0, 500.0),
        (FireProgress(550.0, rule=RULE), 500.0, 550.0),
        (FireProgress(60.0), None, 60.0),
    ],
)
def test_fire_times_from_before_a_schedule_came_into_force_are_none_of_it(before, changed_s, through):
    assert before.with_rule(RULE, 600.0, changed_s) == FireProgress(through, rule=RULE)


def test_a_run_that_was_interrupted_is_owed_under_another_schedule_too():
    assert FireProgress(60.0, 60.0, DAILY).with_rule(RULE, 600.0, None) == FireProgress(600.0, 60.0, RULE)


@pytest.mark.parametrize(
    "other",
    [
        Cron("0 4 * * *"),
        Cron("0 3 * * *", "Europe/Berlin"),
        Cron("0 3 * * *", misfire="all"),
        Cron("0 3 * * *", max_lateness_s=9.0),
        Cron("0 3 * * *", on_time_s=9.0),
    ],
)
def test_whatever_decides_what_is_owed_makes_another_schedule(other):
    assert describe_rule(other) != DAILY == describe_rule(Cron("0 3 * * *", rerun_interrupted=False))


def berlin(*moment, fold=0):
    return datetime(*moment, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold).timestamp()


def test_in_the_repeated_hour_of_autumn_each_pass_has_its_own_fire_time():
    each = Cron("30 * * * *", "Europe/Berlin", misfire="all")
    fired, ran = FireProgress(berlin(2026, 10, 25, 1, 45)), []
    for _ in range(3):
        at, _ = find_next_fire(each, fired, berlin(2026, 10, 25, 4, 0))
        ran.append(at)
        fired = fired.after_start(at).after_end()
    first, second = berlin(2026, 10, 25, 2, 30), berlin(2026, 10, 25, 2, 30, fold=1)
    assert ran == [first, second, berlin(2026, 10, 25, 3, 30)]
    once = Cron("30 * * * *", "Europe/Berlin")
    assert find_next_fire(once, FireProgress(first), second - 60.0) == (second, False)


times = st.integers(0, 100).map(lambda minute: minute * MINUTE)


@given(through=times, now=st.integers(0, 6000).map(float), misfire=st.sampled_from(["once", "all", "skip"]))
def test_no_fire_time_is_begun_twice_and_none_before_its_time(through, now, misfire):
    at, again = find_next_fire(cron(misfire), FireProgress(through), now)
    assert not again
    assert at > through
    assert at % MINUTE == 0
    assert at <= now or find_next_fire(cron(misfire), FireProgress(through), at - 0.5)[0] == at


# Cells

states = st.builds(FireProgress, times, st.none() | times, st.sampled_from(["", "* * * * *|UTC"]))


@given(st.dictionaries(st.text(min_size=1, max_size=9).filter(lambda text: text.isprintable()), states, min_size=1))
def test_a_cell_survives_being_stored(found):
    record = ProgressRecord("c", 7, "o", tuple(sorted(found)), tuple(found[item] for item in sorted(found)))
    assert decode_progress_record("c", record.encode_state("n"), record.encode_items()) == record


def test_the_state_of_a_large_cell_stays_small_while_its_items_go_together():
    items = tuple(f"item-{i:05}" for i in range(2000))
    record = ProgressRecord("c", 7, "o", items, (FireProgress(60.0),) * 2000)
    assert len(record.encode_state("n")) < 100


@pytest.mark.parametrize(
    ("state", "items"),
    [(b"x", b"[]"), (b"{}", b'["a"]'), (b'{"token":1,"owner":"o","fired":[[1,null]],"of":[[0,2]]}', b'["a"]')],
)
def test_a_damaged_cell_is_refused_by_name(state, items):
    with pytest.raises(BadRecord, match="progress record c1 cannot be read"):
        decode_progress_record("c1", state, items)


def record(name, token, *items, through=0.0):
    return ProgressRecord(name, token, "o", items, (FireProgress(through),) * len(items))


def test_of_two_cells_the_one_whose_locks_were_taken_later_counts_whenever_it_was_written():
    found = find_newest_by_item([record("late", 9, "a", through=60.0), record("early", 5, "a", "b")])
    assert {item: (each.name, fired.through) for item, (each, fired) in found.items()} == {
        "a": ("late", 60.0),
        "b": ("early", 0.0),
    }


def test_a_cell_is_of_no_use_once_all_its_items_are_elsewhere_or_gone():
    records = [record("old", 1, "a", "b"), record("new", 2, "a")]
    assert find_obsolete_records(records) == []
    assert find_obsolete_records([*records, record("b", 3, "b")]) == [records[0]]
    assert find_obsolete_records(records, frozenset("a")) == [records[0]]
