"""Converts exceptions to HTTP problems."""

from __future__ import annotations

import math

from latchwork.errors import LatchworkError
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.schemas.problems import NOT_FOUND, get_status_and_type
from latchwork_workflows.web import HttpProblem, TooManyAttempts

EXPECTED: tuple[type[Exception], ...] = (LatchworkError,)
_RETRY_S = 5


def to_http_problem(error: Exception) -> HttpProblem | None:
    """Convert an exception of a service to an HTTP problem. Return None for unexpected exceptions."""
    if isinstance(error, TooManyAttempts):
        return HttpProblem(429, str(error), headers={"Retry-After": str(math.ceil(error.wait_s))})
    found = get_status_and_type(error)
    if found is None:
        return HttpProblem(400, str(error)) if isinstance(error, LatchworkError) else None
    status, kind = found
    errors = [(each.path, each.message) for each in error.problems] if isinstance(error, DefinitionInvalid) else []
    headers = {"Retry-After": str(_RETRY_S)} if status == 503 else {}
    possible = list(getattr(error, "possible", ())) or None
    return HttpProblem(status, str(error), errors=errors, headers=headers, possible=possible, type=kind)


def object_not_found(message: str) -> HttpProblem:
    """Return the problem for an object that does not exist, or that the account may not see.

    The client raises it as ``NotFound``. A path that the API does not have is another problem, without this type.
    """
    return HttpProblem(404, message, type=NOT_FOUND)
