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
from latchwork_workflows.services import settings as service
from latchwork_workflows.services.context import ServiceContext, get_context
from latchwork_workflows.ui.page_helpers import build_url, redirect, render_page
from latchwork_workflows.web import CurrentUser, HttpProblem, Identity, Role

router = APIRouter()
_Kind = Literal["connection", "environment", "parameter"]
_Word = Annotated[str, Form(max_length=200)]
#: The limit of form fields. Larger than any valid value, so that the error can name the field that is too large.
_MAX_FIELD = 200_000


@router.get("/settings", response_class=HTMLResponse)
def show_settings(
    request: Request, user: CurrentUser, project: Annotated[str, Query(max_length=100)] = ""
) -> HTMLResponse:
    """Show the settings that the account may see. If a project is given, show only those that apply to it."""
    return _page(request, user, project.replace("\x00", ""))


@router.post("/settings/{kind}")
async def set_setting(request: Request, user: CurrentUser, kind: _Kind) -> Response:
    """Store a setting. If it is invalid, show the form again with the values of the user."""
    sent = {key: value for key, value in (await request.form()).multi_items() if isinstance(value, str)}
    return await run_in_threadpool(_change, request, user, kind, sent)


@router.post("/settings/{kind}/delete")
def remove_setting(
    *, request: Request, user: CurrentUser, kind: _Kind, name: _Word, project: _Word = "", shown: _Word = ""
) -> Response:
    """Delete a setting."""
    service.remove_setting(get_context(request), user, kind, project, name)
    return redirect(build_url("/settings", project=shown))


@router.post("/settings/connection/test")
def check_connection(
    request: Request, user: CurrentUser, name: _Word, project: _Word = "", within: _Word = ""
) -> Response:
    """Test a connection on a worker, and redirect to the run of the test."""
    asked = service.check_connection(get_context(request), user, project, name, within=within)
    return redirect(f"/commands/{asked.command}")


@router.post("/grants")
def change_grant(
    *, request: Request, user: CurrentUser, project: _Word, grantee: _Word = "", role: _Word = ""
) -> Response:
    """Set or remove the role that another project has in a project."""
    context = get_context(request)
    if role:
        grants.set_grant(context, user, project=project, grantee=grantee.strip(), role=role)
    else:
        grants.remove_grant(context, user, project, grantee)
    return redirect("/settings#grants")


def _change(request: Request, user: Identity, kind: SettingKind, sent: dict[str, str]) -> Response:
    context, project, name = get_context(request), sent.get("project", ""), sent.get("name", "").strip()
    shown = sent.get("shown", "")[:100].replace("\x00", "")
    try:
        _set(context, user, kind, project[:100], name, sent)
    except HttpProblem as error:
        if error.status == 403:
            raise
        return _page(request, user, shown, error.status, kind=kind, sent=sent, refused=error)
    return redirect(build_url("/settings", project=shown))


def _set(  # noqa: PLR0917 - one caller
    context: ServiceContext, user: Identity, kind: SettingKind, project: str, name: str, sent: Mapping[str, str]
) -> None:
    if kind == "connection":
        url, secret = sent.get("url", "").strip(), sent.get("secret", "").strip()
        service.set_connection(context, user, project, name, url=url, secret=secret)
    elif kind == "environment":
        service.set_environment(context, user, project, name, parse_variables(sent.get("variables", "")))
    else:
        service.set_parameter(context, user, project, name, parse_value(sent.get("value", "")))


def parse_variables(text: str) -> dict[str, str]:
    """Parse variables from a form, one per line as ``NAME=value``.

    Raises:
        HttpProblem: 422 (invalid) if a line is invalid.
    """
    found = {}
    for number, line in enumerate(text[:_MAX_FIELD].replace("\r\n", "\n").split("\n"), 1):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals:
            message = f"line {number} is not a variable; write NAME=value"
            raise HttpProblem(422, f"variables: {message}", errors=[("variables", message)])
        found[name.strip()] = value
    return found


def parse_value(text: str) -> Any:
    """Parse a value from a form. Text that is not valid JSON is returned unchanged."""
    text = text.replace("\r\n", "\n")
    try:
        return read_json(text.encode("utf-8", "replace"))
    except BadRecord:
        return text


def format_value(value: Any) -> str:
    """Format a value for a form, so that ``parse_value`` returns it again. Text that looks like JSON is quoted."""
    if isinstance(value, str) and parse_value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _page(
    request: Request,
    user: Identity,
    project: str,
    status: int = 200,
    /,
    *,
    kind: str = "",
    sent: Mapping[str, str] | None = None,
    refused: HttpProblem | None = None,
) -> HTMLResponse:
    context = get_context(request)
    chosen = project or None
    found = {
        "connection": [_to_table_row(user, each) for each in service.list_connections(context, user, chosen)],
        "environment": [_to_table_row(user, each) for each in service.list_environments(context, user, chosen)],
        "parameter": [_to_table_row(user, each) for each in service.list_parameters(context, user, chosen)],
    }
    with context.database.read() as connection:
        mine, known = user.get_projects(), workflow_queries.list_projects(connection)
    seen = sorted({*known, *user.roles} - {""}) if mine is None else sorted(mine)
    values: dict[str, Any] = {"found": found, "project": project, "projects": seen, "kind": kind, "sent": sent or {}}
    # A refused URL may contain a password.
    values["keeps_url"] = refused is None or all(path != "url" for path, _ in refused.errors)
    writable = [each for each in seen if user.has_role(Role.EDITOR, each)]
    values["grants"] = grants.list_grants(context, user, project)
    values["administered"] = [each for each in seen if user.has_role(Role.ADMIN, each)]
    return render_page(request, user, "settings.html", status, refused=refused, writable=writable, **values)


def _to_table_row(user: Identity, found: Connection | Environment | Parameter) -> dict[str, Any]:
    """Return the fields of a setting as text for a table row."""
    row = {**found.model_dump(), "may_change": service.may_change(user, found.project)}
    if isinstance(found, Environment):
        row["variables"] = "\n".join(f"{name}={each}" for name, each in sorted((found.variables or {}).items()))
    elif isinstance(found, Parameter):
        row["value"] = format_value(found.value)
    return row
