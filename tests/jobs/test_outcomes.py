"""How runs went, as it is seen from outside: a job that fails at each run says so, at the cost of few small writes."""

from __future__ import annotations

import threading
import time

import pytest

import latchwork
from latchwork.jobs import Control, Cron, FixedDelay, Job, JobOutcome, RunError, Threads, explain_item, inspect
from latchwork.jobs.node.run_reporter import OutcomeSchedule
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.stored.runs import MAX_NAMED_ERRORS, decode_outcomes, delete_old_outcomes, encode_outcomes
from latchwork.jobs.worker.outcomes import EndedRun, OutcomeTracker, summarize_error


@pytest.fixture
def memory():
    with latchwork.connect("memory://outcomes") as store:
        yield cluster_store(store)


def failing(context):
    raise ValueError(f"no such region: {context.items[0]}")


def of_items(items, run=failing, job_id="report", **options):
    defaults = {"schedule": FixedDelay(0.05), "initial_delay_s": 0.0, "threads": Threads.per_item()}
    return Job(job_id, work_pool=list(items), run=run, **{**defaults, **options})


def seen(store, job="report"):
    return inspect(store).job(job)


# What is kept, purely


def ended(*items, error=None, at_s=10.0, was_stopped=False):
    return EndedRun(items, at_s, error, was_stopped)


def went(*ends):
    outcomes = OutcomeTracker("report", "n1")
    for each in ends:
        outcomes.record_start(each.at_s - 1.0)
        outcomes.record_end(each)
    return outcomes


def test_an_item_that_always_fails_is_seen_among_many_that_do_not():
    outcomes = went(*(ended("bad" if n % 2 else f"i{n}", error="E" if n % 2 else None, at_s=n) for n in range(1, 101)))
    found = outcomes.get_outcome()
    assert (found.consecutive_failures, found.failing_items) == (50, 1)
    assert (found.last_error.item, found.last_error.consecutive_failures) == ("bad", 50)
    assert found.last_success_s == 100.0


def test_failures_in_a_row_end_with_a_run_of_the_item_that_ends_well():
    found = went(ended("a", error="E"), ended("a", error="E"), ended("a", "b")).get_outcome()
    assert (found.consecutive_failures, found.failing_items, found.failing) == (0, 0, ())
    assert found.last_error.text == "E"


def test_failures_are_counted_on_when_items_are_split_into_other_runs():
    found = went(ended("a", "b", error="E"), ended("a", error="E"), ended("a", "b", "c", error="E")).get_outcome()
    assert (found.consecutive_failures, found.failing_items, found.last_error.items) == (3, 3, 3)


def test_a_run_that_was_stopped_to_stop_says_nothing_of_the_job():
    found = went(
        ended("a", error="E"), ended("a", error="stopping", was_stopped=True), ended("a", was_stopped=True)
    ).get_outcome()
    assert (found.consecutive_failures, found.last_error.text, found.last_success_s) == (1, "E", None)


def test_an_item_that_went_elsewhere_is_not_failing_here():
    outcomes = went(ended("a", error="E"), ended("b", error="E"))
    outcomes.forget_moved_items(frozenset("b"))
    assert outcomes.get_outcome().failing_items == 1
    outcomes.forget_moved_items(frozenset())
    assert outcomes.get_outcome().consecutive_failures == 0


def test_what_was_written_before_a_restart_goes_on():
    before = went(ended("a", error="E", at_s=5.0), ended("a", error="E", at_s=7.0)).get_outcome()
    outcomes = OutcomeTracker("report", "n1")
    outcomes.add_earlier_outcome(before)
    assert (outcomes.get_outcome().last_error.at_s, outcomes.get_outcome().consecutive_failures) == (7.0, 0), (
        "nothing failed since"
    )
    outcomes.record_start(8.0)
    outcomes.record_end(ended("a", error="E"))
    assert outcomes.get_outcome().consecutive_failures == 3


def test_who_listens_hears_of_turns_only():
    turns = []
    outcomes = OutcomeTracker("report", "n1", lambda job, turn: turns.append((job, turn)))
    for error in (None, "E", "E", "E", None, None):
        outcomes.record_start(1.0)
        outcomes.record_end(ended("a", error=error))
    assert turns == [("report", "started"), ("report", "failing"), ("report", "recovered")]


