"""A budget is kept, spent on the best moves, and only delays what the strategy wants."""

from __future__ import annotations

import itertools
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
    Rendezvous,
    check_plan,
    limit_moves,
    plan_from_owners,
)

STRATEGIES = (Rendezvous(), EvenlyRendezvous(), EvenlySpread(), Balanced())


def costly(problem, moves):
    """Moves that take an item from a worker that could keep it."""
    able = {job.job: job.workers for job in problem.jobs}
    return [move for move in moves if move.target is not None and move.source in able[move.job]]


def still_to_do(moves):
    """What a choice leaves: the squares per job and worker, and over all jobs."""
    shares = Counter(key for m in moves for key in (("give", m.job, m.source), ("get", m.job, m.target)))
    totals = Counter(key for m in moves for key in (("give", m.source), ("get", m.target)))
    return sum(n * n for n in shares.values()), sum(n * n for n in totals.values())


def best_of_all(moves, limit):
    """The least that any choice of so many moves leaves: exponential."""
    kept = itertools.combinations(moves, max(0, len(moves) - limit))
    return min(map(still_to_do, kept))


def follow(problem, plan):
    return Problem(tuple(JobProblem(j.job, j.items, j.workers, plan.owners[j.job]) for j in problem.jobs))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_no_other_choice_of_so_many_moves_leaves_less_to_do(strategy):
    rng = random.Random(11)
    limited = 0
    for _ in range(300):
        problem = reference.random_problem(rng, workers=5, jobs=3, items=9, forbidden=0.1)
        wanted = costly(problem, strategy.assign(problem).moves)
        limit = rng.randint(0, 3)
        if len(wanted) > 12:
            continue
        plan = Budgeted(strategy, limit).assign(problem)
        check_plan(problem, plan)
        assert len(costly(problem, plan.moves)) == min(limit, len(wanted))
        assert sorted([*costly(problem, plan.moves), *plan.deferred], key=str) == sorted(wanted, key=str)
        assert still_to_do(plan.deferred) == best_of_all(wanted, limit)
        limited += bool(plan.deferred)
    assert limited > 50


@pytest.mark.parametrize("strategy", STRATEGIES[2:], ids=lambda strategy: strategy.name)
def test_plans_under_a_budget_end_with_as_many_moves_and_as_good_as_one_plan_without(strategy):
    rng = random.Random(12)
    for _ in range(150):
        problem = reference.random_problem(rng, weights=(1.0, 2.0))
        whole = strategy.assign(problem)
        moves = len(costly(problem, whole.moves))
        plan, made = Budgeted(strategy, 3).assign(problem), 0
        while plan.deferred:
            assert len(costly(problem, plan.moves)) == 3
            made += 3
            problem = follow(problem, plan)
            plan = Budgeted(strategy, 3).assign(problem)
        assert made + len(costly(problem, plan.moves)) == moves
        if strategy.name == "balanced":
            assert reference.value(problem, plan.owners)[0] == reference.value(problem, whole.owners)[0]


def test_every_item_without_an_able_owner_is_placed_also_without_any_budget():
    rng = random.Random(13)
    for _ in range(100):
        problem = reference.random_problem(rng)
        plan = Budgeted(Balanced(), 0).assign(problem)
        check_plan(problem, plan)
        assert costly(problem, plan.moves) == []


def test_the_choice_does_not_depend_on_the_order_of_the_input():
    rng = random.Random(14)
    for _ in range(100):
        problem = reference.random_problem(rng)
        other = Problem(
            tuple(
                JobProblem(j.job, j.items[::-1], dict(reversed(j.workers.items())), dict(reversed(j.previous.items())))
                for j in reversed(problem.jobs)
            )
        )
        assert Budgeted(Balanced(), 4).assign(other) == Budgeted(Balanced(), 4).assign(problem)


def test_a_budget_works_for_a_custom_strategy():
    class Last:
        name = "last"

        def assign(self, problem):
            return plan_from_owners(problem, {j.job: dict.fromkeys(j.items, max(j.workers)) for j in problem.jobs})

    job = JobProblem("j", ("a", "b", "c"), {"w1": 1.0, "w2": 1.0, "w3": 1.0}, {"a": "w1", "b": "w2", "c": "w2"})
    plan = Budgeted(Last(), 1).assign(Problem((job,)))
    assert plan.owners == {"j": {"a": "w1", "b": "w3", "c": "w2"}}
    assert [move.item for move in plan.deferred] == ["a", "c"]


def test_a_plan_within_its_budget_is_left_as_it_is():
    problem = Problem((JobProblem("j", ("a", "b"), {"w1": 1.0, "w2": 1.0}, {"a": "w1", "b": "w1"}),))
    plan = Balanced().assign(problem)
    assert limit_moves(problem, plan, 1) is plan


def test_a_negative_budget_is_refused():
    with pytest.raises(ValueError, match="max_moves is -1; it must be at least 0"):
        Budgeted(Balanced(), -1)


def test_a_thousand_moves_out_of_a_large_plan_are_chosen():
    workers = {f"w{n:03}": 1.0 for n in range(100)}
    items = tuple(f"i{n:04}" for n in range(2000))
    jobs = [JobProblem(f"j{n:02}", items, workers, dict.fromkeys(items, f"w{n:03}")) for n in range(20)]
    plan = Budgeted(Balanced(), 1000).assign(Problem(tuple(jobs)))
    assert (len(plan.moves), len(plan.deferred)) == (1000, 20 * 1980 - 1000)
    assert {len(list(moves)) for _, moves in itertools.groupby(plan.moves, key=lambda move: move.job)} == {50}
