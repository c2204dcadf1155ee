"""Work queues on every backend: order, taking, ending, removing."""

from __future__ import annotations

import signal
import time

import pytest

from latchwork.errors import (
    Conflict,
    KeyExists,
    LockLost,
)
from latchwork.types import Absent, Create, Delete, Exists, Put
from primitives.work_queues import LARGE, fill, take, values

TTL_S = 1.0


# Order and taking


def test_items_are_taken_lane_by_partition_and_in_a_partition_by_sort_key_and_id(backlog):
    mine = backlog()
    fill(mine, "2/a", "1/b", "1/a")
    fill(mine, "0/z", partition="other")
    claims = take(backlog(), 9, ("any", "nobody", "other"))
    assert values(claims) == [b"1/a", b"1/b", b"2/a", b"0/z"]
    assert [claim.item.path for claim in claims] == ["any/1/a", "any/1/b", "any/2/a", "other/0/z"]
    assert mine.size() == 4
    for claim in claims:
        claim.ack()
    assert (mine.size(), take(mine, 9, ("any", "other")), mine.partitions()) == (0, [], [])


def test_nothing_is_left_of_items_that_are_done_once_a_taker_has_looked(backlog, store):
    mine = backlog()
    fill(mine, "s/small")
    mine.put("any", "s", "large", LARGE)
    for claim in take(mine, 2):
        with claim:
            assert claim.value in {b"s/small", LARGE}
    assert take(mine) == []
    assert [entry for entry in store.list("work", recursive=True) if entry.owner is None] == []
    assert mine.partitions() == []


def test_many_are_taken_in_one_transaction_and_ended_in_one_of_the_callers(backlog, connect, monkeypatch):
    store = connect(session_ttl_s=TTL_S)
    mine, commits, commit = backlog(store=store), [], store.commit
    store.commit([], mine.put_ops("any", "s", {f"{n:02d}": b"%d" % n for n in range(50)}))
    monkeypatch.setattr(store, "commit", lambda checks, ops: commits.append(ops) or commit(checks, ops))
    claims = take(mine, 45)
    assert (len(commits), values(claims)) == (1, [b"%d" % n for n in range(45)])
    ends = [claim.prepare_ack([Put(f"done/{claim.item.id}", b"")]) for claim in claims[:30]]
    assert not any(claim.is_held for claim in claims[:30])
    commit([check for end in ends for check in end.checks], [op for end in ends for op in end.ops])
    for end in ends:
        end.mark_committed()
    with pytest.raises(LockLost):
        claims[0].ack()
    assert (mine.size(), len(store.children("done")), len(take(mine, 45))) == (20, 30, 5)


def test_a_claim_and_its_end_write_one_key_each(backlog, connect, monkeypatch):
    store = connect(session_ttl_s=30.0)
    mine, written, commit = backlog(store=store), [], store.commit
    fill(mine, *(f"s/{n:02d}" for n in range(40)))
    take(mine)[0].ack()  # it writes its holder once
    monkeypatch.setattr(store, "commit", lambda checks, ops: written.append(len(ops)) or commit(checks, ops))
    for claim in take(mine, 20):
        claim.ack()
    assert written == [20, *[1] * 20]


def test_a_part_that_was_refused_leaves_the_item_ours(backlog, store):
    mine = backlog()
    fill(mine, "s/1")
    (claim,) = take(mine)
    part = claim.prepare_release("later")
    with pytest.raises(Conflict) as refused:
        store.commit([*part.checks, Exists("nowhere")], part.ops)
    assert part.was_committed(refused.value) is False
    part.mark_not_committed()
    assert claim.is_held
    store.delete(claim.fence.checks[0].key)
    part = claim.prepare_ack()
    with pytest.raises(Conflict) as refused:
        store.commit(part.checks, part.ops)
    with pytest.raises(LockLost):
        part.was_committed(refused.value)


def test_a_taken_item_is_nobody_elses_until_it_is_given_back_to_its_place(backlog):
    mine, other = backlog(label="me"), backlog()
    fill(mine, "s/1", "s/2")
    (claim,) = take(mine)
    assert (claim.value, claim.attempts, claim.is_held) == (b"s/1", 1, True)
    assert {path: ticket.label for path, ticket in mine.claims().items()} == {"any/s/1": "me"}
    assert mine.holder(mine.find("any", "s", "1")).label == "me"
    assert values(take(other, 9)) == [b"s/2"]
    claim.release("not now")
    assert (claim.is_held, mine.find("any", "s", "1").why) == (False, "not now")
    (again,) = take(other)
    assert (again.value, again.attempts) == (b"s/1", 2)


def test_an_item_can_be_given_back_uncounted_and_to_another_partition(backlog):
    mine = backlog()
    fill(mine, "s/1", "s/2")
    first, second = take(mine, 2)
    first.release(count=False)
    second.release("not here", partition="other")
    assert [(item.path, item.attempts) for item in mine.items()] == [("any/s/1", 0), ("other/s/2", 1)]
    fill(mine, "s/2")
    claim = take(mine, 2)[1]
    with pytest.raises(Conflict):
        claim.release(partition="other")
    assert claim.is_held


