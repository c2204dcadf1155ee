"""Placements are total, allowed, even, deterministic and minimal, beside slow exact references."""

from __future__ import annotations

import random
from collections import Counter

import assignment_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.assignment import (
    Balanced,
    EvenlyRendezvous,
    EvenlySpread,
    JobProblem,
    Problem,
    Rendezvous,
    check_plan,
    strategy_by_name,
)
from levels import LONG

NAMES = ("rendezvous", "evenly-rendezvous", "evenly-spread", "balanced")
EVEN = NAMES[1:]
WEIGHTS = (1.0, 2.0, 3.0, 0.5)


def names(letter, count):
    return st.sets(st.integers(0, count).map(lambda n: f"{letter}{n}"), max_size=count)


@st.composite
def problems(draw):
    workers = draw(names("w", 6))
    weights = {worker: draw(st.sampled_from([1.0, 1.0, 2.0, 0.3])) for worker in sorted(workers)}
    jobs = []
    for number in range(draw(st.integers(0, 4))):
        items = sorted(draw(names("i", 12)))
        able = {w: weights[w] for w in sorted(workers) if draw(st.booleans())}
        owner = st.sampled_from([*sorted(workers), "gone"])
        previous = draw(st.dictionaries(st.sampled_from([*items, "removed"]), owner))
        jobs.append(JobProblem(f"job{number}", tuple(items), able, previous))
    return Problem(tuple(jobs))


def loads(job, owners):
    count = Counter(owners.values())
    return {worker: count[worker] for worker in job.workers}


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=250 if LONG else 80)
@given(problems(), st.randoms(use_true_random=False))
def test_every_plan_is_total_allowed_and_independent_of_input_order(name, problem, rng):
    plan = strategy_by_name(name).assign(problem)
    check_plan(problem, plan)
    shuffled = Problem(tuple(shuffle_job(job, rng) for job in rng.sample(problem.jobs, len(problem.jobs))))
    assert strategy_by_name(name).assign(shuffled) == plan


def shuffle_job(job, rng):
    def shuffled(mapping):
        return dict(rng.sample(list(mapping.items()), len(mapping)))

    items = tuple(rng.sample(job.items, len(job.items)))
    return JobProblem(job.job, items, shuffled(job.workers), shuffled(job.previous))


@pytest.mark.parametrize("name", EVEN)
@settings(deadline=None, max_examples=250 if LONG else 80)
@given(problems())
def test_every_even_plan_is_within_one_of_the_quota(name, problem):
    plan = strategy_by_name(name).assign(problem)
    for job in problem.jobs:
        total = sum(job.workers.values())
        for worker, load in loads(job, plan.owners[job.job]).items():
            assert abs(load - len(job.items) * job.workers[worker] / total) < 1 + 1e-9


@pytest.mark.parametrize("name", EVEN)
def test_equal_workers_differ_by_at_most_one_item_per_job(name):
    rng = random.Random(3)
    for _ in range(300):
        problem = reference.random_problem(rng)
        plan = strategy_by_name(name).assign(problem)
        for job in problem.jobs:
            load = loads(job, plan.owners[job.job]).values()
            assert max(load, default=0) - min(load, default=0) <= 1


@pytest.mark.parametrize("name", ["evenly-spread", "balanced"])
def test_a_plan_that_is_followed_moves_nothing_the_next_time(name):
    rng = random.Random(4)
    for round_ in range(300):
        problem = reference.random_problem(rng, weights=WEIGHTS if round_ % 2 else (1.0,))
        plan = strategy_by_name(name).assign(problem)
        again = Problem(tuple(JobProblem(j.job, j.items, j.workers, plan.owners[j.job]) for j in problem.jobs))
        assert strategy_by_name(name).assign(again).moves == ()


@pytest.mark.parametrize("mode", ["fast", "compat"])
@pytest.mark.parametrize("weights", [(1.0,), WEIGHTS])
def test_rendezvous_is_what_the_reference_ranks_first(mode, weights):
    rng = random.Random(5)
    for _ in range(25):
        problem = reference.random_problem(rng, items=30, weights=weights)
        plan = Rendezvous(mode).assign(problem)
        for job in problem.jobs:
            items = sorted(job.items) if job.workers else []
            best = {item: reference.ranked(f"{job.job}:{item}", job.workers, mode)[0] for item in items}
            assert plan.owners[job.job] == best


@pytest.mark.parametrize("mode", ["fast", "compat"])
@pytest.mark.parametrize("weights", [(1.0,), WEIGHTS])
def test_evenly_rendezvous_is_the_naive_scan_in_item_order(mode, weights):
    rng = random.Random(6)
    for _ in range(25):
        problem = reference.random_problem(rng, items=30, weights=weights)
        plan = EvenlyRendezvous(mode).assign(problem)
        for job in problem.jobs:
            assert plan.owners[job.job] == reference.evenly_rendezvous(job, mode)


