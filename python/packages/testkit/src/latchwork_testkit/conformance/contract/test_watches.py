"""Watches and mirrors."""

from __future__ import annotations

import threading

import pytest

from latchwork import Closed, Delete, Put, WaitTimeout
from latchwork.spi import Current, Snapshot


def collect(watch, until, timeout_s=5.0):
    """Apply batches of changes from a watch until a condition is true, and return the values by key.

    Args:
        watch: The watch.
        until: Called with the values after each batch.
        timeout_s: Seconds to wait.
    """
    state: dict[str, bytes] = {}
    while not until(state):
        for change in watch.next(timeout_s):
            if change.entry is None:
                state.pop(change.key, None)
            else:
                state[change.key] = change.entry.value or b""
    return state


def test_the_first_batch_is_the_current_state_sorted(store):
    for key in ("w/b", "w", "w/a/x", "wx", "v"):
        store.put(key, b"")
    with store.watch("w") as watch:
        first = watch.next(5)
    assert [change.key for change in first] == ["w", "w/a/x", "w/b"]
    assert [change.entry for change in first] == store.get_many(["w", "w/a/x", "w/b"])


def test_the_first_batch_of_nothing_is_empty_and_comes_at_once(store):
    with store.watch("nothing") as watch:
        assert watch.next(5) == ()
        with pytest.raises(WaitTimeout):
            watch.next(0.2)


def test_every_kind_of_change_by_any_client_is_reported(store, other):
    with store.watch("w") as watch:
        assert watch.next(5) == ()
        other.put("w/a", b"1")
        assert [(c.key, c.entry.value) for c in watch.next(5)] == [("w/a", b"1")]
        other.put("w/a", b"2")
        (change,) = watch.next(5)
        assert change.entry == other.get("w/a")
        other.delete("w/a")
        assert [(c.key, c.entry) for c in watch.next(5)] == [("w/a", None)]
        other.put("w", b"the prefix itself")
        assert [c.key for c in watch.next(5)] == ["w"]
        other.put("w/x/y/z", b"")
        assert [c.key for c in watch.next(5)] == ["w/x/y/z"]
        other.put("wx", b"not below")
        other.put("w/last", b"")
        assert [c.key for c in watch.next(5)] == ["w/last"]


def test_a_watched_leaf_tells_its_state_its_changes_and_its_end(store, other):
    other.put("w/leaf", b"1", session=other.session)
    with store.watch("w/leaf", single_key=True) as watch:
        assert [(c.key, c.entry.value) for c in watch.next(5)] == [("w/leaf", b"1")]
        other.put("w/leaf", b"2")
        (change,) = watch.next(5)
        assert change.entry == other.get("w/leaf")
        other.delete("w/leaf")
        assert [(c.key, c.entry) for c in watch.next(5)] == [("w/leaf", None)]


def test_a_watched_leaf_ends_with_its_session(store, other):
    other.put("w/leaf", b"1", session=other.session)
    with store.watch("w/leaf", single_key=True) as watch:
        assert len(watch.next(5)) == 1
        other.session.close()
        assert [(c.key, c.entry) for c in watch.next(10)] == [("w/leaf", None)]


def test_a_leaf_that_is_not_there_gives_an_empty_first_batch(store):
    with store.watch("w/leaf", single_key=True) as watch:
        assert watch.next(5) == ()


def test_what_is_read_beside_a_leaf_that_has_gone_lacks_it(store, other):
    for name in ("a", "b", "c"):
        other.put(f"w/{name}", b"", session=other.session)
    with store.watch("w/b", single_key=True, siblings=True) as watch:
        assert len(watch.next(5)) == 1
        other.delete("w/b")
        assert [(c.key, c.entry) for c in watch.next(5)] == [("w/b", None)]
        assert watch.siblings is None or sorted(watch.siblings) == ["a", "c"]


def test_the_root_can_be_watched(store, other):
    with store.watch("") as watch:
        assert watch.next(5) == ()
        other.put("a/b", b"")
        assert [c.key for c in watch.next(5)] == ["a/b"]


def test_a_session_bound_key_that_vanishes_is_reported(store, other):
    session = other.open_session(5.0)
    other.put("w/bound", b"", session=session)
    with store.watch("w") as watch:
        (first,) = watch.next(5)
        assert first.entry.owner == session.id
        session.close()
        assert [(c.key, c.entry) for c in watch.next(5)] == [("w/bound", None)]


