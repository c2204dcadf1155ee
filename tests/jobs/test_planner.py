"""Rebalances that go on from the last one decide what those would that look at everything."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.test_rebalance import ITEMS, JOBS, VIEWS, WORKERS, applied, view
from latchwork.assignment import (
    Balanced,
    Budgeted,
    EvenlyRendezvous,
    EvenlySpread,
    Rendezvous,
    Traits,
    get_traits,
    plan_from_owners,
)
from latchwork.jobs.manager.planner import Planner
from latchwork.jobs.manager.rebalance import ClusterView, ReservedItems, WorkerView, rebalance
from latchwork.jobs.manager.strategies import Strategies

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


class LeastLoaded:
    """A strategy of a user's own: keeps what can stay, and gives the rest to whom has least, also of other jobs."""

    name = "least-loaded"

    def __init__(self):
        self.asked = []

    def assign(self, problem):
        self.asked.append([job.job for job in problem.jobs])
        loads, owners = Counter(problem.loads()), {}
        for job in problem.jobs:
            of_job = {item: name for item, name in job.previous.items() if name in job.workers and item in job.items}
            loads.update(of_job.values())
            for item in job.items:
                if item not in of_job and job.workers:
                    of_job[item] = min(sorted(job.workers), key=lambda name: loads[name])
                    loads[of_job[item]] += 1
            owners[job.job] = of_job
        return plan_from_owners(problem, owners)


OPTIONS = {
    "balanced": lambda: "balanced",
    "evenly-spread": lambda: "evenly-spread",
    "rendezvous": lambda: "rendezvous",
    "rendezvous compat": lambda: Rendezvous("compat"),
    "rendezvous budget": lambda: Budgeted(Rendezvous(), 1),
    "rendezvous beside own": lambda: {"j1": "rendezvous", "*": LeastLoaded()},
    "two": lambda: {"j1": "balanced", "*": "evenly-spread"},
    "three": lambda: {"j1": "rendezvous", "j2": "evenly-rendezvous", "*": "balanced"},
    "budget": lambda: Budgeted(Balanced(), 1),
    "budget beside": lambda: {"j2": Budgeted(EvenlySpread(), 2), "*": "balanced"},
    "own": LeastLoaded,
    "own sees others": lambda: {"j2": LeastLoaded(), "*": "balanced"},
    "own sees own": lambda: {"j1": LeastLoaded(), "j3": LeastLoaded(), "*": Budgeted(LeastLoaded(), 1)},
}


@pytest.mark.parametrize("option", OPTIONS)
@given(start=VIEWS, life=LIVES)
@settings(deadline=None, max_examples=60)
def test_in_any_life_of_a_cluster_it_decides_what_a_look_at_everything_would(option, start, life):
    planner, strategies, now = Planner(Strategies(OPTIONS[option]())), Strategies(OPTIONS[option]()), start
    for workers, pools in [(start.workers, start.pools), *life]:
        now = ClusterView(workers, pools, now.assignments)
        decided, wanted = planner.rebalance(now), rebalance(now, strategies)
        assert decided == wanted
        now = applied(now, decided.changes)


def test_a_budget_holds_back_the_same_items_whoever_joined_first():
    budget = Strategies(Budgeted(Balanced(), 1))
    planner, pools = Planner(budget), {"j1": ("a",), "j2": ("a", "b")}
    able = [{"w4": ["j1"]}, {"w4": ["j1"], "w2": ["j1", "j2"]}, {"w4": ["j1", "j2"], "w2": ["j1", "j2"], "w3": ["j1"]}]
    now = view()
    for jobs in able:
        workers = {name: WorkerView(1.0, frozenset(each)) for name, each in jobs.items()}
        now = ClusterView(workers, pools, now.assignments)
        result = planner.rebalance(now)
        assert result == rebalance(now, budget)
        now = applied(now, result.changes)


def test_a_strategy_of_ones_own_is_not_asked_while_nothing_changes_that_it_could_see():
    own = LeastLoaded()
    planner = Planner(Strategies({"j2": own}))
    pools = {"j1": tuple("abcd"), "j2": tuple("efgh")}
    now = view(pools=pools, jobs=("j1", "j2"))
    for _ in range(3):  # the second time it sees what it did itself, and agrees
        now = applied(now, planner.rebalance(now).changes)
    assert own.asked == [["j2"], ["j2"]]
    for changed in ({**pools, "j2": tuple("efg")}, {**pools, "j1": tuple("abc")}):
        own.asked.clear()
        now = ClusterView(now.workers, changed, now.assignments)
        now = applied(now, planner.rebalance(now).changes)
        assert own.asked == [["j2"]], "its own job has changed, or what others placed before it"
        now = applied(now, planner.rebalance(now).changes)


def test_a_strategy_that_places_by_job_is_asked_only_about_jobs_that_changed(monkeypatch):
    asked, assign = [], EvenlyRendezvous.assign

    def noting(self, problem):
        asked.append([job.job for job in problem.jobs])
        return assign(self, problem)

    monkeypatch.setattr(EvenlyRendezvous, "assign", noting)
    planner, pools = Planner(Strategies("evenly-rendezvous")), {"j1": tuple("abcd"), "j2": tuple("efgh")}
    now = view(pools=pools, jobs=("j1", "j2"))
    now = applied(now, planner.rebalance(now).changes)
    now = ClusterView(now.workers, {**pools, "j2": tuple("efghi")}, now.assignments)
    now = applied(now, planner.rebalance(now).changes)
    planner.rebalance(now)
    assert asked == [["j1", "j2"], ["j2"]]


