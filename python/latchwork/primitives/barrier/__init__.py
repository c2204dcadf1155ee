"""Barriers: several parties wait for each other. A door for what goes with them: who is expected, and how one stands.

The rounds and their phases stay inside.
"""

from latchwork.primitives.barrier.phases import BarrierState, Expected, arrivals_at, barrier_state

__all__ = ["BarrierState", "Expected", "arrivals_at", "barrier_state"]
