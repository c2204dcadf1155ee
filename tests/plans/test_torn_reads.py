"""What lands while an end of unknown outcome is looked at is not taken for what it is not."""

from __future__ import annotations

import pytest

from latchwork.errors import LockLost, OutcomeUnknown
from latchwork.plans.keys import PARTITION
from latchwork.primitives import WorkQueue
from latchwork.primitives.queue.items import ClaimHolder, QueueItem, QueueKeys
from latchwork.primitives.queue.unconfirmed_claims import UnconfirmedClaim, UnconfirmedClaims
from latchwork.store.steps import run
from latchwork.types import At, Put
from patience import eventually

NAMES = QueueKeys("b")


@pytest.fixture
def backlog(store):
    with WorkQueue(store, "b") as made:
        made.put(PARTITION, "s", "one", b"x")
        yield made


def in_doubt(store):
    """A claim whose transaction may have been committed, the writes that would do it, and where it is noted."""
    item = store.get(NAMES.item_key(PARTITION, "s", "one"))
    holder = ClaimHolder(NAMES, PARTITION, store.session)
    claim, doubts = holder.generate_claim_id(), UnconfirmedClaims(store, "a test")
    doubt = UnconfirmedClaim(item.key, claim, holder, item)
    doubts.add([doubt])
    writes = [
        Put(item.key, QueueItem.from_entry(item).with_claim(claim).to_bytes()),
        Put(holder.key, b"", store.session),
    ]
    return doubts, doubt, [At(item)], writes


def test_a_claim_that_lands_while_it_is_kept_from_landing_is_found(monkeypatch, store, backlog):
    """Else it stays, claimed, and nobody runs it."""
    doubts, doubt, checks, writes = in_doubt(store)
    commit = store.commit

    def land_first(*arguments):
        monkeypatch.undo()
        commit(checks, writes)
        return commit(*arguments)

    monkeypatch.setattr(store, "commit", land_first)
    found = run(doubts.resolve(doubt))
    assert found is not None
    assert QueueItem.from_entry(found).attempts == 1


def test_a_claim_of_unknown_outcome_that_no_take_uses_is_released(store, backlog):
    _, _, checks, writes = in_doubt(store)
    store.commit(checks, writes)
    assert len(backlog.claims()) == 1
    eventually(lambda: backlog.claims() == {})
    assert backlog.items()[0].attempts == 1


def test_a_claim_of_unknown_outcome_whose_item_was_removed_is_no_claim(store, backlog):
    doubts, doubt, checks, writes = in_doubt(store)
    store.commit(checks, writes)
    store.delete(NAMES.item_key(PARTITION, "s", "one"))
    assert run(doubts.resolve(doubt)) is None


def test_an_end_of_unknown_outcome_is_no_end_if_the_item_was_removed(store, backlog):
    """Else the writes that went with it are believed to be there."""
    (claim,) = backlog.try_take([PARTITION])
    part = claim.prepare_ack()
    assert backlog.remove(backlog.find(PARTITION, "s", "one"), even_if_claimed=True)
    with pytest.raises(LockLost, match="was removed"):
        part.was_committed(OutcomeUnknown("the connection broke"))
    eventually(lambda: store.list("b/partitions/any/removed", recursive=True) == [])


def test_an_end_that_lands_before_it_is_asked_for_has_landed(store, backlog):
    (claim,) = backlog.try_take([PARTITION])
    part = claim.prepare_ack()
    store.commit(part.checks, part.ops)
    assert part.was_committed(OutcomeUnknown("the connection broke"))


def test_an_end_of_unknown_outcome_whose_holder_is_gone_is_lost(store, backlog):
    (claim,) = backlog.try_take([PARTITION])
    part = claim.prepare_ack()
    store.delete_tree(f"b/partitions/{PARTITION}/holders")
    with WorkQueue(store, "b") as other:
        other.try_take([PARTITION])[0].ack()
    with pytest.raises(LockLost):
        part.was_committed(OutcomeUnknown("the connection broke"))
