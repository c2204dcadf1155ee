"""The manager: the elected node decides who works on what, and writes it down.

A door for benches, which run a manager without a node; how it plans and what it keeps stays inside.
"""

from latchwork.jobs.manager.manager import Manager, ManagerCounters
from latchwork.jobs.manager.strategies import ManagerOptions, Strategies, StrategyOption

__all__ = ["Manager", "ManagerCounters", "ManagerOptions", "Strategies", "StrategyOption"]
