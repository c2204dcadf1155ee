"""Problems refuse what has no meaning; plans of any origin get their moves and can be checked."""

from __future__ import annotations

import random

import assignment_reference as reference
import pytest

from latchwork import _core
from latchwork.assignment import (
    EvenlyRendezvous,
    JobProblem,
    Move,
    Plan,
    Problem,
    Rendezvous,
    check_plan,
    plan_from_owners,
    strategy_by_name,
)

TWO = {"w1": 1.0, "w2": 1.0}


def test_an_item_given_twice_is_refused():
    with pytest.raises(ValueError, match="job 'j': work item 'b' is given twice; give it once"):
        JobProblem("j", ("a", "b", "c", "b"), TWO)


def test_a_job_given_twice_is_refused():
    job = JobProblem("j", ("a",), TWO)
    with pytest.raises(ValueError, match="job 'j' is given twice; merge its items into one"):
        Problem((job, job))


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), 10**400])
def test_a_weight_that_is_not_finite_and_positive_is_refused(weight):
    with pytest.raises(ValueError, match=r"job 'j': worker 'w2' has weight .*; a weight must be a finite number"):
        JobProblem("j", ("a",), {"w1": 1, "w2": weight})


@pytest.mark.parametrize("strategy", [Rendezvous, EvenlyRendezvous])
def test_an_unknown_mode_is_refused_when_the_strategy_is_made(strategy):
    with pytest.raises(ValueError, match="unknown hashing mode 'quick'; use 'fast' or 'compat'"):
        strategy("quick")


def test_an_unknown_strategy_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown strategy 'best'; use one of 'rendezvous', 'evenly-rendezvous'"):
        strategy_by_name("best")


@pytest.mark.parametrize("name", ["rendezvous", "evenly-rendezvous", "evenly-spread", "balanced"])
def test_each_strategy_is_found_by_the_name_it_carries(name):
    assert strategy_by_name(name).name == name


def test_modes_place_differently():
    problem = Problem((JobProblem("j", tuple("abcdefghijkl"), {**TWO, "w3": 1.0}),))
    assert Rendezvous("fast").assign(problem) != Rendezvous("compat").assign(problem)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("best", []), ValueError, "unknown strategy 'best'"),
        (("balanced", [], "quick"), ValueError, "unknown hashing mode 'quick'"),
        (("balanced", [("j", ["a", "a"], {}, {})]), ValueError, "job 'j': work item 'a' is given twice"),
        (("balanced", [("j", [], {}, {})] * 2), ValueError, "job 'j' is given twice"),
        (("balanced", [("j", ["a"], {"w": 0.0}, {})]), ValueError, "worker 'w' has weight 0"),
        (("balanced", [("j", ["a", 7], {}, {})]), TypeError, "work item 7 is of type int; it must be a str"),
        (("balanced", [("j", ["a"], {"w": 1.0}, {"a": None})]), TypeError, "previous owner None is of type NoneType"),
        (("balanced", [("j", ["\ud800"], {"w": 1.0}, {})]), ValueError, "work item '\\ud800' holds a lone surrogate"),
    ],
)
def test_the_core_refuses_bad_jobs_with_one_clear_error(arguments, error, message):
    with pytest.raises(error) as caught:
        _core.place(*arguments)
    assert message in str(caught.value)


def test_a_plan_lists_shares_by_worker_in_name_order():
    plan = plan_from_owners(Problem((JobProblem("j", ("c", "a", "b"), TWO),)), {"j": {"c": "w1", "b": "w2", "a": "w1"}})
    assert plan.by_worker("j") == {"w1": ["a", "c"], "w2": ["b"]}
    assert list(plan.owners["j"]) == ["a", "b", "c"]
    with pytest.raises(KeyError):
        plan.by_worker("other")


def test_moves_are_the_difference_sorted_by_job_and_item():
    jobs = (
        JobProblem("z", ("b", "a"), TWO, {"a": "w1", "b": "w1", "removed": "w2"}),
        JobProblem("k", ("n",), TWO),
        JobProblem("none", ("x",), {}, {"x": "w9"}),
    )
    plan = plan_from_owners(Problem(jobs), {"z": {"a": "w1", "b": "w2"}, "k": {"n": "w1"}})
    assert plan.moves == (
        Move("k", "n", None, "w1"),
        Move("none", "x", "w9", None),
        Move("z", "b", "w1", "w2"),
        Move("z", "removed", "w2", None),
    )
    assert plan.owners["none"] == {}


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ({"j": {"a": "w1", "b": "w2"}, "k": {}}, "the plan places job 'k', which the problem does not have"),
        ({"j": {"a": "w1", "b": "w2", "c": "w1"}}, "job 'j': the plan places item 'c', which the job does not have"),
        ({"j": {"a": "w1", "b": "w9"}}, "job 'j': the plan gives item 'b' to worker 'w9', which cannot run the job"),
        ({"j": {"b": "w1"}}, "job 'j': the plan leaves 1 items without owner, 'a' first"),
        ({}, "job 'j': the plan leaves 2 items without owner, 'a' first"),
    ],
)
def test_a_custom_plan_that_is_wrong_is_refused(owners, message):
    problem = Problem((JobProblem("j", ("a", "b"), TWO),))
    with pytest.raises(ValueError) as caught:
        check_plan(problem, plan_from_owners(problem, owners))
    assert message in str(caught.value)


def test_a_custom_plan_with_wrong_moves_is_refused():
    problem = Problem((JobProblem("j", ("a",), TWO),))
    with pytest.raises(ValueError, match="moves are not the difference"):
        check_plan(problem, Plan({"j": {"a": "w1"}}, ()))


def test_a_custom_strategy_needs_only_owners():
    class FirstTakesAll:
        name = "first-takes-all"

        def assign(self, problem):
            first = {job.job: dict.fromkeys(job.items, min(job.workers)) for job in problem.jobs}
            return plan_from_owners(problem, first)

    problem = Problem((JobProblem("j", ("a", "b"), TWO, {"a": "w1"}),))
    plan = FirstTakesAll().assign(problem)
    check_plan(problem, plan)
    assert plan.moves == (Move("j", "b", None, "w1"),)


def test_plans_of_owners_in_any_order_are_those_that_one_look_at_each_item_makes():
    rng = random.Random(22)
    for _ in range(300):
        problem = reference.random_problem(rng, items=20)
        owners = {
            job.job: {item: rng.choice(sorted(job.workers)) for item in job.items if job.workers and rng.random() < 0.9}
            for job in problem.jobs
        }
        before = {(job.job, item): worker for job in problem.jobs for item, worker in job.previous.items()}
        after = {(job, item): worker for job, shares in owners.items() for item, worker in shares.items()}
        plan = plan_from_owners(problem, owners)
        assert [(move.job, move.item, move.source, move.target) for move in plan.moves] == [
            (*key, before.get(key), after.get(key))
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        ]
        ordered = {job: dict(sorted(shares.items())) for job, shares in sorted(owners.items())}
        assert [(job, list(shares.items())) for job, shares in plan.owners.items()] == [
            (job, list(shares.items())) for job, shares in ordered.items()
        ]


def test_a_plan_from_nothing_looks_for_no_previous_owners():
    class Counted(dict):
        looked = 0

        def get(self, key, default=None):
            Counted.looked += 1
            return super().get(key, default)

    items = tuple(f"i{n}" for n in range(100))
    plan = strategy_by_name("balanced").assign(Problem((JobProblem("j", items, TWO, Counted()),)))
    assert (len(plan.moves), Counted.looked) == (100, 0)
