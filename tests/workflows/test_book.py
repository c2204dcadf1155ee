"""What a master has in mind of its shard, from what it wrote last. Pure."""

from dataclasses import replace

from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.master.state_cache import MAX_DUE, StateCache, build_stored_run
from latchwork_workflows.state import (
    Claimed,
    Ended,
    ForceStart,
    Outcome,
    Pause,
    Rerun,
    Resume,
    Start,
    Stop,
    TaskRule,
    WorkflowPlan,
    WorkflowRun,
    advance,
)

PLAN = WorkflowPlan({"a": TaskRule(retries=1, retry_interval_s=60.0), "b": TaskRule(after=("a",))})


def stored(known=None):
    return StoredRun(7, 1, 1, 2, 0.0, {}, known or WorkflowRun(), {"a": 1, "b": 2}, {}, {})


def after(before, *events, now=100.0):
    known = before.known
    for each in events or [None]:
        known = advance(PLAN, known, [each] if each else [], now)
    ids = {"a": 1, "b": 2} if known.round == 1 else {"a": 11, "b": 12}
    return build_stored_run(before, known, ids, {}, {})


def test_what_is_submitted_is_put_what_runs_is_followed_and_what_is_over_is_forgotten():
    book, one = StateCache(), after(stored(), Start())
    book.update_run(one)
    assert list(book.to_put) == ["1.1"]
    one = after(one, Claimed("a", 1))
    book.update_run(one)
    assert (list(book.to_put), list(book.running)) == ([], ["1.1"])
    one = after(one, Ended("a", 1, Outcome.SUCCESS))
    book.update_run(one)
    assert (list(book.to_put), list(book.running)) == (["2.1"], [])
    book.update_run(after(one, Ended("b", 1, Outcome.SUCCESS)))
    assert (book.runs, book.to_put, book.find_attempt(2, 1)) == ({}, {}, None)


def test_what_is_paused_and_resumed_before_it_was_put_is_put():
    book, one = StateCache(), after(stored(), Start())
    book.update_run(one)
    one = after(one, Pause())
    book.update_run(one)
    assert (list(book.to_put), book.to_settle) == ([], {7})
    book.update_run(after(one, Resume()))
    assert (list(book.to_put), book.to_settle) == (["1.1"], set())


def test_only_the_newest_attempt_of_the_newest_run_is_found():
    book, one = StateCache(), after(stored(), Start(), Claimed("a", 1), Ended("a", 1, Outcome.FAILURE))
    book.update_run(one)
    book.update_run(after(one, now=200.0))
    assert book.find_attempt(1, 1) is None
    assert book.find_attempt(1, 2).attempt_key == "1.2"
    ended = after(stored(), Start(), Ended("a", 1, Outcome.FATAL))
    book.update_run(ended)
    book.update_run(after(ended, Rerun()))
    assert book.find_attempt(1, 1) is None
    assert book.find_attempt(11, 1).attempt_key == "11.1"
    assert list(book.to_put) == ["11.1"]


def test_moments_are_due_once_they_have_come_until_they_are_written():
    book, one = StateCache(), after(stored(), Start(), Claimed("a", 1), Ended("a", 1, Outcome.FAILURE))
    book.update_run(one)
    assert (book.next_timer_at, book.list_due_runs(159.0), book.list_due_runs(160.0)) == (160.0, [], [7])
    assert book.list_due_runs(161.0) == [7]  # what was not written is due still
    book.update_run(after(one, now=161.0))
    assert (book.list_due_runs(200.0), book.next_timer_at) == ([], None)


def test_of_thousands_that_are_due_at_one_moment_so_many_come_at_a_time_and_each_comes():
    book = StateCache()
    for number in range(2 * MAX_DUE + 1):
        one = after(stored(), Start(), Claimed("a", 1), Ended("a", 1, Outcome.FAILURE))
        book.update_run(replace(one, id=number, ids={name: 10 * number + row for name, row in one.ids.items()}))
    counts = []
    while some := book.list_due_runs(160.0):
        counts.append(len(some))
        for number in some:
            book.update_run(after(book.runs[number], now=160.0))
    assert counts == [MAX_DUE, MAX_DUE, 1]


def test_what_is_started_by_force_is_taken_back_and_not_put_meanwhile():
    book, one = StateCache(), after(stored(), Start())
    book.update_run(one)
    book.update_run(after(one, ForceStart("a")))
    assert (list(book.to_put), book.to_settle) == ([], {7})


def test_what_is_overdue_is_to_be_taken_back_and_not_to_be_put():
    book, one = StateCache(), stored()
    waits = WorkflowPlan({"a": TaskRule(max_queued_s=5.0)})
    known = advance(waits, advance(waits, one.known, [Start()], 100.0), [], 105.0)
    book.update_run(build_stored_run(one, known, {"a": 1}, {}, {}))
    assert (list(book.to_put), book.to_settle) == ([], {7})


def test_what_is_stopped_is_settled_until_it_is_over():
    book, one = StateCache(), after(stored(), Start(), Claimed("a", 1))
    book.update_run(one)
    one = after(one, Stop())
    book.update_run(one)
    assert book.to_settle == {7}
    book.update_run(after(one, Ended("a", 1, Outcome.KILLED)))
    assert (book.to_settle, book.running) == (set(), {})


def test_facts_of_one_turn_are_no_part_of_the_next():
    one = after(stored(), Start(), Ended("a", 1, Outcome.FATAL))
    assert one.known.timeline_events == ()
    assert replace(one.known, timeline_events=()) == one.known
