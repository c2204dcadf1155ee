"""The protocol of a shard of workflows under random schedules, and what each of its fences is for."""

from __future__ import annotations

import pytest

from levels import LONG
from trials.protocols.workflow_model import MUTANTS, WorkflowModel

RUNS = 4_000 if LONG else 60
MUTANT_RUNS = 4_000
#: Seeds at which a mutant is known to fail; where one is out of date the search finds another, and names it.
KNOWN = {
    "no guard in the database": 21,
    "no fence in the store": 13,
    "results are deleted first": 42,
    "dispatch from before the results": 0,
    "dispatch does not look for a result": 0,
    "a claim does not look for a cancel": 81,
    "a removal does not look for a claim": 821,
    "what is not there is looked for backwards": 173,
    "a lost commit counts as done": 157,
    "an end does not check its claim": 33,
}


def fails(seed, mutant):
    try:
        WorkflowModel(seed, mutant).run()
    except AssertionError:
        return True
    return False


def test_runs_end_and_each_attempt_ends_once_under_random_schedules():
    for seed in range(RUNS):
        try:
            WorkflowModel(seed).run()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")


@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_one_of_its_fences_the_protocol_breaks(mutant):
    if fails(KNOWN[mutant], mutant):
        return
    found = next((seed for seed in range(MUTANT_RUNS) if fails(seed, mutant)), None)
    assert found is not None, f"{MUTANTS[mutant]}: {MUTANT_RUNS} runs say nothing of it"
    pytest.fail(f"write {found} as the known seed of {mutant!r}")


def test_the_protocol_holds_where_its_mutants_fail():
    for seed in KNOWN.values():
        WorkflowModel(seed).run()