def test_failures_are_counted_apart_from_attempts_until_an_item_is_put_back(backlog):
    mine = backlog(max_attempts=2)
    fill(mine, "s/1")
    for _ in range(3):
        take(mine)[0].release("failed", count=False, failed=True)
    take(mine)[0].release("not now", partition="other")
    (item,) = mine.items()
    assert (item.attempts, item.failures, item.why) == (1, 3, "not now")
    take(mine, partitions=["other"])[0].release("too often")
    assert [letter.failures for letter in mine.dead_letters()] == [3]
    assert mine.requeue("1").failures == mine.items()[0].failures == 0


def test_work_that_fails_gives_its_item_back(backlog):
    mine = backlog()
    fill(mine, "s/1")
    with pytest.raises(KeyError), take(mine)[0]:
        raise KeyError("disk")
    assert mine.items()[0].why == "KeyError('disk')"


def test_what_is_not_accepted_is_left_for_others(backlog):
    mine = backlog()
    fill(mine, *(f"s/{n:03d}" for n in range(60)))
    assert values(take(mine, 2, accept=lambda item: item.id >= "058")) == [b"s/058", b"s/059"]
    assert take(mine, accept=lambda item: item.id >= "058") == []
    assert values(take(mine)) == [b"s/000"]


def test_a_sort_key_is_read_to_its_end_before_the_next(backlog):
    mine = backlog()
    fill(mine, *(f"a/{n:03d}" for n in range(60)), "b/1")
    assert values(take(mine, 1, accept=lambda item: item.id in {"059", "1"})) == [b"a/059"]


def test_an_item_whose_extra_checks_fail_is_left_out_and_told_and_the_others_are_taken(backlog, store):
    mine, told = backlog(), []
    store.put("subs/alive", b"")
    for n, sub in enumerate(["alive", "dead", "alive", "dead"]):
        mine.put("any", "s", str(n), sub.encode())

    def extra(item):
        return [Exists(f"subs/{item.value.decode()}")], [Put(f"seen/{item.id}", b"")]

    claims = take(mine, 9, extra=extra, on_refused=told.append)
    assert [claim.item.id for claim in claims] == ["0", "2"]
    assert sorted(item.id for item in told) == ["1", "3"]
    assert store.children("seen") == ["0", "2"]
    assert all(mine.remove(item) for item in told)
    assert mine.size() == 2


def test_items_that_write_the_same_key_are_taken_one_after_the_other(backlog, store):
    mine = backlog()
    fill(mine, "s/1", "s/2")
    claims = take(mine, 2, extra=lambda item: ((), [Put("last", item.value)]))
    assert (values(claims), store.get("last").value) == ([b"s/1", b"s/2"], b"s/2")


def test_a_take_that_asks_a_function_which_fails_takes_nothing(backlog, eventually):
    mine = backlog()
    fill(mine, *(f"s/{n:03d}" for n in range(50)))

    def accept(item):
        return item.id < "046" or 1 / 0

    with pytest.raises(ZeroDivisionError):
        take(mine, 50, accept=accept)
    eventually(lambda: not mine.claims())


def test_every_item_is_taken_by_one_of_many_takers(backlog, in_thread):
    mine, takers, done = backlog(), [backlog() for _ in range(4)], []

    def work(taker):
        while claims := take(taker, 3):
            for claim in claims:
                claim.ack()
                done.append(claim.value)

    places = [f"{n % 3}/{n:03d}" for n in range(60)]
    fill(mine, *places)
    for each in [in_thread(lambda taker=taker: work(taker)) for taker in takers]:
        each.outcome()
    assert sorted(done) == sorted(place.encode() for place in places)
    assert mine.size() == 0


# Who dies, freezes, or is too late


def test_an_item_whose_takers_session_ends_is_free_at_once(backlog, connect, eventually):
    dying = connect(session_ttl_s=TTL_S)
    mine, other = backlog(store=dying), backlog()
    fill(mine, "s/1")
    (claim,) = take(mine)
    dying.session.mark_ended()
    (again,) = eventually(lambda: take(other))
    assert (again.value, again.attempts) == (b"s/1", 2)
    with pytest.raises(LockLost, match="is not ours any more, nothing was changed"):
        claim.ack()
    assert claim.lost.is_set()
    again.ack()


def test_a_killed_takers_item_comes_back_within_the_ttl(holder, backlog, connect):
    mine = backlog()
    fill(mine, "s/1")
    taker = holder("backlog", "work", TTL_S)
    assert taker.hear()["taken"] == "s/1"
    granted_s, killed_at = connect(session_ttl_s=TTL_S).session.ttl_s, time.monotonic()
    taker.send(signal.SIGKILL)
    assert mine.wait_free("any", granted_s + 10.0)
    assert time.monotonic() - killed_at < granted_s + 3.0
    assert take(mine)[0].attempts == 2


