"""What a worker starts, stops, locks and unlocks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.jobs.job import Threads
from latchwork.jobs.worker.runs import RunState, reconcile

ITEMS = st.frozensets(st.sampled_from("abcdefgh"))
THREADS = st.sampled_from([Threads.whole(), Threads.per_item(), Threads.at_most(3)])


def run(number, items, stopping=False):
    return RunState(number, frozenset(items), stopping)


def test_locks_of_new_items_are_requested_before_anything_starts():
    actions = reconcile("ab", "", [], Threads.whole())
    assert (actions.acquire, actions.start) == (("a", "b"), ())


def test_items_whose_locks_are_held_start_at_once_while_others_are_waited_for():
    actions = reconcile("ab", "a", [], Threads.whole())
    assert (actions.acquire, actions.start) == (("b",), (("a",),))


def test_more_items_with_one_thread_stop_the_run_and_start_one_when_it_has_ended():
    actions = reconcile("ab", "ab", [run(1, "a")], Threads.whole())
    assert (actions.stop, actions.start) == ((1,), ())
    assert reconcile("ab", "ab", [run(1, "a", stopping=True)], Threads.whole()).start == ()
    assert reconcile("ab", "ab", [], Threads.whole()).start == (("a", "b"),)


def test_with_one_run_per_item_only_the_changed_items_are_touched():
    actions = reconcile("bc", "abc", [run(1, "a"), run(2, "b")], Threads.per_item())
    assert (actions.stop, actions.start) == ((1,), (("c",),))


def test_unchanged_items_are_left_alone():
    actions = reconcile("ab", "ab", [run(1, "ab")], Threads.whole())
    assert actions == type(actions)()


def test_a_lock_is_kept_until_the_run_that_uses_it_has_ended():
    assert reconcile("", "a", [run(1, "a", stopping=True)], Threads.whole()).release == ()
    assert reconcile("", "a", [], Threads.whole()).release == ("a",)


def test_a_run_whose_lock_was_lost_is_stopped_and_its_item_is_locked_again_after_its_end():
    actions = reconcile("a", "", [run(1, "a")], Threads.whole())
    assert (actions.stop, actions.acquire) == ((1,), ())
    assert reconcile("a", "", [run(1, "a", stopping=True)], Threads.whole()).acquire == ()
    assert reconcile("a", "", [], Threads.whole()).acquire == ("a",)


def test_an_item_does_not_start_again_beside_its_own_run_that_will_not_stop():
    actions = reconcile("ab", "ab", [run(1, "a", stopping=True)], Threads.per_item())
    assert actions.start == (("b",),)


def test_a_stuck_run_counts_towards_the_limit():
    stuck_jobs = [run(1, "x", stopping=True), run(2, "y", stopping=True)]
    assert len(reconcile("abc", "abc", stuck_jobs, Threads.at_most(3)).start) == 1


@given(ITEMS, ITEMS, st.lists(st.tuples(ITEMS, st.booleans()), max_size=4), THREADS)
@settings(deadline=None, max_examples=300)
def test_no_item_is_ever_in_two_live_runs_nor_started_without_its_lock(desired, held, runs, threads):
    live, used = [], set()
    for number, (items, stopping) in enumerate(runs):
        if items - used:
            live.append(run(number, items - used, stopping))
            used |= items
    actions = reconcile(desired, held, live, threads)
    started = [item for part in actions.start for item in part]
    assert len(started) == len(set(started))
    assert not set(started) & used
    assert set(started) <= desired & held
    assert set(actions.release) <= held - desired - used
    assert set(actions.acquire) == desired - held - used


@given(st.lists(ITEMS, min_size=1, max_size=6), THREADS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=300)
def test_whatever_happened_before_it_ends_with_exactly_the_desired_items_running(shares, threads, random):
    live, held, number = [], set(), 0
    for desired in shares:
        for _ in range(12 if desired is shares[-1] else random.randrange(4)):
            actions = reconcile(desired, held, live, threads)
            live = [run(r.number, r.items, r.stopping or r.number in actions.stop) for r in live]
            held = (held - set(actions.release)) | set(actions.acquire)
            for part in actions.start:
                number += 1
                live.append(run(number, part))
            live = [r for r in live if not (r.stopping and random.random() < 0.7)]
    for _ in range(3):
        live = [r for r in live if not r.stopping]
        actions = reconcile(shares[-1], held, live, threads)
        held = (held - set(actions.release)) | set(actions.acquire)
        live = [r for r in live if r.number not in actions.stop]
        live += [run(number + i + 1, part) for i, part in enumerate(actions.start)]
        number += 10
    assert sorted(item for r in live for item in r.items) == sorted(shares[-1])
    assert held == set(shares[-1])
    assert reconcile(shares[-1], held, live, threads) == type(actions)()
