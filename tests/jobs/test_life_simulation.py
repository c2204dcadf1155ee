"""Thousands of lives of a cluster in virtual time, with the package's own decisions."""

from __future__ import annotations

import os

import pytest

from jobs.life_simulation import DEFECTS, World
from levels import LONG

#: More with LATCHWORK_LIVES=5000; about fifty a second.
LIVES = int(os.environ.get("LATCHWORK_LIVES", "600" if LONG else "60"))


@pytest.mark.slow
def test_in_no_life_an_item_runs_twice_or_is_lost():
    for seed in range(LIVES):
        assert World(seed).live(40.0) == [], f"seed {seed}"


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_safeguard_that_is_taken_away_is_seen(defect):
    assert any(World(seed, defect=defect).live(40.0) for seed in range(60))
