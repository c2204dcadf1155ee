"""Explains why a task or a run is in its state and what would change it, from data of the database and the store.

Tasks that the master runs itself have a separate module.
"""

from latchwork_workflows.explain.held import Held
from latchwork_workflows.explain.known import Ahead, Crew, Full, Known, blamed, why
from latchwork_workflows.explain.run import Around, Cause, causes

__all__ = ["Ahead", "Around", "Cause", "Crew", "Full", "Held", "Known", "blamed", "causes", "why"]
