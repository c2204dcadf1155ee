"""Folding watch events into one state per key."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from latchwork.backends.base import Current, Delta, Snapshot
from latchwork.store.watch import ChangeBuffer, WatchedState, WatchReceiver
from latchwork.types import Change, Entry


def entry(key, token, created=None):
    return Entry(key, b"v%d" % token, ("version", token), token, token if created is None else created)


def test_a_new_snapshot_becomes_the_difference_to_what_was_known():
    tracker = WatchedState(keep_values=True)
    tracker.apply_event(Snapshot((entry("a", 1), entry("b", 2)), 10.0))
    changes = tracker.apply_event(Snapshot((entry("b", 2), entry("c", 3)), 11.0))
    assert changes == [Change("a", None), Change("c", entry("c", 3))]
    assert set(tracker.known) == {"b", "c"}
    assert tracker.as_of == 11.0


def test_a_key_never_moves_backwards():
    tracker = WatchedState(keep_values=True)
    tracker.apply_event(Snapshot((entry("a", 5),), 0.0))
    assert tracker.apply_event(Delta((Change("a", entry("a", 4)),))) == []
    assert tracker.known["a"].token == 5


def test_what_is_known_already_is_no_change():
    tracker = WatchedState(keep_values=False)
    tracker.apply_event(Snapshot((entry("a", 5),), 0.0))
    assert tracker.apply_event(Delta((Change("a", entry("a", 5)), Change("never", None)), 1.0)) == []


def test_current_moves_only_the_time():
    tracker = WatchedState(keep_values=True)
    assert tracker.apply_event(Current(5.0)) == []
    assert tracker.as_of == 5.0
    assert not tracker.ready
    tracker.apply_event(Current(4.0))
    assert tracker.as_of == 5.0


def test_a_watch_keeps_no_values_but_reports_them():
    tracker = WatchedState(keep_values=False)
    (change,) = tracker.apply_event(Snapshot((entry("a", 1),), 0.0))
    assert change.entry.value == b"v1"
    assert tracker.known["a"].value == b""


def test_the_first_batch_waits_for_the_snapshot_and_may_be_empty():
    inbox = ChangeBuffer()
    inbox.add([], ready=False)
    assert not inbox.filled
    inbox.add([], ready=True)
    assert inbox.filled
    assert inbox.take() == ()
    inbox.add([], ready=True)
    assert not inbox.filled


def test_changes_that_wait_are_merged_per_key_in_order_of_the_last_change():
    inbox = ChangeBuffer()
    inbox.add([], ready=True)
    inbox.take()
    inbox.add([Change("a", entry("a", 1)), Change("b", entry("b", 2))], ready=True)
    inbox.add([Change("a", None)], ready=True)
    assert [change.key for change in inbox.take()] == ["b", "a"]


def test_changes_that_do_not_matter_wait_for_one_that_does():
    inbox = ChangeBuffer()
    inbox.add([], ready=True)
    inbox.take()

    def matters(changes):
        return any(change.entry is not None for change in changes)

    assert not inbox.add([Change("a", None)], ready=True, is_relevant=matters)
    assert inbox.add([Change("b", entry("b", 1))], ready=True, is_relevant=matters)
    assert inbox.add([Change("c", None)], ready=True, is_relevant=matters)
    assert [change.key for change in inbox.take()] == ["a", "b", "c"]


events = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans()),
    max_size=30,
)


@given(events, st.integers(0, 5))
def test_the_fold_of_any_history_with_any_gap_is_the_final_state(history, gap):
    """Deltas, some of them lost behind a gap that ends in a snapshot, give the state that a reader would read."""
    state: dict[str, Entry] = {}
    tracker = WatchedState(keep_values=True)
    tracker.apply_event(Snapshot((), 0.0))
    for number, (key, alive) in enumerate(history, start=1):
        change = Change(key, entry(key, number) if alive else None)
        state.pop(key, None)
        if change.entry is not None:
            state[key] = change.entry
        if gap and number % gap == 0:
            tracker.apply_event(Snapshot(tuple(state.values()), float(number)))
        elif not gap or number % gap != gap - 1:
            tracker.apply_event(Delta((change,)))
    tracker.apply_event(Snapshot(tuple(state.values()), 99.0))
    assert tracker.known == state


def test_a_quiet_watch_is_told_nothing_however_long_and_a_quiet_mirror_that_it_is_current(store, monkeypatch):
    told = []
    take = WatchReceiver.__call__
    monkeypatch.setattr(
        WatchReceiver, "__call__", lambda feed, event: told.append(type(feed).__name__) or take(feed, event)
    )
    watches = [store.watch(f"w/{number}") for number in range(30)]
    with store.mirror("w") as mirror:
        for watch in watches:
            watch.next(10)
        mirror.stale_s()
        told.clear()
        quiet = threading.Event()
        assert not quiet.wait(2.5)
    assert told.count("Watch") == 0
    assert told.count("Mirror") >= 1
