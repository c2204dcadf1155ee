"""Dead letters of work queues, what is no item, and what is refused before any I/O."""

from __future__ import annotations

import pytest

from latchwork.errors import Closed, Conflict, InvalidKey, KeyExists, SessionLost, ValueTooLarge
from latchwork.primitives import WorkQueue
from latchwork.types import Exists, Put
from primitives.work_queues import LARGE, fill, take, values

TTL_S = 1.0


# Dead letters


def test_an_item_that_fails_too_often_becomes_a_dead_letter_and_can_be_revived(backlog):
    mine = backlog(max_attempts=2)
    mine.put("any", "s", "1", LARGE)
    for why in ("once", "twice"):
        take(mine)[0].release(why)
    (letter,) = mine.dead_letters()
    assert (letter.path, letter.dead_letter_id, letter.attempts, letter.why) == ("any/s/1", "1", 2, "twice")
    assert letter.size == len(LARGE)
    assert mine.requeue("1", partition="other").path == "other/s/1"
    (claim,) = take(mine, partitions=["other"])
    assert (claim.value, claim.attempts, mine.dead_letters()) == (LARGE, 1, [])


def test_an_item_that_kills_its_takers_becomes_a_dead_letter_with_the_callers_writes(backlog, connect, store):
    mine = backlog(max_attempts=2)
    fill(mine, "s/poison", "s/good")
    for _ in range(2):
        dying = connect()
        take(backlog(store=dying), accept=lambda item: item.id == "poison")
        dying.close()
    claims = take(mine, 9, extra_for_dead_letter=lambda item: ((), [Put(f"died/{item.id}", b"%d" % item.attempts)]))
    assert values(claims) == [b"s/good"]
    assert mine.dead_letters()[0].why == "taken 2 times, and never acknowledged"
    assert store.get("died/poison").value == b"2"


def test_an_item_is_buried_with_the_callers_writes_only_while_nobody_has_it(backlog, store):
    mine = backlog()
    fill(mine, "s/1")
    found = mine.find("any", "s", "1")
    assert not mine.move_to_dead_letters(found, checks=[Exists("nobody")])
    (claim,) = take(mine)
    assert not mine.move_to_dead_letters(found), "it was taken since"
    assert not mine.move_to_dead_letters(mine.find("any", "s", "1")), "somebody has it"
    claim.release(count=False)
    assert mine.move_to_dead_letters(mine.find("any", "s", "1"), "nobody wants it", ops=[Put("told", b"")])
    assert store.get("told") is not None
    assert not mine.move_to_dead_letters(mine.find("any", "s", "1") or found)
    assert [(letter.path, letter.why) for letter in mine.dead_letters()] == [("any/s/1", "nobody wants it")]


def test_letters_of_items_with_one_id_have_names_of_their_own(backlog, store):
    mine = backlog(max_attempts=1)
    fill(mine, "a/1", "b/1", "c/1")
    first, second = take(mine, 2)
    first.move_to_dead_letters("first", ops=[Put("mark", b"")])
    second.release("second")
    dying = backlog()
    take(dying)
    store.delete_tree("work/partitions/any/holders")
    assert take(mine) == []
    letters = {letter.path: letter for letter in mine.dead_letters()}
    assert set(letters) == {"any/a/1", "any/b/1", "any/c/1"}
    assert (letters["any/a/1"].dead_letter_id, store.get("mark") is not None) == ("1", True)
    assert mine.requeue(letters["any/b/1"].dead_letter_id).path == "any/b/1"
    mine.drop(letters["any/c/1"].dead_letter_id)
    fill(mine, "a/1")
    with pytest.raises(KeyExists):
        mine.requeue("1")
    mine.drop("1")
    with pytest.raises(Conflict, match="has no dead letter '1'"):
        mine.drop("1")
    assert mine.dead_letters() == []


def test_the_large_value_of_a_dropped_letter_is_gone_and_an_item_without_its_value_is_a_letter(backlog, store):
    mine = backlog()
    mine.put("any", "s", "1", LARGE)
    mine.put("any", "s", "2", LARGE)
    take(mine)[0].move_to_dead_letters()
    mine.drop("1")
    (left,) = store.list("work/data")
    store.delete(left.key)
    assert take(mine) == []
    assert mine.dead_letters()[0].why == "its value was deleted by another program"


