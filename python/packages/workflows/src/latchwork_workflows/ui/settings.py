"""The page of connections, environments and parameters, with forms that change them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from latchwork.errors import BadRecord
from latchwork.spi import read_json
from latchwork_workflows.db import workflow_queries
from latchwork_workflows.schemas.settings import Connection, Environment, Parameter, SettingKind
from latchwork_workflows.services import grants
from latchwork_workflows.services import settings as desk
from latchwork_workflows.services.parts import Parts, parts_of
from latchwork_workflows.ui.frame import address, led, page
from latchwork_workflows.web import Identity, Problem, Role, Who

router = APIRouter()
_Kind = Literal["connection", "environment", "parameter"]
_Word = Annotated[str, Form(max_length=200)]
#: The limit of form fields. Larger than any valid value, so that the error can name the field that is too large.
_MOST_FIELD = 200_000


@router.get("/settings", response_class=HTMLResponse)
def settings(request: Request, who: Who, project: Annotated[str, Query(max_length=100)] = "") -> HTMLResponse:
    """Show all visible settings, or those of a project together with those of all projects."""
    return _page(request, who, project.replace("\x00", ""))


@router.post("/settings/{kind}")
async def change(request: Request, who: Who, kind: _Kind) -> Response:
    """Store a setting. An invalid form is shown again as it was sent."""
    sent = {key: value for key, value in (await request.form()).multi_items() if isinstance(value, str)}
    return await run_in_threadpool(_change, request, who, kind, sent)


@router.post("/settings/{kind}/delete")
def remove(*, request: Request, who: Who, kind: _Kind, name: _Word, project: _Word = "", shown: _Word = "") -> Response:
    """Delete a setting."""
    desk.remove(parts_of(request), who, kind, project, name)
    return led(address("/settings", project=shown))


@router.post("/settings/connection/test")
def try_connection(request: Request, who: Who, name: _Word, project: _Word = "", within: _Word = "") -> Response:
    """Test a connection on a worker and redirect to the run."""
    asked = desk.try_connection(parts_of(request), who, project, name, within=within)
    return led(f"/commands/{asked.command}")


@router.post("/grants")
def change_grant(*, request: Request, who: Who, project: _Word, grantee: _Word = "", role: _Word = "") -> Response:
    """Set or remove the grant of a project."""
    parts = parts_of(request)
    if role:
        grants.put(parts, who, project=project, grantee=grantee.strip(), role=role)
    else:
        grants.remove(parts, who, project, grantee)
    return led("/settings#grants")


def _change(request: Request, who: Identity, kind: SettingKind, sent: dict[str, str]) -> Response:
    parts, project, name = parts_of(request), sent.get("project", ""), sent.get("name", "").strip()
    shown = sent.get("shown", "")[:100].replace("\x00", "")
    try:
        _set(parts, who, kind, project[:100], name, sent)
    except Problem as error:
        if error.status == 403:
            raise
        return _page(request, who, shown, error.status, kind=kind, sent=sent, refused=error)
    return led(address("/settings", project=shown))


def _set(parts: Parts, who: Identity, kind: SettingKind, project: str, name: str, sent: Mapping[str, str]) -> None:  # noqa: PLR0917 - one caller
    if kind == "connection":
        url, secret = sent.get("url", "").strip(), sent.get("secret", "").strip()
        desk.set_connection(parts, who, project, name, url=url, secret=secret)
    elif kind == "environment":
        desk.set_environment(parts, who, project, name, variables_of(sent.get("variables", "")))
    else:
        desk.set_parameter(parts, who, project, name, value_of(sent.get("value", "")))


def variables_of(text: str) -> dict[str, str]:
    """Parse variables from a form, one per line.

    Raises:
        Problem: 422, a line is invalid.
    """
    found = {}
    for number, line in enumerate(text[:_MOST_FIELD].replace("\r\n", "\n").split("\n"), 1):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals:
            message = f"line {number} is no variable; write NAME=value"
            raise Problem(422, f"variables: {message}", errors=[("variables", message)])
        found[name.strip()] = value
    return found


def value_of(text: str) -> Any:
    """Parse a value from a form: JSON, or else text."""
    text = text.replace("\r\n", "\n")
    try:
        return read_json(text.encode("utf-8", "replace"))
    except BadRecord:
        return text


def text_of(value: Any) -> str:
    """Format a value for a form so that it parses to the same value. Text that looks like JSON is quoted."""
    if isinstance(value, str) and value_of(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _page(
    request: Request,
    who: Identity,
    project: str,
    status: int = 200,
    /,
    *,
    kind: str = "",
    sent: Mapping[str, str] | None = None,
    refused: Problem | None = None,
) -> HTMLResponse:
    parts = parts_of(request)
    chosen = project or None
    found = {
        "connection": [_row(who, each) for each in desk.connections(parts, who, chosen)],
        "environment": [_row(who, each) for each in desk.environments(parts, who, chosen)],
        "parameter": [_row(who, each) for each in desk.parameters(parts, who, chosen)],
    }
    with parts.database.read() as connection:
        mine, known = who.projects(), workflow_queries.projects(connection)
    seen = sorted({*known, *who.roles} - {""}) if mine is None else sorted(mine)
    values: dict[str, Any] = {"found": found, "project": project, "projects": seen, "kind": kind, "sent": sent or {}}
    # A refused URL may contain a password.
    values["keeps_url"] = refused is None or all(path != "url" for path, _ in refused.errors)
    writable = [each for each in seen if who.may(Role.EDITOR, each)]
    values["grants"] = grants.listed(parts, who, project)
    values["administered"] = [each for each in seen if who.may(Role.ADMIN, each)]
    return page(request, who, "settings.html", status, refused=refused, writable=writable, **values)


def _row(who: Identity, found: Connection | Environment | Parameter) -> dict[str, Any]:
    """Return the fields of a setting as text."""
    row = {**found.model_dump(), "may_change": desk.may_change(who, found.project)}
    if isinstance(found, Environment):
        row["variables"] = "\n".join(f"{name}={each}" for name, each in sorted((found.variables or {}).items()))
    elif isinstance(found, Parameter):
        row["value"] = text_of(found.value)
    return row
