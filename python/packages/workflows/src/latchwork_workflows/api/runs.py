"""Runs, tasks, attempts, their logs, and commands."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from latchwork_workflows.api import models as m
from latchwork_workflows.schemas.commands import Command, CommandSent
from latchwork_workflows.schemas.runs import ChildRun, Explanation, RecoverRequest, Run, RunDetail, StartRequest
from latchwork_workflows.schemas.tasks import Attempt, LogText, Task, TaskDetail
from latchwork_workflows.services import attempts, commands, explanations, runs, tasks
from latchwork_workflows.services.context import get_context
from latchwork_workflows.web import CurrentUser, LiveHub, is_still_allowed

router = APIRouter(prefix="/api/v1", tags=["runs"])
AttemptId = Annotated[str, Path(pattern=r"^[0-9]{1,19}\.[0-9]{1,9}\.[0-9]{1,19}$", description="task.number.claim")]
_Offset = Annotated[int, Query(ge=0, le=m.MAX_ID)]
_LogLimit = Annotated[int, Query(ge=1, le=1_000_000)]
_Action = Annotated[str, Path(pattern="^[a-z-]{1,30}$")]


@router.post("/workflows/{project}/{name}:start", status_code=202)
def start_run(
    *,
    request: Request,
    user: CurrentUser,
    project: m.NamePath,
    name: m.NamePath,
    body: StartRequest | None = None,
    key: m.UniqueKey = None,
) -> CommandSent:
    """Request a run of the newest version of a workflow.

    Once a master has created the run, the returned command has its ID.
    """
    return runs.request_run(get_context(request), user, project, name, body or StartRequest(), unique_key=key)


@router.get("/commands/{command_id}")
def get_command(*, request: Request, user: CurrentUser, command_id: m.Id) -> Command:
    """Return a command to a master. Once a start command was executed, the ID of the run is included."""
    return commands.get_command(get_context(request), user, command_id)


@router.post("/commands/{command_id}:stop", status_code=204)
def stop_command(*, request: Request, user: CurrentUser, command_id: m.Id) -> None:
    """Withdraw a start command that no master has executed yet, or stop the run that it created."""
    commands.withdraw_or_stop(get_context(request), user, command_id)


@router.get("/runs")
def list_runs(
    *,
    request: Request,
    user: CurrentUser,
    project: Annotated[str, Query(max_length=100)] = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project")] = "",
    state: m.RunState = "",
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[Run]:
    """List runs, newest first."""
    chosen = {"project": project, "workflow": workflow, "state": state}
    return runs.list_runs(get_context(request), user, **chosen, before=before, limit=limit)


@router.get("/runs/{run_id}")
def get_run(*, request: Request, user: CurrentUser, run_id: m.Id) -> RunDetail:
    """Return a run with its current tasks."""
    return runs.get_run(get_context(request), user, run_id)


@router.get("/runs/{run_id}/tasks")
def list_tasks(
    *,
    request: Request,
    user: CurrentUser,
    run_id: m.Id,
    number: Annotated[
        int | None, Query(alias="round", ge=1, le=2**31 - 1, description="default: the newest round")
    ] = None,
) -> list[Task]:
    """List the tasks of a run, in the order of the definition. A rerun starts a new round with its own tasks."""
    return runs.list_tasks(get_context(request), user, run_id, number)


@router.get("/runs/{run_id}/attempts")
def list_attempts(*, request: Request, user: CurrentUser, run_id: m.Id) -> list[Attempt]:
    """List the attempts of all tasks of a run, including those before a rerun, newest first."""
    return runs.list_attempts(get_context(request), user, run_id)


@router.get("/runs/{run_id}/why")
def explain_run(*, request: Request, user: CurrentUser, run_id: m.Id) -> Explanation:
    """Explain why a run waits or has failed, and why each of its tasks is in its state."""
    return explanations.explain_run(get_context(request), user, run_id)


@router.get("/runs/{run_id}/children")
def list_children(
    *, request: Request, user: CurrentUser, run_id: m.Id, before: m.Before = None, limit: m.Limit = 50
) -> list[ChildRun]:
    """List the runs that tasks of a run started, newest first."""
    return tasks.list_children(get_context(request), user, run_id, before=before, limit=limit)


@router.post("/runs/{run_id}:{action}", status_code=202)
def request_run_action(
    *,
    request: Request,
    user: CurrentUser,
    run_id: m.Id,
    action: _Action,
    body: RecoverRequest | None = None,
    key: m.UniqueKey = None,
) -> CommandSent:
    """Pause, resume, stop, recover or rerun a run.

    If the state of the run does not allow the action, the response is 409 (conflict).
    """
    how = (body or RecoverRequest()).model_dump()
    return runs.request_action(get_context(request), user, run_id, action, **how, unique_key=key)


@router.get("/tasks/{task_id}")
def get_task(*, request: Request, user: CurrentUser, task_id: m.Id) -> TaskDetail:
    """Return a task with its attempts and an explanation of its state."""
    return tasks.get_task(get_context(request), user, task_id)


@router.get("/tasks/{task_id}/elements")
def list_elements(
    *,
    request: Request,
    user: CurrentUser,
    task_id: m.Id,
    state: Annotated[str, Query(max_length=20)] = "",
    after: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="only elements with higher indexes")] = None,
    limit: m.Limit = 100,
) -> list[Task]:
    """List the elements of a map task, sorted by index."""
    return tasks.list_elements(get_context(request), user, task_id, state=state, after=after, limit=limit)


@router.post("/tasks/{task_id}:{action}", status_code=202)
def request_task_action(
    *, request: Request, user: CurrentUser, task_id: m.Id, action: _Action, key: m.UniqueKey = None
) -> CommandSent:
    """Mark a failed task as successful (`force-success`), or start a queued task without waiting for a pool slot
    (`force-start`).
    """
    return tasks.request_task_action(get_context(request), user, task_id, action, unique_key=key)


@router.get("/attempts/{attempt_id}/log", tags=["logs"])
def read_log(
    *, request: Request, user: CurrentUser, attempt_id: AttemptId, offset: _Offset = 0, limit: _LogLimit = 65_536
) -> LogText:
    """Return a part of a log as text that is safe to display. `next` is the offset of the next part."""
    context = get_context(request)
    return attempts.read_log(context, attempts.find_attempt(context, user, attempt_id), offset, limit)


@router.get("/attempts/{attempt_id}/log/raw", tags=["logs"], response_class=Response)
def read_raw_log(
    *, request: Request, user: CurrentUser, attempt_id: AttemptId, offset: _Offset = 0, limit: _LogLimit = 65_536
) -> Response:
    """Return a part of a log as the bytes that were written.

    `X-Log-Next` is the next offset. `X-Log-Ended` is 1 at the end.
    """
    context = get_context(request)
    found = attempts.read_raw_log(context, attempts.find_attempt(context, user, attempt_id), offset, limit)
    headers = {"X-Log-Next": str(found.next), "X-Log-Ended": str(int(found.ended))}
    return Response(found.data, media_type="application/octet-stream", headers=headers)


@router.get("/attempts/{attempt_id}/log/download", tags=["logs"], response_class=StreamingResponse)
def download_log(*, request: Request, user: CurrentUser, attempt_id: AttemptId) -> StreamingResponse:
    """Download the whole log of an attempt as a file."""
    context = get_context(request)
    found = attempts.find_attempt(context, user, attempt_id)
    headers = {
        "Content-Disposition": f'attachment; filename="attempt-{attempt_id}.log"',
        "Content-Security-Policy": "sandbox",
    }
    return StreamingResponse(
        attempts.download_log(context, found), media_type="text/plain; charset=utf-8", headers=headers
    )


@router.get("/attempts/{attempt_id}/log/stream", tags=["logs"], response_class=StreamingResponse)
async def stream_log(
    *, request: Request, user: CurrentUser, attempt_id: AttemptId, offset: _Offset = 0
) -> StreamingResponse:
    """Stream a log as server-sent events while it grows: events with `text` and `next`, and finally an event `end`."""
    context = get_context(request)
    found = await attempts.find_attempt_async(context, user, attempt_id)
    live: LiveHub = request.app.state.site.live
    chunks = attempts.follow_log(context, found, offset, lambda: live.closed)
    may_read = partial(is_still_allowed, request, lambda now: attempts.find_attempt(context, now, attempt_id))
    stream = await live.guard_stream(chunks, user.name, may_read)
    return StreamingResponse(stream, media_type="text/event-stream")