def test_a_frozen_taker_that_wakes_cannot_end_what_another_has(holder, backlog):
    mine = backlog()
    fill(mine, "s/1")
    taker = holder("backlog", "work", TTL_S)
    taker.hear()
    taker.freeze()
    assert mine.wait_free("any", mine._store.session.ttl_s + 10.0)
    (claim,) = take(mine)
    taker.tell("ack")
    taker.wake()
    assert taker.hear() in ({"ack": "LockLost"}, {"ack": "SessionLost"})
    assert (claim.is_held, mine.size()) == (True, 1)
    claim.ack()


def test_an_end_after_an_outsider_took_the_claim_away_changes_nothing(backlog, store):
    mine, other = backlog(), backlog()
    fill(mine, "s/1")
    (claim,) = take(mine)
    store.delete_tree("work/partitions/any/holders")
    (theirs,) = take(other)
    for end in (lambda: claim.ack(ops=[Put("result", b"wrong")]), claim.release, claim.move_to_dead_letters):
        with pytest.raises(LockLost):
            end()
    assert (store.get("result"), list(mine.claims()), mine.dead_letters()) == (None, ["any/s/1"], [])
    theirs.ack(ops=[Put("result", b"right")])
    assert store.get("result").value == b"right"


@pytest.mark.parametrize("end", ["ack", "release", "move_to_dead_letters"])
def test_an_end_without_a_claim_is_refused_though_nobody_else_has_the_item(backlog, store, end):
    mine = backlog()
    fill(mine, "s/1")
    (claim,) = take(mine)
    store.delete_tree("work/partitions/any/holders")
    with pytest.raises(LockLost):
        getattr(claim, end)()
    assert (mine.items()[0].why, mine.dead_letters()) == ("", [])


def test_an_end_with_a_check_that_fails_leaves_the_item_ours(backlog, store):
    mine = backlog()
    fill(mine, "s/1")
    store.put("result", b"old")
    (claim,) = take(mine)
    with pytest.raises(Conflict):
        claim.ack([Absent("result")], [Put("result", b"new")])
    assert claim.is_held
    claim.ack()
    assert mine.size() == 0


# Removing


def test_an_item_is_removed_only_while_nobody_has_it_unless_that_is_wanted(backlog, store):
    mine = backlog()
    fill(mine, "s/1", "s/2")
    first = mine.find("any", "s", "1")
    (claim,) = take(mine)
    assert mine.remove(first) is False  # it was written since then
    now = mine.find("any", "s", "1")
    assert mine.remove(now, ops=[Put("mark", b"")]) is False  # somebody has it
    assert (store.get("mark"), claim.is_held, mine.size()) == (None, True, 2)
    with pytest.raises(Conflict):
        mine.remove(mine.find("any", "s", "2"), [Exists("mark")])
    claim.release()
    assert mine.remove(now, even_if_claimed=True) is False  # it was given back since then
    now = mine.find("any", "s", "1")
    assert mine.remove(now, ops=[Put("mark", b"")], even_if_claimed=True)
    assert (mine.size(), store.get("mark") is not None, mine.find("any", "s", "1")) == (1, True, None)


@pytest.mark.parametrize("put_anew", [False, True], ids=["removed", "put anew"])
@pytest.mark.parametrize("end", ["ack", "release", "move_to_dead_letters"])
def test_who_has_an_item_that_was_removed_cannot_end_it_and_is_told(backlog, eventually, end, put_anew):
    mine, other = backlog(), backlog()
    fill(mine, "s/1")
    (claim,) = take(mine)
    assert other.remove(other.find("any", "s", "1"), even_if_claimed=True)
    if put_anew:
        other.put("any", "s", "1", b"another")
    with pytest.raises(LockLost, match="was removed while it was ours"):
        getattr(claim, end)()
    assert [item.value for item in other.items()] == [b"another"] * put_anew
    assert other.dead_letters() == []
    eventually(lambda: not other.claims())
    assert values(take(other)) == [b"another"] * put_anew


def test_an_item_that_is_put_twice_is_refused_and_one_that_is_done_may_be_put_again(backlog, store):
    mine = backlog()
    mine.put("any", "s", "1", b"", ops=[Create("note", b"")])
    with pytest.raises(KeyExists, match="has an item any/s/1 already"):
        mine.put("any", "s", "1", b"")
    with pytest.raises(Conflict):
        mine.put("any", "s", "2", b"", ops=[Create("note", b"")])
    with pytest.raises(Conflict):
        mine.put("any", "s", "2", b"", checks=[Absent("note")])
    assert mine.size() == 1
    take(mine)[0].ack()
    mine.put("any", "s", "1", b"")
    store.commit([], [Delete(mine.key("any", "s", "1"))])
    assert mine.size() == 0
