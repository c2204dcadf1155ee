"""Errors of plans."""

from __future__ import annotations

from latchwork.errors import LatchworkError


class ForeignRef(LatchworkError, ValueError):
    """A task was given a ``Ref`` of another plan, or of a task that does not exist."""


class DuplicateTask(LatchworkError, ValueError):
    """The plan already has a task with this name."""


class ChildPlanFailed(LatchworkError):
    """The child plan that a task waited for has failed, or was canceled or removed."""


class NoSuchPlan(LatchworkError, LookupError):
    """There is no plan with this ID: it was never started, or was removed."""


class NoSuchTask(LatchworkError, LookupError):
    """The plan has no task with this name."""


class WrongState(LatchworkError):
    """The operation is not possible in the plan's current state; the message names the state."""


class NoResult(LatchworkError):
    """The task has no result: it was skipped or canceled, or its result was deleted."""
