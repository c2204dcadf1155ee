"""Why a task, or a run, is where it is, and what would change that: said from what database and store show.

What a task that the master holds itself waits for is a part of its own.
"""

from latchwork_workflows.explain.held import Held
from latchwork_workflows.explain.known import Ahead, Crew, Full, Known, blamed, why
from latchwork_workflows.explain.run import Around, Cause, causes

__all__ = ["Ahead", "Around", "Cause", "Crew", "Full", "Held", "Known", "blamed", "causes", "why"]
