"""Plans kept for ever: a change of any is a change of what clusters do, and has to be made on purpose.

For `EvenlyRendezvous` they are part of the contract: nodes of different versions must agree. The others may return
another plan that is as good in another version; then run `python tests/assignment/test_golden_plans.py` and say why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latchwork.assignment import (
    Balanced,
    Budgeted,
    EvenlyRendezvous,
    EvenlySpread,
    JobProblem,
    Problem,
    ReplicaProblem,
    place_replicas,
)

GOLDEN = Path(__file__).parent / "golden" / "plans.json"
STRATEGIES = {
    "evenly-rendezvous fast": EvenlyRendezvous(),
    "evenly-rendezvous compat": EvenlyRendezvous("compat"),
    "evenly-spread": EvenlySpread(),
    "balanced": Balanced(),
    "balanced, 2 moves": Budgeted(Balanced(), 2),
}


class Digits:
    """Numbers for problems that no version of Python's random can change."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound


def make_problem(seed):
    draw = Digits(seed)
    names = [f"node-{n}" for n in range(2 + draw.below(5))]
    weight = {name: (1.0, 1.0, 2.0, 0.3)[draw.below(4) if seed % 2 else 0] for name in names}
    jobs = []
    for number in range(1 + draw.below(3)):
        items = [f"{'äbc'[draw.below(3)]}{n}" for n in range(draw.below(12))]
        able = {name: weight[name] for name in names if draw.below(10) < 8}
        owners = {item: [*names, "gone"][draw.below(1 + len(names) // 2)] for item in items if draw.below(5)}
        jobs.append(JobProblem(f"job-{number}", tuple(items), able, owners))
    return Problem(tuple(jobs))


def make_replicas(seed):
    draw = Digits(seed)
    names = [f"node-{n}" for n in range(3 + draw.below(6))]
    zones = {name: f"rack-{draw.below(3)}" for name in names}
    weight = {name: (1.0, 2.0)[draw.below(2) if seed % 2 else 0] for name in names}
    items = tuple(f"item-{n}" for n in range(1 + draw.below(8)))
    had = {item: [name for name in names if draw.below(4) == 0] for item in items}
    return ReplicaProblem("job", items, 1 + draw.below(3), weight, zones, had)


def plans(seed):
    problem = make_problem(seed)
    found = {name: strategy.assign(problem).owners for name, strategy in STRATEGIES.items()}
    replicas = place_replicas(make_replicas(seed)).owners
    return {**found, "replicas": {item: list(owners) for item, owners in replicas.items()}}


@pytest.mark.parametrize("seed", range(24))
def test_golden_plans_never_change_unnoticed(seed):
    assert plans(seed) == json.loads(GOLDEN.read_text(encoding="utf-8"))[seed]


def test_golden_plans_tell_the_strategies_apart():
    kept = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for name in STRATEGIES:
        others = [other for other in STRATEGIES if other != name]
        assert all(any(plan[name] != plan[other] for plan in kept) for other in others)


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(plans(seed), ensure_ascii=False) for seed in range(24))
    GOLDEN.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
