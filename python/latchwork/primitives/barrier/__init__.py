"""Barriers, at which several parties wait for each other.

``latchwork.primitives`` exports the barriers. This package exports the expected parties and the state, for worker
groups.
"""

from latchwork.primitives.barrier.phases import BarrierState, Expected, barrier_state, build_arrivals

__all__ = ["BarrierState", "Expected", "barrier_state", "build_arrivals"]
