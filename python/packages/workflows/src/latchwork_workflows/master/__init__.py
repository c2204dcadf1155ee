"""Masters, which advance the runs of the shards that they own.

A shard is an item of a job. One thread advances it under the fence of its lock. ``Master`` is the entry point. The
modules that read, write and dispatch a shard are internal.
"""

from latchwork_workflows.master.cleanup import Retention
from latchwork_workflows.master.master import Master

__all__ = ["Master", "Retention"]
