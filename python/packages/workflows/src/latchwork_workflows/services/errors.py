"""Errors of workflows as problems: each names what is wrong, and what would be possible."""

from __future__ import annotations

import math

from latchwork.errors import LatchworkError
from latchwork_workflows.db.accounts import UnknownAccount
from latchwork_workflows.db.commands import KeyReused
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.errors import DefinitionInvalid, NotAllowed, StoreMismatch, UnknownWorkflow, WrongState
from latchwork_workflows.logs import LogMissing
from latchwork_workflows.web import Problem, TooManyTries

EXPECTED: tuple[type[Exception], ...] = (LatchworkError,)
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (UnknownWorkflow, 404),
    (UnknownAccount, 404),
    (LogMissing, 404),
    (WrongState, 409),
    (KeyReused, 409),
    (TooManyTries, 429),
    (NotAllowed, 403),
    (StoreMismatch, 503),
    (DatabaseUnavailable, 503),
)


def problem_of(error: Exception) -> Problem | None:
    """The problem of an error of ours; None: nobody expected it here."""
    if isinstance(error, DefinitionInvalid):
        return Problem(422, str(error), errors=[(each.path, each.message) for each in error.problems])
    for kind, status in _STATUS:
        if isinstance(error, kind):
            wait_s = error.wait_s if isinstance(error, TooManyTries) else 5.0 if status == 503 else 0.0
            headers = {"Retry-After": str(math.ceil(wait_s))} if wait_s else {}
            return Problem(status, str(error), headers=headers, possible=list(getattr(error, "possible", ())) or None)
    return Problem(400, str(error)) if isinstance(error, LatchworkError) else None
