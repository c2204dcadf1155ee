"""Why a task, or a run, is where it is, and what would change that: said from what database and store show.

What a task that the master holds itself waits for is a part of its own.
"""

from latchwork_workflows.why.held import Held
from latchwork_workflows.why.known import Ahead, Crew, Full, Known, blamed, why
from latchwork_workflows.why.run import Around, Cause, causes

__all__ = ["Ahead", "Around", "Cause", "Crew", "Full", "Held", "Known", "blamed", "causes", "why"]
