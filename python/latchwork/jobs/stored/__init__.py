"""Stored formats of a job cluster: keys, large sets, and records of nodes, maintenance, runs, requests and audit.

Benchmarks import it because they read and write the same keys. It contains formats, reads and writes, but no decisions.
"""

from latchwork.jobs.stored import keys
from latchwork.jobs.stored.caches import AssignmentCache
from latchwork.jobs.stored.keys import cluster_store
from latchwork.jobs.stored.nodes import MemberOptions, NodeRecord

__all__ = ["AssignmentCache", "MemberOptions", "NodeRecord", "cluster_store", "keys"]
