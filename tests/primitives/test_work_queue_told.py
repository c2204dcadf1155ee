"""Taking what a wait was told of: all of it in one commit, nothing that has changed since."""

from __future__ import annotations

import pytest

from latchwork.errors import OutcomeUnknown
from latchwork.primitives import WorkQueue
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Exists
from primitives.work_queues import LARGE, fill, values


def put_together(store, backlog, *places):
    """Put items so that a watch tells of all at once."""
    ops = [op for place in places for op in backlog.put_ops("any", *_named(place))]
    store.commit([], list(dict.fromkeys(ops)))


def _named(place):
    sort_key, item_id = place.split("/")
    return sort_key, {item_id: place.encode()}


def paths(items):
    return [item.path for item in items]


@pytest.fixture
def told(backlog, store, in_thread, eventually):
    """What one that waits is told when these are put together; nobody has taken any of it."""

    def tell(*places, **options):
        mine, waits = backlog(), backlog()
        waiting = in_thread(lambda: waits.wait_items("any", 30.0, **options))
        eventually(lambda: mine.waiting_consumers("any"))
        put_together(store, mine, *places)
        found = waiting.outcome()
        eventually(lambda: mine.waiting_consumers("any") == [])  # it leaves the line by itself
        return found

    return tell


def test_what_is_told_is_all_that_is_free_in_the_order_of_the_partition(told):
    assert paths(told("2/a", "1/b", "1/a")) == ["any/1/a", "any/1/b", "any/2/a"]


def test_of_more_than_that_nothing_is_told(told):
    assert told("1/a", "1/b", "1/c", limit=2) == []


def test_one_that_waits_in_vain_is_told_that_time_is_over(backlog):
    assert backlog().wait_items("any", 0.05) is None


def test_what_is_free_already_has_to_be_looked_for(backlog):
    """A page of a partition is not all of it."""
    mine = backlog()
    fill(mine, "1/a")
    assert mine.wait_items("any", 0) == []
    assert values(mine.try_take(["any"])) == [b"1/a"]


def test_what_is_no_item_has_to_be_looked_for(backlog, store, in_thread, eventually):
    mine = backlog()
    waiting = in_thread(lambda: mine.wait_items("any", 30.0))
    eventually(lambda: mine.waiting_consumers("any"))
    store.put("work/partitions/any/items/s/broken", b"broken")
    assert waiting.outcome() == []


def test_told_items_are_taken_by_one_commit_and_no_read(told, connect):
    found = told("1/a", "1/b")
    with FaultyStore(connect()) as store:
        mine = WorkQueue(store, "work", session=store.session)
        before = len(store.calls)
        claims = mine.take_items(found)
        calls = [call.op for call in store.calls[before:] if call.op not in {"renew", "open_session"}]
        assert (values(claims), calls) == ([b"1/a", b"1/b"], ["commit"])
        assert [claim.attempts for claim in claims] == [1, 1]
        for claim in claims:
            claim.ack()
        assert mine.size() == 0


def test_of_two_that_were_told_of_the_same_items_each_is_taken_by_one(told, backlog):
    found, first, second = told("1/a", "1/b", "1/c"), backlog(), backlog()
    assert values(first.take_items(found[1:2])) == [b"1/b"]
    assert values(second.take_items(found)) == [b"1/a", b"1/c"]
    assert first.take_items(found) == []


def test_what_was_removed_or_put_anew_since_it_was_told_is_left_out(told, backlog):
    found, mine = told("1/a", "1/b", "1/c"), backlog()
    assert mine.remove(found[0])
    assert mine.remove(found[1])
    fill(mine, "1/b")
    assert values(mine.take_items(found)) == [b"1/c"]


def test_what_was_taken_and_given_back_since_it_was_told_is_left_out(told, backlog):
    found, mine = told("1/a"), backlog()
    mine.take_items(found)[0].release()
    assert mine.take_items(found) == []
    assert [claim.attempts for claim in mine.try_take(["any"])] == [2]


def test_a_told_item_whose_extra_checks_fail_is_left_and_told_and_the_others_are_taken(told, backlog):
    found, mine, refused = told("1/a", "1/b"), backlog(), []
    claims = mine.take_items(
        found,
        extra=lambda item: ([Exists("gone")] if item.id == "a" else [], []),
        on_refused=lambda item: refused.append(item.id),
    )
    assert (values(claims), refused) == ([b"1/b"], ["a"])


def test_told_items_that_are_not_accepted_are_left(told, backlog):
    found, mine = told("1/a", "1/b"), backlog()
    assert values(mine.take_items(found, accept=lambda item: item.id == "b")) == [b"1/b"]
    assert values(mine.try_take(["any"])) == [b"1/a"]


def test_a_large_value_comes_with_a_told_item(backlog, in_thread, eventually):
    mine = backlog()
    waiting = in_thread(lambda: mine.wait_items("any", 30.0))
    eventually(lambda: mine.waiting_consumers("any"))
    backlog().put("any", "s", "large", LARGE)
    assert values(mine.take_items(waiting.outcome())) == [LARGE]


def test_a_told_item_whose_attempts_are_used_up_is_left_to_a_look(backlog, in_thread, eventually, connect):
    mine = backlog(max_attempts=1)
    fill(mine, "1/a")
    with connect(session_ttl_s=10.0) as dying:
        WorkQueue(dying, "work").try_take(["any"])
        waiting = in_thread(lambda: mine.wait_items("any", 30.0))
        eventually(lambda: mine.waiting_consumers("any"))
    found = waiting.outcome()
    assert (paths(found), mine.take_items(found), mine.dead_letters()) == (["any/1/a"], [], [])
    assert mine.try_take(["any"]) == []
    assert [letter.id for letter in mine.dead_letters()] == ["a"]


@pytest.mark.parametrize("fault", ["cut_before", "cut_after", "land_late"])
def test_a_told_take_whose_answer_is_lost_is_had_by_the_next_take_or_by_nobody(
    told, connect, backlog, fault, eventually
):
    found = told("1/a")
    with FaultyStore(connect(session_ttl_s=10.0)) as store:
        mine = WorkQueue(store, "work")
        store.add(Fault(fault, op="commit", key="work/partitions/any/items/*", delay_s=0.3))
        with pytest.raises(OutcomeUnknown):
            mine.take_items(found)
        assert store.faults
        taken = []
        eventually(lambda: taken or taken.extend(mine.try_take(["any"])))
        assert taken[0].item.id == "a"
        taken[0].ack()
        eventually(lambda: mine.claims() == {})
        assert mine.items() == []


def test_an_item_is_had_by_the_next_take_though_the_answers_to_two_takes_of_it_are_lost(
    told, connect, backlog, eventually
):
    """The first take is committed, and the second one is refused."""
    found = told("1/a")
    with FaultyStore(connect(session_ttl_s=30.0)) as store:
        mine = WorkQueue(store, "work")
        for number in range(2):
            store.add(Fault("cut_after", op="commit", key="work/partitions/any/items/*"))
            with pytest.raises(OutcomeUnknown):
                mine.take_items(found)
            assert len(store.faults) == number + 1
        taken = []
        eventually(lambda: taken or taken.extend(mine.try_take(["any"])))
        assert [claim.item.id for claim in taken] == ["a"]


def test_items_of_another_backlog_and_bad_limits_are_refused(told, backlog):
    found = told("1/a")
    with pytest.raises(ValueError, match="not an item of work queue 'elsewhere'"):
        backlog("elsewhere").take_items(found)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        backlog().wait_items("any", 0, limit=0)
