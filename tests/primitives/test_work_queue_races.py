"""Work queues, when others are faster and answers are lost."""

from __future__ import annotations

import time
import uuid

import pytest

import latchwork
from latchwork.errors import LockLost, OutcomeUnknown, Unavailable
from latchwork.primitives import WorkQueue
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Create, Put
from primitives.lost_answers import lose_answer
from primitives.work_queues import fill, ids

TTL_S = 1.0


# Others are faster


def meanwhile(store, monkeypatch, act):
    """Have something done between the look of a take and its first commit."""
    commit, done = store.commit, []

    def late(checks, ops):
        if not done:
            done.append(True)
            act()
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", late)


def test_an_item_that_is_removed_between_look_and_claim_is_not_taken(backlog, connect, monkeypatch):
    store, mine = connect(), backlog()
    fill(mine, "1", "2")
    meanwhile(store, monkeypatch, lambda: mine.remove(mine.find("any", "s", "1")))
    assert ids(backlog(store=store).try_take(["any"], limit=9)) == ["2"]
    assert mine.find("any", "s", "1") is None


def test_an_item_that_is_done_between_look_and_claim_is_not_taken_again(backlog, connect, monkeypatch):
    store, mine = connect(), backlog()
    fill(mine, "1")
    meanwhile(store, monkeypatch, lambda: [claim.ack() for claim in mine.try_take(["any"])])
    assert backlog(store=store).try_take(["any"]) == []
    assert (mine.size(), mine.claims()) == (0, {})


def test_an_item_that_is_put_anew_between_look_and_claim_is_taken_as_it_is_now(backlog, connect, monkeypatch):
    store, mine = connect(), backlog()
    fill(mine, "1")

    def put_anew():
        mine.remove(mine.find("any", "s", "1"))
        mine.put("any", "s", "1", b"new")

    meanwhile(store, monkeypatch, put_anew)
    other = backlog(store=store)
    claims = other.try_take(["any"]) or other.try_take(["any"])
    assert [claim.value for claim in claims] == [b"new"]


def test_an_item_on_its_last_attempt_is_not_buried_by_one_that_did_not_see_the_claim(backlog, connect, monkeypatch):
    store, mine, claims = connect(), backlog(max_attempts=1), []
    fill(mine, "1")
    other = backlog(store=store, max_attempts=1)
    listing, children = store.list, store.children

    def taken_before(prefix, **options):
        if "/items/" in prefix and not claims:
            claims.extend(mine.try_take(["any"]))
        return listing(prefix, **options)

    def without_holders(prefix, **options):
        return [] if prefix.endswith("/holders") else children(prefix, **options)

    monkeypatch.setattr(store, "list", taken_before)
    monkeypatch.setattr(store, "children", without_holders)
    assert other.try_take(["any"]) == []
    assert other.dead_letters() == []
    assert claims[0].attempts == 1
    claims[0].ack()
    assert mine.size() == 0


def test_an_item_whose_holder_was_not_seen_is_not_taken(backlog, connect, monkeypatch):
    """A look may read holders from before, or of another server."""
    store, mine = connect(), backlog()
    fill(mine, "1")
    (claim,) = mine.try_take(["any"])
    children = store.children
    monkeypatch.setattr(
        store, "children", lambda prefix, **options: [] if prefix.endswith("/holders") else children(prefix, **options)
    )
    assert backlog(store=store).try_take(["any"]) == []
    assert (claim.is_held, mine.find("any", "s", "1").attempts) == (True, 1)
    claim.ack()


def test_a_taker_whose_holder_is_gone_takes_with_another(backlog, store):
    """Else what it takes is free for all at once, and it cannot end it."""
    mine = backlog()
    fill(mine, "1", "2")
    (lost,) = mine.try_take(["any"])
    store.delete_tree("work/partitions/any/holders")
    claims = mine.try_take(["any"], limit=2) or mine.try_take(["any"], limit=2)
    assert [claim.item.id for claim in claims][-1] == "2"
    for claim in claims:
        claim.ack()
    with pytest.raises(LockLost):
        lost.ack()


