"""Reads of several keys are of no one moment: what lands between two of them is not taken for what it is not."""

from __future__ import annotations

import pytest

from latchwork._base.decoding import encode
from latchwork.errors import LockLost, OutcomeUnknown
from latchwork.plans.keys import PARTITION
from latchwork.primitives import WorkQueue
from latchwork.primitives.queue.in_doubt import ClaimInDoubt, ClaimsInDoubt
from latchwork.primitives.queue.items import Names, QueueItem
from latchwork.store.steps import run
from latchwork.types import Absent, At, Create, Put
from patience import eventually

NAMES = Names("b")


@pytest.fixture
def backlog(store):
    with WorkQueue(store, "b") as made:
        made.put(PARTITION, "s", "one", b"x")
        yield made


def lands_between(monkeypatch, store, land, *, first=0):
    """Have something happen, once, after one of the two keys of a read was read, and before the other is."""
    read, left = store.get_many, [land]

    def get_many(keys, **options):
        found = [None, None]
        found[first] = read([keys[first]], **options)[0]
        if left:
            left.pop()()
        found[1 - first] = read([keys[1 - first]], **options)[0]
        return found

    monkeypatch.setattr(store, "get_many", get_many)


@pytest.mark.parametrize("first", [pytest.param(0, id="claim"), pytest.param(1, id="item")])
def test_a_claim_that_lands_between_the_reads_of_it_and_of_its_item_is_found(monkeypatch, store, backlog, first):
    """Else it stays, claimed, and nobody runs it; or its run cannot be ended, and it runs again."""
    item = store.get(NAMES.item(PARTITION, "s", "one"))
    key, session = NAMES.claim_of(QueueItem("one", partition=PARTITION, sort_key="s")), store.session
    body, taken = encode({"nonce": "ours"}), QueueItem.of(item).taken().to_bytes()
    doubts = ClaimsInDoubt(store, "a test")
    doubt = ClaimInDoubt(key, item.key, "ours", session, item)
    doubts.note([doubt])
    lands_between(
        monkeypatch,
        store,
        lambda: store.commit([At(item), Absent(key)], [Put(item.key, taken), Create(key, body, session)]),
        first=first,
    )
    found = run(doubts.settle(doubt))
    assert found is not None
    assert found[0].key == key
    assert QueueItem.of(found[1]).attempts == 1


def test_a_claim_of_unknown_outcome_whose_item_somebody_removed_goes_too(store, backlog):
    """Else it stays as long as its session, and who puts the item anew has it taken by nobody."""
    item = store.get(NAMES.item(PARTITION, "s", "one"))
    key, session = NAMES.claim_of(QueueItem("one", partition=PARTITION, sort_key="s")), store.session
    doubts = ClaimsInDoubt(store, "a test")
    doubt = ClaimInDoubt(key, item.key, "ours", session, item)
    store.commit([], [Put(item.key, b"{}"), Create(key, encode({"nonce": "ours"}), session)])
    store.delete(item.key)
    doubts.note([doubt])
    assert run(doubts.settle(doubt)) is None
    eventually(lambda: store.get(key) is None)


def test_an_end_that_lands_between_the_reads_of_its_claim_and_of_its_item_has_landed(monkeypatch, store, backlog):
    """Else it is told that its item was removed, and what it took along is forgotten."""
    (claim,) = backlog.try_take([PARTITION])
    part = claim.ack_part()
    lands_between(monkeypatch, store, lambda: store.commit(part.checks, part.ops))
    assert part.landed(OutcomeUnknown("the connection broke"))


def test_an_item_that_somebody_removed_is_lost_all_the_same(store, backlog):
    (claim,) = backlog.try_take([PARTITION])
    part = claim.ack_part()
    store.delete(claim.item.key)
    with pytest.raises(LockLost, match="was removed"):
        part.landed(OutcomeUnknown("the connection broke"))
