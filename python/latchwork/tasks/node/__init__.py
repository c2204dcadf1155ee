"""What a process that runs tasks is: its life, from the start over lost sessions to the close.

For the systems that run tasks. A system makes the work of one session; everything else is the same for all of them.
"""

from latchwork.tasks.node.node import Node, NodeHealth, WorkerSession, WorkerStats, default_node_id

__all__ = ["Node", "NodeHealth", "WorkerSession", "WorkerStats", "default_node_id"]
