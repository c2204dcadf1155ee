"""Stored formats of a job cluster: keys, chunked sets, and records of members, runs, node marks and audit.

Benchmarks import it because they read and write the same keys. It contains formats, reads and writes, but no decisions.
"""

from latchwork.jobs.stored import keys
from latchwork.jobs.stored.caches import ShareCache
from latchwork.jobs.stored.keys import cluster_store
from latchwork.jobs.stored.nodes import Member, MemberOptions

__all__ = ["Member", "MemberOptions", "ShareCache", "cluster_store", "keys"]
