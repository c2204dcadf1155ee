"""Commands: their results, and how to withdraw a start."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from latchwork_workflows.db import backfills, run_queries, workflow_queries
from latchwork_workflows.db.commands import withdraw_command
from latchwork_workflows.db.history import record_event
from latchwork_workflows.schemas.commands import Command
from latchwork_workflows.services import runs
from latchwork_workflows.services.context import ServiceContext, require_role, require_visible
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.web import HttpProblem, Identity, Role


def get_command(context: ServiceContext, user: Identity, command_id: int) -> Command:
    """Return a command to a master.

    Commands without a project, such as repairs, are only visible to administrators of all projects.

    Raises:
        HttpProblem: 404 (not found) if there is no such command or the account may not see it.
    """
    with context.database.read() as connection:
        row = run_queries.find_command(connection, command_id)
        if row is None:
            raise object_not_found(f"there is no command {command_id}")
        about = _find_target(connection, row)
        if about is not None or not user.has_role(Role.ADMIN):  # a repair is about a shard, which has no project
            require_visible(user, about, f"command {command_id}")
    return Command.from_row(row, run=row.run_id)


def _find_target(connection: sa.Connection, command: sa.Row[Any]) -> sa.Row[Any] | None:
    """Return the row of the run, backfill or workflow that a command concerns. It includes the project.

    Returns:
        None if the target no longer exists.
    """
    if command.run_id is not None:
        return run_queries.find_run(connection, command.run_id)
    args = command.args if isinstance(command.args, dict) else {}
    backfill, code = args.get("backfill"), args.get("code")
    if isinstance(backfill, int):
        return backfills.find_backfill(connection, backfill)
    return workflow_queries.find_workflow_by_code(connection, code) if isinstance(code, int) else None


def withdraw_or_stop(context: ServiceContext, user: Identity, command_id: int) -> None:
    """Withdraw a start command that no master has executed yet, or stop the run that it created.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such command, 409
            (conflict) if the command started no run, was refused, or its run has ended.
    """
    with context.database.write() as connection:
        row = run_queries.find_command(connection, command_id)
        code = row.args.get("code") if row is not None and isinstance(row.args, dict) else None
        workflow = workflow_queries.find_workflow_by_code(connection, code) if isinstance(code, int) else None
        of = require_visible(user, workflow, f"command {command_id} that starts something")
        require_role(user, Role.OPERATOR, of.project)
        if withdraw_command(connection, command_id, time.time(), by=user.name):
            details = {"workflow": of.name, "command": command_id}
            record_event(connection, "start withdrawn", by=user.name, project=of.project, details=details)
            return
        row = run_queries.find_command(connection, command_id)
    if row is None or row.run_id is None:
        why = None if row is None else row.error
        raise HttpProblem(409, f"command {command_id} started no run: {why or 'it requests none'}", possible=[])
    runs.request_action(context, user, row.run_id, "stop")
