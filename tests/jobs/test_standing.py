"""Rebalances that go on from the last one decide what those would that look at everything."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.test_rebalance import ITEMS, JOBS, VIEWS, WORKERS, applied, view
from latchwork.assignment import Balanced, Budgeted
from latchwork.jobs.rebalance import ClusterView, Reserved, Strategies, WorkerView, rebalance
from latchwork.jobs.standing import Planner

LIVES = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from(WORKERS),
            st.builds(WorkerView, st.sampled_from([1.0, 2.0]), st.frozensets(st.sampled_from(JOBS))),
        ),
        st.dictionaries(st.sampled_from(JOBS), ITEMS),
    ),
    max_size=6,
)


@pytest.mark.parametrize("strategy", ["balanced", "evenly-spread"])
@given(start=VIEWS, life=LIVES)
@settings(deadline=None, max_examples=150)
def test_in_any_life_of_a_cluster_it_decides_what_a_look_at_everything_would(strategy, start, life):
    planner, strategies, now = Planner(Strategies(strategy)), Strategies(strategy), start
    for workers, pools in [(start.workers, start.pools), *life]:
        now = ClusterView(workers, pools, now.shares)
        decided, wanted = planner.rebalance(now), rebalance(now, strategies)
        assert decided == wanted
        now = applied(now, decided.changes)


def test_a_pool_that_did_not_change_is_not_looked_at_again():
    class Pool(tuple):
        __slots__ = ()
        looks: ClassVar[list[str]] = []

        def __iter__(self):
            self.looks.append("look")
            return super().__iter__()

    planner, pools = Planner(Strategies()), {"j1": tuple("abcd"), "j2": Pool("efgh")}
    before = applied(view(), planner.rebalance(view(pools=pools, jobs=("j1", "j2"))).changes)
    Pool.looks.clear()
    result = planner.rebalance(view(workers=("w1",), pools=pools, shares=before.shares, jobs=("j1", "j2")))
    assert result.moves == 4
    assert Pool.looks == []


def test_the_shares_of_a_job_placed_as_a_whole_are_made_of_its_own_strings():
    items = tuple(f"item-{number}" for number in range(9))
    planner = Planner(Strategies())
    planner.rebalance(view(pools={"j1": items}))
    whole = planner.take_whole()["j1"]
    assert {id(item) for share in whole.values() for item in share} == {id(item) for item in items}
    assert planner.take_whole() == {}


def test_an_item_that_is_added_is_the_pools_own_string_in_its_share():
    planner = Planner(Strategies())
    now = applied(view(), planner.rebalance(view()).changes)
    added = f"item-{len(planner.take_whole())}"
    result = planner.rebalance(view(pools={"j1": (*"abcd", added)}, shares=now.shares))
    assert [change.after[-1] is added for change in result.changes] == [True]


def test_what_was_not_written_is_forgotten():
    planner = Planner(Strategies())
    planner.rebalance(view())
    planner.forget()
    assert planner.rebalance(view()) == rebalance(view(), Strategies())


def test_while_a_restart_is_under_way_the_whole_cluster_is_looked_at():
    planner = Planner(Strategies())
    now = applied(view(), planner.rebalance(view()).changes)
    share = {job: workers["w2"] for job, workers in now.shares.items()}
    reserved = {"w2": Reserved(WorkerView(1.0, frozenset(["j1"])), share)}
    away = ClusterView(view(workers=("w1",)).workers, now.pools, now.shares, reserved)
    result = planner.rebalance(away)
    assert result == rebalance(away, Strategies())
    now = applied(away, result.changes)
    back = ClusterView(view().workers, now.pools, now.shares)
    assert planner.rebalance(back) == rebalance(back, Strategies())


@pytest.mark.parametrize(
    "option", ["rendezvous", {"j1": "balanced", "*": "evenly-spread"}, Budgeted(Balanced(), 1)], ids=str
)
def test_strategies_that_no_board_has_decide_as_ever(option):
    strategies = Strategies(option)
    planner, now = Planner(strategies), view(pools={"j1": tuple("abcd"), "j2": tuple("ef")}, jobs=("j1", "j2"))
    for workers in (("w1", "w2"), ("w2",), ("w2", "w3")):
        now = ClusterView(view(workers=workers, jobs=("j1", "j2")).workers, now.pools, now.shares)
        result = planner.rebalance(now)
        assert result == rebalance(now, strategies)
        now = applied(now, result.changes)


def test_a_pool_out_of_order_is_placed_all_the_same():
    planner = Planner(Strategies())
    now = view(pools={"j1": tuple("dbca")})
    assert planner.rebalance(now) == rebalance(now, Strategies())