def test_a_delete_and_re_creation_shows_as_a_new_created(store, other):
    old = store.put("w/k", b"same")
    with store.watch("w") as watch:
        watch.next(5)
        other.delete("w/k")
        new = other.create("w/k", b"same")
        latest = None
        while latest is None or latest.entry is None:
            (latest,) = watch.next(5)
        assert latest.entry.created == new.created > old.created


def test_a_transaction_over_several_keys_is_reported_whole_in_the_end(store, other):
    other.put("w/old", b"")
    with store.watch("w") as watch:
        assert len(watch.next(5)) == 1
        other.commit([], [Put("w/a", b"1"), Put("w/b/c", b"2"), Delete("w/old")])
        seen: dict[str, object] = {}
        while len(seen) < 3:
            seen.update({change.key: change.entry and change.entry.value for change in watch.next(5)})
    assert seen == {"w/a": b"1", "w/b/c": b"2", "w/old": None}


def test_a_burst_of_changes_ends_in_the_servers_state_and_no_key_moves_backwards(store, other):
    tokens: dict[str, int] = {}
    backwards: list[str] = []
    state: dict[str, bytes] = {}
    done = threading.Event()

    def take(batch):
        for change in batch:
            if change.entry is None:
                state.pop(change.key, None)
                continue
            if change.entry.token < tokens.get(change.key, 0):
                backwards.append(change.key)
            tokens[change.key] = change.entry.token
            state[change.key] = change.entry.value
        if b"end" in state.values():
            done.set()

    watch = store.watch("w")
    watch.subscribe(take)
    with other.pipeline() as pipeline:
        for number in range(300):
            pipeline.put(f"w/{number % 17}", str(number).encode())
            if number % 5 == 0:
                pipeline.delete(f"w/{number % 13}")
    other.put("w/z", b"end")
    assert done.wait(10)
    watch.close()
    assert backwards == []
    assert state == {entry.key: entry.value for entry in other.list("w")}


def test_a_reader_that_waits_gets_one_merged_change_per_key(store, other):
    other.put("w/0", b"before")
    with store.watch("w") as watch, store.mirror("w") as mirror:
        watch.next(5)
        for number in range(60):
            last = other.put(f"w/{number % 3}", str(number).encode())
        other.delete("w/0")
        mirror.wait_until(lambda state: "w/0" not in state and state.get("w/2") == last, 5)
        latest: dict[str, list[object]] = {}
        while len(latest) < 3 or latest["w/0"][-1] is not None:
            batch = watch.next(5)
            assert len({change.key for change in batch}) == len(batch)
            for change in batch:
                latest.setdefault(change.key, []).append(change.entry and change.entry.value)
    assert {key: seen[-1] for key, seen in latest.items()} == {"w/0": None, "w/1": b"58", "w/2": b"59"}
    assert sum(len(seen) for seen in latest.values()) <= 6, "states in between were merged"


def test_a_slow_or_raising_subscriber_delays_no_other(store, other):
    slow_started, release, seen = threading.Event(), threading.Event(), threading.Event()

    def slow(_batch):
        slow_started.set()
        release.wait(10)

    def raising(_batch):
        raise RuntimeError

    for fn in (slow, raising):
        store.watch("w").subscribe(fn)
    quick = store.watch("w")
    quick.subscribe(lambda batch: [seen.set() for change in batch if change.key == "w/now"])
    assert slow_started.wait(5)
    other.put("w/now", b"")
    assert seen.wait(5)
    release.set()


def test_a_subscriber_that_raises_is_called_again(store, other):
    calls: list[int] = []
    once, twice = threading.Event(), threading.Event()

    def raising(batch):
        calls.append(len(batch))
        (twice if len(calls) > 1 else once).set()
        raise RuntimeError

    watch = store.watch("w")
    watch.subscribe(raising)
    store.mirror("w").close()
    other.put("w/a", b"")
    assert once.wait(5)
    other.put("w/b", b"")  # not before, or both could come in one batch
    assert twice.wait(5)


def test_a_subscriber_may_call_the_store(store, other):
    copied = threading.Event()

    def copy(batch):
        for change in batch:
            if change.entry is not None:
                store.put("copy", store.get(change.key).value)
                copied.set()

    store.watch("w").subscribe(copy)
    other.put("w/a", b"original")
    assert copied.wait(5)
    assert store.get("copy").value == b"original"


