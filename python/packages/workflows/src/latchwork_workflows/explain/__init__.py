"""Explains why a task or a run is in its state and what would change it, from data of the database and the store.

Tasks that the master runs itself have a separate module.
"""

from latchwork_workflows.explain.held_task import Held
from latchwork_workflows.explain.run import Around, Cause, causes
from latchwork_workflows.explain.task import Ahead, Crew, Full, Known, blamed, why

__all__ = ["Ahead", "Around", "Cause", "Crew", "Full", "Held", "Known", "blamed", "causes", "why"]
