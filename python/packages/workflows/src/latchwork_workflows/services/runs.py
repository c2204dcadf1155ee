"""Runs: what an account may see of them, and the commands that it sends to their masters."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork.spi import MAX_TIME_S, is_number
from latchwork_workflows.db import related_runs, run_queries, runs, workflow_queries
from latchwork_workflows.db.commands import (
    INTERNAL,
    CommandType,
    SentCommand,
    choose_random_shard,
    has_restart_command,
    is_unique_key_used,
    send_command,
)
from latchwork_workflows.db.definitions import load_definition
from latchwork_workflows.db.history import record_event
from latchwork_workflows.errors import NotFound, WrongState
from latchwork_workflows.model.definition import PRIORITIES, Definition, build_plan
from latchwork_workflows.model.json_values import MAX_PARAMS_BYTES, find_storage_problems
from latchwork_workflows.model.validate import sort_topologically
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.schemas.runs import Run, RunDetail, StartRequest
from latchwork_workflows.schemas.tasks import Attempt, Task
from latchwork_workflows.services.context import ServiceContext, list_visible_codes, require_role, require_visible
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.state import (
    Event,
    Pause,
    Recover,
    Rerun,
    Resume,
    RunState,
    Stop,
    TaskState,
    advance,
    list_possible_commands,
)
from latchwork_workflows.web import HttpProblem, Identity, Role

Row: TypeAlias = Any
#: Commands for the master of a run, by the word in the URL.
ACTIONS = {
    "pause": CommandType.PAUSE,
    "resume": CommandType.RESUME,
    "stop": CommandType.STOP,
    "recover": CommandType.RECOVER,
    "rerun": CommandType.RERUN,
}
_REFUSED = {each.value.replace("_", "-") for each in INTERNAL}


def find_run_row(context: ServiceContext, user: Identity, run_id: int) -> Row:
    """Return the database row of a run, if the account may see it.

    Raises:
        HttpProblem: 404 (not found) if there is no such run or the account may not see it.
    """
    with context.database.read() as connection:
        return require_visible(user, run_queries.find_run(connection, run_id), f"run {run_id}")


def to_run(row: Row) -> Run:
    """Convert a database row to a run."""
    return Run.from_row(row, round=row.round)


def to_task(row: Row) -> Task:
    """Convert a database row to a task."""
    in_master = row.state == TaskState.RUNNING and row.queue_key is None
    return Task.from_row(row, run=row.run_id, round=row.round, in_master=in_master)


def to_attempt(row: Row) -> Attempt:
    """Convert a database row to an attempt. The row also has the ``name`` and the ``run`` of its task."""
    return Attempt.from_row(row, id=f"{row.task}.{row.n}.{row.claim}", round=row.round, has_log=bool(row.log_ref))


def list_runs(
    context: ServiceContext,
    user: Identity,
    *,
    project: str = "",
    workflow: str = "",
    state: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[Run]:
    """Return runs, newest first.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Return only runs of this project. Empty: all projects.
        workflow: If a project is given, return only runs of this workflow in it.
        state: Return only runs in this state. Empty: any state.
        before: Return only runs with lower IDs, for the next page.
        limit: The maximum number of results.
    Raises:
        HttpProblem: 404 (not found) if there is no such workflow.
    """
    with context.database.read() as connection:
        if workflow and project:
            row = require_visible(
                user, workflow_queries.find_workflow(connection, project, workflow), f"workflow {project}.{workflow}"
            )
            codes: list[int] | None = [row.code]
        else:
            codes = list_visible_codes(connection, user, project)
        rows = run_queries.list_newest_runs(connection, codes=codes, state=state, before=before, limit=limit)
    return [to_run(row) for row in rows]


def get_run(context: ServiceContext, user: Identity, run_id: int) -> RunDetail:
    """Return a run with its current tasks.

    Raises:
        HttpProblem: 404 (not found) if there is no such run or the account may not see it.
    """
    row = find_run_row(context, user, run_id)
    with context.database.read() as connection:
        rows = run_queries.list_tasks_of_run(connection, row.id, row.round)
    return RunDetail(
        **dict(to_run(row)),
        tasks=[to_task(each) for each in rows],
        possible=list(list_possible_commands(RunState(row.state))),
    )


def list_tasks(context: ServiceContext, user: Identity, run_id: int, round_number: int | None = None) -> list[Task]:
    """Return the tasks of a run, in the order of the definition.

    Args:
        context: The service context of this process.
        user: The requesting account.
        run_id: ID of the run.
        round_number: Return the tasks of this start or rerun of the run, counted from 1. None: the current tasks.
    Raises:
        HttpProblem: 404 (not found) if there is no such run or the account may not see it.
    """
    row = find_run_row(context, user, run_id)
    with context.database.read() as connection:
        return [to_task(each) for each in run_queries.list_tasks_of_run(connection, row.id, round_number or row.round)]


def list_attempts(context: ServiceContext, user: Identity, run_id: int) -> list[Attempt]:
    """Return all attempts of a run, including those before a rerun, newest first.

    Raises:
        HttpProblem: 404 (not found) if there is no such run or the account may not see it.
    """
    row = find_run_row(context, user, run_id)
    with context.database.read() as connection:
        return [to_attempt(each) for each in run_queries.list_attempts_of_run(connection, row.id)]


def request_run(
    context: ServiceContext,
    user: Identity,
    project: str,
    name: str,
    request: StartRequest,
    *,
    unique_key: str | None = None,
) -> CommandSent:
    """Request a run of a workflow, which a master then creates.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such workflow, 422
            (invalid) with the invalid field.
        WrongState: The workflow is offline.
        KeyReused: The key was used before, for another command.
    """
    row, body = find_workflow_to_start(context, user, project, name)
    check_start(
        body,
        request.params,
        priority=request.priority,
        start_from=request.start_from,
        schedule_time=request.schedule_time,
    )
    args = {
        "code": row.code,
        "version": row.version,
        "params": dict(request.params),
        "priority": request.priority,
        "start_from": list(request.start_from),
        "scope": request.scope,
        "dry": request.dry,
        "no_cache": request.no_cache,
        "schedule_time": request.schedule_time,
    }
    with context.database.write() as connection:
        asked = send_start(connection, CommandType.START, row, body, args, unique_key=unique_key, by=user.name)
        if asked.is_new:
            details = {"workflow": name, "command": asked.id}
            record_event(connection, "start", by=user.name, project=project, details=details)
    context.notify_master(asked.shard)
    return to_command_sent(context, asked)


def find_workflow_to_start(context: ServiceContext, user: Identity, project: str, name: str) -> tuple[Row, Definition]:
    """Return the database row and the newest definition of a workflow, if the account may start it.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such workflow.
    """
    with context.database.read() as connection:
        row = require_visible(
            user, workflow_queries.find_workflow(connection, project, name), f"workflow {project}.{name}"
        )
        require_role(user, Role.OPERATOR, project)
        return row, load_definition(connection, row.code, row.version)


def send_start(
    connection: sa.Connection,
    kind: CommandType,
    row: Row,
    definition: Definition,
    args: Mapping[str, Any],
    *,
    unique_key: str | None,
    by: str,
) -> SentCommand:
    """Send a command that starts a workflow to a random shard.

    Args:
        connection: A transaction.
        kind: The type of the command: a start or a backfill.
        row: The row of the workflow.
        definition: The newest definition of the workflow.
        args: The arguments of the command.
        unique_key: Idempotency key: repeating it with the same command changes nothing.
        by: The requesting account.
    Raises:
        WrongState: The workflow is offline, and no earlier command has this key.
        KeyReused: The key was used before, for another command.
    """
    if not row.online and not is_unique_key_used(connection, definition.project, unique_key):
        raise WrongState(f"{definition.key} is offline; set it online to start it")
    shard = choose_random_shard(connection)
    return send_command(
        connection, kind, shard_id=shard, args=args, project=definition.project, unique_key=unique_key, by=by
    )


def check_start(
    definition: Definition,
    params: Mapping[str, Any],
    *,
    priority: str | None = None,
    start_from: Sequence[str] = (),
    schedule_time: float | None = None,
) -> None:
    """Check that the parameters, tasks and other values of a start request are valid for the workflow.

    Raises:
        HttpProblem: 422 (invalid). The problem names each invalid field.
    """
    problems = [
        (
            f"params.{each}",
            f"{definition.key} has no parameter {each!r}; it has {', '.join(definition.params) or 'none'}",
        )
        for each in params
        if each not in definition.params
    ]
    wrong = list(find_storage_problems(params, "params"))
    problems += wrong
    if not wrong and len(json.dumps(params).encode()) > MAX_PARAMS_BYTES:
        problems.append(
            (
                "params",
                f"they take more than {MAX_PARAMS_BYTES:,} bytes; write large values to files and pass their names",
            )
        )
    if schedule_time is not None and not (is_number(schedule_time, 0) and schedule_time <= MAX_TIME_S):
        what = f"{schedule_time!r:.40} is not a valid time; give seconds since 1970, at most {MAX_TIME_S:.0f}"
        problems.append(("schedule_time", what))
    known = {each.name for each in definition.tasks}
    problems += [
        (f"start_from[{place}]", f"{definition.key} has no task {each!r}")
        for place, each in enumerate(start_from)
        if each not in known
    ]
    if priority is not None and priority not in PRIORITIES:
        problems.append(("priority", f"{str(priority)[:40]!r} is not one of {', '.join(PRIORITIES)}"))
    if problems:
        path, message = problems[0]
        raise HttpProblem(422, f"{path}: {message}", errors=problems)


def request_action(
    context: ServiceContext,
    user: Identity,
    run_id: int,
    action: str,
    *,
    start_from: Sequence[str] = (),
    no_cache: bool = False,
    unique_key: str | None = None,
) -> CommandSent:
    """Request an action on a run, such as pausing or rerunning it.

    Args:
        context: The service context of this process.
        user: The requesting account. Must be an operator of the project.
        run_id: ID of the run.
        action: One of ``ACTIONS``.
        start_from: For ``recover``: names of tasks that run again, with all tasks downstream of them.
        no_cache: For ``rerun``: run every task, even if a cached result exists.
        unique_key: Idempotency key: repeating it with the same command changes nothing.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this or only masters send this command, 404 (not found)
            if there is no such run or action, 409 (conflict) with the actions that the state of the run allows.
        KeyReused: The key was used before, for another command.
    """
    row = find_run_row(context, user, run_id)
    if action in _REFUSED:
        raise HttpProblem(403, f"{action} is an internal command of masters")
    if action not in ACTIONS:
        raise HttpProblem(404, f"{action[:40]!r} is not an action for runs; use one of {', '.join(ACTIONS)}")
    require_role(user, Role.OPERATOR, row.project)
    kind = ACTIONS[action]
    args: dict[str, Any] = {"start_from": list(start_from)} if kind is CommandType.RECOVER else {}
    if kind is CommandType.RERUN and no_cache:
        args["no_cache"] = True
    events: Mapping[CommandType, Event] = {
        CommandType.PAUSE: Pause(),
        CommandType.RESUME: Resume(),
        CommandType.STOP: Stop(),
        CommandType.RECOVER: Recover(tuple(start_from)),
        CommandType.RERUN: Rerun(),
    }
    return send_run_command(context, user, row, kind, events[kind], args, unique_key)


def send_run_command(  # noqa: PLR0917 - one caller for each kind
    context: ServiceContext,
    user: Identity,
    row: Row,
    command_type: CommandType,
    event: Event,
    args: dict[str, Any],
    unique_key: str | None,
) -> CommandSent:
    """Send a command to the master of a run, if the state of the run allows the command.

    Raises:
        HttpProblem: 409 (conflict) with the actions that the state of the run allows.
    """
    with context.database.write() as connection:
        is_restarted = command_type is CommandType.STOP and has_restart_command(connection, row.id)
        if not is_unique_key_used(connection, row.project, unique_key) and not is_restarted:
            _check_state(connection, row, command_type, event)
        asked = send_command(
            connection,
            command_type,
            shard_id=row.shard,
            run_id=row.id,
            args=args,
            project=row.project,
            unique_key=unique_key,
            by=user.name,
        )
        if asked.is_new:
            record_event(
                connection,
                command_type.value.replace("_", " "),
                by=user.name,
                project=row.project,
                run_id=row.id,
                task=args.get("task", ""),
            )
    context.notify_master(asked.shard)
    return to_command_sent(context, asked)


def to_command_sent(context: ServiceContext, command: SentCommand) -> CommandSent:
    """Convert a stored command to the answer for the client. It has the ID of the run if a master has created one
    already.
    """
    with context.database.read() as connection:
        row = run_queries.find_command(connection, command.id)
    return CommandSent(command=command.id, is_new=command.is_new, run=None if row is None else row.run_id)


def _check_state(connection: sa.Connection, row: Row, command_type: CommandType, event: Event) -> None:
    """Check that the state of the run allows a command. Nothing is written.

    The master checks this again when it executes the command.

    Raises:
        WrongState: The state does not allow it.
    """
    stored = runs.load_runs(connection, [row.id]).get(row.id)
    if stored is None:
        raise object_not_found(f"there is no run {row.id}")
    try:
        related_runs.check_command_to_child(connection, row.id, stored.parent, command_type.value)
        advance(_plan(connection, row), stored.known, [event], time.time())
    except WrongState as error:
        raise HttpProblem(
            409, str(error), possible=list(list_possible_commands(stored.known.state)), state=stored.known.state.value
        ) from None
    except NotFound as error:
        raise HttpProblem(422, str(error), errors=[("start_from", str(error))]) from None


def _plan(connection: sa.Connection, row: Row) -> Any:
    body = load_definition(connection, row.code, row.version)
    return build_plan(body, sort_topologically({each.name: each.after for each in body.tasks}))
