"""transact: read, decide, write."""

from __future__ import annotations

import threading

import pytest

from latchwork import Conflict, KeyExists, Put, TransactionTooLarge


def test_it_returns_the_functions_result_and_commits_its_writes(store):
    store.put("a", b"1")
    store.put("b", b"")

    def move(tx):
        value = tx.get("a").value
        tx.put("c/new", value)
        tx.delete("a")
        tx.create("made", b"")
        return value

    assert store.transact(move) == b"1"
    assert [entry.key for entry in store.list("", recursive=True)] == ["b", "c/new", "made"]


def test_own_writes_are_seen_inside(store):
    store.put("a", b"1")

    def look(tx):
        tx.put("a", b"2")
        assert tx.get("a").value == b"2"
        tx.delete("a")
        assert tx.get("a") is None
        tx.create("a", b"3")
        assert tx.get("a").value == b"3"
        tx.create("b", b"4")
        tx.delete("b")
        assert tx.get("b") is None

    store.transact(look)
    assert store.get("a").value == b"3"
    assert store.get("b") is None


def test_concurrent_counters_lose_nothing(store, other):
    def add(tx):
        entry = tx.get("n")
        tx.put("n", str(int(entry.value if entry else b"0") + 1).encode())

    def run(client):
        for _ in range(10):
            client.transact(add, attempts=100)

    threads = [threading.Thread(target=run, args=(client,)) for client in (store, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("n").value == b"40"


def test_a_function_that_writes_nothing_commits_nothing(store):
    entry = store.put("a", b"")
    assert store.transact(lambda tx: tx.get("a"), guard="guard") == entry
    assert store.get("guard") is None
    assert store.get("a") == entry


def test_what_was_read_absent_must_still_be_absent(store, other):
    attempts = []

    def write_if_absent(tx):
        attempts.append(1)
        if tx.get("flag") is None:
            if len(attempts) == 1:
                other.put("flag", b"theirs")
            tx.put("result", b"nobody has the flag")
        else:
            tx.put("result", b"taken")

    store.transact(write_if_absent)
    assert len(attempts) == 2
    assert store.get("result").value == b"taken"


def test_conflicts_beyond_the_attempts_are_raised(store, other):
    store.put("a", b"")

    def lose(tx):
        tx.get("a")
        other.put("a", b"")
        tx.put("b", b"")

    with pytest.raises(Conflict, match="refused 3 times"):
        store.transact(lose, attempts=3)
    assert store.get("b") is None
    with pytest.raises(ValueError, match="attempts"):
        store.transact(lose, attempts=0)


def test_an_error_of_the_function_writes_nothing(store):
    def fail(tx):
        tx.put("a", b"")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(fail)
    assert store.get("a") is None


def test_create_of_an_existing_key_raises_key_exists(store):
    store.put("a", b"")
    with pytest.raises(KeyExists):
        store.transact(lambda tx: tx.create("a", b""))


def test_listing_needs_a_guard(store):
    with pytest.raises(ValueError, match="guard"):
        store.transact(lambda tx: tx.list("a"))


def test_a_guard_makes_listing_safe_among_those_that_name_it(store, other):
    """At most three members: without the guard two clients would each add the third."""

    def join(tx, name):
        members = tx.list("members")
        if len(members) < 3:
            tx.put(f"members/{name}", b"")
            # Others may have joined meanwhile, and the commit will be refused; our own write shows in any case.
            assert f"members/{name}" in {entry.key for entry in tx.list("members")}

    def run(client, name):
        client.transact(lambda tx: join(tx, name), guard="versions/members", attempts=50)

    threads = [threading.Thread(target=run, args=(client, f"n{i}")) for i, client in enumerate((store, other) * 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.list("members")) == 3
    assert store.get("versions/members") is not None


def test_the_guards_value_is_kept(store):
    store.put("guard", b"note")
    before = store.get("guard")
    store.transact(lambda tx: tx.put("a", b""), guard="guard")
    after = store.get("guard")
    assert after.value == b"note"
    assert after.version != before.version


def test_a_session_can_own_what_a_transaction_writes(store):
    session = store.open_session(5.0)
    store.transact(lambda tx: tx.put("a", b"", session=session))
    assert store.get("a").owner == session.id


def test_a_function_that_only_reads_sees_keys_that_are_written_together_as_of_one_moment(store, other):
    def write(value):
        other.commit([], [Put("a", value), Put("b", value)])

    write(b"0")
    tries = []

    def read(tx):
        first = tx.get("a").value
        if not tries:
            write(b"1")
        tries.append(first)
        return first, tx.get("b").value

    assert store.transact(read) == (b"1", b"1")
    assert tries == [b"0", b"1"]


def test_a_list_that_is_only_read_is_of_one_moment_among_transactions_with_its_guard(store, other):
    tries = []

    def add(tx):
        tx.put("items/b", b"")
        tx.put("count", b"2")

    def read(tx):
        count = tx.get("count")
        if not tries:
            other.transact(add, guard="guard")
        tries.append(1)
        return count and count.value, [entry.key for entry in tx.list("items")]

    store.transact(lambda tx: (tx.put("items/a", b""), tx.put("count", b"1")), guard="guard")
    guard = store.get("guard")
    assert store.transact(read, guard="guard") == (b"2", ["items/a", "items/b"])
    assert len(tries) == 2
    assert store.get("guard").version != guard.version, "add has written it"
    guard = store.get("guard")
    store.transact(read, guard="guard")
    assert store.get("guard") == guard, "who only reads does not"


def test_reading_more_than_can_be_checked_is_refused(store):
    with pytest.raises(TransactionTooLarge):
        store.transact(lambda tx: [tx.get(f"k{number}") for number in range(101)])
