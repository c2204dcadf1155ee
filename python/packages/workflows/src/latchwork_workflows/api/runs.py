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
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Hub, Who, may_still

router = APIRouter(prefix="/api/v1", tags=["runs"])
AttemptId = Annotated[str, Path(pattern=r"^[0-9]{1,19}\.[0-9]{1,9}\.[0-9]{1,19}$", description="task.number.claim")]
_Offset = Annotated[int, Query(ge=0, le=m.MOST_ID)]
_LogLimit = Annotated[int, Query(ge=1, le=1_000_000)]
_Action = Annotated[str, Path(pattern="^[a-z-]{1,30}$")]


@router.post("/workflows/{project}/{name}:start", status_code=202)
def start(
    *,
    request: Request,
    who: Who,
    project: m.NamePath,
    name: m.NamePath,
    given: StartRequest | None = None,
    key: m.UniqueKey = None,
) -> CommandSent:
    """Ask for a run of the newest version."""
    return runs.start(parts_of(request), who, project, name, given or StartRequest(), unique_key=key)


@router.get("/commands/{command_id}")
def get_command(*, request: Request, who: Who, command_id: m.Id) -> Command:
    """Return a command; a start names its run once a master has made it."""
    return commands.get(parts_of(request), who, command_id)


@router.post("/commands/{command_id}:stop", status_code=204)
def stop_command(*, request: Request, who: Who, command_id: m.Id) -> None:
    """Withdraw a start that no master has carried out yet, or stop the run that it led to."""
    commands.stop(parts_of(request), who, command_id)


@router.get("/runs")
def list_runs(
    *,
    request: Request,
    who: Who,
    project: Annotated[str, Query(max_length=100)] = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project")] = "",
    state: m.RunState = "",
    before: m.Before = None,
    limit: m.Limit = 50,
) -> list[Run]:
    """Return runs, the newest first."""
    chosen = {"project": project, "workflow": workflow, "state": state}
    return runs.listed(parts_of(request), who, **chosen, before=before, limit=limit)


@router.get("/runs/{run_id}")
def get_run(*, request: Request, who: Who, run_id: m.Id) -> RunDetail:
    """Return a run with the tasks of its newest round."""
    return runs.get(parts_of(request), who, run_id)


@router.get("/runs/{run_id}/tasks")
def list_tasks(
    *,
    request: Request,
    who: Who,
    run_id: m.Id,
    number: Annotated[
        int | None, Query(alias="round", ge=1, le=2**31 - 1, description="default: the newest round")
    ] = None,
) -> list[Task]:
    """Return the tasks of one round of a run, in the order of the definition."""
    return runs.tasks(parts_of(request), who, run_id, number)


@router.get("/runs/{run_id}/attempts")
def list_attempts(*, request: Request, who: Who, run_id: m.Id) -> list[Attempt]:
    """Return the attempts of all tasks and rounds of a run, the newest first."""
    return runs.attempts(parts_of(request), who, run_id)


@router.get("/runs/{run_id}/why")
def explain_run(*, request: Request, who: Who, run_id: m.Id) -> Explanation:
    """Return why a run waits or failed, and why each of its tasks is in its state."""
    return explanations.explain(parts_of(request), who, run_id)


@router.get("/runs/{run_id}/children")
def list_children(
    *, request: Request, who: Who, run_id: m.Id, before: m.Before = None, limit: m.Limit = 50
) -> list[ChildRun]:
    """Return the runs that tasks of a run started, the newest first."""
    return tasks.children_of_run(parts_of(request), who, run_id, before=before, limit=limit)


@router.post("/runs/{run_id}:{action}", status_code=202)
def act(
    *,
    request: Request,
    who: Who,
    run_id: m.Id,
    action: _Action,
    given: RecoverRequest | None = None,
    key: m.UniqueKey = None,
) -> CommandSent:
    """Pause, resume, stop, recover or rerun a run. An action that its state does not allow is a conflict."""
    how = (given or RecoverRequest()).model_dump()
    return runs.act(parts_of(request), who, run_id, action, **how, unique_key=key)


@router.get("/tasks/{task_id}")
def get_task(*, request: Request, who: Who, task_id: m.Id) -> TaskDetail:
    """Return a task with its attempts, and why it is in its state."""
    return tasks.get(parts_of(request), who, task_id)


@router.get("/tasks/{task_id}/elements")
def list_elements(
    *,
    request: Request,
    who: Who,
    task_id: m.Id,
    state: Annotated[str, Query(max_length=20)] = "",
    after: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="of higher indexes than this")] = None,
    limit: m.Limit = 100,
) -> list[Task]:
    """Return the elements of a map, sorted by index."""
    return tasks.elements(parts_of(request), who, task_id, state=state, after=after, limit=limit)


@router.post("/tasks/{task_id}:{action}", status_code=202)
def force(*, request: Request, who: Who, task_id: m.Id, action: _Action, key: m.UniqueKey = None) -> CommandSent:
    """Mark a failed task as success (`force-success`), or start a queued one without a slot (`force-start`)."""
    return tasks.force(parts_of(request), who, task_id, action, unique_key=key)


@router.get("/attempts/{attempt_id}/log", tags=["logs"])
def read_log(
    *, request: Request, who: Who, attempt_id: AttemptId, offset: _Offset = 0, limit: _LogLimit = 65_536
) -> LogText:
    """Return a part of a log as text that is safe to show. The next part begins at `next`."""
    parts = parts_of(request)
    return attempts.read(parts, attempts.find(parts, who, attempt_id), offset, limit)


@router.get("/attempts/{attempt_id}/log/raw", tags=["logs"], response_class=Response)
def read_raw_log(
    *, request: Request, who: Who, attempt_id: AttemptId, offset: _Offset = 0, limit: _LogLimit = 65_536
) -> Response:
    """Return a part of a log as it was written. `X-Log-Next` has the next offset, `X-Log-Ended` is 1 at the end."""
    parts = parts_of(request)
    found = attempts.part(parts, attempts.find(parts, who, attempt_id), offset, limit)
    headers = {"X-Log-Next": str(found.next), "X-Log-Ended": str(int(found.ended))}
    return Response(found.data, media_type="application/octet-stream", headers=headers)


@router.get("/attempts/{attempt_id}/log/download", tags=["logs"], response_class=StreamingResponse)
def download_log(*, request: Request, who: Who, attempt_id: AttemptId) -> StreamingResponse:
    """Return the log as it was written, as a file."""
    parts = parts_of(request)
    found = attempts.find(parts, who, attempt_id)
    headers = {
        "Content-Disposition": f'attachment; filename="attempt-{attempt_id}.log"',
        "Content-Security-Policy": "sandbox",
    }
    return StreamingResponse(attempts.whole(parts, found), media_type="text/plain; charset=utf-8", headers=headers)


@router.get("/attempts/{attempt_id}/log/stream", tags=["logs"], response_class=StreamingResponse)
async def stream_log(*, request: Request, who: Who, attempt_id: AttemptId, offset: _Offset = 0) -> StreamingResponse:
    """Stream the log as it grows: events with `text` and `next`, and at last one called `end`."""
    parts = parts_of(request)
    found = await attempts.find_later(parts, who, attempt_id)
    live: Hub = request.app.state.site.live
    chunks = attempts.follow(parts, found, offset, lambda: live.closed)
    may_read = partial(may_still, request, lambda now: attempts.find(parts, now, attempt_id))
    stream = await live.opened(chunks, who.name, may_read)
    return StreamingResponse(stream, media_type="text/event-stream")