def test_an_item_that_is_removed_between_look_and_burial_is_no_dead_letter(backlog, connect, monkeypatch):
    store, mine = connect(), backlog()
    fill(mine, "1")
    mine.try_take(["any"])
    store.delete_tree("work/partitions/any/holders")
    other = backlog(store=store, max_attempts=1)
    removed = []
    meanwhile(store, monkeypatch, lambda: removed.append(mine.remove(mine.find("any", "s", "1"))))
    assert other.try_take(["any"]) == []
    assert (removed, other.dead_letters()) == ([True], [])


def test_a_remove_that_did_not_see_a_claim_removes_nothing(backlog):
    mine, other = backlog(), backlog()
    fill(mine, "1")
    found = mine.find("any", "s", "1")
    (claim,) = other.try_take(["any"])
    now = mine.find("any", "s", "1")
    assert (mine.remove(found), mine.remove(now)) == (False, False)
    claim.ack()


def put_there(mine):
    fill(mine, "2")


def put_in_a_transaction(mine):
    mine._store.commit([], mine.put_ops("any", "s", {"2": b""}))


def give_there(mine):
    fill(mine, "2", partition="else")
    mine.try_take(["else"])[0].release(partition="any")


def revive_there(mine):
    fill(mine, "2", partition="else")
    mine.try_take(["else"])[0].move_to_dead_letters()
    mine.requeue("2", partition="any")


@pytest.mark.parametrize("put", [put_there, put_in_a_transaction, give_there, revive_there])
def test_a_sort_key_that_is_seen_empty_stays_when_an_item_comes_meanwhile(backlog, connect, monkeypatch, put):
    store, mine = connect(), backlog()
    other = backlog(store=store)
    fill(mine, "1")
    mine.try_take(["any"])[0].ack()
    commit, seen = store.commit, []

    def put_first(checks, ops):
        if not seen:
            seen.append(ops)
            put(mine)
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", put_first)
    assert other.try_take(["any"]) == []
    assert [op.key for op in seen[0]] == ["work/partitions/any/sort_keys/s"]
    assert ids(other.try_take(["any"])) == ["2"]


def test_sort_keys_that_are_seen_empty_together_are_removed_in_one_transaction(backlog, connect, monkeypatch):
    store, mine = connect(), backlog()
    for sort_key in "abcd":
        fill(mine, f"{sort_key}/1")
    for claim in mine.try_take(["any"], limit=4):
        claim.ack()
    commit, removed = store.commit, []

    def put_first(checks, ops):
        if len(ops) > 1 and len(removed) == 1:
            fill(mine, "c/2")
        removed.append([op.key[-1] for op in ops])
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", put_first)
    assert backlog(store=store).try_take(["any"]) == []
    assert removed == [["a"], ["b", "c"], ["b"], ["d"]]
    assert store.children("work/partitions/any/sort_keys") == ["c"]
    assert ids(mine.try_take(["any"])) == ["2"]


def test_items_behind_many_taken_ones_are_found_by_few_looks(backlog, connect, monkeypatch, eventually):
    store = connect(session_ttl_s=30.0)
    mine = backlog(store=store)
    for at in range(0, 300, 50):
        store.commit([], mine.put_ops("any", f"{at:03d}", {f"{n:03d}": b"" for n in range(at, at + 50)}))
    taken = mine.try_take(["any"], limit=290)
    assert ids(taken) == [f"{n:03d}" for n in range(290)]
    monkeypatch.setattr("latchwork.primitives.queue.item_claimer.HINT_S", 5.0)
    assert ids(mine.try_take(["any"])) == ["290"]
    looks, listing = [], store.list
    monkeypatch.setattr(store, "list", lambda *args, **options: looks.append(args) or listing(*args, **options))
    assert ids(mine.try_take(["any"])) == ["291"]
    assert len(looks) == 1  # the items of one item_range
    taken[0].release()
    assert ids(mine.try_take(["any"])) == ["292"]  # for a moment
    monkeypatch.undo()
    mine._claimer._hints.clear()
    assert ids(mine.try_take(["any"], limit=9)) == ["000", *(f"{n:03d}" for n in range(293, 300))]
    assert mine.try_take(["any"]) == []


