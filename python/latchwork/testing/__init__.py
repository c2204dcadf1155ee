"""Helpers for tests of code that uses latchwork. Nothing else in latchwork imports this package."""

from latchwork.testing.clock import VirtualClock
from latchwork.testing.faults import Fault, FaultyStore, RandomFaults
from latchwork.testing.simulation import Simulation

__all__ = ["Fault", "FaultyStore", "RandomFaults", "Simulation", "VirtualClock"]