@pytest.mark.parametrize("message", ["x" * 100_000, "two\nlines", "\udc80", ""])
def test_an_error_is_one_line_of_bounded_size(message):
    line = summarize_error(ValueError(message))
    assert line.startswith("ValueError")
    assert len(line) <= 500
    assert "\n" not in line
    line.encode()


def test_an_error_whose_message_raises_is_told_all_the_same():
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError

    assert summarize_error(Odd()).startswith("Odd: ")


# What is stored


def an_outcome(job="report", *, errors=2, item="a", at_s=5.0, text="ValueError: no"):
    found = [RunError(text, f"{item}{n}", 1, "n1", at_s, n + 1) for n in range(errors)]
    last = found[-1] if found else None
    return JobOutcome("n1", job, at_s, at_s - 1.0, last, errors, errors, tuple(reversed(found)), at_s + 60.0)


def test_a_record_is_read_as_it_was_written():
    outcomes = [an_outcome("a"), an_outcome("b", errors=0), an_outcome("c", text="OSError: full")]
    assert decode_outcomes("n1", encode_outcomes(outcomes)) == outcomes


def test_a_record_stays_small_and_jobs_that_fail_are_kept_before_others():
    many = [an_outcome(f"job{n:05}", errors=0, at_s=9.0) for n in range(5000)]
    bad = [an_outcome(f"bad{n:02}", errors=MAX_NAMED_ERRORS, item="é" * 250, text="x" * 500) for n in range(10)]
    value = encode_outcomes([*many, *bad])
    assert len(value) <= 64 * 1024
    kept = decode_outcomes("n1", value)
    assert {each.job for each in bad} <= {each.job for each in kept}
    assert len(kept) > 100


def test_the_same_error_of_many_jobs_is_stored_once():
    value = encode_outcomes([an_outcome(f"job{n:03}", text="x" * 500) for n in range(100)])
    assert value.count(b"x" * 500) == 1


def test_a_job_of_which_nothing_is_known_takes_no_room():
    assert encode_outcomes([JobOutcome("n1", "report")]) == encode_outcomes([])


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"{}", b"\xff", b'{"jobs": 1, "errors": []}', b'{"jobs": {"a": 3}, "errors": []}', b"[" * 100_000,
        b'{"jobs": {"a": {"start": 1e300, "row": -1, "error": [0, "x", 1, 5, 1], "failing": 7}}, "errors": []}',
        b'{"jobs": {"a": {"start": ' + b"9" * 400 + b', "next": "soon", "items": 1.5}}, "errors": []}',
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_says_nothing(value):
    for found in decode_outcomes("n1", value):
        assert found == JobOutcome("n1", "a")


# When it is written


def test_a_turn_is_looked_at_at_once_and_of_each_job_once_in_a_period():
    pace = OutcomeSchedule()
    assert pace.due_in_s(0.0, 60.0) == 15.0, "the first look comes sooner"
    pace.record_transition("a", 1.0)
    assert pace.due_in_s(1.0, 60.0) == 0.0
    pace.begin_write()
    pace.finish_write(1.0)
    assert pace.due_in_s(1.0, 60.0) == 60.0
    pace.record_transition("a", 5.0)
    assert pace.due_in_s(5.0, 60.0) == 56.0
    pace.record_transition("b", 5.0)
    assert pace.due_in_s(5.0, 60.0) == 0.0
    assert pace.due_in_s(5.0, 0.0) is None


def test_what_turns_while_the_last_look_is_written_down_is_not_lost():
    pace = OutcomeSchedule()
    pace.record_transition("a", 1.0)
    pace.begin_write()
    pace.record_transition("b", 1.1)
    pace.finish_write(1.2)
    assert pace.due_in_s(1.2, 60.0) <= 0.0


# From outside


def test_a_job_that_fails_at_each_run_says_so_with_the_error_the_item_and_the_node(store, cluster, eventually):
    before = time.time()
    cluster.node(store, "n1", of_items(["north", "south"], lambda c: c.items == ("south",) or failing(c)))
    state = eventually(lambda: (found := seen(store)).consecutive_failures >= 1 and found)
    (error,) = state.failing
    assert (error.text, error.item, error.items, error.node) == ("ValueError: no such region: north", "north", 1, "n1")
    assert before - 0.1 <= error.at_s <= time.time() + 0.1
    assert before - 0.1 <= state.last_start_s <= time.time() + 0.1
    assert state.failing_items == 1
    sentences = " ".join(explain_item(inspect(store), Control(store).settings(), "report", "north").sentences)
    assert "its runs fail on node n1, " in sentences
    assert "ValueError: no such region: north" in sentences


