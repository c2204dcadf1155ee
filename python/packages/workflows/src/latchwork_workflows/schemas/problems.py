"""Errors as documents (RFC 9457), and the exceptions that they stand for."""

from __future__ import annotations

from pydantic import BaseModel

from latchwork.errors import LatchworkError, Unavailable
from latchwork_workflows.errors import (
    BadRequest,
    DefinitionInvalid,
    KeyReused,
    NotAllowed,
    NotFound,
    StoreMismatch,
    WrongState,
)
from latchwork_workflows.errors import Problem as DefinitionProblem
from latchwork_workflows.schemas.base import Document

#: Exceptions by status and by the last part of the problem's ``type``. The first of a status stands for the others.
KINDS: tuple[tuple[type[LatchworkError], int, str], ...] = (
    (NotFound, 404, "not-found"),
    (NotAllowed, 403, "not-allowed"),
    (NotAllowed, 401, "not-signed-in"),
    (WrongState, 409, "wrong-state"),
    (KeyReused, 409, "key-reused"),
    (DefinitionInvalid, 422, "definition-invalid"),
    (Unavailable, 503, "unavailable"),
    (Unavailable, 429, "too-many-requests"),
    (StoreMismatch, 503, "store-mismatch"),
)
_TYPE = "tag:latchwork,2026:"
#: The ``type`` of the error document for a missing object.
NOT_FOUND = f"{_TYPE}not-found"


class FieldProblem(Document):
    """One field that is wrong."""

    path: str
    message: str


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str
    errors: list[FieldProblem] = []
    possible: list[str] | None = None

    def to_exception(self) -> LatchworkError:
        """Return the exception that corresponds to this error document."""
        name = self.type.removeprefix(_TYPE)
        if name == "definition-invalid":
            return DefinitionInvalid([DefinitionProblem(each.path, each.message) for each in self.errors])
        kinds = [kind for kind, _, word in KINDS if word == name]
        kinds += [kind for kind, status, _ in KINDS if status == self.status and kind is not DefinitionInvalid]
        kind: type[LatchworkError] = (*kinds, BadRequest)[0]
        return kind(self.detail)


def get_status_and_type(error: Exception) -> tuple[int, str] | None:
    """Return the HTTP status and the ``type`` of the error document for an exception. None if the exception is
    unexpected.
    """
    found = [(status, _TYPE + word) for kind, status, word in KINDS if isinstance(error, kind)]
    exact = [(status, _TYPE + word) for kind, status, word in KINDS if type(error) is kind]
    return (*exact, *found, None)[0]
