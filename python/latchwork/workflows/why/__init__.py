"""Why a task is where it is, and what would change that: said from what database and store show.

What a task that the master holds itself waits for is a part of its own.
"""

from latchwork.workflows.why.held import Held
from latchwork.workflows.why.known import Known, why

__all__ = ["Held", "Known", "why"]
