"""Rounds of common work, on every backend."""

from __future__ import annotations

import time

import pytest

from latchwork.errors import BarrierBroken, LatchworkError
from latchwork.primitives import DoubleBarrier
from latchwork.primitives.barrier.phases import encode_arrival


@pytest.fixture
def barrier(connect):
    """Make a member with a client of its own; closed after the test."""
    made = []

    def make(member_id="a", parties=2, name="join", *, store=None, **options):
        one = DoubleBarrier(store or connect(), name, parties=parties, member_id=member_id, **options)
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


def test_all_enter_together_and_leave_together_round_after_round(barrier, in_thread, store):
    def work(mine, name):
        for number in range(3):
            with mine:
                assert mine.round() == number
                store.put(f"done/{number}/{name}", b"")
            assert store.children(f"done/{number}") == ["a", "b", "c"]

    members = [(barrier(name, 3, timeout_s=60.0), name) for name in "abc"]
    for each in [in_thread(lambda m=m, n=n: work(m, n)) for m, n in members]:
        each.outcome(60.0)


def test_nobody_leaves_before_the_last(barrier, in_thread, eventually):
    a, b = barrier("a"), barrier("b")
    entering = in_thread(lambda: a.enter(30.0))
    b.enter(30.0)
    entering.outcome()
    assert a.members() == ["a", "b"]
    leaving = in_thread(lambda: a.leave(30.0))
    eventually(lambda: b.members() == ["b"])
    time.sleep(0.1)
    assert leaving.is_alive()
    assert [b.leave(30.0), leaving.outcome()] == [0, 0]


def test_a_member_that_dies_inside_is_let_in_again_and_counts_once(barrier, in_thread, eventually):
    a, b = barrier("a"), barrier("b")
    entering = in_thread(lambda: a.enter(30.0))
    b.enter(30.0)
    entering.outcome()
    back = barrier("a")
    assert back.enter(0.0) == 0
    leaving = in_thread(lambda: back.leave(30.0))
    eventually(lambda: b.members() == ["b"])
    time.sleep(0.1)
    assert leaving.is_alive()
    assert [b.leave(30.0), leaving.outcome()] == [0, 0]


def test_a_member_that_does_not_come_back_is_missing_when_patience_ends_and_the_next_round_is_usable(
    barrier, in_thread
):
    a, b = barrier("a"), barrier("b")
    entering = in_thread(lambda: a.enter(30.0))
    b.enter(30.0)
    entering.outcome()
    with pytest.raises(BarrierBroken) as caught:
        b.leave(0.1)
    assert caught.value.missing == ("a",)
    with pytest.raises(BarrierBroken):
        a.leave(0.1)
    entering = in_thread(lambda: a.enter(30.0))
    assert [b.enter(30.0), entering.outcome()] == [1, 1]


def test_a_timeout_while_entering_breaks_the_round_for_all(barrier, in_thread, eventually):
    a, b = barrier("a", 3), barrier("b", 3)
    entering = in_thread(lambda: a.enter(60.0))
    eventually(lambda: b.members() == ["a"])
    with pytest.raises(BarrierBroken):
        b.enter(0.1)
    with pytest.raises(BarrierBroken, match="'b' had no more time"):
        entering.outcome()
    assert b.round() == 1


def test_one_that_has_left_enters_the_next_round_only(barrier, in_thread, eventually):
    a, b = barrier("a"), barrier("b")
    entering = in_thread(lambda: a.enter(30.0))
    b.enter(30.0)
    entering.outcome()
    leaving = in_thread(lambda: a.leave(30.0))
    eventually(lambda: b.members() == ["b"])
    early = in_thread(lambda: barrier("a").enter(30.0))
    time.sleep(0.1)
    assert early.is_alive()
    assert [b.leave(30.0), leaving.outcome()] == [0, 0]
    assert [b.enter(30.0), early.outcome()] == [1, 1]


def test_one_that_has_no_part_in_a_round_waits_for_the_next(barrier, connect, monkeypatch, in_thread, eventually):
    store, looks = connect(), []
    a, b, c = barrier("a"), barrier("b"), barrier("c", store=store)
    entering = in_thread(lambda: a.enter(30.0))
    b.enter(30.0)
    entering.outcome()
    read = store.get_many
    monkeypatch.setattr(store, "get_many", lambda keys: looks.append(read(keys)) or looks[-1])
    early = in_thread(lambda: c.enter(60.0))
    eventually(lambda: looks)
    leaving = in_thread(lambda: a.leave(30.0))
    eventually(lambda: b.members() == ["b"])
    assert [b.leave(30.0), leaving.outcome()] == [0, 0]
    assert [b.enter(30.0), early.outcome()] == [1, 1]


def test_a_round_that_ends_between_look_and_wait_is_noticed(barrier, connect, monkeypatch, in_thread, eventually):
    store = connect()
    a, b, c = barrier("a"), barrier("b"), barrier("c", store=store)
    entering = in_thread(lambda: a.enter(30.0))
    b.enter(30.0)
    entering.outcome()
    read = store.get_many

    def ends_meanwhile(keys):
        found = read(keys)
        if "join/barrier" in keys:
            monkeypatch.setattr(store, "get_many", read)
            leaving = in_thread(lambda: a.leave(30.0))
            b.leave(30.0)
            leaving.outcome()
        return found

    monkeypatch.setattr(store, "get_many", ends_meanwhile)
    early = in_thread(lambda: c.enter(30.0))
    eventually(lambda: b.round() == 1)
    assert [b.enter(10.0), early.outcome()] == [1, 1]


def test_work_that_fails_ends_the_round_for_the_others(barrier, in_thread, eventually):
    a, b = barrier("a", timeout_s=30.0), barrier("b", timeout_s=30.0)

    def fail():
        with a:
            raise KeyError("disk")

    failing = in_thread(fail)
    with pytest.raises(BarrierBroken, match=r"the work of 'a' failed: KeyError\('disk'\)"), b:
        pass
    with pytest.raises(KeyError):
        failing.outcome()


def test_leaving_without_having_entered_is_refused(barrier):
    with pytest.raises(LatchworkError, match="'a' has not entered double barrier 'join'; enter first"):
        barrier("a").leave(0.0)


def test_an_abort_ends_the_round_although_everybody_has_just_come(barrier, store):
    mine = barrier("m", 1)
    store.create("join/barrier", mine._initial.to_bytes())
    store.put(mine._mine, encode_arrival(0, {}))  # it died before it could say that it was the last to come
    mine.abort("enough")
    assert mine.members() == []
    with barrier("b", 1, timeout_s=5.0) as other:
        assert other.members() == ["b"]


def test_a_round_whose_last_member_died_as_it_left_is_ended_by_who_comes_next(barrier, store):
    mine = barrier("m", 1)
    mine.enter(5.0)
    store.put(mine._mine, encode_arrival(1, {}))  # it has left, and died before it could say so
    with barrier("b", 1, timeout_s=5.0) as other:
        assert other.members() == ["b"]
