"""Measures a cluster of many workers: the real job manager and store, and workers that only record their shares.

One process runs the real manager. A few processes run the workers, which register, watch and decode their shares with
the code of real workers, and run nothing. The workers of one process share a session, except those that will die.
"""

from latchwork_testkit.cluster_bench.measure import measure
from latchwork_testkit.cluster_bench.model import BenchOptions, Figures, Goal, goals

__all__ = ["BenchOptions", "Figures", "Goal", "goals", "measure"]
