"""Pages of runs: the list, a run, a task, and the actions on them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.api.models import MOST_ID, Id
from latchwork_workflows.api.runs import AttemptId
from latchwork_workflows.db import history, related_runs, run_queries, workflow_queries
from latchwork_workflows.schemas.tasks import Attempt
from latchwork_workflows.services import attempts, explanations, runs, tasks, workflows
from latchwork_workflows.services.parts import Parts, parts_of, seen
from latchwork_workflows.services.runs import attempt_of, run_of
from latchwork_workflows.state import InstanceState, base_of, possible
from latchwork_workflows.ui.dag_svg import MOST_DRAWN, dag_svg
from latchwork_workflows.ui.frame import address, led, older, page
from latchwork_workflows.web import Bar, Bars, Identity, Role, Who, new_secret, shares

router = APIRouter()
_MOST = 50
_MOST_TASKS = 200
_MOST_ROWS = 60
_MOST_ELEMENTS = 100
_LOG_PART = 65_536
_STATES = [each.value for each in InstanceState]
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
    who: Who,
    state: Annotated[str, Query(max_length=20)] = "",
    project: Annotated[str, Query(max_length=100)] = "",
    before: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
) -> HTMLResponse:
    """Show runs, newest first."""
    parts = parts_of(request)
    wanted = state if state in _STATES else ""
    rows = runs.listed(parts, who, project=project.replace("\x00", ""), state=wanted, before=before, limit=_MOST + 1)
    with parts.database.read() as connection:
        among = who.projects()
        projects = [each for each in workflow_queries.projects(connection) if among is None or each in among]
    shown, more = older(rows, _MOST, "/runs", state=wanted, project=project)
    chosen = {"state": wanted, "project": project, "before": before}
    return page(request, who, "runs.html", rows=shown, older=more, states=_STATES, projects=projects, **chosen)


@router.get("/runs/{run_id}", response_class=HTMLResponse)
def show_run(
    request: Request, who: Who, run_id: Id, first: Annotated[int, Query(alias="tasks")] = 0, draw: int = 0
) -> HTMLResponse:
    """Show a run: its tasks, its status and its events."""
    parts, now = parts_of(request), time.time()
    row = runs.row_of(parts, who, run_id)
    body = workflows.get(parts, who, row.project, row.name, row.version).definition
    with parts.database.read() as connection:
        all_tasks = related_runs.plain_tasks(connection, row.id, row.run)
        elements = related_runs.element_counts(connection, row.id, row.run)
        tried = [attempt_of(each) for each in run_queries.attempts(connection, row.id, run=row.run, most=500)]
        events = history.of_instance(connection, row.id, most=60)
        asked = run_queries.open_commands(connection, row.id)
    place = {task.name: number for number, task in enumerate(body.tasks)}
    all_tasks.sort(key=lambda each: place.get(each.name, 0))
    start = max(0, min(first, len(all_tasks)))
    shown = all_tasks[start : start + _MOST_TASKS]
    why = explanations.reasons(parts, who, row, body, all_tasks, _asked(all_tasks, shown))
    states = {each.name: each.state for each in all_tasks}
    is_drawn = len(body.tasks) <= MOST_DRAWN or bool(draw)
    links = {each.name: f"/tasks/{each.id}" for each in all_tasks}
    return page(
        request,
        who,
        "run.html",
        row=run_of(row),
        ending=row.ending,
        body=body,
        tasks=shown,
        total=len(all_tasks),
        start=start,
        following=start + _MOST_TASKS if start + _MOST_TASKS < len(all_tasks) else 0,
        why=why,
        counts=Counter(sorted((each.state for each in all_tasks), key=_TASK_STATES.index)),
        cause=explanations.of_run(parts, row, all_tasks, why),
        can_cache=any(task.cache_s is not None for task in body.tasks),
        numbers={each.name: each.id for each in all_tasks},
        newest={each.task: each.id for each in reversed(tried) if each.has_log},
        kinds={task.name: task.type for task in body.tasks},
        svg=dag_svg(body, states, links) if is_drawn else None,
        parent=tasks.parent(parts, who, row),
        children=tasks.children(parts, who, [each.id for each in shown]),
        elements={name: (counts, element_bar(counts)) for name, counts in elements.items()},
        chart=_chart(tried, place, now),
        events=events,
        asked=asked,
        possible=possible(InstanceState(row.state)) if who.may(Role.OPERATOR, row.project) else (),
        key=new_secret(),
    )


def _asked(tasks: list[Any], shown: list[Any]) -> set[str]:
    """Return the tasks to explain: open ones on the page, and up to five failed ones anywhere."""
    failed = [each.name for each in tasks if each.state == "failure"][:5]
    return {*failed, *(each.name for each in shown if each.state in _OPEN or _is_held(each))}


def _is_held(task: Any) -> bool:
    """Return whether the master of a task runs it itself."""
    return bool(task.state == "running" and task.queue_key is None)


def _chart(tried: list[Attempt], place: dict[str, int], now: float) -> object:
    """Return a timeline with one row per task that was tried, in the order of the start. Limited to the last rows."""
    by_task: dict[str, list[Bar]] = {}
    for each in sorted(tried, key=lambda one: one.started_at):
        title = f"{each.name}, attempt {each.n}: {each.outcome or 'running'} on {each.worker}"
        kind = each.outcome or "running"
        bar = Bar(each.started_at, each.ended_at, kind, title, f"/attempts/{each.id}")
        by_task.setdefault(each.name, []).append(bar)
    rows = sorted(by_task.items(), key=lambda pair: (pair[1][0].start, place.get(base_of(pair[0]), 0)))
    return Bars(rows[-_MOST_ROWS:]).svg(now)


@router.post("/runs/{run_id}/ask")
def ask_run(request: Request, who: Who, run_id: Id, action: Annotated[str, Form(max_length=30)], key: Key) -> Response:
    """Request an action on a run. The page shows the request and its result."""
    no_cache = action == _RERUN_FRESH
    action = "rerun" if no_cache else action
    runs.act(parts_of(request), who, run_id, action, no_cache=no_cache, unique_key=f"page-{key}")
    return led(f"/runs/{run_id}")


@router.get("/tasks/{task_id}", response_class=HTMLResponse)
def show_task(
    *,
    request: Request,
    who: Who,
    task_id: Id,
    state: Annotated[str, Query(max_length=20)] = "",
    index: Annotated[int | None, Query(ge=0, le=2**31 - 1, alias="after")] = None,
) -> HTMLResponse:
    """Show a task: its status, attempts and outputs. For a map, also a page of its elements."""
    parts = parts_of(request)
    task = tasks.row_of(parts, who, task_id)
    row = runs.row_of(parts, who, task.instance)
    body = workflows.get(parts, who, row.project, row.name, row.version).definition
    with parts.database.read() as connection:
        tried = [attempt_of(each) for each in run_queries.attempts_of_task(connection, task_id)]
        others = related_runs.plain_tasks(connection, task.instance, task.run)
        counts = related_runs.element_counts(connection, task.instance, task.run).get(task.name, {})
    if task.map_index >= 0:
        others.append(task)
    spec = next((each for each in body.tasks if each.name == base_of(task.name)), None)
    states = {each.name: each for each in others}
    after = [states[each] for each in (spec.after if spec else ()) if each in states]
    behind = [states[each.name] for each in body.tasks if task.name in each.after and each.name in states]
    why = explanations.reasons(parts, who, row, body, others, [task.name]).get(task.name, "")
    values: dict[str, Any] = {"why": why}
    values |= {"counts": counts, **_elements(parts, who, task, state if state in _TASK_STATES else "", index)}
    values |= {
        "children": tasks.children(parts, who, [task.id, *(each.id for each in values["elements"])]),
        "awaited": tasks.awaited(parts, who, row, body, task.name) if task.run == row.run else [],
        "bar": element_bar(counts),
        "of_map": states.get(base_of(task.name)) if task.map_index >= 0 else None,
    }
    may_ask = who.may(Role.OPERATOR, row.project) and task.run == row.run
    return page(
        request,
        who,
        "task.html",
        task=task,
        row=row,
        spec=spec,
        tried=tried,
        after=after,
        behind=behind,
        may_ask=may_ask,
        may_recover=may_ask and task.map_index < 0 and "recover" in possible(InstanceState(row.state)),
        key=new_secret(),
        **values,
    )


def _elements(parts: Parts, who: Identity, task: Any, state: str, after: int | None) -> dict[str, Any]:
    """Return a page of the elements of a map. Empty for other tasks."""
    rows = []
    if task.map_index < 0:
        rows = tasks.elements(parts, who, task.id, state=state, after=after, limit=_MOST_ELEMENTS + 1)
    shown = rows[:_MOST_ELEMENTS]
    more = address(f"/tasks/{task.id}", state=state, after=shown[-1].map_index) if len(rows) > _MOST_ELEMENTS else ""
    return {"elements": shown, "state": state, "is_part": bool(state) or after is not None, "more": more}


def element_bar(counts: Mapping[str, int]) -> object:
    """Return the progress of a map as a bar."""
    done = sum(counts.get(each, 0) for each in ("success", "forced_success", "skipped"))
    parts = [(each, counts.get(each, 0)) for each in _TASK_STATES]
    return shares(parts, f"{done} of {sum(counts.values())} are done")


@router.post("/tasks/{task_id}/ask")
def ask_task(
    request: Request, who: Who, task_id: Id, action: Annotated[str, Form(max_length=30)], key: Key
) -> Response:
    """Request an action on a task, or retry its run from this task."""
    if action == _FROM_HERE:
        parts = parts_of(request)
        task = tasks.row_of(parts, who, task_id)
        runs.act(parts, who, task.instance, "recover", start_from=[task.name], unique_key=f"page-{key}")
        return led(f"/runs/{task.instance}")
    tasks.force(parts_of(request), who, task_id, action, unique_key=f"page-{key}")
    return led(f"/tasks/{task_id}")


@router.get("/attempts/{attempt_id}", response_class=HTMLResponse)
def show_attempt(
    request: Request, who: Who, attempt_id: AttemptId, offset: Annotated[int | None, Query(ge=0, le=MOST_ID)] = None
) -> HTMLResponse:
    """Show the end of the log, or the part at an offset."""
    parts = parts_of(request)
    found = attempts.find(parts, who, attempt_id)
    row = runs.row_of(parts, who, found.task.instance)
    part = None
    if parts.logs is not None:
        part = (
            attempts.tail(parts, found, _LOG_PART) if offset is None else attempts.read(parts, found, offset, _LOG_PART)
        )
    values = {"attempt": found.attempt, "task": found.task, "row": row, "part": part, "attempt_id": attempt_id}
    earlier = max(0, part.offset - _LOG_PART) if part is not None and part.offset else None
    return page(request, who, "attempt.html", earlier=earlier, is_end=offset is None, **values)


@router.get("/commands/{command_id}", response_class=HTMLResponse)
def show_command(request: Request, who: Who, command_id: Id) -> Response:
    """Redirect to the run or backfill that a command has started, once it exists."""
    parts = parts_of(request)
    with parts.database.read() as connection:
        command = run_queries.find_command(connection, command_id)
        code = command.args.get("code") if command is not None and isinstance(command.args, dict) else None
        found = workflow_queries.by_code(connection, code) if isinstance(code, int) else None
        workflow = seen(who, found, f"command {command_id}")
    if command is not None and command.backfill is not None:
        return led(f"/backfills/{command.backfill}")
    if command is not None and command.instance is not None:
        return led(f"/runs/{command.instance}")
    return page(request, who, "command.html", command=command, workflow=workflow)
