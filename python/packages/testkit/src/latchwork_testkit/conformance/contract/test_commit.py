"""commit: checks, operations, conflicts, limits."""

from __future__ import annotations

import threading

import pytest

from latchwork import (
    Absent,
    At,
    Conflict,
    Create,
    Delete,
    Exists,
    Fence,
    Put,
    TransactionTooLarge,
    ValueTooLarge,
)


def test_all_operations_land_together_with_one_token(store):
    kept = store.put("kept", b"old")
    store.put("gone", b"")
    done = store.commit(
        [At(kept), Absent("fresh"), Exists("gone")],
        [Put("kept", b"new"), Create("fresh", b"1"), Delete("gone"), Delete("never"), Put("a/b", b"2")],
    )
    assert [entry.key for entry in done.entries] == ["kept", "fresh", "a/b"]
    assert {entry.token for entry in done.entries} == {done.token}
    assert done.token > kept.token
    assert done.deleted == ("gone",)
    assert store.get_many(["kept", "fresh", "a/b"]) == list(done.entries)
    assert store.get("gone") is None
    assert done.entries[0].created == kept.created
    assert done.entries[1].created == done.token


@pytest.mark.parametrize("wrong", ["at", "at-gone", "absent", "exists", "create"])
def test_one_check_that_fails_writes_nothing_and_is_named(store, wrong):
    old = store.put("k", b"1")
    store.put("k", b"2")
    other = store.put("other", b"1")
    dead = store.put("dead", b"")
    store.delete("dead")
    culprit = {
        "at": At(old),
        "at-gone": At(dead),
        "absent": Absent("k"),
        "exists": Exists("nothing"),
        "create": Create("k", b"x"),
    }[wrong]
    checks = [At(other)] + ([] if isinstance(culprit, Create) else [culprit])
    ops = [Put("written", b""), Delete("other")] + ([culprit] if isinstance(culprit, Create) else [])
    with pytest.raises(Conflict) as caught:
        store.commit(checks, ops)
    assert culprit in caught.value.failed
    assert At(other) not in caught.value.failed
    assert culprit.key in str(caught.value)
    assert store.get("written") is None
    assert store.get("other") == other
    assert store.get("k").value == b"2"


def test_checks_alone_are_answered(store):
    entry = store.put("k", b"")
    assert store.commit([At(entry), Absent("x")], []).token == 0
    assert store.commit([], []).entries == ()
    with pytest.raises(Conflict):
        store.commit([Absent("k")], [])
    with pytest.raises(Conflict):
        store.commit([Exists("x")], [])


def test_a_key_may_be_checked_and_written_in_one_transaction(store):
    entry = store.put("k", b"1")
    done = store.commit([At(entry)], [Put("k", b"2")])
    store.commit([At(done.entries[0])], [Delete("k")])
    store.commit([Absent("k")], [Create("k", b"3")])
    store.commit([Exists("k")], [Put("k", b"4")])
    assert store.get("k").value == b"4"
    store.commit([Absent("new")], [Put("new", b"")])
    with pytest.raises(Conflict):
        store.commit([Absent("new")], [Put("new", b"")])


def test_deleting_an_absent_key_is_nothing(store):
    done = store.commit([], [Delete("never")])
    assert done.deleted == ()
    assert done.entries == ()


def test_put_of_an_implied_parent_and_its_child_in_one_transaction(store):
    done = store.commit([], [Put("x/y/z", b"1"), Put("x", b"2"), Create("x/y", b"3")])
    assert [entry.key for entry in done.entries] == ["x/y/z", "x", "x/y"]
    assert [entry.key for entry in store.list("", recursive=True)] == ["x", "x/y", "x/y/z"]
    done = store.commit([], [Delete("x/y/z"), Delete("x"), Delete("x/y")])
    assert set(done.deleted) == {"x", "x/y", "x/y/z"}
    assert store.children("") == []


def test_a_hundred_checks_and_a_hundred_operations_fit(store):
    entries = store.commit([], [Put(f"in/{n}", b"") for n in range(100)]).entries
    done = store.commit(
        [At(entry) for entry in entries[:50]] + [Absent(f"out/deep/{n}") for n in range(50)],
        [Put(f"out/deep/{n}", b"x") for n in range(60)] + [Delete(f"in/{n}") for n in range(40)],
    )
    assert len(done.entries) == 60
    assert len(done.deleted) == 40
    with pytest.raises(Conflict) as caught:
        store.commit([Exists(f"out/deep/{n}") for n in range(100)], [Put("result", b"")])
    assert set(caught.value.failed) & {Exists(f"out/deep/{n}") for n in range(60, 100)}
    assert store.get("result") is None


def test_a_hundred_session_bound_operations_fit(store):
    session = store.open_session(5.0)
    done = store.commit([session.fence], [Create(f"bound/{n}", b"x", session) for n in range(100)])
    assert {entry.owner for entry in done.entries} == {session.id}


