"""Backfills: run one workflow for many dates. Start, read and stop them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork_workflows.db import backfills, workflow_queries
from latchwork_workflows.db.commands import CommandType, SentCommand, is_unique_key_used, send_command
from latchwork_workflows.db.definitions import load_definition
from latchwork_workflows.db.history import record_event
from latchwork_workflows.db.related_runs import DependentWorkflow
from latchwork_workflows.db.related_runs import list_dependent_workflows as of_workflow
from latchwork_workflows.model.backfill_dates import DateRange, list_schedule_times
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.schemas.backfills import Backfill, BackfillRequest, BackfillRun
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.services.context import ServiceContext, list_visible_codes, require_role, require_visible
from latchwork_workflows.services.runs import check_start, find_workflow_to_start, send_start, to_command_sent
from latchwork_workflows.state.backfills import STOPPABLE, BackfillState
from latchwork_workflows.web import HttpProblem, Identity, Role

Row: TypeAlias = Any


def request_backfill(
    context: ServiceContext,
    user: Identity,
    project: str,
    name: str,
    request: BackfillRequest,
    *,
    unique_key: str | None = None,
) -> CommandSent:
    """Request a backfill of a workflow, which a master then creates.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such workflow, 422
            (invalid) with the invalid field.
        WrongState: The workflow is offline.
        KeyReused: The key was used before, for another command.
    """
    row, body = find_workflow_to_start(context, user, project, name)
    check_start(body, request.params, priority=request.priority)
    dates = _dates(request)
    wanted = _schedule_times(dates, body)
    args = {
        **_build_command_args(request, row, wanted),
        "params": dict(request.params),
        "priority": request.priority,
        "dependents": request.dependents,
    }
    with context.database.write() as connection:
        asked = send_start(connection, CommandType.BACKFILL, row, body, args, unique_key=unique_key, by=user.name)
        if asked.is_new:
            details = {"workflow": name, "command": asked.id, "runs": len(wanted)}
            record_event(connection, "backfill", by=user.name, project=project, details=details)
            for each in _dependent_workflows(connection, user, body.key, request.dependents):
                _request_dependent_backfill(connection, user, each, request, dates, asked)
    context.notify_master(asked.shard)
    return to_command_sent(context, asked)


def list_dependent_workflows(
    context: ServiceContext, user: Identity, project: str, name: str, dependents: str
) -> list[str]:
    """Return the workflows that a backfill would also run, because they wait for runs of its workflow.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Project of the workflow.
        name: Name of the workflow.
        dependents: Which dependent workflows to include: ``direct`` or ``all``.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not run one of them, 404 (not found) if there is no such
            workflow.
    """
    with context.database.read() as connection:
        require_visible(user, workflow_queries.find_workflow(connection, project, name), f"workflow {project}.{name}")
        return [each.definition.key for each in _dependent_workflows(connection, user, f"{project}.{name}", dependents)]


def _dependent_workflows(
    connection: sa.Connection, user: Identity, key: str, dependents: str
) -> list[DependentWorkflow]:
    if dependents == "none":
        return []
    found = of_workflow(connection, key, include_indirect=dependents == "all")
    for each in found:
        _check_operator(user, each.definition.project)
    return found


def _check_operator(user: Identity, project: str) -> None:
    """Check that the account is an operator of a project that the request did not name itself.

    The error does not mention a project that the account may not see.

    Raises:
        HttpProblem: 403 (forbidden) if the account is not an operator there.
    """
    if user.has_role(Role.VIEWER, project):
        require_role(user, Role.OPERATOR, project)
        return
    role = Role.OPERATOR.label
    what = "a workflow that waits for this one is in a project that you cannot access"
    raise HttpProblem(
        403, f"{what}, where {user.name} does not have the role {role}; ask an administrator for it", needs=role
    )


def _request_dependent_backfill(  # noqa: PLR0917 - one caller
    connection: sa.Connection,
    user: Identity,
    workflow: DependentWorkflow,
    request: BackfillRequest,
    dates: DateRange | Sequence[date],
    first: SentCommand,
) -> None:
    """Request the backfill of a workflow that waits for the requested one.

    It is created in the same shard after the requested one. Otherwise it could find older runs of that workflow.

    Args:
        connection: A transaction.
        user: The requesting account.
        workflow: The dependent workflow.
        request: The request of the user.
        dates: The dates of the request.
        first: The command that creates the backfill of the requested workflow.
    """
    try:
        times = list_schedule_times(dates, workflow.definition.schedule, time.time())
    except ValueError:
        return  # its schedule fires on none of these dates
    args = {**_build_command_args(request, workflow, times), "params": {}, "priority": None, "cause": first.id}
    asked = send_command(connection, CommandType.BACKFILL, shard_id=first.shard, args=args, by=user.name)
    details = {"workflow": workflow.definition.name, "command": asked.id, "runs": len(times), "cause": first.id}
    record_event(connection, "backfill", by=user.name, project=workflow.definition.project, details=details)


def _build_command_args(
    request: BackfillRequest, workflow: Row | DependentWorkflow, schedule_times: Sequence[float]
) -> dict[str, Any]:
    """Return the command arguments that a backfill and the backfills of its dependents have in common.

    Args:
        request: The request of the user.
        workflow: The workflow of the backfill.
        schedule_times: The schedule times of its runs, in seconds since the epoch.
    """
    return {
        "code": workflow.code,
        "version": workflow.version,
        "schedule_times": schedule_times,
        "dry": request.dry,
        "no_cache": request.no_cache,
        "parallel": request.parallel,
        "order": request.order,
        "stop_on_failure": request.stop_on_failure,
    }


def _dates(request: BackfillRequest) -> DateRange | Sequence[date]:
    try:
        return request.get_dates()
    except ValueError as error:
        field = "last" if request.first and request.last and not request.dates else "dates"
        raise HttpProblem(422, f"{field}: {error}", errors=[(field, str(error))]) from None


def find_backfill_row(context: ServiceContext, user: Identity, backfill_id: int) -> Row:
    """Return the database row of a backfill, if the account may see it.

    Raises:
        HttpProblem: 404 (not found) if there is no such backfill or the account may not see it.
    """
    with context.database.read() as connection:
        return require_visible(user, backfills.find_backfill(connection, backfill_id), f"backfill {backfill_id}")


def get_backfill(context: ServiceContext, user: Identity, backfill_id: int) -> Backfill:
    """Return a backfill with the number of its runs in each state.

    Raises:
        HttpProblem: 404 (not found) if there is no such backfill or the account may not see it.
    """
    with context.database.read() as connection:
        row = require_visible(user, backfills.find_backfill(connection, backfill_id), f"backfill {backfill_id}")
        return _backfill(row, backfills.count_runs_by_state(connection, [backfill_id])[backfill_id])


def _backfill(row: Row, counts: Mapping[str, int]) -> Backfill:
    return Backfill.from_row(row, order=row.direction, counts=dict(counts))


def list_backfills(
    context: ServiceContext,
    user: Identity,
    *,
    project: str = "",
    workflow: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[Backfill]:
    """Return backfills, newest first.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Return only backfills of this project. Empty: all projects.
        workflow: If a project is given, return only backfills of this workflow in it.
        before: Return only backfills with lower IDs, for the next page.
        limit: The maximum number of results.
    Raises:
        HttpProblem: 404 (not found) if there is no such workflow.
    """
    with context.database.read() as connection:
        if workflow and project:
            there = workflow_queries.find_workflow(connection, project, workflow)
            codes: list[int] | None = [require_visible(user, there, f"workflow {project}.{workflow}").code]
        else:
            codes = list_visible_codes(connection, user, project)
        rows = backfills.list_newest_backfills(connection, codes=codes, before=before, limit=limit)
        counts = backfills.count_runs_by_state(connection, [row.id for row in rows])
    return [_backfill(row, counts[row.id]) for row in rows]


def list_runs(
    context: ServiceContext,
    user: Identity,
    backfill_id: int,
    *,
    state: str = "",
    after: float | None = None,
    limit: int | None = None,
) -> list[BackfillRun]:
    """Return the runs of a backfill, earliest schedule time first.

    Args:
        context: The service context of this process.
        user: The requesting account.
        backfill_id: ID of the backfill.
        state: Return only runs in this state. Empty: any state.
        after: Return only runs with a later schedule time, for the next page.
        limit: The maximum number of results. None: all.
    Raises:
        HttpProblem: 404 (not found) if there is no such backfill or the account may not see it.
    """
    with context.database.read() as connection:
        require_visible(user, backfills.find_backfill(connection, backfill_id), f"backfill {backfill_id}")
        rows = backfills.list_runs(connection, backfill_id, state=state, after=after, limit=limit)
    return [BackfillRun.from_row(row) for row in rows]


def preview_times(
    context: ServiceContext, user: Identity, project: str, name: str, dates: DateRange | Sequence[date]
) -> list[float]:
    """Return the schedule times that a backfill of these dates would have, earliest first. Nothing is started.

    Raises:
        HttpProblem: 404 (not found) if there is no such workflow, 422 (invalid) if the dates have no schedule times.
    """
    with context.database.read() as connection:
        row = require_visible(
            user, workflow_queries.find_workflow(connection, project, name), f"workflow {project}.{name}"
        )
        body = load_definition(connection, row.code, row.version)
    return _schedule_times(dates, body)


def _schedule_times(dates: DateRange | Sequence[date], body: Definition) -> list[float]:
    try:
        return list_schedule_times(dates, body.schedule, time.time())
    except ValueError as error:
        raise HttpProblem(422, f"dates: {error}", errors=[("dates", str(error))]) from None


def stop_backfill(
    context: ServiceContext, user: Identity, backfill_id: int, *, unique_key: str | None = None
) -> CommandSent:
    """Request to stop a backfill: no more of its runs start, and the active runs are stopped.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such backfill, 409
            (conflict) if the backfill has ended or is stopping.
        KeyReused: The key was used before, for another command.
    """
    row = find_backfill_row(context, user, backfill_id)
    require_role(user, Role.OPERATOR, row.project)
    with context.database.write() as connection:
        if not is_unique_key_used(connection, row.project, unique_key) and BackfillState(row.state) not in STOPPABLE:
            raise HttpProblem(
                409, f"backfill {backfill_id} is {row.state}; only one that is running or held can be stopped"
            )
        asked = send_command(
            connection,
            CommandType.BACKFILL_STOP,
            shard_id=row.shard,
            args={"backfill": backfill_id},
            project=row.project,
            unique_key=unique_key,
            by=user.name,
        )
        if asked.is_new:
            details = {"workflow": row.name, "backfill": backfill_id}
            record_event(connection, "backfill stop", by=user.name, project=row.project, details=details)
    context.notify_master(asked.shard)
    return to_command_sent(context, asked)
