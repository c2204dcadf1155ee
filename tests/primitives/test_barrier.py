"""Members that meet, on every backend."""

from __future__ import annotations

import json
import threading
import time

import pytest

from latchwork.errors import BarrierBroken, Closed, InvalidKey, LatchworkError, OutcomeUnknown, SessionLost
from latchwork.primitives import Barrier

NAMES = ("a", "b", "c")


@pytest.fixture
def barrier(connect):
    """Make a member with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(member_id="a", parties=NAMES, name="phase", *, store=None, **options):
        one = Barrier(store or connect(), name, parties=parties, member_id=member_id, **options)
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


def test_nobody_passes_before_the_last_has_come_and_then_all_do(barrier, in_thread, eventually):
    a, b, c = (barrier(name) for name in NAMES)
    waiting = [in_thread(lambda: a.wait(30.0)), in_thread(lambda: b.wait(30.0))]
    eventually(lambda: c.arrived() == ["a", "b"])
    time.sleep(0.1)
    assert all(each.is_alive() for each in waiting)
    assert c.wait(30.0) == 0
    assert [each.outcome() for each in waiting] == [0, 0]
    assert (c.generation(), c.arrived()) == (1, [])


def test_it_can_be_used_again_and_each_generation_is_complete(barrier, in_thread, store):
    def work(mine, name):
        for number in range(5):
            store.put(f"work/{number}/{name}", b"")
            assert mine.wait(60.0) == number
            assert store.children(f"work/{number}") == list(NAMES)

    members = [(barrier(name, 3), name) for name in NAMES]
    for each in [in_thread(lambda m=m, n=n: work(m, n)) for m, n in members]:
        each.outcome(60.0)


def test_a_timeout_breaks_it_for_every_waiter_and_says_who_is_missing(barrier, in_thread, eventually):
    a, b = barrier("a"), barrier("b")
    waiting = in_thread(lambda: a.wait(60.0))
    eventually(lambda: b.arrived() == ["a"])
    message = "barrier 'phase' was broken: 'b' had no more time; 1 of 3 missing: c; meet again"
    for wait in (lambda: b.wait(0.2), waiting.outcome):
        with pytest.raises(BarrierBroken, match=message) as caught:
            wait()
        assert (caught.value.missing, caught.value.arrived) == (("c",), ("a", "b"))


def test_the_generation_after_a_broken_one_is_usable(barrier, in_thread):
    members = [barrier(name) for name in NAMES]
    with pytest.raises(BarrierBroken):
        members[0].wait(0.0)
    waiting = [in_thread(lambda each=each: each.wait(30.0)) for each in members]
    assert [each.outcome() for each in waiting] == [1, 1, 1]


def test_a_member_that_comes_back_counts_once(barrier, in_thread, eventually, connect):
    dying = connect()
    first_life = in_thread(lambda: barrier("a", store=dying).wait())
    watcher = barrier("c")
    eventually(lambda: watcher.arrived() == ["a"])
    dying.session.mark_ended()
    with pytest.raises(SessionLost):
        first_life.outcome()
    second_life = in_thread(lambda: barrier("a").wait(30.0))
    b = in_thread(lambda: barrier("b").wait(30.0))
    eventually(lambda: watcher.arrived() == ["a", "b"])
    time.sleep(0.2)
    assert second_life.is_alive()
    assert b.is_alive()
    assert [watcher.wait(30.0), second_life.outcome(), b.outcome()] == [0, 0, 0]


def test_a_member_that_was_away_when_its_generation_passed_is_let_through_and_no_further(barrier, in_thread, connect):
    dying = connect()
    first_life = in_thread(lambda: barrier("a", store=dying).wait())
    b, c = barrier("b"), barrier("c")
    while b.arrived() != ["a"]:
        pass
    dying.close()
    with pytest.raises(Closed):
        first_life.outcome()
    waiting = in_thread(lambda: b.wait(30.0))
    assert [c.wait(30.0), waiting.outcome()] == [0, 0]
    back = barrier("a")
    assert back.wait(0.0) == 0
    with pytest.raises(BarrierBroken):
        back.wait(0.0)


def test_a_generation_that_is_named_lets_through_if_it_has_passed(barrier, in_thread):
    members = [barrier(name) for name in NAMES]
    for each in [in_thread(lambda each=each: each.wait(30.0)) for each in members]:
        each.outcome()
    assert barrier("a").wait(0.0, generation=0) == 0
    assert barrier("b").arrived() == []
    with pytest.raises(ValueError, match="not opened yet; the open one is 1"):
        members[0].wait(0.0, generation=2)


def test_with_a_number_of_parties_those_of_the_last_time_are_missing(barrier, in_thread):
    a, b = barrier("a", 2), barrier("b", 2)
    with pytest.raises(BarrierBroken, match="1 of 2 missing; meet again"):
        a.wait(0.0)
    waiting = in_thread(lambda: a.wait(30.0))
    b.wait(30.0)
    waiting.outcome()
    with pytest.raises(BarrierBroken) as caught:
        a.wait(0.0)
    assert caught.value.missing == ("b",)


def test_somebody_else_opens_it_when_the_last_to_arrive_dies_before(barrier, in_thread, eventually, store):
    a = barrier("a", 2)
    waiting = in_thread(lambda: a.wait(60.0))
    eventually(lambda: a.arrived() == ["a"])
    store.put("phase/arrived-b", json.dumps({"phase": 0}).encode())
    assert waiting.outcome() == 0


def test_an_arrival_at_a_generation_that_ends_meanwhile_is_one_at_the_next(
    barrier, connect, monkeypatch, in_thread, eventually
):
    store = connect()
    a, b = barrier("a", 2, store=store), barrier("b", 2)
    commit = store.commit

    def after_the_end(checks, ops):
        monkeypatch.setattr(store, "commit", commit)
        b.abort("too early")
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", after_the_end)
    arriving = in_thread(lambda: a.wait(30.0))
    eventually(lambda: (b.generation(), b.arrived()) == (1, ["a"]))
    assert [b.wait(30.0), arriving.outcome()] == [1, 1]


def test_two_that_end_a_generation_at_the_same_time_end_it_once(barrier, connect, monkeypatch, in_thread, eventually):
    store, has_passed = connect(), threading.Event()
    a, b = barrier("a", 2, store=store), barrier("b", 2)
    commit = store.commit

    def late(checks, ops):
        if any(op.key == "phase/barrier" for op in ops):
            monkeypatch.setattr(store, "commit", commit)
            has_passed.wait(30.0)
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", late)
    waiting = in_thread(lambda: b.wait(60.0))
    eventually(lambda: a.arrived() == ["b"])
    last = in_thread(lambda: a.wait(60.0))  # the last to come opens it, and is held up as it does
    assert waiting.outcome(30.0) == 0
    b.abort("the next one, too")
    has_passed.set()
    assert last.outcome(30.0) == 0
    assert b.generation() == 2


def test_a_timeout_that_finds_everybody_there_opens_it(barrier, store, eventually):
    a = barrier("a", 2)
    with pytest.raises(BarrierBroken):
        a.wait(0.0)
    store.put("phase/arrived-b", json.dumps({"phase": 1}).encode())
    assert a.wait(0.0) == 1


def test_an_abort_tells_everybody_why(barrier, in_thread, eventually):
    a, b = barrier("a"), barrier("b")
    waiting = in_thread(lambda: a.wait(60.0))
    eventually(lambda: b.arrived() == ["a"])
    b.abort("the disk is full")
    with pytest.raises(BarrierBroken, match="the disk is full"):
        waiting.outcome()


@pytest.mark.parametrize("when", ["applied", "never applied"])
def test_an_arrival_with_a_lost_answer_counts_once(barrier, connect, in_thread, monkeypatch, when):
    store = connect()
    commit, arrivals = store.commit, []

    def losing(checks, ops):
        if ops[-1].key == "phase/arrived-a" and not arrivals:
            arrivals.append(ops)
            if when == "applied":
                commit(checks, ops)
            raise OutcomeUnknown("cut")
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", losing)
    waiting = in_thread(lambda: barrier("a", 2, store=store).wait(30.0))
    assert [barrier("b", 2).wait(30.0), waiting.outcome()] == [0, 0]
    assert arrivals


def test_closing_it_ends_the_wait_and_the_arrival_still_counts(barrier, in_thread, eventually):
    a, b = barrier("a", 2), barrier("b", 2)
    waiting = in_thread(a.wait)
    eventually(lambda: b.arrived() == ["a"])
    a.close()
    with pytest.raises(Closed, match="barrier 'phase' was closed"):
        waiting.outcome()
    assert b.wait(30.0) == 0
    with pytest.raises(Closed):
        a.wait(0.0)


def test_other_parties_than_the_stored_ones_are_refused(barrier):
    with pytest.raises(BarrierBroken):
        barrier("a", 2).wait(0.0)
    with pytest.raises(LatchworkError, match="expects 2 members"):
        barrier("a", 3).wait(0.0)


def test_waiting_in_a_callback_is_refused(barrier, store, in_thread, eventually):
    mine, caught = barrier("a", 1), []

    def is_in_callback(_batch):
        try:
            mine.wait()
        except LatchworkError as error:
            caught.append(error)

    with store.watch("anything") as watch:
        watch.subscribe(is_in_callback)
        assert "in a callback" in str(eventually(lambda: caught)[0])


@pytest.mark.parametrize(
    ("member_id", "parties", "error"), [("a/b", 2, InvalidKey), ("d", NAMES, InvalidKey), ("a", 0, ValueError)]
)
def test_bad_members_and_parties_are_refused_before_any_io(member_id, parties, error):
    with pytest.raises(error):
        Barrier(None, "phase", parties=parties, member_id=member_id)
