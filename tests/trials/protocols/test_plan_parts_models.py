"""The protocols of child plans and of limited plans under random schedules, and what each of their fences is for."""

from __future__ import annotations

import pytest

from levels import LONG
from trials.protocols import plan_child_model, plan_places_model
from trials.protocols.plan_child_model import ChildModel
from trials.protocols.plan_places_model import PlacesModel

RUNS = 3_000 if LONG else 100
MUTANT_RUNS = 3_000
#: Seeds at which a mutant is known to fail; where one is out of date the search finds another, and names it.
KNOWN = {
    ChildModel: {
        "a hand-over does not check the task": 15,
        "the end of a child does not check the task": 66,
        "the end of a child does not check the item": 716,
        "an item goes without a check that the child goes on": 1364,
        "a task ends without a check of its child": 122,
        "a task is cancelled without a check of its child": 8,
        "a recover does not check the child": 49,
    },
    PlacesModel: {
        "a place is written whether it is there or not": 2,
        "a place does not die with its worker": 1,
        "a task gives its place back twice": 18,
        "a place of a claim that was given up stays": 863,
        "a place is given back without a check that it is still ours": 242,
    },
}
MUTANTS = {ChildModel: plan_child_model.MUTANTS, PlacesModel: plan_places_model.MUTANTS}
PAIRS = [(model, mutant) for model in MUTANTS for mutant in MUTANTS[model]]


def fails(model, seed, mutant):
    try:
        model(seed, mutant).run()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("model", MUTANTS)
def test_it_holds_under_random_schedules(model):
    for seed in range(RUNS):
        try:
            model(seed).run()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")


@pytest.mark.parametrize(("model", "mutant"), PAIRS)
def test_without_one_of_its_fences_it_breaks(model, mutant):
    known = KNOWN[model].get(mutant)
    if known is not None and fails(model, known, mutant):
        assert not fails(model, known, "")
        return
    found = next((seed for seed in range(MUTANT_RUNS) if fails(model, seed, mutant)), None)
    assert found is not None, f"{MUTANTS[model][mutant]}: {MUTANT_RUNS} runs say nothing of it"
    pytest.fail(f"write {found} as the known seed of {mutant!r}")
