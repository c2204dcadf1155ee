"""Ids without gaps, on every backend."""

from __future__ import annotations

import pytest

from latchwork.errors import Conflict, InvalidKey, OutcomeUnknown, TransactionTooLarge
from latchwork.primitives import Lock, Sequence
from latchwork.types import Create


def invoice(text):
    return lambda number: [Create(f"invoices/{number:06d}", text.encode())]


def recorded(store):
    return [int(entry.key.rpartition("/")[2]) for entry in store.list("invoices")]


def test_ids_begin_at_one_and_each_has_its_record(store):
    sequence = Sequence(store, "invoice")
    assert sequence.last() == 0
    assert [sequence.take(invoice("a"))[0], sequence.take(invoice("b"))[0]] == [1, 2]
    assert [entry.value for entry in store.list("invoices")] == [b"a", b"b"]
    assert sequence.last() == 2


def test_several_ids_are_taken_in_one_transaction(store):
    sequence = Sequence(store, "invoice")
    assert sequence.take(invoice("a"), count=3) == range(1, 4)
    assert recorded(store) == [1, 2, 3]
    assert len({entry.token for entry in store.list("invoices")}) == 1


def test_many_takers_at_once_leave_no_gap_and_share_no_id(connect, store, in_thread):
    taken = []

    def take(sequence):
        taken.extend(sequence.take(invoice("a"), timeout_s=60.0)[0] for _ in range(8))

    takers = [Sequence(connect(), "invoice") for _ in range(4)]
    for each in [in_thread(lambda sequence=sequence: take(sequence)) for sequence in takers]:
        each.outcome(90.0)
    assert sorted(taken) == recorded(store) == list(range(1, 33))


def test_a_taker_that_fails_before_the_transaction_takes_no_id(store):
    sequence = Sequence(store, "invoice")
    with pytest.raises(ZeroDivisionError):
        sequence.take(lambda number: [Create(f"invoices/{number / 0}", b"")])
    assert sequence.last() == 0
    assert sequence.take(invoice("a")) == range(1, 2)


@pytest.mark.parametrize("when", ["applied", "never applied"])
def test_a_taker_with_a_lost_answer_takes_one_id(connect, store, monkeypatch, when):
    flaky = connect()
    commit = flaky.commit

    def losing(checks, ops):
        monkeypatch.setattr(flaky, "commit", commit)
        if when == "applied":
            commit(checks, ops)
            Sequence(store, "invoice").take(invoice("of another"))
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(flaky, "commit", losing)
    assert Sequence(flaky, "invoice").take(invoice("mine")) == range(1, 2)
    assert store.get("invoices/000001").value == b"mine"
    assert recorded(store) == list(range(1, Sequence(store, "invoice").last() + 1))


def test_a_record_that_is_there_already_is_a_conflict_and_takes_no_id(store):
    store.put("invoices/000001", b"by hand")
    with pytest.raises(Conflict, match="'invoices/000001' exists"):
        Sequence(store, "invoice").take(invoice("a"))
    assert Sequence(store, "invoice").last() == 0


def test_another_taker_of_the_same_id_is_no_conflict(connect, store, monkeypatch):
    slow = connect()
    commit = slow.commit

    def overtaken(checks, ops):
        monkeypatch.setattr(slow, "commit", commit)
        Sequence(store, "invoice").take(invoice("first"))
        return commit(checks, ops)

    monkeypatch.setattr(slow, "commit", overtaken)
    assert Sequence(slow, "invoice").take(invoice("second")) == range(2, 3)
    assert [entry.value for entry in store.list("invoices")] == [b"first", b"second"]


def test_an_id_without_a_record_is_refused(store):
    with pytest.raises(ValueError, match="id 1 got no record"):
        Sequence(store, "invoice").take(lambda _number: [])


def test_more_ids_than_a_transaction_holds_are_refused(store):
    sequence = Sequence(store, "invoice")
    with pytest.raises(TransactionTooLarge):
        sequence.take(invoice("a"), count=100)
    with pytest.raises(ValueError, match="count must be at least 1"):
        sequence.take(invoice("a"), count=0)
    assert sequence.last() == 0


def test_under_a_broken_fence_no_id_is_taken(store, other):
    sequence = Sequence(store, "invoice")
    with Lock(other, "guard") as fence:
        sequence.take(invoice("a"), fence=fence)
    with pytest.raises(Conflict):
        sequence.take(invoice("b"), fence=fence)
    assert recorded(store) == [1]


@pytest.mark.parametrize("name", ["", "a//b"])
def test_a_malformed_name_is_refused_before_any_io(name):
    with pytest.raises(InvalidKey, match="sequence name"):
        Sequence(None, name)
