"""Queues of work on every backend."""

from __future__ import annotations

import signal
import threading
import time
import uuid

import pytest

import latchwork
from latchwork.errors import (
    Closed,
    Conflict,
    InvalidKey,
    LatchworkError,
    LockLost,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
    ValueTooLarge,
    WaitTimeout,
)
from latchwork.primitives import PriorityQueue, Queue
from latchwork.primitives.numbers.shared_number import SharedNumber
from latchwork.primitives.queue.items import INLINE_BYTES
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Absent, Create, Put
from primitives.lost_answers import lose_answer

TTL_S = 1.0
LARGE = b"x" * (INLINE_BYTES + 1)


@pytest.fixture
def queue(connect):
    """Make a queue with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(name="work", *, kind=Queue, store=None, **options):
        one = kind(store or connect(session_ttl_s=TTL_S), name, **options)
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


def drain(queue):
    taken = []
    while True:
        try:
            with queue.take(0.0) as claim:
                taken.append(claim.value)
        except WaitTimeout:
            return taken


def test_items_are_taken_in_the_order_in_which_they_were_put(queue):
    mine = queue()
    mine.put_many([b"1", LARGE, b"3"])
    mine.put(b"4")
    assert drain(queue()) == [b"1", LARGE, b"3", b"4"]
    assert mine.size() == 0


def test_nothing_is_left_of_an_item_that_was_acknowledged(queue, store):
    mine = queue()
    mine.put_many([b"1", LARGE])
    drain(mine)
    assert [entry.key for entry in store.list("work", recursive=True) if entry.owner is None] == [
        *("work/capacity", "work/partitions/all/sort_keys/5-000000000", "work/tail")
    ]


def test_priorities_come_first_and_then_arrival(queue):
    mine = queue(kind=PriorityQueue)
    for priority, value in [(5, b"c"), (9, b"e"), (0, b"a"), (5, b"d"), (1, b"b")]:
        mine.put(value, priority=priority)
    assert [item.priority for item in mine.items()] == [0, 1, 5, 5, 9]
    assert drain(mine) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_taken_item_is_nobody_elses_until_it_is_given_back_to_its_place(queue):
    mine, other = queue(label="me"), queue()
    mine.put_many([b"1", b"2"])
    claim = mine.take(5.0)
    assert (claim.value, claim.attempts, claim.is_held) == (b"1", 1, True)
    assert [ticket.label for ticket in mine.claims().values()] == ["me"]
    assert other.take(5.0).value == b"2"
    claim.release("not now")
    assert not claim.is_held
    again = other.take(5.0)
    assert (again.value, again.attempts) == (b"1", 2)
    assert mine.items()[0].why == "not now"


def test_work_that_fails_gives_its_item_back(queue):
    mine = queue()
    mine.put(b"1")
    with pytest.raises(KeyError), mine.take(5.0):
        raise KeyError("disk")
    assert mine.items()[0].why == "KeyError('disk')"
    assert mine.take(5.0).attempts == 2


def test_every_item_is_taken_by_one_of_many_takers(queue, in_thread):
    putters, takers, done, mutex = [queue() for _ in range(2)], [queue() for _ in range(4)], [], threading.Lock()

    def take(mine):
        while True:
            with mine.take(30.0) as claim:
                with mutex:
                    done.append(claim.value)
                if claim.value.startswith(b"end"):
                    return

    taking = [in_thread(lambda mine=mine: take(mine)) for mine in takers]
    putting = [
        in_thread(lambda n=n, mine=mine: [mine.put(b"%d-%d" % (n, i)) for i in range(10)])
        for n, mine in enumerate(putters)
    ]
    for each in putting:
        each.outcome(60.0)
    putters[0].put_many([b"end%d" % n for n in range(len(takers))])
    for each in taking:
        each.outcome(60.0)
    expected = [b"%d-%d" % (n, i) for n in range(2) for i in range(10)] + [b"end%d" % n for n in range(4)]
    assert sorted(done) == sorted(expected)


def test_takers_that_wait_get_items_in_the_order_in_which_they_came(queue, in_thread, eventually):
    mine, waiting = queue(), []
    for number in range(3):
        taker = queue()
        waiting.append(in_thread(lambda taker=taker: taker.take(30.0).value))
        eventually(lambda number=number: len(mine.waiting_consumers()) == number + 1)
    for number in range(3):
        mine.put(b"%d" % number)
        assert waiting[number].outcome() == b"%d" % number
    eventually(lambda: mine.waiting_consumers() == [])


def test_only_the_first_taker_that_waits_watches_the_items(queue, connect, in_thread, eventually, monkeypatch):
    mine, watched, waiting = queue(), [], []
    for number in range(3):
        store = connect()
        seen = []
        watched.append(seen)
        watch = store.watch
        monkeypatch.setattr(
            store, "watch", lambda key, seen=seen, watch=watch, **how: seen.append(key) or watch(key, **how)
        )
        taker = queue(store=store)
        waiting.append(in_thread(lambda taker=taker: taker.take(30.0)))
        eventually(lambda number=number: len(mine.waiting_consumers()) == number + 1 and watched[number])
    tickets = [each.key for each in mine.waiting_consumers()]
    assert watched == [["work/partitions/all"], [tickets[0]], [tickets[1]]]
    mine.put_many([b"1", b"2", b"3"])
    for each in waiting:
        each.outcome()


def test_a_take_looks_at_a_part_of_a_long_queue(queue, connect, monkeypatch):
    store = connect()
    mine = queue(store=store)
    mine.put_many([b"%d" % n for n in range(100)])
    listed, listing = [], store.list

    def counting(*args, **options):
        found = listing(*args, **options)
        listed.append(len(found))
        return found

    monkeypatch.setattr(store, "list", counting)
    mine.take(0.0)
    assert sum(listed) <= 20


def test_items_behind_many_taken_ones_are_found(queue):
    mine = queue()
    mine.put_many([b"%d" % n for n in range(40)])
    assert [mine.take(0.0).value for _ in range(40)] == [b"%d" % n for n in range(40)]
    with pytest.raises(WaitTimeout, match="queue 'work' had no item for us within 0 s"):
        mine.take(0.0)


def test_an_item_whose_takers_session_ends_comes_back_to_one_that_waits(queue, connect, in_thread, eventually):
    dying = connect(session_ttl_s=TTL_S)
    first, second = queue(store=dying), queue()
    first.put(b"1")
    claim = first.take(5.0)
    waiting = in_thread(lambda: second.take(30.0))
    eventually(second.waiting_consumers)
    dying.session.mark_ended()
    again = waiting.outcome()
    assert (again.value, again.attempts) == (b"1", 2)
    with pytest.raises(LockLost, match="is not ours any more, nothing was changed"):
        claim.ack()
    assert claim.lost.is_set()
    again.ack()


def test_a_killed_takers_item_comes_back_within_the_ttl(holder, queue):
    mine = queue()
    mine.put(b"1")
    taker = holder("queue", "work", TTL_S)
    assert taker.hear()["taken"] == "1"
    granted_s = mine._info.store.session.ttl_s
    killed_at = time.monotonic()
    taker.send(signal.SIGKILL)
    assert mine.take(granted_s + 10.0).attempts == 2
    assert time.monotonic() - killed_at < granted_s + 3.0


def test_a_frozen_taker_that_wakes_cannot_acknowledge_what_another_has(holder, queue):
    mine = queue()
    mine.put(b"1")
    taker = holder("queue", "work", TTL_S)
    taker.hear()
    taker.freeze()
    claim = mine.take(mine._info.store.session.ttl_s + 10.0)
    taker.tell("ack")
    taker.wake()
    assert taker.hear() in ({"ack": "LockLost"}, {"ack": "SessionLost"})
    assert claim.is_held
    assert mine.size() == 1
    claim.ack()


def test_an_acknowledgement_after_an_outsider_took_the_claim_away_changes_nothing(queue, store):
    mine, other = queue(), queue()
    mine.put(b"1")
    claim = mine.take(5.0)
    store.delete_tree("work/partitions/all/holders")
    theirs = other.take(5.0)
    with pytest.raises(LockLost):
        claim.ack(ops=[Put("result", b"wrong")])
    assert store.get("result") is None
    assert list(mine.claims()) == [theirs.id]
    theirs.ack(ops=[Put("result", b"right")])
    assert store.get("result").value == b"right"


def test_an_acknowledgement_with_a_check_that_fails_leaves_the_item_ours(queue, store):
    mine = queue()
    mine.put(b"1")
    store.put("result", b"old")
    claim = mine.take(5.0)
    with pytest.raises(Conflict):
        claim.ack([Absent("result")], [Put("result", b"new")])
    assert claim.is_held
    claim.ack()
    assert mine.size() == 0


def test_an_item_that_fails_too_often_becomes_a_dead_letter(queue):
    mine = queue(max_attempts=2)
    mine.put_many([LARGE, b"good"])
    for why in ("once", "twice"):
        mine.take(5.0).release(why)
    assert drain(mine) == [b"good"]
    letter = mine.dead_letters()[0]
    assert (letter.attempts, letter.why, letter.size) == (2, "twice", len(LARGE))


def test_an_item_that_kills_its_takers_becomes_a_dead_letter(queue, connect):
    mine = queue(max_attempts=2)
    mine.put(b"poison")
    for _ in range(2):
        dying = connect()
        queue(store=dying).take(10.0)
        dying.close()
    with pytest.raises(WaitTimeout):
        mine.take(0.0)
    assert mine.dead_letters()[0].why == "taken 2 times, and never acknowledged"


def test_a_dead_letter_can_be_revived_with_its_value_or_dropped(queue, store):
    mine = queue()
    mine.put_many([LARGE, b"2"])
    first, second = mine.take(5.0), mine.take(5.0)
    first.move_to_dead_letters("broken")
    second.move_to_dead_letters("broken too")
    revived = mine.requeue(first.id)
    assert revived > second.id
    mine.drop(second.id)
    again = mine.take(5.0)
    assert (again.value, again.attempts) == (LARGE, 1)
    again.ack()
    assert mine.dead_letters() == []
    assert store.list("work/data") == []
    with pytest.raises(Conflict, match="has no dead letter"):
        mine.requeue(first.id)


def test_a_full_queue_makes_puts_wait_or_fail(queue, in_thread, eventually):
    mine, other = queue(capacity=2), queue()
    mine.put_many([b"1", b"2"])
    with pytest.raises(WaitTimeout, match="queue 'work' is full, it holds 2 items"):
        other.put(b"3", timeout_s=0.0)
    with pytest.raises(WaitTimeout):
        other.put(b"3", timeout_s=0.2)
    assert other.waiting_producers() == []
    waiting = in_thread(lambda: other.put(b"3", timeout_s=30.0))
    eventually(mine.waiting_producers)
    claim = mine.take(5.0)
    time.sleep(0.1)
    assert waiting.is_alive()  # taken items count
    claim.ack()
    waiting.outcome()
    assert drain(mine) == [b"2", b"3"]


@pytest.fixture
def crowd(queue, monkeypatch):
    """Have somebody else be faster each time that this queue writes the tail."""
    theirs, real = queue(), SharedNumber.compare_and_set

    def crowded(mine):
        async def commit(cell, *args):
            if cell._store == mine._info.store:
                theirs.put(b"theirs")
            return await real(cell, *args)

        monkeypatch.setattr(SharedNumber, "compare_and_set", commit)

    return crowded


def test_a_put_that_others_left_no_time_for_is_a_wait_timeout_and_puts_nothing(queue, crowd):
    mine = queue()
    mine.put(b"first")
    crowd(mine)
    with pytest.raises(WaitTimeout, match="other clients kept putting items into queue 'work', nothing was put"):
        mine.put(b"x", timeout_s=0.0)
    assert drain(queue()) == [b"first", b"theirs"]


def test_a_letter_that_others_left_no_time_to_revive_is_still_there(queue, crowd):
    mine = queue(max_attempts=1)
    mine.put(b"x")
    mine.take(30.0).move_to_dead_letters("bad")
    (letter,) = mine.dead_letters()
    crowd(mine)
    with pytest.raises(WaitTimeout):
        mine.requeue(letter.id, timeout_s=0.0)
    assert mine.dead_letters() == [letter]
    mine.drop(letter.id)
    with pytest.raises(Conflict):
        mine.requeue(letter.id)


def test_many_putters_never_overfill_a_bounded_queue(queue, connect, in_thread, eventually):
    store = connect(session_ttl_s=30.0)
    putters, taker, sizes = [queue(store=store, capacity=3) for _ in range(3)], queue(store=store), []
    putting = [in_thread(lambda each=each: [each.put(b"", timeout_s=60.0) for _ in range(4)]) for each in putters]
    for _ in range(12):
        claim = taker.take(30.0)
        sizes.append(taker.size())
        claim.ack()
    for each in putting:
        each.outcome()
    assert max(sizes) <= 3
    assert taker.size() == 0


def test_another_capacity_than_the_stored_one_is_refused(queue):
    queue(capacity=2).put(b"1")
    with pytest.raises(LatchworkError, match="has a capacity of 2, not 3"):
        queue(capacity=3).put(b"2")


@pytest.mark.parametrize("applied", [True, False])
def test_a_put_with_a_lost_answer_puts_one_item(queue, connect, monkeypatch, applied):
    store = connect()
    lose_answer(store, monkeypatch, applied=applied)
    mine = queue(store=store)
    item_id = mine.put(b"1", timeout_s=10.0)
    assert [item.id for item in mine.items()] == [item_id]


@pytest.mark.parametrize("applied", [True, False])
def test_a_take_with_a_lost_answer_takes_one_item_once(queue, connect, monkeypatch, applied):
    store = connect()
    mine = queue(store=store)
    mine.put_many([b"1", b"2"])
    lose_answer(store, monkeypatch, applied=applied)
    claim = mine.take(10.0)
    assert (claim.value, claim.attempts) == (b"1", 1)
    assert list(mine.claims()) == [claim.id]
    claim.ack()
    assert mine.size() == 1


@pytest.mark.parametrize("applied", [True, False])
def test_an_acknowledgement_with_a_lost_answer_is_done_once(queue, connect, monkeypatch, applied):
    store = connect()
    mine = queue(store=store)
    mine.put(b"1")
    claim = mine.take(10.0)
    lose_answer(store, monkeypatch, applied=applied)
    claim.ack(ops=[Put("result", b"")])
    assert (mine.size(), claim.is_held) == (0, False)
    assert store.get("result")


def test_an_acknowledgement_that_was_tried_again_behind_its_lost_answer_is_done_once(queue, connect, monkeypatch):
    store = connect(session_ttl_s=30.0)
    mine = queue(store=store)
    mine.put(b"1")
    claim = mine.take(10.0)
    read = store.get_many

    def unreachable(_keys):
        monkeypatch.setattr(store, "get_many", read)
        raise Unavailable("cut")

    lose_answer(store, monkeypatch, applied=True)
    monkeypatch.setattr(store, "get_many", unreachable)
    claim.ack(ops=[Create("result", b"")])
    assert (mine.size(), claim.is_held) == (0, False)
    assert store.get("result")


def test_an_item_that_is_done_between_look_and_claim_is_not_taken_again(queue, connect, monkeypatch):
    store, mine = connect(), queue()
    mine.put(b"1")
    listing = store.list

    def done_meanwhile(*args, **options):
        found = listing(*args, **options)
        if mine.size():
            mine.take(10.0).ack()
        return found

    other = queue(store=store)
    monkeypatch.setattr(store, "list", done_meanwhile)
    with pytest.raises(WaitTimeout):
        other.take(0.0)
    assert mine.size() == 0


def test_an_item_on_its_last_attempt_is_not_buried_by_one_that_did_not_see_the_claim(queue, connect, monkeypatch):
    store, mine, claims = connect(), queue(max_attempts=1), []
    mine.put(b"1")
    children = store.children

    def taken_meanwhile(prefix, **options):
        found = children(prefix, **options)
        if not claims and "/sort_keys" in prefix:
            claims.append(mine.take(10.0))
        return [] if "/holders" in prefix else found

    other = queue(store=store, max_attempts=1)
    monkeypatch.setattr(store, "children", taken_meanwhile)
    with pytest.raises(WaitTimeout):
        other.take(0.0)
    assert other.dead_letters() == []
    claims[0].ack()
    assert mine.size() == 0


def test_a_claim_that_nobody_got_to_know_of_is_given_back(queue, connect, monkeypatch, eventually):
    store, other = connect(), queue()
    mine = queue(store=store)
    mine.put(b"1")
    commit, read, cut = store.commit, store.get, threading.Event()

    def lossy(checks, ops):
        commit(checks, ops)
        cut.set()
        raise OutcomeUnknown("cut")

    def unless_cut(key):
        if cut.is_set():
            raise Unavailable("cut")
        return read(key)

    monkeypatch.setattr(store, "commit", lossy)
    monkeypatch.setattr(store, "get", unless_cut)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        mine.take(0.1)
    assert other.claims()
    monkeypatch.undo()  # the server answers again, and nobody takes
    eventually(lambda: not other.claims())


def test_losing_the_session_or_closing_ends_a_wait(queue, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    losing_it, closing_it, watcher = queue(store=store), queue(), queue()
    waiting = [in_thread(losing_it.take), in_thread(closing_it.take)]
    eventually(lambda: len(watcher.waiting_consumers()) == 2)
    store.session.mark_ended()
    closing_it.close()
    with pytest.raises(SessionLost):
        waiting[0].outcome()
    with pytest.raises(Closed, match="queue 'work' was closed"):
        waiting[1].outcome()
    with pytest.raises(Closed):
        closing_it.put(b"1")


def test_values_that_cannot_be_put_are_refused_before_any_io():
    with pytest.raises(TypeError, match="must be bytes, not str"):
        Queue(None, "work").put("text")
    with pytest.raises(ValueTooLarge, match="the limit is 990,000; store it under a key and put that key instead"):
        Queue(None, "work").put(b"x" * 990_001)
    with pytest.raises(ValueError, match="priority must be a whole number from 0 to 9"):
        PriorityQueue(None, "work").put(b"x", priority=10)


def test_the_largest_value_passes(queue):
    mine = queue()
    mine.put(b"x" * 990_000)
    with mine.take(5.0) as claim:
        assert len(claim.value) == 990_000


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [("a//b", {}, InvalidKey), ("a", {"capacity": 0}, ValueError), ("a", {"max_attempts": 0}, ValueError)],
)
def test_bad_names_and_numbers_are_refused_before_any_io(name, options, error):
    with pytest.raises(error):
        Queue(None, name, **options)


def test_a_claim_tells_that_it_is_lost_and_not_that_it_has_ended(queue, connect, eventually):
    store = connect(session_ttl_s=TTL_S)
    mine, told = queue(store=store), []
    mine.put_many([b"1", b"2", b"3"])
    ended, lost, deaf = (mine.take(5.0) for _ in range(3))
    ended.on_lost(lambda: told.append("ended"))
    deaf.on_lost(lambda: told.append("deaf"))()
    lost.on_lost(lambda: told.append("lost"))
    ended.ack()
    store.session.mark_ended()
    eventually(lambda: told)
    assert told == ["lost"]


def test_a_claim_that_lands_after_its_take_gave_up_leaves_the_item_to_others(monkeypatch):
    monkeypatch.setattr("latchwork.primitives.queue.unconfirmed_claims._LEFT_TO_TAKES_S", 0.2)
    url = f"memory://late-{uuid.uuid4().hex}/test"
    late = Fault("land_late", op="commit", key="work/partitions/all/holders/*", delay_s=1.5)
    with FaultyStore(latchwork.connect(url), [late]) as store, latchwork.connect(url) as third:
        mine, other = Queue(store, "work"), Queue(third, "work")
        mine.put(b"1")
        with pytest.raises(OutcomeUnknown):
            mine.take(0)
        time.sleep(2.5)  # the claim has come, if it can, and nobody is behind it
        assert store.session.remaining_s() > 0.0
        assert other.take(5.0).value == b"1"
        mine.close()
        other.close()
