"""Errors as documents for programs (RFC 9457) and as pages for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from latchwork.spi import printable

MEDIA_TYPE = "application/problem+json"


class HttpProblem(Exception):
    """An error response. Raised by routes.

    Attributes:
        status: The HTTP status.
        detail: One sentence: what is wrong and how to fix it.
        errors: The invalid fields, each with ``path`` and ``message``. May be empty.
        more: Further members of the document, such as ``possible``.
        headers: Headers of the response.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = list(errors)
        self.more = {name: value for name, value in more.items() if value is not None}
        self.headers = dict(headers or {})

    @property
    def title(self) -> str:
        """The standard name of the HTTP status."""
        return HTTPStatus(self.status).phrase

    def to_document(self) -> dict[str, Any]:
        """Return the error as a JSON document."""
        found: dict[str, Any] = {"type": "about:blank", "title": self.title, "status": self.status}
        found["detail"] = printable(self.detail)
        if self.errors:
            found["errors"] = [{"path": path, "message": message} for path, message in self.errors]
        return found | self.more

    def to_response(self) -> JSONResponse:
        """Return the HTTP response with the JSON document."""
        return JSONResponse(self.to_document(), self.status, self.headers, MEDIA_TYPE)


def from_http_error(error: HTTPException) -> HttpProblem:
    """Convert an HTTP error of the web framework, such as an unknown path or method, to a problem."""
    details = {
        404: "there is no such path; see /api/v1/openapi.json",
        405: "this path does not support this method",
        413: "the request is too large",
    }
    detail = details.get(error.status_code, str(error.detail))
    return HttpProblem(error.status_code, detail, headers=error.headers)


def from_validation_error(error: RequestValidationError) -> HttpProblem:
    """Convert a validation error of the web framework to a problem."""
    errors = [(_format_path(each["loc"]), str(each["msg"])) for each in error.errors()]
    first = f"{errors[0][0]}: {errors[0][1]}" if errors else "the request is malformed"
    more = f"; and {len(errors) - 1} more" if len(errors) > 1 else ""
    return HttpProblem(422, f"the request is invalid: {first}{more}", errors=errors)


def _format_path(parts: Sequence[Any]) -> str:
    """Return the path of an invalid value as text, such as ``body.tasks[3].name``."""
    text = ""
    for each in parts:
        text += f"[{each}]" if isinstance(each, int) else f".{each}" if text else str(each)
    return printable(text)
