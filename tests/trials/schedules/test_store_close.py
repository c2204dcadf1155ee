"""Opening and closing stores under random schedules."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.testing.simulation import Simulation


@pytest.mark.parametrize("seed", range(60))
def test_closing_a_store_waits_for_nothing_however_its_threads_take_turns(seed):
    with Simulation(seed, preempt_rate=0.3) as sim:
        latchwork.connect("memory://closing").close()
        assert sim.elapsed_s == 0.0
