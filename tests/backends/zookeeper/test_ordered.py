"""Ordered keys on ZooKeeper: numbers that come round, parents that go and come back."""

from __future__ import annotations

import pytest

from latchwork.backends.futures import completed
from latchwork.backends.zookeeper.writing import sequences
from latchwork.backends.zookeeper.writing.sequences import find_older_names
from latchwork.backends.zookeeper.writing.states import ParentCache
from latchwork.types import Create, Delete

LEAST, MOST = -(2**31), 2**31 - 1


def result(future):
    return future.result(15)


def make(backend, unique, session=None, stem="a/q/t-"):
    return result(backend.create_ordered_key(stem, unique, b"v", session))


def name(number, unique="x"):
    return f"t-{unique}-{number:010d}"


@pytest.mark.parametrize(
    ("ours", "numbers", "expected"),
    [
        (7, [9, 3, 5, 7, 8], [3, 5]),
        (0, [1, 2], []),
        (LEAST, [MOST, MOST - 1, LEAST + 1], [MOST - 1, MOST]),
        (LEAST + 2, [LEAST + 1, MOST, LEAST + 3, LEAST], [MOST, LEAST, LEAST + 1]),
        (-1, [-2, 0, 1], [-2]),
        (1, [-1, 0, 2], [-1, 0]),
    ],
)
def test_numbers_that_come_round_are_older_than_those_behind_them(ours, numbers, expected):
    names = [name(number) for number in numbers]
    assert find_older_names(name(ours), "t-", names) == tuple(name(number) for number in expected)


def test_names_of_another_kind_or_without_a_number_are_not_older():
    names = [name(1), "t-x", "s-x-0000000001", "#keep", "tx-0000000001", "t-x0000000001"]
    assert find_older_names(name(2), "t-", names) == (name(1),)


def test_the_parent_goes_when_it_is_empty_and_comes_back(backend, other, raw, root, wait_until, sweeps_soon):
    session = result(backend.open_session(20.0, lambda: None))
    for round_number in range(2):
        first = make(backend, f"{round_number}a", session)
        second = make(other, f"{round_number}b")
        assert (first.older, second.older) == ((), (first.entry.key.rpartition("/")[2],))
        assert second.entry.created > first.entry.created
        result(other.commit([], [Delete(second.entry.key)]))
        result(backend.commit([], [Delete(first.entry.key)]))
        wait_until(
            lambda: raw.exists(f"/{root}/a") is None, 60.0
        )  # the server looks for empty parents by its own clock


def test_a_key_below_a_parent_that_was_swept_by_another_store_is_created(backend, other, raw, root):
    make(backend, "1")
    made = make(other, "2")
    for each in raw.get_children(f"/{root}/a/q"):
        raw.delete(f"/{root}/a/q/{each}")
    raw.delete(f"/{root}/a/q")
    raw.delete(f"/{root}/a")
    again = make(backend, "3")
    assert again.older == ()
    assert again.entry.created > made.entry.created
    assert make(other, "4").older == (again.entry.key.rpartition("/")[2],)


def test_names_without_our_own_key_are_older_than_it_and_tell_nothing(backend, monkeypatch):
    """As they may be when the connection broke between the two requests: a lock would have two holders."""

    def before_it_was_created(_reader, _above, _asked):
        yield completed(None)
        return []

    first = make(backend, "1")
    monkeypatch.setattr(sequences, "_wait_for_names", before_it_was_created)
    assert make(backend, "2").older is None
    monkeypatch.undo()
    assert make(backend, "3").older[:1] == (first.entry.key.rpartition("/")[2],)


def test_a_key_with_a_parent_that_is_there_is_two_requests_sent_together(backend, monkeypatch):
    make(backend, "1")
    asked, submit = [], backend._main._submit
    monkeypatch.setattr(
        backend._main, "_submit", lambda *args, **how: asked.append(how.get("then")) or submit(*args, **how)
    )
    make(backend, "2")
    assert len(asked) == 1
    assert asked[0] is not None


@pytest.fixture
def looks(monkeypatch):
    """How often missing parents were looked for."""
    found, find = [], sequences.find_missing_parents
    monkeypatch.setattr(sequences, "find_missing_parents", lambda *asked: found.append(asked) or find(*asked))
    return found


def test_of_keys_created_at_once_below_a_new_parent_one_creates_it_for_all(backend, looks):
    keys = [backend.create_ordered_key("a/q/t-", each, b"v", None) for each in "123"]
    assert [len(result(each).older) for each in keys] == [0, 1, 2]
    assert len(looks) == 3


def test_a_key_relies_on_a_parent_that_a_transaction_before_it_creates(backend, looks):
    other_key = backend.commit([], [Create("a/b/c", b"v")])
    made = backend.create_ordered_key("a/q/t-", "1", b"v", None)
    assert result(other_key).entries
    assert result(made).older == ()
    assert len(looks) == 1


def test_a_key_that_was_misled_once_creates_its_parents_itself(backend, monkeypatch):
    monkeypatch.setattr(ParentCache, "is_being_created", lambda *_: True)
    assert make(backend, "1").older == ()