def test_rendezvous_goes_on_from_its_last_owners_whatever_comes_and_goes_at_once(monkeypatch):
    strategies, pools = Strategies("rendezvous"), {"j1": tuple(f"i{n:03}" for n in range(300))}
    planner, whole = Planner(strategies), rebalance
    now = view(("w1", "w2", "w3"), pools)
    now = applied(now, planner.rebalance(now).changes)
    pools = {"j1": tuple(f"i{n:03}" for n in range(5, 320))}
    workers = {"w2": WorkerView(2.0, frozenset(["j1"])), "w4": WorkerView(1.0, frozenset(["j1"]))}
    now = ClusterView({**workers, "w5": workers["w4"]}, pools, now.assignments)
    wanted = whole(now, strategies)
    monkeypatch.setattr(Rendezvous, "assign", lambda *_: pytest.fail("it is asked"))
    decided = planner.rebalance(now)
    assert decided == wanted
    now = applied(now, decided.changes)
    nobody = ClusterView({}, pools, now.assignments)
    assert planner.rebalance(nobody).unplaced == {"j1": 315}
    assert planner.rebalance(applied(nobody, planner.rebalance(nobody).changes)).changes == ()
    assert planner.rebalance(now).changes == (), "each item is back where it was"


class Reversed(Rendezvous):
    """Like Rendezvous, but not with its owners."""

    def assign(self, problem):
        owners = {job.job: dict.fromkeys(job.items, max(job.workers, default="")) for job in problem.jobs}
        return plan_from_owners(problem, owners)


def test_a_subclass_of_a_known_strategy_is_asked_itself():
    now = view(("w1", "w2"))
    result = Planner(Strategies(Reversed())).rebalance(now)
    assert result == rebalance(now, Strategies(Reversed()))
    assert {change.worker for change in result.changes} == {"w2"}
    assert get_traits(Reversed()) == Traits() != get_traits(Rendezvous())


def test_a_strategy_that_fails_is_asked_again_and_hinders_no_other():
    own = LeastLoaded()
    planner, strategies = Planner(Strategies({"j2": own})), Strategies({"j2": own})
    now = view(pools={"j1": tuple("abcd"), "j2": tuple("efgh")}, jobs=("j1", "j2"))
    now = applied(now, planner.rebalance(now).changes)
    assign, own.assign = own.assign, _raise
    now = ClusterView(view(("w2", "w3"), jobs=("j1", "j2")).workers, now.pools, now.assignments)
    result = planner.rebalance(now)
    assert (set(result.failed), {change.job for change in result.changes}) == ({"j2"}, {"j1"})
    own.assign = assign
    now = applied(now, result.changes)
    result = planner.rebalance(now)
    assert result == rebalance(now, strategies)
    assert {change.job for change in result.changes} == {"j2"}


def _raise(_problem):
    raise RuntimeError("no idea")


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
    result = planner.rebalance(view(workers=("w1",), pools=pools, assignments=before.assignments, jobs=("j1", "j2")))
    assert result.moves == 4
    assert Pool.looks == []


def test_the_assignments_of_a_new_job_use_the_strings_of_its_pool():
    items = tuple(f"item-{number}" for number in range(9))
    planner = Planner(Strategies())
    planner.rebalance(view(pools={"j1": items}))
    whole = planner.pop_first_assignments()["j1"]
    assert {id(item) for assigned in whole.values() for item in assigned} == {id(item) for item in items}
    assert planner.pop_first_assignments() == {}


def test_an_item_that_is_added_is_the_pools_own_string_in_its_assignment():
    planner = Planner(Strategies())
    now = applied(view(), planner.rebalance(view()).changes)
    added = f"item-{len(planner.pop_first_assignments())}"
    result = planner.rebalance(view(pools={"j1": (*"abcd", added)}, assignments=now.assignments))
    assert [change.after[-1] is added for change in result.changes] == [True]


def test_what_was_not_written_is_forgotten():
    planner = Planner(Strategies())
    planner.rebalance(view())
    planner.reset()
    assert planner.rebalance(view()) == rebalance(view(), Strategies())


def test_while_a_restart_is_under_way_the_whole_cluster_is_looked_at():
    planner = Planner(Strategies())
    now = applied(view(), planner.rebalance(view()).changes)
    assigned = {job: workers["w2"] for job, workers in now.assignments.items()}
    reserved = {"w2": ReservedItems(WorkerView(1.0, frozenset(["j1"])), assigned)}
    away = ClusterView(view(workers=("w1",)).workers, now.pools, now.assignments, reserved)
    result = planner.rebalance(away)
    assert result == rebalance(away, Strategies())
    now = applied(away, result.changes)
    back = ClusterView(view().workers, now.pools, now.assignments)
    assert planner.rebalance(back) == rebalance(back, Strategies())


def test_a_pool_out_of_order_is_placed_all_the_same():
    planner = Planner(Strategies())
    now = view(pools={"j1": tuple("dbca")})
    result = planner.rebalance(now)
    assert result == rebalance(now, Strategies())
    now = ClusterView(view(("w1",)).workers, now.pools, applied(now, result.changes).assignments)
    assert planner.rebalance(now) == rebalance(now, Strategies())