def test_transactions_beyond_the_limits_are_refused_before_any_io(store):
    allowed = store.capabilities
    assert allowed.max_txn_checks >= 100
    assert allowed.max_txn_ops >= 100
    assert allowed.max_txn_bytes >= 1_000_000
    with pytest.raises(TransactionTooLarge, match="operations"):
        store.commit([], [Put(f"k{n}", b"") for n in range(allowed.max_txn_ops + 1)])
    with pytest.raises(TransactionTooLarge, match="checks"):
        store.commit([Absent(f"k{n}") for n in range(allowed.max_txn_checks + 1)], [])
    with pytest.raises(ValueTooLarge):
        store.commit([], [Put("a", b"x" * 1_000_001)])
    pieces = allowed.max_txn_bytes // 900_000 + 1
    if pieces <= 100:
        with pytest.raises(TransactionTooLarge, match="bytes"):
            store.commit([], [Put(f"k{n}", b"x" * 900_000) for n in range(pieces)])
    assert store.list("", recursive=True) == []


def test_a_million_bytes_in_one_transaction_fit(store):
    store.commit([], [Put(f"k{n}", b"x" * 249_990) for n in range(4)])
    assert [len(entry.value) for entry in store.list("")] == [249_990] * 4


def test_the_keys_of_checks_count_too_and_an_absent_one_twice(store):
    keys = [f"{n:03}/" + "/".join(["x" * 95] * 10) for n in range(100)]  # 963 characters
    checks = sum(map(len, keys))
    room = store.capabilities.max_txn_bytes - 2 + 1
    with pytest.raises(TransactionTooLarge, match="bytes"):
        store.commit([Exists(key) for key in keys], [Put("k", b"x" * (room - checks)), Put("m", b"")])
    with pytest.raises(TransactionTooLarge, match="bytes"):
        store.commit([Absent(key) for key in keys], [Put("k", b"x" * (room - 2 * checks)), Put("m", b"")])
    assert store.list("", recursive=True) == []


@pytest.mark.parametrize("check", [Absent, Exists, At])
def test_the_portable_limits_hold_together_for_keys_of_500_characters_and_16_segments(store, check):
    def keys(letter):
        return [f"{letter}{n:03}/" + "/".join([letter * 32] * 15) for n in range(100)]

    checked, written = keys("c"), keys("w")
    assert {(len(key), key.count("/")) for key in checked} == {(499, 15)}
    entries = [] if check is Absent else store.commit([], [Put(key, b"") for key in checked]).entries
    checks = [check(each) for each in (entries if check is At else checked)]
    size = (1_000_000 - sum(map(len, written)) - (2 if check is Absent else 1) * sum(map(len, checked))) // 100
    done = store.commit(checks, [Put(key, b"v" * size) for key in written])
    assert [entry.key for entry in done.entries] == written


def test_a_key_written_twice_or_two_sessions_are_value_errors(store):
    with pytest.raises(ValueError, match="'k' is written twice"):
        store.commit([], [Put("k", b""), Delete("k")])
    one, two = store.open_session(5.0), store.open_session(5.0)
    with pytest.raises(ValueError, match="two sessions"):
        store.commit([], [Put("a", b"", one), Put("b", b"", two)])


def test_a_fence_goes_in_as_a_check_and_is_named_when_it_breaks(store):
    entry = store.put("held", b"me")
    fence = store.fence(entry.token, At(entry))
    assert store.commit([fence], [Put("work", b"1")]).entries
    store.put("held", b"other")
    with pytest.raises(Conflict) as caught:
        store.commit([fence], [Put("work", b"2")])
    assert caught.value.failed == (fence,)
    assert isinstance(fence, Fence)
    assert store.get("work").value == b"1"


def test_concurrent_increments_lose_nothing(store, other):
    store.put("n", b"0")

    def add(client):
        done = 0
        while done < 15:
            entry = client.get("n")
            try:
                client.commit([At(entry)], [Put("n", str(int(entry.value) + 1).encode())])
            except Conflict:
                continue
            done += 1

    threads = [threading.Thread(target=add, args=(client,)) for client in (store, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("n").value == b"60"


def test_checks_hold_at_one_moment_under_concurrent_re_creation(store, other):
    """A writer deletes and re-creates a key all the time; a commit on an older version must never land."""
    stop = threading.Event()
    creations = [store.put("k", b"0").token]

    def churn():
        while not stop.wait(0.002):
            other.delete("k")
            creations.append(other.create("k", b"0").token)

    thread = threading.Thread(target=churn)
    thread.start()
    landed: list[tuple[int, int]] = []
    conflicts = 0
    try:
        while len(landed) < 30 or conflicts < 5:
            entry = store.get("k")
            if entry is None:
                continue
            if len(landed) % 3 == 0:
                stop.wait(0.002)  # let it grow old
            try:
                landed.append((entry.token, store.commit([At(entry)], [Put("seen", b"")]).token))
            except Conflict:
                conflicts += 1
    finally:
        stop.set()
        thread.join()
    overtaken = [(read, done) for read, done in landed if any(read < made < done for made in creations)]
    assert overtaken == []


def test_absence_holds_at_the_moment_of_the_commit(store, other):
    """Two clients create each other's flag only if the other's is absent: both must never succeed."""
    for round_number in range(15):
        wins: list[str] = []
        start = threading.Barrier(2)

        def claim(client, mine, theirs, number=round_number, wins=wins, start=start):
            start.wait()
            try:
                client.commit([Absent(f"{number}/{theirs}")], [Put(f"{number}/{mine}", b"")])
                wins.append(mine)
            except Conflict:
                pass

        threads = [
            threading.Thread(target=claim, args=(store, "left", "right")),
            threading.Thread(target=claim, args=(other, "right", "left")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == 1
