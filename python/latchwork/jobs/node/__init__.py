"""A node of the cluster: it joins, registers its jobs and pools, works, manages when elected, and leaves.

A door for benches, which register workers without a node; `latchwork.jobs` exports the node, the rest stays inside.
"""

from latchwork.jobs.node.registration import Registration, pool_version

__all__ = ["Registration", "pool_version"]
