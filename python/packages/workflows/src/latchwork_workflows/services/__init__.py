"""What accounts may see and do, with their roles checked. Both the API and the pages call these services.

Nothing here writes run state: an action on a run becomes a command for the master that owns its shard.
"""

from latchwork_workflows.services.errors import EXPECTED, problem_of
from latchwork_workflows.services.parts import Cluster, Line, Parts, WorkerSeen

__all__ = ["EXPECTED", "Cluster", "Line", "Parts", "WorkerSeen", "problem_of"]
