"""The lock protocol under random schedules: no two nodes believe they hold one lock, and the check for it can fail."""

from __future__ import annotations

import pytest

from primitives.lock_simulation import Simulation

STEPS = 40_000


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [False, True], ids=["silence", "liveness keys"])
def test_no_two_nodes_ever_believe_that_they_hold_the_lock(sessions):
    runs = [Simulation(seed, sessions=sessions).run(STEPS) for seed in range(6)]
    names = ("steps", "grants", "takeovers", "unknown", "detachments")
    figures = {name: sum(getattr(run, name) for run in runs) for name in names}
    print(figures)
    assert sum(run.overlaps for run in runs) == 0
    assert figures["grants"] > 200, "the schedules hardly ever take the lock"
    assert figures["takeovers"] > 50, "the schedules hardly ever take a lock over"
    assert figures["unknown"] > 500, "the schedules hardly ever lose an answer"
    assert figures["detachments"] >= 20 * sessions, "owners hardly ever continue without their session"


@pytest.mark.parametrize(
    "mutation",
    ["takeover without At(O_old)", "deadline from the answer", "observation from the request", "take without At(L)"],
)
def test_leaving_out_one_step_of_the_protocol_is_caught(mutation):
    assert any(Simulation(seed, mutation=mutation).run(STEPS).overlaps for seed in range(30))


@pytest.mark.parametrize(
    "mutation",
    [
        "takeover without At(O_old)",
        "takeover without Absent(alive)",
        "an owner outlives its session",
        "take without At(L)",
    ],
)
def test_leaving_out_one_step_of_the_protocol_with_liveness_keys_is_caught(mutation):
    assert any(Simulation(seed, mutation=mutation, sessions=True).run(STEPS).overlaps for seed in range(30))
