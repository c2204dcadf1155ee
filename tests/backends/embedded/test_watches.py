"""Watches of the embedded backend: complete, in order, merged at most, never backwards."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from latchwork.backends.base import Current, Delta, Snapshot
from latchwork.backends.embedded import writes
from latchwork.backends.embedded.watches import Poller
from latchwork.errors import Unavailable
from latchwork.types import Delete, Put


def put(store, *keys, value=b"v"):
    return store.commit([], [Put(key, value) for key in keys]).result()


def state_of(events):
    """The keys and tokens that the events add up to; a key that moves backwards fails."""
    state = {}
    for event in events:
        if isinstance(event, Snapshot):
            assert all(state.get(entry.key, 0) <= entry.token for entry in event.entries)
            state = {entry.key: entry.token for entry in event.entries}
        for change in getattr(event, "changes", ()):
            if change.entry is None:
                state.pop(change.key, None)
            else:
                assert state.get(change.key, 0) < change.entry.token
                state[change.key] = change.entry.token
    return state


def stored(store, prefix=""):
    found = store.list(prefix, recursive=True, limit=None, start_after=None).result()
    return {entry.key: entry.token for entry in found}


def test_first_event_is_the_current_state(store, collector, eventually):
    put(store, "a", "a/b", "ab", "a-b")
    sink = collector()
    store.watch("a", sink)
    eventually(lambda: sink.events)
    assert isinstance(sink.events[0], Snapshot)
    assert sorted(entry.key for entry in sink.events[0].entries) == ["a", "a/b"]


def test_changes_at_and_below_the_prefix_are_reported_and_no_others(store, collector, eventually):
    sink = collector()
    store.watch("a", sink)
    eventually(lambda: sink.events)
    put(store, "ab", "a-b", "b/a")
    put(store, "a", "a/b/c")
    eventually(lambda: len(sink.changed_keys()) == 2)
    store.commit([], [Delete("a/b/c")]).result()
    eventually(lambda: len(sink.changed_keys()) == 3)
    assert sink.changed_keys() == ["a", "a/b/c", "a/b/c"]
    assert sink.changes()[-1].entry is None


def test_deletion_and_recreation_shows_as_a_new_creation(store, collector, eventually):
    put(store, "a")
    sink = collector()
    store.watch("a", sink)
    eventually(lambda: sink.events)
    store.commit([], [Delete("a")]).result()
    (again,) = put(store, "a").entries
    eventually(lambda: sink.changes() and sink.changes()[-1].entry == again)


def test_other_stores_see_changes_too(url, store, opened, collector, eventually):
    sink = collector()
    opened(url).watch("", sink)
    eventually(lambda: sink.events)
    put(store, "a")
    eventually(lambda: sink.changed_keys() == ["a"])


def test_changes_of_another_root_are_not_reported(url, store, opened, collector, eventually):
    sink = collector()
    store.watch("", sink)
    eventually(lambda: sink.events)
    put(opened(url, root="other"), "a")
    put(store, "b")
    eventually(sink.changed_keys)
    assert sink.changed_keys() == ["b"]


def test_watch_that_fell_behind_forgotten_deletions_gets_everything_again(store, collector, eventually, monkeypatch):
    monkeypatch.setattr(writes, "KEPT_TOMBSTONES", 5)
    put(store, "kept", *(f"k{n}" for n in range(60)))
    sink, blocked, entered = collector(), threading.Event(), threading.Event()

    def slow(event):
        entered.set()
        blocked.wait(5)
        sink(event)

    store.watch("", slow)
    assert entered.wait(5)
    for n in range(60):
        store.commit([], [Delete(f"k{n}")]).result()
    blocked.set()
    eventually(lambda: sink.kinds().count("Snapshot") == 2)
    assert state_of(sink.events) == stored(store)
    assert set(stored(store)) == {"kept"}


def test_quiet_watch_is_told_at_least_every_two_seconds_that_it_is_current(store, collector, eventually):
    sink = collector()
    store.watch("a", sink)
    eventually(lambda: sum(isinstance(event, Current) for event in sink.events) >= 2, 5)
    times = [event.as_of for event in sink.events]
    assert all(0 < later - earlier <= 2 for earlier, later in pairwise(times))


def test_a_thread_in_memory_does_not_wake_while_nothing_changes_and_nobody_asks_how_old_the_state_is(
    collector, eventually, opened, monkeypatch
):
    polls = []
    really = Poller._poll
    monkeypatch.setattr(Poller, "_poll", lambda poller: polls.append(1) or really(poller))
    store = opened("memory://asleep")
    sinks = [collector() for _ in range(20)]
    for sink in sinks:
        store.watch("a", sink, heartbeats=False)
    eventually(lambda: all(sink.events for sink in sinks))
    polls.clear()
    assert not threading.Event().wait(2.5)
    assert len(polls) <= 1, "it woke although nothing changed"  # one that was asked for with the last watch
    put(store, "a")
    eventually(lambda: all(sink.changed_keys() == ["a"] for sink in sinks))


def test_a_store_that_is_told_nothing_looks_less_often_than_those_who_hand_over_to_each_other(
    sqlite_url, opened, collector, eventually, monkeypatch
):
    polls = []
    really = Poller._poll
    monkeypatch.setattr(Poller, "_poll", lambda poller: polls.append(poller) or really(poller))
    writer, idle = opened(sqlite_url), opened(sqlite_url)
    sink = collector()
    idle.watch("elsewhere", sink)
    eventually(lambda: sink.events)
    time.sleep(0.3)  # what it asked for itself is over
    began, before = time.monotonic(), polls.count(idle._poller)
    while time.monotonic() < began + 1.0:
        put(writer, "a")
        time.sleep(0.002)
    assert polls.count(idle._poller) - before <= 130
    put(writer, "elsewhere")
    eventually(lambda: sink.changed_keys() == ["elsewhere"], 1)


def test_state_as_of_a_time_has_every_write_acknowledged_before(store, collector, eventually):
    sink = collector()
    store.watch("a", sink)
    acknowledged = []
    for n in range(50):
        token = put(store, "a").token
        acknowledged.append((store._clock.now(), token))
        time.sleep(0.001 * (n % 5))
    eventually(lambda: state_of(sink.events).get("a") == acknowledged[-1][1])
    reported = 0
    for event in sink.events:
        reported = state_of([event]).get("a", reported)
        assert reported >= max((token for at, token in acknowledged if at < event.as_of), default=0)


def test_no_event_comes_after_close(store, collector, eventually):
    sink = collector()
    watch = store.watch("", sink)
    eventually(lambda: sink.events)
    watch.close()
    watch.close()
    count = len(sink.events)
    put(store, "a")
    time.sleep(0.1)
    assert len(sink.events) == count


def test_close_waits_for_the_event_being_delivered(store):
    entered, finished = threading.Event(), threading.Event()

    def slow(_):
        entered.set()
        time.sleep(0.2)
        finished.set()

    watch = store.watch("", slow)
    assert entered.wait(5)
    watch.close()
    assert finished.is_set()


def test_watch_can_be_closed_from_inside_its_sink(store, eventually):
    seen, watches, ready = [], [], threading.Event()

    def sink(event):
        ready.wait(5)
        seen.append(event)
        watches[0].close()

    watches.append(store.watch("", sink))
    ready.set()
    eventually(lambda: seen)
    put(store, "a")
    time.sleep(0.1)
    assert len(seen) == 1


def test_raising_sink_delays_no_other_watch(store, collector, eventually):
    def bad(_):
        raise RuntimeError("boom")

    store.watch("", bad)
    sink = collector()
    store.watch("", sink)
    put(store, "a")
    eventually(lambda: "a" in sink.seen())


def test_watches_add_up_to_the_stored_state_under_concurrent_writes(url, store, opened, collector, eventually):
    sinks = [collector() for _ in range(3)]
    other = opened(url)

    def write(writer, seed):
        for n in range(150):
            key = f"k{(n * seed) % 17}/x"
            writer.commit([], [Delete(key)] if n % 5 == 0 else [Put(key, b""), Put("common", b"")]).result()

    threads = [threading.Thread(target=write, args=(s, seed)) for s, seed in ((store, 3), (other, 5), (other, 7))]
    for thread in threads:
        thread.start()
    for sink, watcher in zip(sinks, (store, other, other), strict=True):
        watcher.watch("", sink)
    for thread in threads:
        thread.join()
    for sink in sinks:
        eventually(lambda sink=sink: sink.events and state_of(sink.events) == stored(store))
        assert any(isinstance(event, Delta) for event in sink.events)


def test_watch_survives_a_time_without_database(sqlite_url, opened, collector, eventually, monkeypatch):
    store = opened(sqlite_url)
    sink = collector()
    store.watch("", sink)
    eventually(lambda: sink.events)

    def broken(*_):
        raise Unavailable("the disk is away")

    real = store._db.read
    monkeypatch.setattr(store._db, "read", broken)
    put(store, "a")
    time.sleep(0.2)
    assert sink.changed_keys() == []
    monkeypatch.setattr(store._db, "read", real)
    eventually(lambda: sink.changed_keys() == ["a"])


@pytest.mark.parametrize("count", [1, 40])
def test_one_thread_serves_every_watch(store, collector, count, eventually):
    before = threading.active_count()
    sinks = [collector() for _ in range(count)]
    for sink in sinks:
        store.watch("a", sink)
    put(store, "a")
    eventually(lambda: all("a" in sink.seen() for sink in sinks))
    assert threading.active_count() == before


def test_a_watch_opened_just_before_the_poller_clears_its_wake_is_told(sqlite_url, opened, collector, eventually):
    """The wait has timed out, the watch wakes the thread, the thread clears the wake: it must look all the same."""
    store = opened(sqlite_url)
    sink = collector()

    class JustBefore(threading.Event):
        armed = True

        def clear(self):
            if self.armed:
                self.armed = False
                store.watch("a", sink)
            super().clear()

    store._poller._wake = JustBefore()
    eventually(lambda: sink.events)
    assert isinstance(sink.events[0], Snapshot)
