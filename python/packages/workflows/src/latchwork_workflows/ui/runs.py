"""Pages of runs: the list, a run, a task, and the actions on them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.api.models import MAX_ID, Id
from latchwork_workflows.api.runs import AttemptId
from latchwork_workflows.db import history, related_runs, run_queries, workflow_queries
from latchwork_workflows.schemas.tasks import Attempt
from latchwork_workflows.services import attempts, explanations, runs, tasks, workflows
from latchwork_workflows.services.context import ServiceContext, get_context, require_visible
from latchwork_workflows.services.runs import to_attempt, to_run
from latchwork_workflows.state import RunState, get_map_name, list_possible_commands
from latchwork_workflows.ui.dag_svg import MAX_DRAWN, draw_workflow_svg
from latchwork_workflows.ui.page_helpers import build_url, paginate, redirect, render_page
from latchwork_workflows.web import Bar, CurrentUser, GanttChart, Identity, Role, create_secret, draw_share_bar

router = APIRouter()
_MAX = 50
_MAX_TASKS = 200
_MAX_ROWS = 60
_MAX_ELEMENTS = 100
_LOG_PART = 65_536
_STATES = [each.value for each in RunState]
#: States from left to right in a bar: done, needing attention, active. The rest waits.
_TASK_STATES = (
    *("success", "forced_success", "skipped", "failure", "killed", "paused"),
    *("running", "retry_wait", "submitted", "ready", "delayed", "waiting"),
)
#: The states in which a task explains why it is not done.
_OPEN = {"waiting", "delayed", "ready", "submitted", "retry_wait", "running", "paused", "failure"}
#: The actions of buttons besides those of ``services``.
_RERUN_FRESH = "rerun-no-cache"
_FROM_HERE = "recover-from"
Key = Annotated[str, Form(min_length=1, max_length=200)]


@router.get("/runs", response_class=HTMLResponse)
def list_runs(
    *,
    request: Request,
    user: CurrentUser,
    state: Annotated[str, Query(max_length=20)] = "",
    project: Annotated[str, Query(max_length=100)] = "",
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> HTMLResponse:
    """Show runs, newest first. A state or a project can be selected."""
    context = get_context(request)
    wanted = state if state in _STATES else ""
    rows = runs.list_runs(
        context, user, project=project.replace("\x00", ""), state=wanted, before=before, limit=_MAX + 1
    )
    with context.database.read() as connection:
        among = user.get_projects()
        projects = [each for each in workflow_queries.list_projects(connection) if among is None or each in among]
    shown, more = paginate(rows, _MAX, "/runs", state=wanted, project=project)
    chosen = {"state": wanted, "project": project, "before": before}
    return render_page(request, user, "runs.html", rows=shown, older=more, states=_STATES, projects=projects, **chosen)


@router.get("/runs/{run_id}", response_class=HTMLResponse)
def show_run(
    request: Request, user: CurrentUser, run_id: Id, first: Annotated[int, Query(alias="tasks")] = 0, draw: int = 0
) -> HTMLResponse:
    """Show a run with its tasks, its status and its events."""
    context, now = get_context(request), time.time()
    row = runs.find_run_row(context, user, run_id)
    body = workflows.get_workflow(context, user, row.project, row.name, row.version).definition
    with context.database.read() as connection:
        all_tasks = related_runs.list_tasks_without_elements(connection, row.id, row.round)
        elements = related_runs.count_elements(connection, row.id, row.round)
        tried = [
            to_attempt(each)
            for each in run_queries.list_attempts_of_run(connection, row.id, round_number=row.round, limit=500)
        ]
        events = history.list_events_of_run(connection, row.id, limit=60)
        asked = run_queries.list_unfinished_commands(connection, row.id)
    place = {task.name: number for number, task in enumerate(body.tasks)}
    all_tasks.sort(key=lambda each: place.get(each.name, 0))
    start = max(0, min(first, len(all_tasks)))
    shown = all_tasks[start : start + _MAX_TASKS]
    why = explanations.explain_tasks(context, user, row, body, all_tasks, _select_tasks_to_explain(all_tasks, shown))
    states = {each.name: each.state for each in all_tasks}
    is_drawn = len(body.tasks) <= MAX_DRAWN or bool(draw)
    links = {each.name: f"/tasks/{each.id}" for each in all_tasks}
    return render_page(
        request,
        user,
        "run.html",
        row=to_run(row),
        ending=row.ending,
        body=body,
        tasks=shown,
        total=len(all_tasks),
        start=start,
        following=start + _MAX_TASKS if start + _MAX_TASKS < len(all_tasks) else 0,
        why=why,
        counts=Counter(sorted((each.state for each in all_tasks), key=_TASK_STATES.index)),
        cause=explanations.explain_causes(context, row, all_tasks, why),
        can_cache=any(task.cache_s is not None for task in body.tasks),
        numbers={each.name: each.id for each in all_tasks},
        newest={each.task: each.id for each in reversed(tried) if each.has_log},
        kinds={task.name: task.type for task in body.tasks},
        svg=draw_workflow_svg(body, states, links) if is_drawn else None,
        parent=tasks.find_parent_task(context, user, row),
        children=tasks.load_child_runs(context, user, [each.id for each in shown]),
        elements={name: (counts, build_map_progress_bar(counts)) for name, counts in elements.items()},
        chart=_draw_timeline(tried, place, now),
        events=events,
        asked=asked,
        possible=list_possible_commands(RunState(row.state)) if user.has_role(Role.OPERATOR, row.project) else (),
        key=create_secret(),
    )


def _select_tasks_to_explain(tasks: list[Any], shown: list[Any]) -> set[str]:
    """Return the names of the tasks whose state is explained: up to five failed ones, and the unfinished ones on the
    page.

    Args:
        tasks: All tasks of the run.
        shown: The tasks on the page.
    """
    failed = [each.name for each in tasks if each.state == "failure"][:5]
    return {*failed, *(each.name for each in shown if each.state in _OPEN or _runs_on_master(each))}


def _runs_on_master(task: Any) -> bool:
    """Return whether the master runs a task itself, without a worker."""
    return bool(task.state == "running" and task.queue_key is None)


def _draw_timeline(tried: list[Attempt], place: dict[str, int], now: float) -> object:
    """Return a timeline of the tasks that have started, in the order of their start. Limited to the last rows.

    Args:
        tried: The attempts of the run.
        place: The position of each task in the definition, by task name.
        now: Seconds since the epoch.
    """
    by_task: dict[str, list[Bar]] = {}
    for each in sorted(tried, key=lambda one: one.started_at):
        title = f"{each.name}, attempt {each.n}: {each.outcome or 'running'} on {each.worker}"
        kind = each.outcome or "running"
        bar = Bar(each.started_at, each.ended_at, kind, title, f"/attempts/{each.id}")
        by_task.setdefault(each.name, []).append(bar)
    rows = sorted(by_task.items(), key=lambda pair: (pair[1][0].start, place.get(get_map_name(pair[0]), 0)))
    return GanttChart(rows[-_MAX_ROWS:]).svg(now)


@router.post("/runs/{run_id}/action")
def request_run_action(
    request: Request, user: CurrentUser, run_id: Id, action: Annotated[str, Form(max_length=30)], key: Key
) -> Response:
    """Request an action on a run, and redirect to a page that shows the request and its result."""
    no_cache = action == _RERUN_FRESH
    action = "rerun" if no_cache else action
    runs.request_action(get_context(request), user, run_id, action, no_cache=no_cache, unique_key=f"page-{key}")
    return redirect(f"/runs/{run_id}")


@router.get("/tasks/{task_id}", response_class=HTMLResponse)
def show_task(
    *,
    request: Request,
    user: CurrentUser,
    task_id: Id,
    state: Annotated[str, Query(max_length=20)] = "",
    index: Annotated[int | None, Query(ge=0, le=2**31 - 1, alias="after")] = None,
) -> HTMLResponse:
    """Show a task with its status, attempts and outputs. For a map task, also show a page of its elements."""
    context = get_context(request)
    task = tasks.find_task_row(context, user, task_id)
    row = runs.find_run_row(context, user, task.run_id)
    body = workflows.get_workflow(context, user, row.project, row.name, row.version).definition
    with context.database.read() as connection:
        tried = [to_attempt(each) for each in run_queries.list_attempts_of_task(connection, task_id)]
        others = related_runs.list_tasks_without_elements(connection, task.run_id, task.round)
        counts = related_runs.count_elements(connection, task.run_id, task.round).get(task.name, {})
    if task.map_index >= 0:
        others.append(task)
    spec = next((each for each in body.tasks if each.name == get_map_name(task.name)), None)
    states = {each.name: each for each in others}
    after = [states[each] for each in (spec.after if spec else ()) if each in states]
    behind = [states[each.name] for each in body.tasks if task.name in each.after and each.name in states]
    why = explanations.explain_tasks(context, user, row, body, others, [task.name]).get(task.name, "")
    values: dict[str, Any] = {"why": why}
    values |= {"counts": counts, **_load_elements(context, user, task, state if state in _TASK_STATES else "", index)}
    values |= {
        "children": tasks.load_child_runs(context, user, [task.id, *(each.id for each in values["elements"])]),
        "awaited": tasks.list_awaited_runs(context, user, row, body, task.name) if task.round == row.round else [],
        "bar": build_map_progress_bar(counts),
        "of_map": states.get(get_map_name(task.name)) if task.map_index >= 0 else None,
    }
    may_ask = user.has_role(Role.OPERATOR, row.project) and task.round == row.round
    return render_page(
        request,
        user,
        "task.html",
        task=task,
        row=row,
        spec=spec,
        tried=tried,
        after=after,
        behind=behind,
        may_ask=may_ask,
        may_recover=may_ask and task.map_index < 0 and "recover" in list_possible_commands(RunState(row.state)),
        key=create_secret(),
        **values,
    )


def _load_elements(context: ServiceContext, user: Identity, task: Any, state: str, after: int | None) -> dict[str, Any]:
    """Return the template values for a page of the elements of a map task. Empty for other tasks.

    Args:
        context: The service context of this process.
        user: The signed-in user.
        task: The task.
        state: Show only elements in this state. Empty: any state.
        after: Show only elements with a higher index, for the next page.
    """
    rows = []
    if task.map_index < 0:
        rows = tasks.list_elements(context, user, task.id, state=state, after=after, limit=_MAX_ELEMENTS + 1)
    shown = rows[:_MAX_ELEMENTS]
    more = build_url(f"/tasks/{task.id}", state=state, after=shown[-1].map_index) if len(rows) > _MAX_ELEMENTS else ""
    return {"elements": shown, "state": state, "is_part": bool(state) or after is not None, "more": more}


def build_map_progress_bar(counts: Mapping[str, int]) -> object:
    """Return a progress bar for the elements of a map task.

    Args:
        counts: The number of elements in each state.
    """
    done = sum(counts.get(each, 0) for each in ("success", "forced_success", "skipped"))
    context = [(each, counts.get(each, 0)) for each in _TASK_STATES]
    return draw_share_bar(context, f"{done} of {sum(counts.values())} are done")


@router.post("/tasks/{task_id}/action")
def request_task_action(
    request: Request, user: CurrentUser, task_id: Id, action: Annotated[str, Form(max_length=30)], key: Key
) -> Response:
    """Request an action on a task, such as marking it as successful or retrying its run from this task."""
    if action == _FROM_HERE:
        context = get_context(request)
        task = tasks.find_task_row(context, user, task_id)
        runs.request_action(context, user, task.run_id, "recover", start_from=[task.name], unique_key=f"page-{key}")
        return redirect(f"/runs/{task.run_id}")
    tasks.request_task_action(get_context(request), user, task_id, action, unique_key=f"page-{key}")
    return redirect(f"/tasks/{task_id}")


@router.get("/attempts/{attempt_id}", response_class=HTMLResponse)
def show_attempt(
    request: Request,
    user: CurrentUser,
    attempt_id: AttemptId,
    offset: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
) -> HTMLResponse:
    """Show the end of an attempt's log, or the part of the log at an offset."""
    context = get_context(request)
    found = attempts.find_attempt(context, user, attempt_id)
    row = runs.find_run_row(context, user, found.task.run_id)
    part = None
    if context.logs is not None:
        part = (
            attempts.read_log_tail(context, found, _LOG_PART)
            if offset is None
            else attempts.read_log(context, found, offset, _LOG_PART)
        )
    values = {"attempt": found.attempt, "task": found.task, "row": row, "part": part, "attempt_id": attempt_id}
    earlier = max(0, part.offset - _LOG_PART) if part is not None and part.offset else None
    return render_page(request, user, "attempt.html", earlier=earlier, is_end=offset is None, **values)


@router.get("/commands/{command_id}", response_class=HTMLResponse)
def redirect_to_result(request: Request, user: CurrentUser, command_id: Id) -> Response:
    """Redirect to the run or backfill that a command has created. Until it exists, show a page that waits for it."""
    context = get_context(request)
    with context.database.read() as connection:
        command = run_queries.find_command(connection, command_id)
        code = command.args.get("code") if command is not None and isinstance(command.args, dict) else None
        found = workflow_queries.find_workflow_by_code(connection, code) if isinstance(code, int) else None
        workflow = require_visible(user, found, f"command {command_id}")
    if command is not None and command.backfill is not None:
        return redirect(f"/backfills/{command.backfill}")
    if command is not None and command.run_id is not None:
        return redirect(f"/runs/{command.run_id}")
    return render_page(request, user, "command.html", command=command, workflow=workflow)
