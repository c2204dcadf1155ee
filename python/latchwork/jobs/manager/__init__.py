"""The manager: the elected node decides which node runs which items, and stores the assignment.

Benchmarks import it to run a manager without a node.
"""

from latchwork.jobs.manager.manager import ClusterManager, ManagerCounters
from latchwork.jobs.manager.strategies import ManagerOptions, Strategies, StrategyOption

__all__ = ["ClusterManager", "ManagerCounters", "ManagerOptions", "Strategies", "StrategyOption"]