# What is no item, and bad input


def test_keys_that_nobody_here_wrote_are_skipped_and_what_is_no_item_is_a_dead_letter(backlog, store):
    mine = backlog()
    fill(mine, "s/2")
    store.put("work/partitions/any/items/stray", b"")
    store.put("work/partitions/any/items/a/b/c", b"")
    store.put("work/partitions/any/holders/x", b"")
    store.put("work/partitions/any/items/s/1", b"\xff\nwhat")
    assert [item.path for item in mine.items()] == ["any/s/1", "any/s/2"]
    assert values(take(mine, 9)) == [b"s/2"]
    (letter,) = mine.dead_letters()
    assert letter.id == "1"
    assert "does not contain an item of a work queue" in letter.why
    store.put("work/dead/x", b"[]")
    assert "does not contain an item" in mine.dead_letters()[1].why
    mine.drop("x")


def test_what_a_later_version_keeps_of_an_item_is_left_as_it_is(backlog, store):
    mine = backlog()
    fill(mine, "s/1")
    key = mine.key("any", "s", "1")
    store.put(key, store.get(key).value.replace(b"{", b'{"later": [1], ', 1))
    take(mine)[0].release("no")
    take(mine)[0].move_to_dead_letters("no")
    mine.requeue("1")
    assert b'"later":[1]' in store.get(key).value
    assert mine.items()[0].value == b"s/1"


@pytest.mark.parametrize("bad", ["", "a/b", "a b", ".", "@x/y", "x" * 121, "\x1b[31m", None, b"a"])
def test_names_that_are_no_segment_are_refused_before_any_io(bad):
    mine = WorkQueue(None, "work")
    for place in ((bad, "s", "i"), ("l", bad, "i"), ("l", "s", bad)):
        for call in (
            lambda place=place: mine.put_ops(*place[:2], {place[2]: b""}),
            lambda place=place: mine.put(*place, b""),
        ):
            with pytest.raises(InvalidKey, match=r"name .* cannot be used"):
                call()
    for call in (lambda: mine.try_take([bad]), lambda: mine.wait_free(bad), lambda: mine.waiting_consumers(bad)):
        with pytest.raises(InvalidKey):
            call()


def test_values_and_numbers_that_cannot_be_are_refused_before_any_io():
    mine = WorkQueue(None, "work")
    with pytest.raises(
        ValueTooLarge, match=r"an item in your own transaction holds at most 4,096; put it with put\(\)"
    ):
        mine.put_ops("l", "s", {"i": LARGE})
    with pytest.raises(ValueTooLarge, match="the limit is 990,000"):
        mine.put("l", "s", "i", b"x" * 990_001)
    for call in (lambda: mine.put("l", "s", "i", "text"), lambda: mine.put_ops("l", "s", {"i": "text"})):
        with pytest.raises(TypeError, match="must be bytes, not str"):
            call()
    with pytest.raises(ValueError, match="limit must be at least 1"):
        mine.try_take(["any"], limit=0)
    with pytest.raises(TypeError, match=r"partitions must be a list of names, not 'any'; give \['any'\]"):
        mine.try_take("any")
    with pytest.raises(ValueError, match="max_attempts must be at least 1"):
        WorkQueue(None, "work", max_attempts=0)


def test_losing_the_session_or_closing_ends_a_wait(backlog, connect, in_thread, eventually):
    store = connect(session_ttl_s=TTL_S)
    losing, closing, watcher = backlog(store=store), backlog(), backlog()
    waiting = [in_thread(lambda: losing.wait_free("any")), in_thread(lambda: closing.wait_free("any"))]
    eventually(lambda: len(watcher.waiting_consumers("any")) == 2)
    store.session.mark_ended()
    closing.close()
    with pytest.raises(SessionLost):
        waiting[0].outcome()
    with pytest.raises(Closed, match="work queue 'work' was closed"):
        waiting[1].outcome()
    for use in (lambda: take(closing), closing.items, lambda: closing.put("any", "s", "1", b"")):
        with pytest.raises(Closed):
            use()
