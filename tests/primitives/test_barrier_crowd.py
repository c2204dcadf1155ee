"""Barriers with more members than can all be told of each arrival."""

from __future__ import annotations

import threading
import time

import pytest

from latchwork.errors import BarrierBroken
from latchwork.primitives import Barrier
from latchwork.primitives.barrier import member, phases
from primitives.conftest import list_arrivals

MEMBERS = 12


@pytest.fixture
def few(monkeypatch):
    """From five members on they are many, of whom three follow the arrivals."""
    monkeypatch.setattr(member, "MANY", 4)
    monkeypatch.setattr(phases, "MANY", 4)
    monkeypatch.setattr(member, "FOLLOWERS", 3)


@pytest.fixture
def members(connect):
    """All members, with a few clients between them."""
    made = []

    def make(count=MEMBERS, **options):
        stores = [connect() for _ in range(3)]
        made.extend(
            Barrier(stores[number % 3], "phase", parties=count, member_id=f"m{number:02}", **options)
            for number in range(count)
        )
        return made

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("per_generation", [False, True])
def test_all_of_many_pass_again_and_again_and_none_early(few, members, in_thread, per_generation):
    come, early = [0] * 4, []
    lock = threading.Lock()

    def work(mine):
        for number in range(4):
            with lock:
                come[number] += 1
            assert mine.wait(60.0) == number
            if come[number] != MEMBERS:
                early.append(number)

    for each in [in_thread(lambda each=each: work(each)) for each in members(per_generation=per_generation)]:
        each.outcome(60.0)
    assert not early


def test_with_no_follower_somebody_draws_again_and_ends_it(few, members, in_thread, monkeypatch):
    monkeypatch.setattr(member, "FOLLOWERS", 0)
    monkeypatch.setattr("latchwork.primitives.barrier.member.AGAIN_S", (0.2, 0.4))
    waiting = [in_thread(lambda each=each: each.wait(60.0)) for each in members()]
    time.sleep(1.0)
    assert all(each.is_alive() for each in waiting)
    monkeypatch.setattr(member, "FOLLOWERS", 3)
    assert [each.outcome() for each in waiting] == [0] * MEMBERS


def test_somebody_ends_it_when_every_follower_has_died(few, members, in_thread, store, eventually, monkeypatch):
    monkeypatch.setattr("latchwork.primitives.barrier.member.AGAIN_S", (0.2, 0.4))
    for number in range(3):
        store.put(f"phase/arrived-d{number}", b'{"phase": 0, "follows": true}')
    monkeypatch.setattr(member, "FOLLOWERS", 0)
    waiting = [in_thread(lambda each=each: each.wait(60.0)) for each in members()[: MEMBERS - 3]]
    eventually(lambda: len(list_arrivals(store)) == MEMBERS)
    monkeypatch.setattr(member, "FOLLOWERS", 3)
    assert [each.outcome() for each in waiting] == [0] * (MEMBERS - 3)


def test_a_timeout_breaks_it_for_many_too(few, members, in_thread, store, eventually):
    all_of_them = members()
    waiting = [in_thread(lambda each=each: each.wait(60.0)) for each in all_of_them[:-2]]
    eventually(lambda: len(list_arrivals(store)) == MEMBERS - 2)
    with pytest.raises(BarrierBroken, match="1 of 12 missing"):
        all_of_them[-2].wait(0.3)
    for each in waiting:
        with pytest.raises(BarrierBroken):
            each.outcome()


def test_who_follows_says_so_and_the_one_that_opens_does(few, members, in_thread, store, eventually, monkeypatch):
    monkeypatch.setattr(member, "FOLLOWERS", 0)
    all_of_them = members(per_generation=True)
    first = in_thread(lambda: all_of_them[0].wait(60.0))
    eventually(lambda: list_arrivals(store))
    waiting = [first, *(in_thread(lambda each=each: each.wait(60.0)) for each in all_of_them[1:-1])]
    arrived = eventually(lambda: len(found := list_arrivals(store)) == MEMBERS - 1 and found)
    assert [entry.key for entry in arrived if phases.is_arrival_watcher(entry)] == ["phase/arrived-m00"]
    assert all_of_them[-1].wait(10.0) == 0
    assert [each.outcome() for each in waiting] == [0] * (MEMBERS - 1)


def test_about_eight_of_many_follow_and_all_of_few():
    drawn = sum(member.should_watch_arrivals(1_000) for _ in range(50_000))
    assert 200 <= drawn <= 700
    assert all(member.should_watch_arrivals(phases.MANY) for _ in range(100))


def test_a_board_of_many_that_is_opened_each_time_keeps_no_names(few, members, in_thread, store):
    for each in [in_thread(lambda each=each: each.wait(60.0)) for each in members(per_generation=True)]:
        each.outcome()
    board = phases.BarrierRecord.from_entry(store.get("phase/barrier"))
    assert (board.regulars, board.ended[-1].arrived, board.last_passed) == ((), (), 0)
