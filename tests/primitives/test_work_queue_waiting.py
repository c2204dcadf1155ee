"""Waiting for backlogs: who is woken, who watches, and what is written meanwhile."""

from __future__ import annotations

import threading
import time

from latchwork.types import Exists
from primitives.work_queues import fill, ids

# Waiting


def test_each_item_that_is_put_is_taken_by_one_of_those_that_wait(backlog, in_thread, eventually):
    """Not by the first of the line for certain: who is told leaves it before it takes, and then the next one looks."""
    mine, waiting = backlog(), []

    def wait_and_take(taker):
        while not (claims := taker.wait_free("any", 30.0) and taker.try_take(["any"])):
            pass
        return claims[0].item.id

    for number in range(3):
        taker = backlog()
        waiting.append(in_thread(lambda taker=taker: wait_and_take(taker)))
        eventually(lambda number=number: len(mine.waiting_consumers("any")) == number + 1)
    for number in range(3):
        fill(mine, f"{number}")
        eventually(lambda number=number: len([each for each in waiting if each.is_alive()]) == 2 - number)
    assert sorted(each.outcome() for each in waiting) == ["0", "1", "2"]
    eventually(lambda: mine.waiting_consumers("any") == [])


def test_one_that_is_slow_to_take_what_it_was_told_of_leaves_it_to_the_next(backlog, in_thread, eventually):
    mine, first, second = (backlog() for _ in range(3))
    told = in_thread(lambda: first.wait_free("any", 30.0))
    eventually(lambda: len(mine.waiting_consumers("any")) == 1)
    takes = in_thread(lambda: second.wait_free("any", 30.0) and second.try_take(["any"]))
    eventually(lambda: len(mine.waiting_consumers("any")) == 2)
    fill(mine, "1")
    assert told.outcome() is True
    assert ids(takes.outcome()) == ["1"]
    assert first.wait_free("any", 0.1) is False


def test_only_the_first_that_waits_watches_the_partition(backlog, connect, in_thread, eventually, monkeypatch):
    mine, watched, waiting = backlog(), [], []
    for number in range(3):
        store, seen = connect(session_ttl_s=30.0), []
        watched.append(seen)
        watch = store.watch
        monkeypatch.setattr(
            store, "watch", lambda key, seen=seen, watch=watch, **how: seen.append(key) or watch(key, **how)
        )
        taker = backlog(store=store)
        waiting.append(in_thread(lambda taker=taker: taker.wait_free("any", 30.0)))
        eventually(lambda number=number: len(mine.waiting_consumers("any")) == number + 1 and watched[number])
    tickets = [each.key for each in mine.waiting_consumers("any")]
    assert watched == [["work/partitions/any"], [tickets[0]], [tickets[1]]]
    fill(mine, "1")
    assert all(each.outcome() for each in waiting)


def test_a_claim_that_ends_wakes_one_that_waits_and_one_that_is_made_wakes_nobody(backlog, in_thread, eventually):
    mine, other = backlog(), backlog()
    fill(mine, "1")
    (claim,) = mine.try_take(["any"])
    assert other.wait_free("any", 0.1) is False
    waiting = in_thread(lambda: other.wait_free("any", 30.0))
    eventually(lambda: mine.waiting_consumers("any"))
    fill(mine, "x", partition="elsewhere")
    time.sleep(0.1)
    assert waiting.is_alive()
    claim.release()
    assert waiting.outcome() is True
    assert mine.wait_free("any", 0) is True


def test_one_that_does_not_accept_an_item_does_not_keep_it_from_those_behind(backlog, in_thread, eventually):
    mine, picky, next_one, last = (backlog() for _ in range(4))
    waiting = []
    for accept, taker in ((lambda item: item.id == "b", picky), (lambda item: item.id == "b", next_one), (None, last)):
        waiting.append(in_thread(lambda taker=taker, accept=accept: taker.wait_free("any", 30.0, accept=accept)))
        eventually(lambda: len(mine.waiting_consumers("any")) == len(waiting))
    fill(mine, "a")
    assert waiting[2].outcome() is True
    assert [each.is_alive() for each in waiting[:2]] == [True, True]
    fill(mine, "b")
    assert waiting[0].outcome() is True
    assert waiting[1].outcome() is True


def test_those_that_wait_write_nothing(backlog, store, in_thread, eventually):
    mine, waiting = backlog(), []
    fill(mine, "held", "refused")
    held = mine.try_take(["any"])
    for accept in (None, lambda item: item.id != "refused"):
        taker = backlog(session=None)
        waiting.append(
            in_thread(
                lambda taker=taker, accept=accept or (lambda _item: False): taker.wait_free("any", 1.5, accept=accept)
            )
        )
    eventually(
        lambda: (
            len(mine.waiting_consumers("any")) == 2
            and all(each.body.get("may_overtake") for each in mine.waiting_consumers("any"))
        )
    )
    before = {entry.key: entry.version for entry in store.list("", recursive=True)}
    time.sleep(0.5)
    assert {entry.key: entry.version for entry in store.list("", recursive=True)} == before
    assert [each.outcome() for each in waiting] == [False, False]
    held[0].ack()


def test_takers_that_come_at_once_share_what_is_there(backlog, in_thread):
    mine, barrier = backlog(), threading.Barrier(4)
    fill(mine, *(f"{n}" for n in range(4)))

    def race(taker):
        barrier.wait(10.0)
        return ids(taker.try_take(["any"], extra=lambda _item: ((Exists("work/partitions/any/items/s/0"),), ())))

    takers = [backlog() for _ in range(4)]
    for each in takers:
        each.items()
    running = [in_thread(lambda taker=taker: race(taker)) for taker in takers]
    assert sorted(item for each in running for item in each.outcome()) == ["0", "1", "2", "3"]
