"""The life-cycle of a process that runs tasks: start, lost sessions, drain, close.

A system that runs tasks implements ``WorkerSession``, its work during one session. ``Node`` does the rest.
"""

from latchwork.tasks.node.node import Node, NodeHealth, WorkerSession, WorkerStats, default_node_id

__all__ = ["Node", "NodeHealth", "WorkerSession", "WorkerStats", "default_node_id"]
