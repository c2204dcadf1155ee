"""The use cases of the API and the pages, with permission checks.

Nothing here writes run state: an action on a run becomes a command for the master that owns its shard.
"""

from latchwork_workflows.services.context import Cluster, ServiceContext, UnclaimedItems, WorkerStatus
from latchwork_workflows.services.errors import EXPECTED, to_http_problem

__all__ = ["EXPECTED", "Cluster", "ServiceContext", "UnclaimedItems", "WorkerStatus", "to_http_problem"]
