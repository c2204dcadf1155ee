"""The table of scenarios and how many items move in each, as a golden file that reads like a specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from latchwork.assignment import JobProblem, Problem, strategy_by_name

GOLDEN = Path(__file__).parent / "golden" / "scenarios.txt"
STRATEGIES = ("rendezvous", "evenly-rendezvous", "evenly-spread", "balanced")


def read_scenarios():
    """Blocks of a name, "workers: ...", lines "job: worker=items ... new=items" and "moves: ..."."""
    for block in GOLDEN.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            name, workers, *jobs, moves = lines
            yield name, workers.split()[1:], [job.split() for job in jobs], [int(n) for n in moves.split()[1:]]


def make_job(workers, name, *shares):
    items, previous = [], {}
    for share in shares:
        worker, texts = share.split("=")
        for item in texts.split(","):
            items.append(item)
            if worker != "new":
                previous[item] = worker
    return JobProblem(name.rstrip(":"), tuple(items), dict.fromkeys(workers, 1.0), previous)


@pytest.mark.parametrize("scenario", list(read_scenarios()), ids=lambda scenario: scenario[0])
def test_each_scenario_moves_what_the_table_says(scenario):
    _, workers, jobs, expected = scenario
    problem = Problem(tuple(make_job(workers, *job) for job in jobs))
    moves = [len(strategy_by_name(name).assign(problem).moves) for name in STRATEGIES]
    assert dict(zip(STRATEGIES, moves, strict=True)) == dict(zip(STRATEGIES, expected, strict=True))


def test_the_table_has_all_scenarios():
    assert [name for name, *_ in read_scenarios()] == [
        "2 workers at 3/1",
        "new worker joins",
        "already balanced",
        "3 workers unbalanced",
        "1 holding + 5 new",
        "1 of 3 destroyed",
    ]
