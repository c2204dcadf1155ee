"""What the cluster keeps in the store: keys, packed sets, and records of members, runs, maintenance and audit.

A door for benches, which read and write the same keys; it has formats, reads and writes, and decides nothing.
"""

from latchwork.jobs.stored import keys
from latchwork.jobs.stored.followers import WorkerShares
from latchwork.jobs.stored.keys import cluster_store
from latchwork.jobs.stored.nodes import Member, MemberOptions

__all__ = ["Member", "MemberOptions", "WorkerShares", "cluster_store", "keys"]
