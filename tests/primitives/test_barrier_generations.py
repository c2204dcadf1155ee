"""Barriers whose parties and deadline are those of the first to arrive, and what others' transactions check of them."""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import partial

import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import BarrierBroken, Conflict, LatchworkError, Unavailable
from latchwork.primitives import Barrier
from latchwork.primitives.barrier import Expected, barrier_state, build_arrivals, member
from latchwork.primitives.barrier.phases import BarrierRecord, Opening
from latchwork.store.steps import Pause, Signal, run
from latchwork.types import At, Put
from primitives.conftest import list_arrivals, list_arrived


@pytest.fixture
def barrier(connect):
    """Make a member with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(member_id="a", parties=2, name="phase", *, store=None, **options):
        options.setdefault("per_generation", True)
        made.append(Barrier(store or connect(), name, parties=parties, member_id=member_id, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_first_to_arrive_says_for_all_who_has_to_come(barrier, in_thread, eventually):
    a, b, c = barrier("a", 3), barrier("b", 1), barrier("c", 7)
    waiting = [in_thread(lambda: a.wait(30.0))]
    eventually(lambda: b.arrived() == ["a"])
    waiting.append(in_thread(lambda: b.wait(30.0)))
    eventually(lambda: c.arrived() == ["a", "b"])
    assert c.wait(30.0) == 0
    assert [each.outcome() for each in waiting] == [0, 0]


def test_of_those_who_see_that_all_have_come_the_last_one_ends_the_generation(
    barrier, in_thread, eventually, monkeypatch
):
    monkeypatch.setattr(member, "_BACKUP_PAUSE_S", (60.0, 60.0))  # for an end that never comes
    a, b = barrier("a"), barrier("b")
    seen, ended = [], []
    for each in (a, b):

        async def end_in_turn(*given, who=each.member_id, end=each._end_complete_phase):
            seen.append(who)
            return await end(*given)

        async def end_once_both_have_seen_it(*given, who=each.member_id, end=each._end_if_complete):
            ended.append(who)
            while set(seen) < {"a", "b"}:
                await Pause(SYSTEM_CLOCK, Signal(), 0.01)
            return await end(*given)

        monkeypatch.setattr(each, "_end_complete_phase", end_in_turn)
        monkeypatch.setattr(each, "_end_if_complete", end_once_both_have_seen_it)
    waiting = in_thread(lambda: a.wait(30.0))
    eventually(lambda: barrier("c").arrived() == ["a"])
    assert b.wait(30.0) == waiting.outcome() == 0
    assert ended == ["b"]


class Observed:
    """A store whose calls in threads are recorded, and whose openings of generations can be disturbed.

    Attributes:
        calls: The names of the calls. "open" is the transaction that a member sends before its arrival.
        on_open: Called with a function that sends an opening. Returns the future of the result.
        after_commit: Called once after the next commit.
    """

    def __init__(self, store, monkeypatch):
        self.calls = []
        self.on_open, self.after_commit = lambda send: send(), lambda: None
        for op in ("commit", "get", "get_many", "list", "start_call"):
            monkeypatch.setattr(store, op, partial(self.call, op, getattr(store, op)))

    def call(self, op, fn, *given, **options):
        if op == "start_call" and given[0] != "commit":
            return fn(*given, **options)
        self.calls.append("open" if op == "start_call" else op)
        if op == "start_call":
            return self.on_open(partial(fn, *given))
        done = fn(*given, **options)
        if op == "commit":
            after, self.after_commit = self.after_commit, lambda: None
            after()
        return done

    def open_after(self, before):
        """Call a function before the first opening is sent."""

        def on_open(send):
            self.on_open = lambda send: send()
            before()
            return send()

        self.on_open = on_open

    def open_after_arrival(self, before=lambda: None):
        """Send each opening after the next commit, and call a function in between."""

        def on_open(send):
            answer = Future()

            def send_late():
                before()
                send().add_done_callback(partial(copy_answer, answer))

            self.after_commit = send_late
            return answer

        self.on_open = on_open


def copy_answer(answer, done):
    if (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


@pytest.mark.threads
def test_one_that_opens_later_than_another_arrives_without_a_read_and_waits_for_whom_that_one_said(
    barrier, connect, in_thread, eventually, monkeypatch
):
    monkeypatch.setattr(member, "_BACKUP_PAUSE_S", (60.0, 60.0))  # the last one to arrive ends it
    store, waiting = connect(), []
    a, b = barrier("a", 2), barrier("b", 7, store=store)

    def open_first():
        waiting.append(in_thread(lambda: a.wait(30.0)))
        eventually(lambda: a.arrived() == ["a"])

    late = Observed(store, monkeypatch)
    late.open_after(open_first)
    assert b.wait(30.0) == waiting[0].outcome() == 0
    assert late.calls == ["get_many", "open", "commit", "commit"]  # to open it and arrive at once, to end it


@pytest.mark.threads
def test_an_arrival_that_overtakes_its_own_opening_is_written_again(barrier, connect, monkeypatch):
    store = connect()
    late = Observed(store, monkeypatch)
    late.open_after_arrival()
    assert barrier("a", 1, store=store, keeps_arrival=True).wait(30.0) == 0
    assert late.calls == ["get_many", "open", "commit", "commit", "commit"]  # the second one arrives again
    (mine,) = list_arrivals(connect())
    assert mine.token > connect().get("phase/opening").token


@pytest.mark.threads
def test_an_arrival_that_overtakes_the_opening_of_another_member_is_written_again(
    barrier, connect, in_thread, eventually, monkeypatch
):
    monkeypatch.setattr(member, "_BACKUP_PAUSE_S", (60.0, 60.0))  # the last one to arrive ends it
    store, waiting = connect(), []
    a, b = barrier("a", 2), barrier("b", 7, store=store)

    def open_first():
        waiting.append(in_thread(lambda: a.wait(30.0)))
        eventually(lambda: a.arrived() == ["a"])

    late = Observed(store, monkeypatch)
    late.open_after_arrival(open_first)
    assert b.wait(30.0) == waiting[0].outcome() == 0
    assert late.calls == ["get_many", "open", "commit", "commit", "commit"]


@pytest.mark.threads
def test_an_arrival_that_is_older_than_the_opening_stands_for_nobody(
    barrier, connect, in_thread, eventually, monkeypatch
):
    """Its member may have been removed before the generation was opened for the others."""
    store, other = connect(), connect()

    def lose(_):
        answer = Future()
        answer.set_exception(Unavailable("the opening was not sent"))
        return answer

    Observed(store, monkeypatch).on_open = lose
    with pytest.raises(Unavailable):
        barrier("removed", 2, store=store).wait(0.0)
    assert [entry.key for entry in list_arrivals(other)] == ["phase/arrived-removed"]
    a, b = barrier("a", 2), barrier("b", 2)
    waiting = in_thread(lambda: a.wait(60.0))
    assert eventually(a.arrived) == ["a"]
    assert barrier_state(other, "phase").arrived == ("a",)
    _, ops = run(build_arrivals(other, ["phase"], "removed"))
    assert [op.key for op in ops] == ["phase/arrived-removed"]
    assert b.wait(60.0) == waiting.outcome() == 0
    assert BarrierRecord.from_entry(other.get("phase/barrier")).regulars == ("a", "b")


@pytest.mark.threads
def test_one_that_opens_later_than_another_waits_no_longer_than_that_one_said(
    barrier, connect, in_thread, eventually, monkeypatch
):
    store, dying, waiting = connect(), connect(), []
    b = barrier("b", 7, store=store)

    def open_first_and_die():
        waiting.append(in_thread(lambda: barrier("a", 3, store=dying).wait(1.5)))
        eventually(lambda: b.arrived() == ["a"])
        dying.close()

    Observed(store, monkeypatch).open_after(open_first_and_die)
    began = time.monotonic()
    with pytest.raises(BarrierBroken, match="1 of 3 missing"):
        b.wait(60.0)
    assert time.monotonic() - began < 30.0
    with pytest.raises(LatchworkError):
        waiting[0].outcome()


def test_a_member_comes_again_without_a_read_and_finds_out_if_the_next_generation_has_ended_too(
    barrier, connect, in_thread, monkeypatch
):
    store = connect()
    a, b = barrier("a", store=store), barrier("b")
    counted = Observed(store, monkeypatch)
    for number in (0, 1):
        waiting = in_thread(lambda: b.wait(30.0))
        counted.calls.clear()
        assert a.wait(30.0) == waiting.outcome() == number
        assert [op for op in counted.calls if op.startswith("get")] == ["get_many"] * (number == 0)
    barrier("c").abort("the next one")
    waiting = in_thread(lambda: b.wait(30.0))
    assert a.wait(30.0) == waiting.outcome() == 3


def test_an_arrival_that_is_kept_counts_for_its_own_generation_only(barrier, in_thread, store):
    a, b = (barrier(name, keeps_arrival=True) for name in "ab")
    for number in range(3):
        waiting = in_thread(lambda: a.wait(30.0))
        assert b.wait(30.0) == waiting.outcome() == number
    assert [entry.key for entry in list_arrivals(store)] == ["phase/arrived-a", "phase/arrived-b"]
    with pytest.raises(BarrierBroken) as broken:
        a.wait(0.0)
    assert broken.value.arrived == ("a",)
    assert a.arrived() == []


def test_the_next_generation_has_a_number_of_its_own(barrier, in_thread, eventually):
    b = barrier("b", 2)
    assert barrier("a", 1).wait(30.0) == 0
    waiting = in_thread(lambda: b.wait(30.0))
    eventually(lambda: b.arrived() == ["b"])
    assert barrier("a", 1).wait(30.0) == 1
    assert waiting.outcome() == 1


def test_parties_are_asked_for_by_who_opens_a_generation_and_by_nobody_else(barrier, in_thread, eventually):
    asked = []

    def parties(who):
        asked.append(who)
        return Expected(2)

    a, b = (barrier(who, lambda who=who: parties(who)) for who in "ab")
    waiting = in_thread(lambda: a.wait(30.0))
    eventually(lambda: b.arrived() == ["a"])
    b.wait(30.0)
    waiting.outcome()
    assert asked == ["a"]


def test_parties_that_changed_while_they_were_written_down_are_asked_for_again(barrier, store):
    store.put("count", b"2")

    def parties():
        entry = store.get("count")
        if entry.value == b"2":
            store.put("count", b"1")
        return Expected(int(entry.value), [At(entry)])

    assert barrier("a", parties).wait(30.0) == 0


def test_names_are_told_by_the_first_too(barrier):
    with pytest.raises(BarrierBroken, match="1 of 2 missing: z; meet again") as caught:
        barrier("a", lambda: Expected(["a", "z"])).wait(0.0)
    assert caught.value.missing == ("z",)


def test_a_generation_lasts_as_long_as_the_first_to_arrive_gave_it_also_when_that_one_is_dead(
    barrier, connect, in_thread, eventually
):
    dying, b = connect(), barrier("b", 3)
    first = in_thread(lambda: barrier("a", 3, store=dying).wait(1.5))
    eventually(lambda: b.arrived() == ["a"])
    dying.close()
    with pytest.raises(LatchworkError):
        first.outcome()
    began = time.monotonic()
    with pytest.raises(BarrierBroken, match="1 of 3 missing"):
        b.wait(60.0)
    assert 1.0 < time.monotonic() - began < 30.0
    assert barrier("c", 1).wait(30.0) == 1


def test_an_arrival_is_written_only_if_the_callers_checks_hold(barrier, store):
    mine = barrier("a", 1)
    before = store.put("epoch", b"1")
    store.put("epoch", b"2")
    with pytest.raises(Conflict):
        mine.wait(30.0, checks=[At(before)])
    assert mine.arrived() == []
    assert mine.wait(30.0, checks=[At(store.get("epoch"))]) == 0


def test_a_check_of_a_generation_is_refused_once_anything_has_happened_there(barrier, store):
    mine = barrier("a", 1)
    unused = mine.check()
    assert not unused[0]
    mine.wait(30.0)
    passed = mine.check()
    assert passed[0]
    assert not mine.check(1)[0]
    with pytest.raises(Conflict):
        store.commit([unused[1]], [Put("other", b"")])
    store.commit([passed[1]], [Put("other", b"")])
    with pytest.raises(BarrierBroken):
        barrier("a", 2).wait(0.0)
    assert mine.check()[0]
    with pytest.raises(Conflict):
        store.commit([passed[1]], [Put("other", b"")])


def test_that_a_generation_has_passed_is_not_forgotten_however_many_are_broken_after_it(barrier):
    mine = barrier("a", 1)
    mine.wait(30.0)
    for _ in range(20):
        mine.abort("again")
    assert (mine.check(0)[0], mine.check(1)[0]) == (True, False)


def test_a_generation_is_broken_for_lack_of_somebody_who_has_not_come_and_only_then(barrier, in_thread, eventually):
    a, b = barrier("a", lambda: Expected(3, basis=7)), barrier("b", 3)
    bases = []

    def lacking(*members):
        return lambda basis: bases.append(basis) or members

    a.abort("nobody waits", lacking=lacking("b"))
    assert (a.generation(), bases) == (0, [])
    waiting = in_thread(lambda: a.wait(60.0))
    eventually(lambda: b.arrived() == ["a"])
    b.abort("it has come", lacking=lacking("a"))
    assert waiting.is_alive()
    b.abort("b was removed", lacking=lacking("a", "b"))
    with pytest.raises(BarrierBroken, match="b was removed"):
        waiting.outcome()
    assert bases == [7, 7]


def test_a_transaction_arrives_at_the_barriers_that_are_open_and_at_no_other(barrier, store, in_thread, eventually):
    names = ["phase", "unused", "passed"]
    barrier("a", 1, name="passed").wait(30.0)
    assert run(build_arrivals(store, names, "b")) == ([], [])
    waiting = in_thread(lambda: barrier("a", 2).wait(60.0))
    assert eventually(lambda: list_arrived(store))
    checks, ops = run(build_arrivals(store, names, "b"))
    store.commit(checks, ops)
    assert waiting.outcome() == 0
    assert [op.key for op in ops] == ["phase/arrived-b"]
    with pytest.raises(Conflict):
        store.commit(checks, ops)


def test_what_goes_with_the_opening_of_a_generation_is_written_once(barrier, store, in_thread, eventually):
    a, b = (barrier(name, lambda name=name: Expected(2, ops=[Put("opened", name.encode())])) for name in "ab")
    waiting = in_thread(lambda: a.wait(60.0))
    assert eventually(lambda: b.arrived() == ["a"])
    assert b.wait(60.0) == 0
    assert waiting.outcome() == 0
    assert store.get("opened").value == b"a"


def test_a_barrier_that_expects_the_same_for_ever_and_one_that_does_not_refuse_each_other(barrier):
    with pytest.raises(BarrierBroken):
        barrier("a", 2, per_generation=False).wait(0.0)
    with pytest.raises(LatchworkError, match="expects 2 members"):
        barrier("a", 2).wait(0.0)
    with pytest.raises(BarrierBroken):
        barrier("a", 2, name="other").wait(0.0)
    with pytest.raises(LatchworkError, match="expects others each time"):
        barrier("a", 2, name="other", per_generation=False).wait(0.0)


def test_a_board_names_those_who_arrived_at_its_last_phase_only():
    board = BarrierRecord.with_fixed_parties(2).after_pass(["a", "b"])
    board = board.after_break("late", ["a"], Opening(1, 2), cycle=1)
    assert [end.arrived for end in board.ended] == [(), ("a",)]


def test_others_see_how_a_barrier_stands(barrier, store, in_thread, eventually):
    assert barrier_state(store, "phase") is None
    a = barrier("a", lambda: Expected(["a", "b"]))
    waiting = in_thread(lambda: a.wait(60.0))
    eventually(lambda: a.arrived() == ["a"])
    state = barrier_state(store, "phase")
    assert (state.generation, state.parties, state.arrived, state.missing) == (0, 2, ("a",), ("b",))
    assert abs(state.opened_at - time.time()) < 120.0
    a.abort("enough")
    with pytest.raises(BarrierBroken):
        waiting.outcome()
    state = barrier_state(store, "phase")
    assert (state.parties, state.opened_at, state.last_passed, state.last_broken) == (0, None, -1, "enough")


def test_parties_that_are_asked_for_need_generations_and_an_answer_of_the_right_kind(barrier):
    with pytest.raises(TypeError, match="per_generation=True"):
        barrier("a", lambda: Expected(2), per_generation=False)
    with pytest.raises(TypeError, match="has to return Expected"):
        barrier("a", lambda: 2).wait(0.0)
    with pytest.raises(ValueError, match="at least 1 party"):
        barrier("a", lambda: Expected(0)).wait(0.0)