def test_close_from_another_thread_ends_the_iteration(store):
    watch = store.watch("w")
    batches = []

    def iterate():
        batches.extend(watch)

    thread = threading.Thread(target=iterate)
    thread.start()
    with store.mirror("w"):
        watch.close()
    thread.join(5)
    assert not thread.is_alive()
    watch.close()
    with pytest.raises(Closed):
        watch.next(1)


def test_a_mirror_behaves_as_a_mapping_and_is_kept_current(store, other):
    other.put("m/b", b"2")
    other.put("m/a", b"1")
    with store.mirror("m") as mirror:
        assert dict(mirror) == {"m/a": other.get("m/a"), "m/b": other.get("m/b")}
        assert list(mirror) == ["m/a", "m/b"]
        assert len(mirror) == 2
        assert "m/a" in mirror
        assert mirror.get("m/zzz") is None
        with pytest.raises(KeyError):
            mirror["m/zzz"]
        other.put("m/c", b"3")
        other.delete("m/a")
        mirror.wait_until(lambda state: list(state) == ["m/b", "m/c"], 5)
        with pytest.raises(WaitTimeout):
            mirror.wait_until(lambda state: "m/never" in state, 0.2)


def test_a_mirror_without_values_knows_keys_and_versions(store, other):
    store.put("a/large", b"x" * 1000)
    with store.mirror("a", values=False) as mirror:
        assert (mirror["a/large"].value, mirror["a/large"].version) == (b"", store.get("a/large").version)
        newer = other.put("a/large", b"y" * 1000)
        mirror.wait_until(lambda now: now["a/large"].version == newer.version, 10)
        assert mirror["a/large"].value == b""


def test_a_mirror_says_how_stale_it_may_be(store):
    with store.mirror("m") as mirror:
        assert mirror.stale_s() < 3
        settled = threading.Event()
        assert not settled.wait(2.5)
        assert mirror.stale_s() < 2.5


def test_a_mirror_listener_starts_with_the_state_and_can_be_removed(store, other):
    other.put("m/a", b"")
    with store.mirror("m") as mirror:
        batches: list[list[str]] = []
        came = threading.Semaphore(0)

        def take(batch):
            batches.append([change.key for change in batch])
            came.release()

        remove = mirror.on_change(take)
        assert came.acquire(timeout=5)
        other.put("m/b", b"")
        assert came.acquire(timeout=5)
        remove()
        other.put("m/c", b"")
        mirror.wait_until(lambda state: "m/c" in state, 5)
        assert not came.acquire(timeout=0.2)
        assert batches == [["m/a"], ["m/b"]]


def test_many_watches_on_one_store_each_see_their_own_keys(store, other):
    before = threading.active_count()
    mirrors = [store.mirror(f"many/{number}") for number in range(40)]
    grown = threading.active_count() - before
    for number in range(40):
        other.put(f"many/{number}/k", str(number).encode())
    for number, mirror in enumerate(mirrors):
        mirror.wait_until(lambda state, key=f"many/{number}/k": key in state, 5)
        assert len(mirror) == 1
        mirror.close()
    assert grown < 20, "a thread per watch"


def test_store_close_ends_its_watches(backend_url):
    import latchwork

    store = latchwork.connect(backend_url)
    watch, mirror = store.watch("w"), store.mirror("m")
    watch.next(5)
    store.close()
    with pytest.raises(Closed):
        watch.next(1)
    with pytest.raises(Closed):
        mirror.wait_until(lambda _state: False, 1)
    assert list(watch) == []


def test_a_quiet_watch_that_wants_beats_is_known_to_be_current_and_one_that_wants_none_hears_nothing(store):
    heard = {True: [], False: []}
    watches = [store._core.backend.watch("w", heard[heartbeats].append, heartbeats=heartbeats) for heartbeats in heard]
    try:
        if hasattr(watches[0], "prove_current"):
            watches[0].prove_current()
        quiet = threading.Event()
        assert not quiet.wait(3.5)
        assert sum(isinstance(event, Current) for event in heard[True]) >= 1
        assert [type(event) for event in heard[False]] == [Snapshot]
    finally:
        for watch in watches:
            watch.close()
