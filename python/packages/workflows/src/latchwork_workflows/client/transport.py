"""Sends requests to the API, and converts its answers to schemas or exceptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from latchwork.errors import LatchworkError, Unavailable
from latchwork_workflows.errors import BadRequest
from latchwork_workflows.model.definition import NAME_PATTERN
from latchwork_workflows.model.json_values import find_storage_problems
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.problems import ProblemDocument

T = TypeVar("T")
D = TypeVar("D", bound=Document)
#: Seconds between two requests of a call that waits for a change.
POLL_S = 0.2
TIMEOUT_S = 60.0
_PREFIX = "/api/v1"
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def split_workflow_name(workflow: str) -> tuple[str, str]:
    """Split ``project.name`` into project and name. A name without project belongs to the project ``default``."""
    project, dot, name = workflow.partition(".")
    return (project, name) if dot else ("default", workflow)


def build_resource_path(*parts: object, action: str = "") -> str:
    """Return the URL path of a resource, such as ``/runs/12:stop``.

    Raises:
        BadRequest: A part of the path is empty or contains a slash.
    """
    for each in map(str, parts):
        if not each or "/" in each:
            raise BadRequest(f"{each!r:.60} is not a valid name; it should match pattern {NAME_PATTERN}")
    found = "".join(f"/{quote(str(each), safe='')}" for each in parts)
    return f"{found}:{action}" if action else found


def check_params(params: Mapping[str, Any]) -> None:
    """Check that the parameters of a run can be sent as JSON.

    Raises:
        BadRequest: A value cannot be sent. The message names the first such parameter.
    """
    for where, why in find_storage_problems(params, "params"):
        raise BadRequest(f"{where}: {why}")


def build_request(document_type: type[D], /, **values: Any) -> D:
    """Return the document of a request, after validating its values.

    Raises:
        BadRequest: A value is not valid.
    """
    try:
        return document_type(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRequest(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


class Transport:
    """Sends requests to the API. Thread-safe.

    Args:
        http: The HTTP client, with the base URL and the credentials.
    """

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    @property
    def url(self) -> str:
        """The URL of the API."""
        return str(self._http.base_url).rstrip("/")

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._http.close()

    def get(self, path: str, document_type: type[T], **query: Any) -> T:
        """Fetch a resource with GET."""
        return self._read(self.send("GET", path, query=query), document_type)

    def post(
        self, path: str, body: Document | None, document_type: type[T], *, key: str | None = None, **query: Any
    ) -> T:
        """Send a request or command with POST and an idempotency key, and return the response document."""
        return self._read(self.send("POST", path, body, query=query, key=key), document_type)

    def put(self, path: str, body: Document, document_type: type[T], **query: Any) -> T:
        """Create or replace a resource with PUT, and return the response document."""
        return self._read(self.send("PUT", path, body, query=query), document_type)

    def patch(self, path: str, body: Document, document_type: type[T], **query: Any) -> T:
        """Change a part of a resource with PATCH, and return the response document."""
        return self._read(self.send("PATCH", path, body, query=query), document_type)

    def delete(self, path: str, document_type: type[T], **query: Any) -> T:
        """Delete a resource with DELETE, and return the response document."""
        return self._read(self.send("DELETE", path, query=query), document_type)

    def upload(self, path: str, data: bytes, document_type: type[T]) -> T:
        """Upload bytes, and return the response document."""
        return self._read(self.send("POST", path, data), document_type)

    def send(
        self,
        method: str,
        path: str,
        body: Document | bytes | None = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> httpx.Response:
        """Send a request to the API, and return the response if the request succeeded.

        Raises:
            LatchworkError: The API reported an error. The exception has the type that the API names.
            Unavailable: The API cannot be reached.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        if isinstance(body, Document):
            headers["Content-Type"] = "application/json"
            body = body.model_dump_json(exclude_unset=True).encode()
        params = {name: value for name, value in (query or {}).items() if value not in {None, ""}}
        try:
            answer = self._http.request(method, _PREFIX + path, content=body, params=params, headers=headers)
        except httpx.TransportError as error:
            raise Unavailable(f"{self.url} cannot be reached: {error}") from error
        if answer.is_success:
            return answer
        raise _problem(answer).to_exception()

    def _read(self, response: httpx.Response, document_type: type[T]) -> T:
        if document_type is type(None):
            return None
        try:
            found: T = _adapter(document_type).validate_json(response.content)
            return found
        except ValidationError as error:
            raise LatchworkError(
                f"{self.url} sent a response that this version does not understand; use the same "
                f"version of latchwork-workflows on both sides: {error.errors()[0]['msg']}"
            ) from error


class PollDeadline:
    """The deadline of a call that polls the API."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def pause(self) -> bool:
        """Wait until it is time for the next poll. Return False if the deadline has passed."""
        if self._at is not None and time.monotonic() >= self._at:
            return False
        time.sleep(POLL_S)
        return True


def _problem(answer: httpx.Response) -> ProblemDocument:
    try:
        return ProblemDocument.model_validate_json(answer.content)
    except ValidationError:  # a proxy, or not our API
        detail = f"{answer.request.url} answers {answer.status_code} {answer.reason_phrase}"
        return ProblemDocument(status=answer.status_code, detail=detail)
