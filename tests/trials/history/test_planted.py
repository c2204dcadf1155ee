"""The checker catches stores that are wrong, in the same runs in which it judges ours."""

from __future__ import annotations

import pytest

from latchwork_testkit.histories.checker import check_history, format_timeline, minimize_history
from trials.history.planted import LostUpdates, Planted, RestartingVersions, StaleReads
from trials.history.run import Run

LIMIT_S = 60.0


def run(tmp_path, wrap, *, calls):
    return Run("memory", tmp_path, seed=3, round_s=0.7, wrap=wrap).until(calls, limit_s=LIMIT_S)


@pytest.mark.parametrize("spoiled", [StaleReads, LostUpdates, RestartingVersions])
def test_a_store_with_a_planted_fault_is_caught(tmp_path, spoiled):
    summary = run(tmp_path, spoiled, calls=1_000_000)
    assert summary.bad is not None, summary.describe()
    assert any("no order of the calls explains" in problem for problem in summary.problems)


def test_the_minimised_history_of_a_lost_update_is_short_and_still_bad(tmp_path):
    sizes = []
    while len(sizes) < 3 and min(sizes, default=100) >= 100:  # writes stay: with some luck there are many of them
        bad = run(tmp_path, LostUpdates, calls=1_000_000).bad
        small = minimize_history(bad)
        assert not check_history(small).is_linearizable
        assert len(small.calls) < len(bad.calls)
        assert len(format_timeline(small).splitlines()) == len(small.calls) + 1
        sizes.append(len(small.calls))
    assert min(sizes) < 100, sizes


def test_a_wrapper_that_spoils_nothing_is_not_blamed(tmp_path):
    summary = run(tmp_path, Planted, calls=1_000)
    assert summary.problems == []
    assert summary.counts