def test_a_take_reads_a_part_of_a_long_partition(backlog, connect, monkeypatch):
    store = connect(session_ttl_s=30.0)
    mine = backlog(store=store)
    for at in range(0, 400, 80):
        store.commit([], mine.put_ops("any", f"{at // 160}", {f"{n:03d}": b"" for n in range(at, at + 80)}))
    read, listing = [], store.list

    def counting(*args, **options):
        found = listing(*args, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(store, "list", counting)
    children = store.children
    monkeypatch.setattr(store, "children", lambda prefix: read.append(len(found := children(prefix))) or found)
    mine.try_take(["any"])
    assert mine.wait_free("any", 0)
    assert sum(read) <= 50


# Answers are lost


def test_a_put_with_a_lost_answer_is_known_by_its_nonce(backlog, connect, monkeypatch):
    store = connect()
    mine = backlog(store=store)
    lose_answer(store, monkeypatch, applied=True)
    mine.put("any", "s", "1", b"mine")
    monkeypatch.undo()
    lose_answer(store, monkeypatch, applied=False)
    with pytest.raises(OutcomeUnknown):
        mine.put("any", "s", "2", b"mine")
    with pytest.raises(OutcomeUnknown):  # that there is one of this name says nothing of ours
        lose_answer(store, monkeypatch, applied=False)
        mine.put("any", "s", "1", b"mine")


@pytest.mark.parametrize("applied", [True, False])
def test_a_take_with_a_lost_answer_is_settled_by_the_next(backlog, connect, monkeypatch, applied):
    store = connect(session_ttl_s=30.0)
    mine = backlog(store=store)
    fill(mine, "1", "2", "3")
    lose_answer(store, monkeypatch, applied=applied)
    with pytest.raises(OutcomeUnknown):
        mine.try_take(["any"], limit=2)
    claims = mine.try_take(["any"], limit=2)
    assert [(claim.item.id, claim.attempts) for claim in claims] == [("1", 1), ("2", 1)]
    for claim in claims:
        claim.ack()
    assert ids(mine.try_take(["any"], limit=2)) == ["3"]


def test_claims_that_nobody_got_to_know_of_are_given_back(backlog, connect, monkeypatch, eventually):
    store, other = connect(session_ttl_s=30.0), backlog()
    mine = backlog(store=store)
    fill(mine, "1", "2")
    lose_answer(store, monkeypatch, applied=True)
    with pytest.raises(OutcomeUnknown):
        mine.try_take(["any"], limit=2)
    assert len(other.claims()) == 2
    eventually(lambda: not other.claims())
    assert [claim.attempts for claim in other.try_take(["any"], limit=2)] == [2, 2]


def test_a_claim_of_unknown_outcome_on_what_is_not_wanted_now_is_given_back(backlog, connect, monkeypatch, eventually):
    store, other = connect(session_ttl_s=30.0), backlog()
    mine = backlog(store=store)
    fill(mine, "1", "2")
    lose_answer(store, monkeypatch, applied=True)
    with pytest.raises(OutcomeUnknown):
        mine.try_take(["any"])
    assert mine.try_take(["other"]) == []
    assert ids(mine.try_take(["any"], accept=lambda item: item.id == "2")) == ["2"]
    eventually(lambda: list(other.claims()) == ["any/s/2"])


@pytest.mark.parametrize("applied", [True, False])
def test_an_acknowledgement_with_a_lost_answer_is_done_once(backlog, connect, monkeypatch, applied):
    store = connect()
    mine = backlog(store=store)
    fill(mine, "1")
    (claim,) = mine.try_take(["any"])
    lose_answer(store, monkeypatch, applied=applied)
    claim.ack(ops=[Create("result", b"")])
    assert (mine.size(), claim.is_held) == (0, False)
    assert store.get("result")


def test_an_acknowledgement_that_was_tried_again_behind_its_lost_answer_is_done_once(backlog, connect, monkeypatch):
    store = connect(session_ttl_s=30.0)
    mine = backlog(store=store)
    fill(mine, "1")
    (claim,) = mine.try_take(["any"])
    read = store.get_many

    def unreachable(_keys):
        monkeypatch.setattr(store, "get_many", read)
        raise Unavailable("cut")

    lose_answer(store, monkeypatch, applied=True)
    monkeypatch.setattr(store, "get_many", unreachable)
    claim.ack(ops=[Create("result", b"")])
    assert (mine.size(), claim.is_held) == (0, False)


@pytest.mark.parametrize("applied", [True, False])
def test_a_part_with_a_lost_answer_says_whether_it_landed(backlog, connect, monkeypatch, applied):
    store = connect(session_ttl_s=30.0)
    mine = backlog(store=store)
    fill(mine, "1")
    (claim,) = mine.try_take(["any"])
    part = claim.prepare_ack()
    lose_answer(store, monkeypatch, applied=applied)
    with pytest.raises(OutcomeUnknown) as unknown:
        store.commit(part.checks, part.ops)
    assert part.was_committed(unknown.value) is applied
    assert not claim.is_held
    if not applied:
        store.commit(part.checks, part.ops)
        part.mark_committed()
    assert mine.size() == 0


def test_the_end_of_an_item_that_was_removed_behind_a_lost_answer_is_told_as_lost(backlog, connect, monkeypatch):
    store, other = connect(session_ttl_s=30.0), backlog()
    mine = backlog(store=store)
    fill(mine, "1")
    (claim,) = mine.try_take(["any"])
    commit = store.commit

    def removed(checks, ops):
        other.remove(other.find("any", "s", "1"), even_if_claimed=True)
        monkeypatch.setattr(store, "commit", commit)
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "commit", removed)
    with pytest.raises(LockLost, match="was removed while it was ours"):
        claim.ack(ops=[Put("result", b"")])
    assert store.get("result") is None


