"""The protocol keeps its rules in random schedules, and each of its safeguards is needed: without it a rule breaks."""

from __future__ import annotations

import pytest

from executor.model import DEFECTS, Broken, Run
from levels import LONG

RUNS = 5000 if LONG else 150
#: A defect is found within so many schedules.
MOST = 3000


def test_the_protocol_keeps_its_rules():
    for seed in range(RUNS):
        Run(seed).play()


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_protocol_without_one_of_its_safeguards_is_found_out(defect):
    with pytest.raises(Broken):
        for seed in range(MOST):
            Run(seed, defect).play()
