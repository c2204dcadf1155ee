"""What goes wrong with a plan. Nothing here touches the network."""

from __future__ import annotations

from latchwork.errors import LatchworkError


class ForeignRef(LatchworkError, ValueError):
    """A task was given the ``Ref`` of another plan, or of a task that is not there."""


class DuplicateTask(LatchworkError, ValueError):
    """Two tasks of a plan have one name."""


class ChildPlanFailed(LatchworkError):
    """The plan that a task has started, and waited for, failed, or was cancelled or removed."""


class NoSuchPlan(LatchworkError, LookupError):
    """There is no plan of this id: it was never started, or was removed."""


class NoSuchTask(LatchworkError, LookupError):
    """The plan has no task of this name."""


class WrongState(LatchworkError):
    """The plan is in a state in which this cannot be done; the message names it."""


class NoResult(LatchworkError):
    """A task ended without a result: it was skipped or cancelled, or its result is kept no longer."""
