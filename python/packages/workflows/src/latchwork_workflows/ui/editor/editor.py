"""The editor for YAML definitions: checked while the user types, drawn when valid, with forms to add tasks.

Nothing is stored before "Apply". Without JavaScript, each button reloads the page.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from latchwork_workflows.api.models import NamePath
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model.definition import TaskSpec
from latchwork_workflows.model.yaml_format import format_yaml, parse_yaml
from latchwork_workflows.services import workflows
from latchwork_workflows.services.context import ServiceContext, get_context
from latchwork_workflows.ui.dag_svg import MAX_DRAWN, draw_workflow_svg
from latchwork_workflows.ui.editor.yaml_positions import find_line
from latchwork_workflows.ui.page_helpers import redirect, render_page
from latchwork_workflows.web import (
    CurrentUser,
    FormField,
    FormInvalid,
    HttpProblem,
    Identity,
    Role,
    build_fields,
    parse_values,
)

router = APIRouter()
_Text = Annotated[str, Form(max_length=4_000_000)]
NEW = """\
name: my-workflow
description: What it is for.
schedule:
  cron: 0 3 * * *
  tz: UTC
params:
  day: ${logical_date}
tasks:
- name: first
  type: shell
  params:
    script: echo "for $day"
"""
#: Options of a task in the form, besides the parameters of its type.
_OPTIONS = ("after", "retries", "retry_interval_s", "timeout_s", "worker_group")


@router.get("/edit", response_class=HTMLResponse)
def show_new_workflow(request: Request, user: CurrentUser) -> HTMLResponse:
    """Show the editor for a new workflow."""
    if not user.has_any_role(Role.EDITOR):
        raise HttpProblem(403, f"{user.name} is not an editor of any project; ask an administrator for that role")
    return _page(request, user, NEW, base=0)


@router.get("/workflows/{project}/{name}/edit", response_class=HTMLResponse)
def edit_workflow(
    request: Request,
    user: CurrentUser,
    project: NamePath,
    name: NamePath,
    version: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> HTMLResponse:
    """Show the editor for a version of a workflow. Applying it creates a new version."""
    shown = workflows.get_workflow(get_context(request), user, project, name, version)
    return _page(request, user, format_yaml(shown.definition), base=shown.version, row=shown)


@router.post("/edit/check", response_class=HTMLResponse)
def check_text(request: Request, user: CurrentUser, yaml: _Text = "") -> HTMLResponse:
    """Show the problems of the edited text, or a drawing of the workflow if there are none. Called while the user
    types.
    """
    return render_page(request, user, "checked.html", **_check_text(get_context(request), user, yaml))


@router.post("/edit")
async def submit_editor_form(request: Request, user: CurrentUser) -> Response:
    """Handle the buttons of the editor: check the text, add a task, or apply the definition."""
    sent = {key: value for key, value in (await request.form()).multi_items() if isinstance(value, str)}
    return await run_in_threadpool(_send, request, user, sent)


def _send(request: Request, user: Identity, sent: dict[str, str]) -> Response:
    context = get_context(request)
    text = sent.get("yaml", "").replace("\r\n", "\n")
    base = int(sent["base"]) if sent.get("base", "").isdigit() and len(sent["base"]) < 10 else None
    action, _, kind = sent.get("do", "check").partition(":")
    if action == "add":
        return _add_task(request, user, text, base, kind, sent)
    if action != "apply":
        return _page(request, user, text, base)
    try:
        online = bool(sent.get("online")) if base == 0 else None
        found = workflows.apply_definition(context, user, text, online=online, base=base)
    except DefinitionInvalid:
        return _page(request, user, text, base, status=422)
    except HttpProblem as error:
        return _page(request, user, text, base, status=error.status, refused=error.detail)
    return redirect(f"/workflows/{found.project}/{found.name}")


def _add_task(  # noqa: PLR0917 - one caller
    request: Request, user: Identity, text: str, base: int | None, kind: str, sent: dict[str, str]
) -> Response:
    """Add a task from a form to the end of the edited text, and show the editor again.

    Args:
        request: The request.
        user: The signed-in user.
        text: The edited text.
        base: The version that is edited. None: a new workflow.
        kind: The type of the new task.
        sent: The fields of the form.
    """
    context, prefix = get_context(request), f"{kind}-"
    if kind not in context.types.names:
        raise HttpProblem(422, f"there is no task type {kind[:40]!r}")
    try:
        params = parse_values(get_type_fields(context, kind), sent, f"{prefix}p-")
        options = parse_values(_option_fields(), sent, f"{prefix}o-")
        name = _name(sent.get(f"{prefix}name", ""))
        task = {"name": name, "type": kind, **({"params": params} if params else {}), **options}
        return _page(request, user, add_task_text(text, task), base, added=name)
    except FormInvalid as error:
        refused = f"the task was not added: {error}"
    except DefinitionInvalid as error:
        refused = f"correct the text first: {error}"
    return _page(request, user, text, base, status=422, refused=refused, sent=sent)


def _name(text: str) -> str:
    if not text.strip():
        raise FormInvalid({"name": "this is required"})
    return text.strip()


def add_task_text(text: str, task: dict[str, Any]) -> str:
    """Add a task to the end of a definition's text. Comments are kept if ``tasks`` is the last key of the text.

    Args:
        text: The text of the definition.
        task: The fields of the task.
    Raises:
        DefinitionInvalid: The text is not valid YAML.
    """
    values = parse_yaml(text) if text.strip() else {"name": "my-workflow"}
    tasks = values.get("tasks")
    wanted = {**values, "tasks": [*(tasks if isinstance(tasks, list) else []), task]}
    block = _dump([task])
    for indent in ("", "  "):
        longer = text.rstrip("\n") + "\n" + "".join(f"{indent}{line}\n" for line in block.splitlines())
        try:
            if tasks and parse_yaml(longer) == wanted:
                return longer
        except DefinitionInvalid:
            continue
    return _dump(wanted)


def _dump(values: object) -> str:
    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    made: str = yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return made


def _check_text(context: ServiceContext, user: Identity, text: str) -> dict[str, Any]:
    text = text.replace("\r\n", "\n")
    try:
        found = workflows.validate_definition(context, user, text).definition
    except DefinitionInvalid as error:
        problems = [(each, find_line(text, each.path)) for each in error.problems[:100]]
        return {"problems": problems, "total": len(error.problems), "svg": None, "body": None}
    svg = draw_workflow_svg(found) if len(found.tasks) <= MAX_DRAWN else None
    return {"problems": [], "total": 0, "svg": svg, "body": found}


def _page(
    request: Request,
    user: Identity,
    text: str,
    base: int | None,
    *,
    row: Any = None,
    status: int = 200,
    refused: str = "",
    added: str = "",
    sent: dict[str, str] | None = None,
) -> HTMLResponse:
    context = get_context(request)
    forms = [(name, get_type_fields(context, name, sent), _option_fields(name, sent)) for name in context.types.names]
    values = {"text": text, "base": base, "row": row, "refused": refused, "added": added, "forms": forms}
    return render_page(
        request, user, "editor.html", status, sent=sent or {}, **values, **_check_text(context, user, text)
    )


def get_type_fields(context: ServiceContext, kind: str, sent: dict[str, str] | None = None) -> list[FormField]:
    """Return the form fields for the parameters of a task type.

    Args:
        context: The service context of this process.
        kind: The task type.
        sent: The values that the user has sent, to be shown again.
    """
    return _fill_fields(_get_form_fields(context.types.get(kind).params), sent, f"{kind}-p-")


def _option_fields(kind: str = "", sent: dict[str, str] | None = None) -> list[FormField]:
    return _fill_fields(_get_form_fields(TaskSpec, _OPTIONS), sent, f"{kind}-o-")


@lru_cache(maxsize=1024)
def _get_form_fields(model: type[BaseModel], names: tuple[str, ...] = ()) -> tuple[FormField, ...]:
    """Return the form fields of a model. Cached, because computing a schema takes milliseconds.

    Args:
        model: The model.
        names: The names of the fields to return. Empty: all.
    """
    schema = model.model_json_schema()
    if names:
        schema = {**schema, "properties": {name: schema["properties"][name] for name in names}}
    return tuple(build_fields(schema))


def _fill_fields(fields: tuple[FormField, ...], sent: dict[str, str] | None, prefix: str) -> list[FormField]:
    """Return form fields with the values that the user has sent, so that a form can be shown again.

    Args:
        fields: The form fields.
        sent: The values that the user has sent, by field name. None: nothing was sent.
        prefix: Prefix of the field names in ``sent``.
    """
    if sent is None:
        return list(fields)
    return [
        FormField(
            each.name,
            each.kind,
            each.required,
            sent.get(prefix + each.name, ""),
            each.choices,
            each.help,
            each.optional,
        )
        for each in fields
    ]
