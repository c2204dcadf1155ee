"""Who stays at the head of the line of a partition: told of what is new, by the watch that it has, until it leaves."""

from __future__ import annotations

import random

import pytest

from latchwork.errors import Closed
from latchwork.primitives import WorkQueue
from latchwork.primitives.queue.items import QueueItem, QueueKeys
from latchwork.primitives.queue.waiting_consumers import FreeItemWatcher
from latchwork.testing.faults import FaultyStore
from latchwork.types import Change, Entry
from primitives.work_queues import fill

NAMES = QueueKeys("work")


def ids(items):
    return None if items is None else [item.id for item in items]


@pytest.fixture
def staying(backlog, in_thread, eventually):
    """Who has been told of an item ``first``, and is first in the line still; who puts; and the item."""
    mine, other = backlog(), backlog()
    waiting = in_thread(lambda: mine.wait_items("any", 30.0, keep_position=True))
    eventually(lambda: mine.waiting_consumers("any"))
    fill(other, "first")
    return mine, other, waiting.outcome()


def test_who_stays_is_told_of_what_is_new_and_keeps_its_ticket(staying):
    mine, other, told = staying
    (ticket,) = other.waiting_consumers("any")
    fill(other, "a", "b")
    assert ids(told) == ["first"]
    found = []
    while len(found) < 2:
        found += ids(mine.wait_items("any", 30.0, keep_position=True))
    assert (found, [each.key for each in other.waiting_consumers("any")]) == (["a", "b"], [ticket.key])


def test_a_wait_whose_time_is_over_keeps_the_place(staying):
    mine, other, _ = staying
    (ticket,) = other.waiting_consumers("any")
    assert mine.wait_items("any", 0.05, keep_position=True) is None
    assert [each.key for each in other.waiting_consumers("any")] == [ticket.key]
    fill(other, "a")
    assert ids(mine.wait_items("any", 30.0, keep_position=True)) == ["a"]


def test_to_stay_costs_no_request(backlog, connect, in_thread, eventually):
    other = backlog()
    with FaultyStore(connect()) as store:
        mine = WorkQueue(store, "work", session=store.session)
        waiting = in_thread(lambda: mine.wait_items("any", 30.0, keep_position=True))
        eventually(lambda: other.waiting_consumers("any"))
        fill(other, "first")
        waiting.outcome()
        before = len(store.calls)
        fill(other, "a")
        assert ids(mine.wait_items("any", 30.0, keep_position=True)) == ["a"]
        assert [call.op for call in store.calls[before:] if call.op not in {"renew", "event"}] == []


def test_while_one_stays_no_other_is_told_and_the_next_is_as_soon_as_it_leaves(staying, backlog, in_thread, eventually):
    mine, other, _ = staying
    behind = backlog()
    waiting = in_thread(lambda: behind.wait_items("any", 30.0, keep_position=True))
    eventually(lambda: len(other.waiting_consumers("any")) == 2)
    fill(other, "a")
    assert ids(mine.wait_items("any", 30.0, keep_position=True)) == ["a"]
    assert waiting.is_alive()
    mine.leave("any")
    assert ids(waiting.outcome()) == ["a", "first"]
    mine.leave("any")  # nothing, by now


def test_who_has_left_and_waits_again_is_behind_the_others(staying, backlog, in_thread, eventually):
    mine, other, _ = staying
    behind = backlog()
    waiting = in_thread(lambda: behind.wait_items("any", 30.0, keep_position=True))
    eventually(lambda: len(other.waiting_consumers("any")) == 2)
    mine.leave("any")
    assert ids(waiting.outcome()) == ["first"]
    assert mine.wait_items("any", 0.2, keep_position=True) is None
    behind.leave("any")
    assert ids(mine.wait_items("any", 30.0, keep_position=True)) == ["first"]  # nobody has taken it


def test_who_stays_is_not_told_of_what_it_takes_and_ends(staying):
    mine, other, told = staying
    (claim,) = mine.take_items(told)
    claim.ack()
    fill(other, "a")
    assert ids(mine.wait_items("any", 30.0, keep_position=True)) == ["a"]


def test_who_stays_is_told_again_of_what_it_gives_back(staying):
    mine, _, told = staying
    (claim,) = mine.take_items(told)
    assert mine.wait_items("any", 0.1, keep_position=True) is None
    claim.release("not now")
    (item,) = mine.wait_items("any", 30.0, keep_position=True)
    assert (item.id, item.attempts, item.why) == ("first", 1, "not now")


