"""What people may see and do, with their roles checked, in one place: the API and the pages are two faces of it.

Nothing here writes run state: what is asked of a run becomes a command for the master that has its shard.
"""

from latchwork_workflows.services.errors import EXPECTED, problem_of
from latchwork_workflows.services.parts import Cluster, Line, Parts, WorkerSeen

__all__ = ["EXPECTED", "Cluster", "Line", "Parts", "WorkerSeen", "problem_of"]
