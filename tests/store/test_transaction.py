"""The loop of a transaction, above a store that refuses as the test says."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.errors import Conflict, OutcomeUnknown, Unavailable


@pytest.fixture
def refusing(monkeypatch):
    """A store in memory whose commits fail with the errors given, one after the other, before they go through."""
    with latchwork.connect("memory://transaction") as store:
        commit, store.errors, store.commits = store.commit, [], 0

        def refuse(checks, ops):
            store.commits += 1
            if store.errors:
                raise store.errors.pop(0)
            return commit(checks, ops)

        monkeypatch.setattr(store, "commit", refuse)
        yield store


@pytest.mark.parametrize("error", [OutcomeUnknown("it may have been applied"), Unavailable("it was not applied")])
def test_only_a_refused_commit_is_tried_again(refusing, error):
    refusing.errors = [Conflict("others were faster", [])]
    refusing.transact(lambda tx: tx.put("k", b"1"), attempts=5)
    assert refusing.commits == 2
    refusing.errors = [error]
    with pytest.raises(type(error)):
        refusing.transact(lambda tx: tx.put("k", b"2"), attempts=5)
    assert refusing.commits == 3
    assert refusing.get("k").value == b"1"


def test_what_was_read_is_checked_and_what_another_wrote_meanwhile_is_not_lost(refusing):
    refusing.put("n", b"1")
    seen = []

    def add_one(tx):
        seen.append(tx.get("n").value)
        if len(seen) == 1:
            refusing.put("n", b"10")
        tx.put("n", b"%d" % (int(seen[-1]) + 1))

    refusing.transact(add_one, attempts=5)
    assert seen == [b"1", b"10"]
    assert refusing.get("n").value == b"11"


def test_a_guard_that_is_only_read_is_written_all_the_same(refusing):
    before = refusing.put("guard", b"about")
    refusing.transact(lambda tx: tx.put("other", b""), guard="guard", attempts=1)
    after = refusing.get("guard")
    assert after.value == b"about"
    assert after.version != before.version
