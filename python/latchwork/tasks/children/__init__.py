"""Commands that end with what they depend on. A second door of tasks, for whoever runs commands and no functions.

It keeps to itself how a supervisor is told what to do.
"""

from latchwork.tasks.children.child import CannotStart, Child, ChildEnd, DeadlineExtender
from latchwork.tasks.children.notes import MARK, end_left
from latchwork.tasks.children.order import DEVNULL, PIPE, STDOUT

__all__ = ["DEVNULL", "MARK", "PIPE", "STDOUT", "CannotStart", "Child", "ChildEnd", "DeadlineExtender", "end_left"]
