"""Every item's place has a reason, and the figures of the reason are true."""

from __future__ import annotations

import random
from collections import Counter

import assignment_reference as reference
import pytest

from latchwork.assignment import (
    Balanced,
    Budgeted,
    EvenlyRendezvous,
    EvenlySpread,
    JobProblem,
    Problem,
    Reason,
    Rendezvous,
    ReplicaProblem,
    explain,
    explain_replicas,
    place_replicas,
    plan_from_owners,
)

THREE = {"w1": 1.0, "w2": 1.0, "w3": 1.0}
KEEPERS = [EvenlySpread(), Balanced(), Budgeted(Balanced(), 2)]


@pytest.mark.parametrize("strategy", [Rendezvous(), EvenlyRendezvous("compat"), *KEEPERS], ids=repr)
def test_every_item_of_any_problem_is_explained_where_the_plan_has_it(strategy):
    rng = random.Random(31)
    seen = set()
    for _ in range(15):
        problem = reference.random_problem(rng, jobs=3, items=12, weights=(1.0, 2.0))
        plan = strategy.assign(problem)
        for job in problem.jobs:
            for item in job.items:
                found = explain(strategy, problem, job.job, item)
                assert (found.worker, found.previous) == (plan.owners[job.job].get(item), job.previous.get(item))
                assert repr(item) in found.text or f"{job.job}:{item}" in found.text
                check_facts(job, plan, found)
                seen.add(found.reason)
    expected = {"rendezvous": {Reason.SCORE}, "evenly-rendezvous": {Reason.SCORE_WITH_ROOM}}
    keeps = {Reason.KEPT, Reason.NEW, Reason.OWNER_GONE, Reason.OVER_SHARE}
    budget = {Reason.DEFERRED} if isinstance(strategy, Budgeted) else set()
    assert seen >= expected.get(strategy.name, keeps) | {Reason.UNPLACEABLE} | budget


def check_facts(job, plan, found):
    """The figures are those of the plan, and the reason follows from the previous owners."""
    facts, previous = found.facts, job.previous.get(found.item)
    load, had = Counter(plan.owners[job.job].values()), reference.held(job)
    if found.reason is Reason.UNPLACEABLE:
        assert not job.workers
    elif found.reason in {Reason.SCORE, Reason.SCORE_WITH_ROOM}:
        ranked = reference.ranked(facts["key"], job.workers, facts["mode"])
        assert list(facts["ranking"]) == ranked[: len(facts["ranking"])]
        assert found.worker == ranked[len(facts.get("full", ()))]
    elif found.reason is Reason.DEFERRED:
        assert (found.worker, found.facts["deferred"]) == (previous, len(plan.deferred))
    else:
        assert (facts["share"], facts["held"]) == (load[found.worker], had[found.worker])
        assert abs(facts["share"] - facts["quota"]) < 1 or plan.deferred
    if found.reason is Reason.KEPT:
        assert previous == found.worker
    elif found.reason is Reason.NEW:
        assert previous is None
    elif found.reason is Reason.OWNER_GONE:
        assert previous not in job.workers
    elif found.reason is Reason.OVER_SHARE:
        assert facts["previous_held"] > facts["previous_share"]


def test_a_move_is_told_as_a_sentence():
    job = JobProblem("report", ("a", "b", "c", "d"), THREE, {"a": "w1", "b": "w1", "c": "w1", "d": "gone"})
    told = {item: explain(Balanced(), Problem((job,)), "report", item) for item in job.items}
    assert told["a"].text == (
        "'w1' keeps 'a': it had 3 items of 'report', and its share is 2 (quota 1.333). Over all jobs it has 2 items."
    )
    assert told["c"].text == (
        "'w1' gave 'c' up: it had 3 items of 'report', and its share is 2 (quota 1.333). "
        "'w2' had room: it had 0 items of 'report', and its share is 1 (quota 1.333). Over all jobs it has 1 item."
    )
    assert told["d"].text.startswith("'gone', which had 'd', cannot run 'report' any more. 'w3' had room: ")
    assert dict(told["c"].facts) == {
        "held": 0,
        "share": 1,
        "quota": 4 / 3,
        "total": 1,
        "previous_held": 3,
        "previous_share": 2,
    }


def test_workers_that_scored_higher_but_were_full_are_named():
    job = JobProblem("j", tuple(f"i{n}" for n in range(9)), THREE)
    found = [explain(EvenlyRendezvous(), Problem((job,)), "j", item) for item in job.items]
    passed_over = [each for each in found if each.facts["full"]]
    assert passed_over
    assert all("scored higher, but had their share by then" in each.text for each in passed_over)


def test_an_item_that_waits_for_the_budget_says_where_it_will_go():
    job = JobProblem("j", ("a", "b", "c", "d"), {"w1": 1.0, "w2": 1.0}, dict.fromkeys("abcd", "w1"))
    found = explain(Budgeted(EvenlySpread(), 1), Problem((job,)), "j", "d")
    assert (found.reason, found.facts) == (Reason.DEFERRED, {"target": "w2", "deferred": 1})


def test_a_custom_strategy_is_named():
    class First:
        name = "first"

        def assign(self, problem):
            return plan_from_owners(problem, {job.job: dict.fromkeys(job.items, "w1") for job in problem.jobs})

    found = explain(First(), Problem((JobProblem("j", ("a",), THREE),)), "j", "a")
    assert (found.reason, found.text) == (Reason.CUSTOM, "Strategy 'first' gives 'a' to 'w1'.")


def test_replicas_are_explained_with_their_zones():
    workers = dict.fromkeys(("a1", "a2", "b1"), 1.0)
    zones = {"a1": "a", "a2": "a", "b1": "b"}
    problem = ReplicaProblem("j", ("x", "y"), 2, workers, zones, {"x": ("a1", "a2"), "y": ("a1", "gone")})
    x = explain_replicas(problem, "x")
    y = explain_replicas(problem, "y")
    assert [each.worker for each in x + y] == [w for i in "xy" for w in place_replicas(problem).owners[i]]
    assert [each.reason for each in x] == [Reason.KEPT, Reason.OVER_SHARE]
    assert Reason.OWNER_GONE in {each.reason for each in y}
    assert x[1].text.endswith("in zone 'b'. Its zones: 'a' 1, 'b' 1. 'b1' has 2 items of 'j'.")
    assert explain_replicas(ReplicaProblem("j", ("x",), 2, {}), "x")[0].reason is Reason.UNPLACEABLE


def test_what_the_problem_does_not_have_cannot_be_explained():
    problem = Problem((JobProblem("j", ("a",), THREE),))
    with pytest.raises(ValueError, match="the problem has no job 'k'"):
        explain(Balanced(), problem, "k", "a")
    with pytest.raises(ValueError, match="job 'j' has no work item 'x'"):
        explain(Balanced(), problem, "j", "x")
    with pytest.raises(ValueError, match="job 'j' has no work item 'x'"):
        explain_replicas(ReplicaProblem("j", ("a",), 1, THREE), "x")
