"""Masters: shards of instances as items of a job, each advanced by one thread under the fence of its lock.

``Master`` is the door; how a shard is read, written and dispatched is kept inside.
"""

from latchwork_workflows.master.chores import Retention
from latchwork_workflows.master.master import Master

__all__ = ["Master", "Retention"]
