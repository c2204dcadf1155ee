"""Members of one barrier that are threads of one process share what they ask of the store."""

from __future__ import annotations

import threading
import time

import pytest

from latchwork.errors import BarrierBroken, Conflict, OutcomeUnknown
from latchwork.primitives import Barrier
from latchwork.primitives.barrier import local_members
from latchwork.store.steps import run
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Absent, At, Put
from primitives.conftest import list_arrivals

MEMBERS = 12


@pytest.fixture
def crowd_of(connect):
    """Members that share one store, with a session of it each, and the store."""
    made = []

    def make(count=MEMBERS, *, plan=(), parties=MEMBERS, **options):
        shared = FaultyStore(connect(), plan)
        made.append(shared)
        return shared, [
            Barrier(shared, "phase", parties=parties, member_id=f"m{number:02}", **options) for number in range(count)
        ]

    yield make
    for each in made:
        each.close()


def threads_of(name="phase"):
    return [each for each in threading.enumerate() if each.name == f"latchwork-barrier-{name}"]


@pytest.mark.threads
@pytest.mark.parametrize("per_generation", [False, True])
def test_members_of_one_process_arrive_in_fewer_transactions_than_there_are_members(
    crowd_of, in_thread, per_generation
):
    # The others come meanwhile.
    slow = Fault("slow_answer", op="commit", key="phase/arrived-*", times=None, delay_s=0.1)
    shared, members = crowd_of(plan=[slow], parties=MEMBERS, per_generation=per_generation)
    begin = threading.Barrier(MEMBERS)

    def work(one):
        begin.wait()
        return one.wait(60.0)

    assert [each.outcome() for each in [in_thread(lambda one=one: work(one)) for one in members]] == [0] * MEMBERS
    arrivals = [call for call in shared.calls if call.op == "commit" and any("/arrived-" in key for key in call.keys)]
    assert 0 < len(arrivals) < MEMBERS  # one arrival and one end of it for each would be twice as many


def test_the_member_whose_check_does_not_hold_is_refused_and_the_others_arrive(crowd_of, in_thread, store, eventually):
    _, members = crowd_of()
    there = store.put("there", b"")
    store.put("gone", b"")
    begin = threading.Barrier(MEMBERS)

    def work(number):
        begin.wait()
        return members[number].wait(60.0, checks=[Absent("gone") if number == 3 else At(there)])

    waiting = [in_thread(lambda number=number: work(number)) for number in range(MEMBERS)]
    with pytest.raises(Conflict):
        waiting.pop(3).outcome()
    eventually(lambda: len(list_arrivals(store)) == MEMBERS - 1)
    assert all(each.is_alive() for each in waiting)
    assert members[3].wait(60.0) == 0
    assert [each.outcome() for each in waiting] == [0] * (MEMBERS - 1)


def test_an_arrival_whose_answer_is_lost_counts_once_for_each_of_those_that_went_together(crowd_of, in_thread):
    faults = [Fault("cut_after", op="commit", key="phase/arrived-*", nth=nth) for nth in (2, 3)]
    _, members = crowd_of(plan=faults)
    waiting = [in_thread(lambda one=one: one.wait(60.0)) for one in members]
    assert [each.outcome() for each in waiting] == [0] * MEMBERS


def test_a_timeout_of_one_breaks_it_for_all_of_its_process_and_says_since_when_it_was_open(crowd_of, in_thread):
    _, members = crowd_of(MEMBERS - 1, per_generation=True)
    waiting = [in_thread(lambda one=one: one.wait(60.0)) for one in members[1:]]
    with pytest.raises(BarrierBroken, match=r"'m00' had no more time, it was open since 20\d\d-.*Z; 1 of 12 missing"):
        members[0].wait(0.3)
    for each in waiting:
        with pytest.raises(BarrierBroken):
            each.outcome()


def test_no_thread_is_left_when_the_last_one_has_gone(crowd_of, in_thread, eventually):
    _, members = crowd_of()
    for each in [in_thread(lambda one=one: one.wait(60.0)) for one in members]:
        each.outcome()
    assert eventually(lambda: not threads_of())


def test_who_is_not_woken_by_the_shared_watch_ends_all_the_same(crowd_of, in_thread, monkeypatch):
    for module in ("member", "phases"):
        monkeypatch.setattr(f"latchwork.primitives.barrier.{module}.MANY", 4)
    monkeypatch.setattr("latchwork.primitives.barrier.member.AGAIN_S", (0.2, 0.4))
    monkeypatch.setattr(local_members.LocalMembers, "_wake", lambda *_: None)
    _, members = crowd_of()
    began = time.monotonic()
    for each in [in_thread(lambda one=one: one.wait(60.0)) for one in members]:
        assert each.outcome() == 0
    assert time.monotonic() - began < 30.0


def test_one_that_is_closed_does_not_take_the_others_with_it(crowd_of, in_thread, store, eventually):
    _, members = crowd_of()
    waiting = [in_thread(lambda one=one: one.wait(60.0)) for one in members[:-1]]
    eventually(lambda: len(list_arrivals(store)) == MEMBERS - 1)
    members[0].close()
    with pytest.raises(Exception, match="closed"):
        waiting.pop(0).outcome()
    assert members[-1].wait(60.0) == 0  # the arrival of the closed one counts
    assert [each.outcome() for each in waiting] == [0] * (MEMBERS - 2)


# What goes together


def request(key, checks=()):
    return local_members._Request(checks=checks, ops=[Put(key, b"")])


def test_two_that_write_one_key_do_not_go_together_and_reads_go_first():
    first, again, other = request("a"), request("a"), request("b")
    assert local_members._next_batch([first, again, other]) == ([first], [again, other])
    assert local_members._next_batch([first, other, again]) == ([first, other], [again])
    read = local_members._Request(keys=["a"])
    assert local_members._next_batch([first, read, other]) == ([read], [first, other])


def test_a_transaction_is_no_larger_than_a_store_allows():
    many = [request(f"k{number}", [Absent(f"c{number}")] * 3) for number in range(100)]
    taken, left = local_members._next_batch(many)
    assert (len(taken), len(left)) == (local_members._MOST_CHECKS // 3, 100 - local_members._MOST_CHECKS // 3)
    taken, left = local_members._next_batch([request(f"k{number}") for number in range(100)])
    assert len(taken) == local_members._MOST_OPS


def test_what_a_call_fails_by_is_told_to_all_that_went_with_it(crowd_of, in_thread):
    shared, _ = crowd_of(0, plan=[Fault("cut_after", op="commit", key="x/*")])
    ours = local_members.LocalMembers(shared, "phase")
    ours.add_member(1)
    ours.add_member(2)
    try:
        with pytest.raises(OutcomeUnknown):
            in_thread(lambda: commit_in(ours, "x/1")).outcome()
        assert in_thread(lambda: commit_in(ours, "x/2")).outcome()[0].key == "x/2"
    finally:
        ours.remove_member(1)
        ours.remove_member(2)


def commit_in(ours, key):
    return run(ours.commit([Absent(key)], [Put(key, b"")]))
