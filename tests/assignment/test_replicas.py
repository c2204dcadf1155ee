"""Replicas are spread over zones as far as the zones allow, evenly, and move as little as that allows."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.assignment import Move, ReplicaProblem, place_replicas
from levels import LONG

WEIGHTS = (1.0, 2.0, 0.5)


def random_problem(rng, *, items, workers, zones, weights=(1.0,)):
    names = [f"w{n}" for n in range(rng.randint(1, workers))]
    texts = [f"i{n}" for n in range(rng.randint(0, items))]
    previous = {i: rng.sample([*names, "gone"], rng.randint(0, len(names))) for i in [*texts, "removed"]}
    zone_of = {name: f"z{rng.randrange(zones)}" for name in names}
    weight = {name: rng.choice(weights) for name in names}
    return ReplicaProblem("j", tuple(texts), rng.randint(1, 4), weight, zone_of, previous)


def counts(problem, owners):
    return Counter(dict.fromkeys(map(problem.zone_of, problem.workers), 0)) + Counter(map(problem.zone_of, owners))


def is_spread(problem, owners):
    """Within one over the zones, but for zones whose workers all have it."""
    size = Counter(map(problem.zone_of, problem.workers))
    count = Counter(map(problem.zone_of, owners))
    fullest = max(count.values(), default=0)
    return len(set(owners)) == len(owners) == min(problem.replicas, len(problem.workers)) and all(
        count[zone] >= fullest - 1 or count[zone] == size[zone] for zone in size
    )


def value(problem, owners):
    """Squared loads by inverse weight, and how many replicas are new."""
    strongest = max(problem.workers.values(), default=1.0)
    load = Counter(itertools.chain.from_iterable(owners.values()))
    cost = sum(round(4096 * strongest / problem.workers[worker]) * n * n for worker, n in load.items())
    return cost, sum(len(set(chosen) - set(problem.previous.get(item, ()))) for item, chosen in owners.items())


def brute_force(problem):
    some = itertools.combinations(problem.workers, min(problem.replicas, len(problem.workers)))
    allowed = [chosen for chosen in some if is_spread(problem, chosen)]
    choices = itertools.product(allowed, repeat=len(problem.items))
    return min((value(problem, dict(zip(problem.items, choice, strict=True))) for choice in choices), default=(0, 0))


@pytest.mark.parametrize("weights", [(1.0,), WEIGHTS])
def test_no_other_placement_is_as_spread_and_more_level_or_moves_less(weights):
    rng = random.Random(21)
    for _ in range(250):
        problem = random_problem(rng, items=3, workers=5, zones=3, weights=weights)
        assert value(problem, place_replicas(problem).owners) == brute_force(problem)


@settings(deadline=None, max_examples=150 if LONG else 60)
@given(st.randoms(use_true_random=False))
def test_every_plan_is_spread_complete_and_independent_of_input_order(rng):
    problem = random_problem(rng, items=30, workers=12, zones=5, weights=WEIGHTS)
    plan = place_replicas(problem)
    assert list(plan.owners) == sorted(problem.items)
    assert all(is_spread(problem, owners) and list(owners) == sorted(owners) for owners in plan.owners.values())
    assert plan.missing == max(0, problem.replicas - len(problem.workers))
    shuffled = ReplicaProblem(
        "j",
        problem.items[::-1],
        problem.replicas,
        dict(reversed(problem.workers.items())),
        dict(reversed(problem.zones.items())),
        {item: owners[::-1] for item, owners in reversed(problem.previous.items())},
    )
    assert place_replicas(shuffled) == plan


@pytest.mark.parametrize("weights", [(1.0,), WEIGHTS])
def test_a_plan_that_is_followed_moves_nothing_the_next_time(weights):
    rng = random.Random(22)
    for _ in range(60):
        problem = random_problem(rng, items=40, workers=12, zones=4, weights=weights)
        owners = place_replicas(problem).owners
        again = ReplicaProblem("j", problem.items, problem.replicas, problem.workers, problem.zones, owners)
        assert place_replicas(again).moves == ()


def test_no_zone_has_two_replicas_of_an_item_while_there_are_as_many_zones():
    workers = {f"w{n}": 1.0 for n in range(10)}
    zones = {f"w{n}": "small" if n == 0 else f"z{n % 2}" for n in range(10)}
    problem = ReplicaProblem("j", tuple(f"i{n}" for n in range(20)), 3, workers, zones)
    for owners in place_replicas(problem).owners.values():
        assert sorted(counts(problem, owners).values()) == [1, 1, 1]


def test_two_replicas_of_an_item_are_in_one_zone_only_when_zones_are_too_few():
    workers = dict.fromkeys(("a1", "a2", "b1", "b2"), 1.0)
    zones = {worker: worker[0] for worker in workers}
    plan = place_replicas(ReplicaProblem("j", tuple("pqrs"), 3, workers, zones))
    per_zone = [sorted(Counter(owner[0] for owner in owners).values()) for owners in plan.owners.values()]
    assert per_zone == [[1, 2]] * 4
    assert set(Counter(itertools.chain.from_iterable(plan.owners.values())).values()) == {3}


def test_without_zones_every_worker_is_a_zone_of_its_own():
    plan = place_replicas(ReplicaProblem("j", tuple("abc"), 2, dict.fromkeys(("w1", "w2", "w3"), 1.0)))
    assert Counter(itertools.chain.from_iterable(plan.owners.values())) == {"w1": 2, "w2": 2, "w3": 2}


def test_too_few_workers_have_every_item_and_the_rest_is_missing():
    plan = place_replicas(ReplicaProblem("j", ("a",), 5, {"w1": 1.0, "w2": 1.0}, {"w1": "z", "w2": "z"}))
    assert (plan.owners, plan.missing) == ({"a": ("w1", "w2")}, 3)
    nobody = place_replicas(ReplicaProblem("j", ("a",), 2, {}, {}, {"a": ("w1",)}))
    assert (nobody.owners, nobody.missing, nobody.moves) == ({"a": ()}, 2, (Move("j", "a", "w1", None),))


def test_a_worker_that_leaves_moves_about_what_it_had():
    workers = {f"w{n:02}": 1.0 for n in range(24)}
    zones = {worker: f"z{n % 3}" for n, worker in enumerate(workers)}
    items = tuple(f"i{n:03}" for n in range(400))
    plan = place_replicas(ReplicaProblem("j", items, 3, workers, zones))
    had = sum("w05" in owners for owners in plan.owners.values())
    del workers["w05"]
    after = place_replicas(ReplicaProblem("j", items, 3, workers, zones, plan.owners))
    assert had <= len(after.moves) <= had + math.ceil(had / 2)
    assert all(move.source == "w05" for move in after.moves if move.target not in workers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("a", "a"), 1, {"w": 1.0}), "job 'j': work item 'a' is given twice"),
        ((("a",), 0, {"w": 1.0}), "job 'j': the number of replicas is 0; it must be at least 1"),
        ((("a",), 1, {"w": -1.0}), "job 'j': worker 'w' has weight -1.0"),
        ((("a",), 1, {"v": 1.0, "w": 1.0}, {"v": "z"}), "job 'j': worker 'w' has no zone; give every worker one"),
    ],
)
def test_a_problem_without_meaning_is_refused(arguments, message):
    with pytest.raises(ValueError) as caught:
        ReplicaProblem("j", *arguments)
    assert message in str(caught.value)
