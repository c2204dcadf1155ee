"""The use cases of the API and the pages, with permission checks.

Nothing here writes run state: an action on a run becomes a command for the master that owns its shard.
"""

from latchwork_workflows.services.errors import EXPECTED, problem_of
from latchwork_workflows.services.parts import Cluster, QueueHead, ServiceContext, WorkerStatus

__all__ = ["EXPECTED", "Cluster", "QueueHead", "ServiceContext", "WorkerStatus", "problem_of"]