def test_who_stays_is_told_of_what_a_dead_taker_had(staying, connect):
    mine, _, told = staying
    with connect(session_ttl_s=10.0) as dying:
        assert len(WorkQueue(dying, "work").take_items(told)) == 1
    assert ids(mine.wait_items("any", 30.0, keep_position=True)) == ["first"]


def test_what_is_told_again_and_again_because_it_is_not_accepted_is_left_to_those_behind(
    staying, backlog, in_thread, eventually
):
    mine, other, _ = staying
    mine.leave("any")
    picky, eager = backlog(), backlog()
    refuses = in_thread(lambda: picky.wait_items("any", 1.5, accept=lambda item: item.id == "mine", keep_position=True))
    eventually(lambda: other.waiting_consumers("any"))
    assert ids(eager.wait_items("any", 30.0, keep_position=True)) == ["first"]
    assert refuses.outcome() is None
    eventually(lambda: len(other.waiting_consumers("any")) == 1)  # it lets others pass, so it keeps no place


def test_closing_gives_up_the_place_that_was_kept(staying, eventually):
    mine, other, _ = staying
    mine.close()
    eventually(lambda: other.waiting_consumers("any") == [])
    with pytest.raises(Closed):
        mine.wait_items("any", 1.0, keep_position=True)


# What is told, as a server may tell it: key by key.


def entry_of(item_id, version, holder=""):
    item = QueueItem(item_id)
    value = (item.with_claim(f"{holder}.{version:016x}") if holder else item).to_bytes()
    return Change(
        NAMES.item_key("any", "s", item_id), Entry(NAMES.item_key("any", "s", item_id), value, version, 1, version)
    )


def item_gone(item_id):
    return Change(NAMES.item_key("any", "s", item_id), None)


def holder_of(holder, version):
    key = NAMES.holder_key("any", holder)
    return Change(key, None if version is None else Entry(key, b"", version, 1, version, "s1"))


ONE, TWO = "1" * 16, "2" * 16


def test_an_item_that_we_took_is_not_told_before_its_holder_is():
    look = FreeItemWatcher(NAMES, "any", lambda _: True)
    assert look([entry_of("a", 1)])
    assert ids(look.pop_free_items(20)) == ["a"]
    look.own_claims["s", "a"] = 2
    assert not look([entry_of("a", 2, ONE)])
    assert look([entry_of("a", 3)])  # it was given back, and we never heard of the holder
    assert ids(look.pop_free_items(20)) == ["a"]


def test_an_item_that_is_gone_is_ours_no_more():
    look = FreeItemWatcher(NAMES, "any", lambda _: True)
    look.own_claims["s", "a"] = 2
    look([entry_of("a", 2, ONE)])
    look([item_gone("a")])
    assert look.own_claims == {}


def test_a_take_and_the_end_of_an_item_wake_nobody():
    look = FreeItemWatcher(NAMES, "any", lambda _: True)
    assert not look.may_free_item([entry_of("a", 2, ONE), holder_of(ONE, 2)])
    assert not look([entry_of("a", 2, ONE), holder_of(ONE, 2)])
    assert not look.may_free_item([entry_of("b", 3, ONE)])
    assert not look.may_free_item([item_gone("a")])
    assert look.may_free_item([entry_of("a", 3)])
    assert look.may_free_item([entry_of("a", 3, TWO)])
    assert look.may_free_item([holder_of(ONE, None)])


def test_the_end_of_a_holder_frees_all_items_that_it_has():
    look = FreeItemWatcher(NAMES, "any", lambda _: True)
    assert not look([holder_of(ONE, 1), *(entry_of(item_id, 2, ONE) for item_id in "abc"), holder_of(TWO, 3)])
    assert not look([entry_of("b", 4, TWO), item_gone("c")])
    assert look([holder_of(ONE, None)])
    assert ids(look.pop_free_items(20)) == ["a"]


def test_whatever_makes_an_item_free_wakes():
    chance = random.Random(28)
    for _ in range(300):
        look = FreeItemWatcher(NAMES, "any", lambda item: item.id == "a")
        for version in range(1, 12):
            changes = [
                chance.choice(
                    (
                        entry_of(chance.choice("ab"), version, chance.choice(("", ONE, TWO))),
                        item_gone(chance.choice("ab")),
                        holder_of(chance.choice((ONE, TWO)), chance.choice((version, None))),
                    )
                )
                for _ in range(chance.randrange(1, 4))
            ]
            batch = list({change.key: change for change in changes}.values())
            before = look._free_accepted | look._free_refused
            wakes = look.may_free_item(batch)
            look(batch)
            assert not (look._free_accepted | look._free_refused) - before or wakes
