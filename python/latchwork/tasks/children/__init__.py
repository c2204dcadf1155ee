"""Supervised commands that end when their parent or its ownership ends. For users who run commands, not functions.

The protocol between parent and supervisor is private to this package.
"""

from latchwork.tasks.children.child import CannotStart, Child, ChildEnd, DeadlineExtender
from latchwork.tasks.children.lock_files import MARK, kill_orphans
from latchwork.tasks.children.supervisor_handle import DEVNULL, PIPE, STDOUT

__all__ = ["DEVNULL", "MARK", "PIPE", "STDOUT", "CannotStart", "Child", "ChildEnd", "DeadlineExtender", "kill_orphans"]
