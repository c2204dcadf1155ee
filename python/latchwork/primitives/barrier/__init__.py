"""Barriers: several parties wait for each other. It exports what other packages need: expected parties, and the
state.
"""

from latchwork.primitives.barrier.phases import BarrierState, Expected, arrivals_at, barrier_state

__all__ = ["BarrierState", "Expected", "arrivals_at", "barrier_state"]
