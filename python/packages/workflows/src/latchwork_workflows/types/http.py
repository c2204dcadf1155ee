"""``http``: one request, whose response decides the outcome of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote

from pydantic import Field, StringConstraints, field_validator

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo

_CALL = "http.json"
_PROGRAM = Path(__file__).with_name("programs") / "http_program.py"


class HttpParams(ParamsModel):
    """Parameters of ``http``.

    Attributes:
        url: ``http://`` or ``https://``. Values that are filled in are quoted.
        method: Method of the request.
        headers: Headers of the request. ``Authorization: Bearer ${secret:token}`` stays out of every log.
        body: Text to send.
        json_body: Value to send as JSON, instead of ``body``.
        timeout_s: Seconds for which the server may be silent.
        success: Statuses that count as success. Default: 200 to 299.
        contains: Text that the response must contain.
    """

    url: Annotated[str, StringConstraints(min_length=1, max_length=8000)]
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, str] = Field(default_factory=dict)
    body: str | None = None
    json_body: Any = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    success: tuple[Annotated[int, Field(ge=100, le=599)], ...] = ()
    contains: str = ""

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://", "${")):
            raise ValueError("a URL begins with http:// or https://")
        return url


class Http:
    """Sends one request.

    Outputs: ``status``, and ``body``: parsed if it is JSON, otherwise its first 10,000 characters.
    """

    name: ClassVar[str] = "http"
    params: ClassVar[type[ParamsModel]] = HttpParams
    quoted: ClassVar[frozenset[str]] = frozenset()
    ignores_variables: ClassVar[bool] = True
    quoting: ClassVar[Mapping[str, Callable[[Any], str]]] = {"url": lambda value: quote(str(value), safe="")}

    def command(self, params: HttpParams, run: RunInfo) -> Command:
        """Return a command that sends the request. It reads the request from a file, because a command line can be seen
        by others.
        """
        return Command(
            (run.python, str(_PROGRAM), f"{run.folder}/{_CALL}"),
            env={"PYTHONUNBUFFERED": "1"},
            files={_CALL: params.model_dump_json().encode()},
        )