def test_a_job_that_works_again_says_so_in_a_moment(memory, cluster, eventually):
    good = threading.Event()
    cluster.node(memory, "n1", of_items(["a"], lambda c: good.is_set() or failing(c)), outcome_period_s=4.0)
    eventually(lambda: seen(memory).consecutive_failures)
    good.set()
    state = eventually(lambda: (found := seen(memory)).last_success_s is not None and found)
    assert (state.consecutive_failures, state.failing) == (0, ())
    assert state.last_error.text == "ValueError: no such region: a", "what was wrong is still known"


def test_the_next_start_of_a_job_that_never_ran_is_known(memory, cluster, eventually):
    cluster.node(memory, "n1", of_items(["a"], schedule=Cron("0 3 1 1 *")), outcome_period_s=1.0)
    state = eventually(lambda: (found := seen(memory)).next_start_s is not None and found)
    assert state.next_start_s == pytest.approx(Cron("0 3 1 1 *").fire_after(time.time()), abs=1.5)
    assert state.last_start_s is None


def test_failures_are_known_after_the_node_has_gone_and_go_on_when_it_is_back(store, cluster, eventually):
    ran = []
    first = cluster.node(store, "n1", of_items(["a"], lambda c: ran.append(c) or failing(c)))
    eventually(lambda: len(ran) >= 3)
    first.close()
    (written,) = decode_outcomes("n1", store.get("outcomes/n1").value)
    assert len(ran) - written.consecutive_failures in (0, 1)  # a run that its node told to stop does not count
    cluster.node(store, "n1", of_items(["a"], lambda c: ran.append(c) or failing(c), schedule=FixedDelay(60.0)))
    eventually(lambda: seen(store).consecutive_failures == written.consecutive_failures + 1)


def test_a_cluster_in_which_nothing_changes_writes_nothing(memory, cluster, eventually):
    cluster.node(memory, "n1", of_items(["a"], print, schedule=FixedDelay(3600.0)), outcome_period_s=0.2)
    eventually(lambda: (entry := memory.get("outcomes/n1")) and b"success" in entry.value and b"next" in entry.value)
    version = memory.get("outcomes/n1").version
    assert not threading.Event().wait(3.0), "time to write"
    assert memory.get("outcomes/n1").version == version


def test_a_job_that_fails_every_other_time_costs_a_write_in_a_period_and_no_more(memory, cluster, eventually):
    count = []

    def flapping(context):
        count.append(1)
        if len(count) % 2:
            failing(context)

    with memory.mirror("outcomes") as mirror:
        at = []
        mirror.on_change(lambda batch: batch and at.append(time.monotonic()))
        cluster.node(memory, "n1", of_items(["a"], flapping, schedule=FixedDelay(0.02)), outcome_period_s=60.0)
        eventually(lambda: len(count) > 200, 20.0)
    assert 1 <= len(at) <= 4


def test_with_a_period_of_0_nothing_is_written_and_settings_may_change_it(memory, cluster, eventually):
    Control(memory).change_cluster(outcome_period_s=0.0)
    ran = []
    cluster.node(memory, "n1", of_items(["a"], lambda c: ran.append(c) or failing(c)))
    eventually(lambda: len(ran) > 30)
    assert memory.list("outcomes") == []
    Control(memory).change_cluster(outcome_period_s=None)
    eventually(lambda: memory.list("outcomes"))


def test_nodes_that_have_gone_are_kept_for_a_time_and_in_bounds(store):
    now = time.time()
    for n in range(4):
        store.put(f"outcomes/n{n}", encode_outcomes([an_outcome(errors=0, at_s=now - 100.0 * n)]))
    store.put("outcomes/foreign", b"\xff")
    assert delete_old_outcomes(store, {"n3"}, now - 150.0, []) == 2
    assert store.children("outcomes") == ["n0", "n1", "n3"]
