"""A node of the cluster: it joins, registers its jobs and pools, runs items, manages when elected, and leaves.

Benchmarks import it to register workers without a node. ``latchwork.jobs`` exports the node.
"""

from latchwork.jobs.node.registration import Registration, read_pool_version

__all__ = ["Registration", "read_pool_version"]
