"""Commits whose answers are lost."""

from __future__ import annotations

from latchwork.errors import OutcomeUnknown


def lose_answer(store, monkeypatch, *, applied, which=1):
    """Lose the answer of one commit, by default the next; return the list that gets the writes of each."""
    commit, calls = store.commit, []

    def lossy(checks, ops):
        calls.append(ops)
        if len(calls) != which:
            return commit(checks, ops)
        if applied:
            commit(checks, ops)
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "commit", lossy)
    return calls