@pytest.mark.parametrize("weights", [(1.0,), WEIGHTS, (0.1, 0.2, 0.3, 1.0)])
def test_evenly_spread_moves_exactly_the_closed_form_on_thousands_of_problems(weights):
    rng = random.Random(7)
    orphans = 0
    for _ in range(1500):
        problem = reference.random_problem(rng, weights=weights)
        plan = EvenlySpread().assign(problem)
        for job in problem.jobs:
            assert reference.moved(job, plan.owners[job.job]) == reference.fewest_moves(job)
            orphans += not job.workers and bool(job.items)
    assert orphans > 100  # items that nobody can run were among them


@pytest.mark.parametrize("weights", [(1.0,), WEIGHTS])
def test_balanced_reaches_the_brute_force_optimum_on_small_problems(weights):
    rng = random.Random(8)
    for _ in range(500):
        problem = reference.random_problem(rng, workers=4, jobs=4, items=8, weights=weights)
        found = reference.value(problem, Balanced().assign(problem).owners)
        assert found == reference.brute_force(problem) == reference.least_value(problem)


@pytest.mark.parametrize("weights", [(1.0,), WEIGHTS])
def test_balanced_reaches_the_optimum_of_an_exact_flow_solver_on_thousands_of_problems(weights):
    rng = random.Random(9)
    beyond_spread = 0
    for _ in range(1500):
        problem = reference.random_problem(rng, weights=weights)
        found = reference.value(problem, Balanced().assign(problem).owners)
        assert found == reference.least_value(problem)
        beyond_spread += found < reference.value(problem, EvenlySpread().assign(problem).owners)
    assert beyond_spread > 300  # many of them cannot be solved job by job


@pytest.mark.parametrize("weights", [(1.0,), WEIGHTS])
def test_balanced_reaches_the_optimum_on_large_problems(weights):
    rng = random.Random(10)
    for _ in range(3):
        names = [f"w{n:02}" for n in range(30)]
        weight = {name: rng.choice(weights) for name in names}
        jobs = []
        for number in range(25):
            items = tuple(f"i{n:03}" for n in range(rng.randint(1, 90)))
            able = {name: weight[name] for name in names if rng.random() < 0.5}
            jobs.append(JobProblem(f"j{number}", items, able, {item: rng.choice(names[:9]) for item in items}))
        problem = Problem(tuple(jobs))
        found = reference.value(problem, Balanced().assign(problem).owners)
        assert found == reference.least_value(problem)


def test_items_that_nobody_can_run_are_left_out_and_reported_as_moves():
    jobs = (
        JobProblem("lost", ("a", "b"), {}, {"a": "w1"}),
        JobProblem("fine", ("c",), {"w1": 1.0}),
    )
    for name in NAMES:
        plan = strategy_by_name(name).assign(Problem(jobs))
        assert plan.owners == {"fine": {"c": "w1"}, "lost": {}}
        assert [(m.job, m.item, m.source, m.target) for m in plan.moves] == [
            ("fine", "c", None, "w1"),
            ("lost", "a", "w1", None),
        ]


def test_unknown_items_and_workers_in_the_previous_state_do_no_harm():
    job = JobProblem("j", ("a", "b"), {"w1": 1.0, "w2": 1.0}, {"a": "ghost", "b": "w2", "removed": "w1"})
    plan = EvenlySpread().assign(Problem((job,)))
    assert plan.owners == {"j": {"a": "w1", "b": "w2"}}
    assert [(m.item, m.source, m.target) for m in plan.moves] == [("a", "ghost", "w1"), ("removed", "w1", None)]


def test_an_empty_problem_has_an_empty_plan():
    for name in NAMES:
        plan = strategy_by_name(name).assign(Problem(()))
        assert (plan.owners, plan.moves) == ({}, ())


def test_single_items_of_many_jobs_do_not_pile_up_on_the_first_worker():
    jobs = tuple(JobProblem(f"j{n:02}", ("x",), dict.fromkeys("abcd", 1.0)) for n in range(40))
    for strategy in (EvenlySpread(), Balanced()):
        plan = strategy.assign(Problem(jobs))
        total = Counter(worker for owners in plan.owners.values() for worker in owners.values())
        assert total == dict.fromkeys("abcd", 10)


def test_a_worker_of_twice_the_weight_gets_twice_the_items():
    items = tuple(f"i{n}" for n in range(90))
    for name in EVEN:
        plan = strategy_by_name(name).assign(Problem((JobProblem("j", items, {"a": 2.0, "b": 1.0}),)))
        assert {worker: len(share) for worker, share in plan.by_worker("j").items()} == {"a": 60, "b": 30}


def test_a_realistic_cluster_is_balanced_exactly_even():
    workers = {f"w{n:03}": 1.0 for n in range(100)}
    items = tuple(f"i{n:04}" for n in range(1001))
    problem = Problem(tuple(JobProblem(f"j{n:03}", items, workers) for n in range(100)))
    plan = Balanced().assign(problem)
    total = Counter(worker for owners in plan.owners.values() for worker in owners.values())
    assert set(total.values()) == {1001}
