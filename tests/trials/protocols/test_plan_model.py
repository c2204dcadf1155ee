"""The protocol of plans under random schedules, and what each of its fences is for."""

from __future__ import annotations

import pytest

from levels import LONG
from trials.protocols.plan_model import MUTANTS, PlanModel

RUNS = 3_000 if LONG else 60
MUTANT_RUNS = 3_000
#: Seeds at which a mutant is known to fail; where one is out of date the search finds another, and names it.
KNOWN = {
    "finish is not fenced by the claim": 2,
    "an added task does not bump adds": 51,
    "an added task does not check what it depends on": 31,
    "the item goes with the finish": 3,
    "nobody looks after a finish": 0,
    "a conflict ends the look": 12,
    "two may finish": 5,
    "a claim does not check the plan": 22,
    "only sinks look whether the plan is complete": 273,
    "a second skip stops at what is skipped": 189,
    "recover is ready at once": 11,
    "a cancelled task may have a claim": 1,
    "a quick end does not check its own task": 35,
    "a quick end does not check what else a successor waits for": 86,
    "a quick end does not check that a task is left": 108,
    "a quick end does not check the successor that it makes ready": 139,
    "what becomes ready does not check the plan": 683,
    "what has ended is done though a task has failed": 98,
    "tasks become ready while the plan recovers": 8,
    "what is taken along by a lost answer is forgotten": 117,
    "what is taken along has no item": 3,
    "what is taken along is not checked to be as it was": 35,
    "what was alive before a finish counts behind it": 104,
}


def fails(seed, mutant):
    try:
        PlanModel(seed, mutant).run()
    except AssertionError:
        return True
    return False


@pytest.mark.timeout(3600 if LONG else 180)
def test_plans_end_and_each_task_has_one_result_under_random_schedules():
    for seed in range(RUNS):
        try:
            PlanModel(seed).run()
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
        PlanModel(seed).run()