def test_a_take_that_lands_after_it_gave_up_leaves_its_items_to_others(monkeypatch):
    monkeypatch.setattr("latchwork.primitives.queue.unconfirmed_claims._LEFT_TO_TAKES_S", 0.2)
    url = f"memory://late-{uuid.uuid4().hex}/test"
    late = Fault("land_late", op="commit", key="work/partitions/any/holders/*", delay_s=1.5)
    with FaultyStore(latchwork.connect(url), [late]) as store, latchwork.connect(url) as third:
        mine, other = WorkQueue(store, "work"), WorkQueue(third, "work")
        fill(mine, "1", "2")
        with pytest.raises(OutcomeUnknown):
            mine.try_take(["any"], limit=2)
        time.sleep(2.5)  # the claims have come, if they can, and nobody is behind them
        assert store.session.remaining_s() > 0.0
        assert ids(other.try_take(["any"], limit=2)) == ["1", "2"]
        mine.close()
        other.close()


def test_what_was_taken_before_trouble_is_returned(backlog, connect, monkeypatch):
    store = connect(session_ttl_s=30.0)
    mine = backlog(store=store)
    fill(mine, *(f"{n:02d}" for n in range(60)))
    calls, commit = [], store.commit

    def failing(checks, ops):
        calls.append(ops)
        if len(calls) == 2:
            raise Unavailable("cut")
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", failing)
    assert len(mine.try_take(["any"], limit=60)) == 45
    assert len(mine.try_take(["any"], limit=60)) == 15


def test_tidying_a_partition_forgets_its_empty_sort_keys_and_no_other(backlog, store):
    mine = backlog()
    for number in range(20):
        mine.put("left", f"s{number:02}", "1", b"")
    for number in [*range(5), *range(6, 20)]:
        store.delete(mine.key("left", f"s{number:02}", "1"))
    assert not mine.clean_index("left")
    assert [item.sort_key for item in mine.items("left")] == ["s05"]
    assert store.children("work/partitions/left/sort_keys") == ["s05"]
    store.delete(mine.key("left", "s05", "1"))
    assert mine.clean_index("left")
    assert mine.partitions() == []
    assert mine.clean_index("left")


def test_tidying_a_partition_leaves_a_sort_key_into_which_somebody_puts_meanwhile(backlog, connect, monkeypatch):
    store, mine = connect(), backlog()
    mine.put("left", "s", "1", b"")
    mine.remove(mine.find("left", "s", "1"))
    meanwhile(store, monkeypatch, lambda: mine.put("left", "s", "2", b""))
    assert not backlog(store=store).clean_index("left")
    assert ids(mine.try_take(["left"])) == ["2"]
