"""Measures a cluster of many workers with the real job manager and a real store. The workers run no jobs.

One process runs the manager. A few other processes run the workers. A worker registers, watches its assignment of the
work items and decodes it with the code of a real worker. The workers of a process use one session together, but a
worker that dies during the bench has its own session.
"""

from latchwork_testkit.cluster_bench.measure import measure
from latchwork_testkit.cluster_bench.model import BenchOptions, Figures, Goal, compare_with_goals

__all__ = ["BenchOptions", "Figures", "Goal", "compare_with_goals", "measure"]
