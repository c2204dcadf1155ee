"""Runs, tasks, attempts and their logs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import StreamingResponse

from latchwork_workflows.api import models as m
from latchwork_workflows.db.commands import Asked
from latchwork_workflows.db.views import catalog, instances, kin
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.services import attempts as logs
from latchwork_workflows.services import causes, families, workflows
from latchwork_workflows.services import runs as desk
from latchwork_workflows.services.parts import Parts, parts_of, seen, seen_codes
from latchwork_workflows.state import InstanceState, Scope, possible
from latchwork_workflows.web import Hub, Problem, Who, may_still

router = APIRouter(prefix="/api/v1", tags=["runs"])
AttemptId = Annotated[str, Path(pattern=r"^[0-9]{1,19}\.[0-9]{1,9}\.[0-9]{1,19}$", description="task.number.claim")]
_Offset = Annotated[int, Query(ge=0, le=m.MOST_ID)]


class CauseRow(Document):
    """One reason; ``task`` is empty if it is one of the run itself."""

    task: str
    why: str


class WhyDocument(Document):
    """Why a run is where it is (empty while something of it is at work), and each of its tasks."""

    cause: list[CauseRow]
    tasks: dict[str, str]


@router.post("/workflows/{project}/{name}:start", status_code=202)
def start(
    *,
    request: Request,
    who: Who,
    project: m.NamePath,
    name: m.NamePath,
    given: m.StartRequest | None = None,
    key: m.UniqueKey = None,
) -> m.AskedDocument:
    """Ask for a run of the newest version."""
    wanted = given or m.StartRequest()
    fields = {**wanted.model_dump(), "scope": Scope(wanted.scope), "start_from": tuple(wanted.start_from)}
    return _told(
        parts_of(request), desk.start(parts_of(request), who, project, name, desk.Start(**fields), unique_key=key)
    )


@router.get("/commands/{command_id}")
def get_command(*, request: Request, who: Who, command_id: m.Id) -> m.CommandDocument:
    """What became of a command; a start names its run once there is one."""
    parts = parts_of(request)
    with parts.database.read() as connection:
        row = instances.find_command(connection, command_id)
        if row is None:
            raise Problem(404, f"there is no command {command_id}")
        code = row.args.get("code") if isinstance(row.args, dict) else None
        if row.instance is not None:
            seen(who, instances.find(connection, row.instance), f"command {command_id}")
        else:
            seen(who, catalog.by_code(connection, code) if isinstance(code, int) else None, f"command {command_id}")
    return m.CommandDocument(**{each: getattr(row, each) for each in m.CommandDocument.model_fields})


@router.post("/commands/{command_id}:stop", status_code=204)
def stop_command(*, request: Request, who: Who, command_id: m.Id) -> None:
    """Stop what a command starts: before a master has made the run, none does; later the run is stopped."""
    desk.stop_command(parts_of(request), who, command_id)


@router.get("/runs")
def list_instances(
    *,
    request: Request,
    who: Who,
    project: Annotated[str, Query(max_length=100)] = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project")] = "",
    state: m.RunState = "",
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[m.InstanceRow]:
    """Runs, the newest first."""
    parts = parts_of(request)
    if workflow and project:
        codes: list[int] | None = [workflows.find(parts, who, project, workflow).code]
    else:
        with parts.database.read() as connection:
            codes = seen_codes(connection, who, project)
    with parts.database.read() as connection:
        rows = instances.newest(connection, codes=codes, state=state, before=before, most=limit)
    return [m.InstanceRow(**_fields(row, m.InstanceRow)) for row in rows]


@router.get("/runs/{run_id}")
def get_instance(*, request: Request, who: Who, run_id: m.Id) -> m.InstanceDocument:
    """A run with the tasks of its newest run."""
    parts = parts_of(request)
    row = desk.find(parts, who, run_id)
    with parts.database.read() as connection:
        tasks = instances.tasks(connection, row.id, row.run)
    return m.InstanceDocument(
        **_fields(row, m.InstanceRow),
        tasks=[m.TaskRow(**_fields(each, m.TaskRow)) for each in tasks],
        possible=list(possible(InstanceState(row.state))),
    )


@router.get("/runs/{run_id}/why")
def get_why(*, request: Request, who: Who, run_id: m.Id) -> WhyDocument:
    """Why a run does not go on, or why it failed; and why each of its tasks is where it is, by name."""
    parts = parts_of(request)
    row = desk.find(parts, who, run_id)
    body = workflows.show(parts, who, row.project, row.name, row.version).definition
    with parts.database.read() as connection:
        tasks = instances.tasks(connection, row.id, row.run)
    found = causes.reasons(parts, who, row, body, tasks, [each.name for each in tasks])
    cause = [CauseRow(task=each.task, why=each.text) for each in causes.of_run(parts, row, tasks, found)]
    return WhyDocument(cause=cause, tasks=found)


@router.post("/runs/{run_id}:{action}", status_code=202)
def act(
    *,
    request: Request,
    who: Who,
    run_id: m.Id,
    action: Annotated[str, Path(pattern="^[a-z-]{1,30}$", description="pause, resume, stop, recover or rerun")],
    given: m.RecoverRequest | None = None,
    key: m.UniqueKey = None,
) -> m.AskedDocument:
    """Ask something of a run. What its state does not take is a conflict that names what it would."""
    parts = parts_of(request)
    asked = given or m.RecoverRequest()
    made = desk.act(parts, who, run_id, action, start_from=asked.start_from, no_cache=asked.no_cache, unique_key=key)
    return _told(parts, made)


@router.get("/tasks/{task_id}")
def get_task(*, request: Request, who: Who, task_id: m.Id) -> m.TaskDocument:
    """A task, its attempts, and why it is where it is."""
    parts = parts_of(request)
    task = desk.find_task(parts, who, task_id)
    row = desk.find(parts, who, task.instance)
    shown = workflows.show(parts, who, row.project, row.name, row.version)
    with parts.database.read() as connection:
        tried = instances.attempts_of_task(connection, task_id)
        tasks = kin.plain_tasks(connection, task.instance, task.run)
        counts = kin.element_counts(connection, task.instance, task.run)
    tasks += [task] if task.map_index >= 0 else []
    child = families.children(parts, who, [task.id]).get(task.id)
    waits = families.awaited(parts, who, row, shown.definition, task.name) if task.run == row.run else []
    why = causes.reasons(parts, who, row, shown.definition, tasks, [task.name]).get(task.name, "")
    return m.TaskDocument(
        **_fields(task, m.TaskRow),
        instance=task.instance,
        workflow=f"{row.project}.{row.name}",
        why=why,
        child=child.id if child is not None else None,
        awaited=[m.AwaitedRow(workflow=e.workflow, task=e.task, window=e.window, there=e.said) for e in waits],
        elements=counts.get(task.name, {}),
        attempts=[m.AttemptRow(**{**_fields(each, m.AttemptRow), "id": logs.name_of(each)}) for each in tried],
    )


@router.get("/tasks/{task_id}/elements")
def list_elements(
    *,
    request: Request,
    who: Who,
    task_id: m.Id,
    state: Annotated[str, Query(max_length=20)] = "",
    after: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="of higher indexes than this")] = None,
    limit: m.Limit = 100,
) -> list[m.TaskRow]:
    """The elements of a map, by their index."""
    wanted = state.replace("\x00", "")
    found = families.elements(parts_of(request), who, task_id, state=wanted, after=after, most=limit)
    return [m.TaskRow(**_fields(each, m.TaskRow)) for each in found]


@router.get("/runs/{run_id}/children")
def list_children(
    *, request: Request, who: Who, run_id: m.Id, before: m.Before = None, limit: m.Limit = 50
) -> list[m.ChildRow]:
    """The runs that tasks of a run started, the newest first."""
    found = families.children_of(parts_of(request), who, run_id, before=before, most=limit)
    return [m.ChildRow.model_validate(each) for each in found]


@router.post("/tasks/{task_id}:{action}", status_code=202)
def force(
    *,
    request: Request,
    who: Who,
    task_id: m.Id,
    action: Annotated[str, Path(pattern="^[a-z-]{1,30}$", description="force-success or force-start")],
    key: m.UniqueKey = None,
) -> m.AskedDocument:
    """Count a failed task as success, or start a queued one without a slot of its pool."""
    return _told(parts_of(request), desk.force(parts_of(request), who, task_id, action, unique_key=key))


@router.get("/attempts/{attempt_id}/log", tags=["logs"])
def read_log(
    *,
    request: Request,
    who: Who,
    attempt_id: AttemptId,
    offset: _Offset = 0,
    limit: Annotated[int, Query(ge=1, le=1_000_000)] = 65_536,
) -> m.LogDocument:
    """A part of a log, made harmless for screens; go on at ``next``."""
    parts = parts_of(request)
    part = logs.read(parts, logs.find(parts, who, attempt_id), offset, limit)
    return m.LogDocument(text=part.text, offset=part.start, next=part.next, ended=part.ended)


@router.get("/attempts/{attempt_id}/log/download", tags=["logs"], response_class=StreamingResponse)
def download_log(*, request: Request, who: Who, attempt_id: AttemptId) -> StreamingResponse:
    """The log as it was written, in a file."""
    parts = parts_of(request)
    found = logs.find(parts, who, attempt_id)
    headers = {
        "Content-Disposition": f'attachment; filename="attempt-{attempt_id}.log"',
        "Content-Security-Policy": "sandbox",
    }
    return StreamingResponse(logs.whole(parts, found), media_type="text/plain; charset=utf-8", headers=headers)


@router.get("/attempts/{attempt_id}/log/stream", tags=["logs"], response_class=StreamingResponse)
async def stream_log(*, request: Request, who: Who, attempt_id: AttemptId, offset: _Offset = 0) -> StreamingResponse:
    """The log as it grows: events with ``text`` and ``next``, and at last one called ``end``."""
    parts = parts_of(request)
    found = await logs.find_later(parts, who, attempt_id)
    live: Hub = request.app.state.site.live
    chunks = logs.follow(parts, found, offset, lambda: live.closed)
    may_read = partial(may_still, request, lambda now: logs.find(parts, now, attempt_id))
    stream = await live.opened(chunks, who.name, may_read)
    return StreamingResponse(stream, media_type="text/event-stream")


def _told(parts: Parts, asked: Asked) -> m.AskedDocument:
    with parts.database.read() as connection:
        row = instances.find_command(connection, asked.id)
    return m.AskedDocument(command=asked.id, is_new=asked.is_new, instance=row.instance if row else None)


def _fields(row: Any, model: type[Document]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in model.model_fields if hasattr(row, name)}
