"""Measures a cluster of many workers: the real manager and store, and workers that only take note of their shares.

One process has the manager, as it is; a few have the workers, which register, follow and decode their shares with the
code of real ones, and run nothing. The workers of a process live by one session, but for those that are to die.
"""

from latchwork_testkit.cluster_bench.measure import measure
from latchwork_testkit.cluster_bench.model import BenchOptions, Figures, Goal, goals

__all__ = ["BenchOptions", "Figures", "Goal", "goals", "measure"]
