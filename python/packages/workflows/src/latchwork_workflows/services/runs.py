"""Runs: what an account may see of them, and the commands that it sends to their masters."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from latchwork.spi import MAX_TIME_S, is_number
from latchwork_workflows.db import related_runs, run_queries, runs, workflow_queries
from latchwork_workflows.db.commands import INTERNAL, Asked, CommandType, ask, draw, is_restarting, was_asked
from latchwork_workflows.db.definitions import load as load_definition
from latchwork_workflows.db.history import told
from latchwork_workflows.errors import UnknownWorkflow, WrongState
from latchwork_workflows.model.json_values import MOST_PARAMS_BYTES, plain_problems
from latchwork_workflows.model.model import PRIORITIES, Definition, plan_of
from latchwork_workflows.model.validate import in_order
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.schemas.runs import Run, RunDetail, StartRequest
from latchwork_workflows.schemas.tasks import Attempt, Task
from latchwork_workflows.services.parts import Parts, need, seen, seen_codes
from latchwork_workflows.state import (
    Event,
    InstanceState,
    Pause,
    Recover,
    Rerun,
    Resume,
    Stop,
    TaskState,
    advance,
    possible,
)
from latchwork_workflows.web import Identity, Problem, Role

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


def row_of(parts: Parts, who: Identity, run_id: int) -> Row:
    """Return the row of a run.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        return seen(who, run_queries.find(connection, run_id), f"run {run_id}")


def run_of(row: Row) -> Run:
    """Return the run of a row."""
    return Run.of(row, round=row.run)


def task_of(row: Row) -> Task:
    """Return the task of a row."""
    in_master = row.state == TaskState.RUNNING and row.queue_key is None
    return Task.of(row, run=row.instance, round=row.run, in_master=in_master)


def attempt_of(row: Row) -> Attempt:
    """Return the attempt of a row, which has the ``name`` and ``run`` of its task."""
    return Attempt.of(row, id=f"{row.task}.{row.n}.{row.claim}", round=row.run, has_log=bool(row.log_ref))


def listed(
    parts: Parts,
    who: Identity,
    *,
    project: str = "",
    workflow: str = "",
    state: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[Run]:
    """Return runs, the newest first.

    Args:
        parts: The parts of this process.
        who: The account that asks.
        project: Only those of this project. Empty: all.
        workflow: With a project, only those of this workflow.
        state: Only those in this state. Empty: any.
        before: Only those with lower IDs.
        limit: The most to return.
    Raises:
        Problem: 404, there is no such workflow.
    """
    with parts.database.read() as connection:
        if workflow and project:
            row = seen(who, workflow_queries.find(connection, project, workflow), f"workflow {project}.{workflow}")
            codes: list[int] | None = [row.code]
        else:
            codes = seen_codes(connection, who, project)
        rows = run_queries.newest(connection, codes=codes, state=state, before=before, most=limit)
    return [run_of(row) for row in rows]


def get(parts: Parts, who: Identity, run_id: int) -> RunDetail:
    """Return a run with the tasks of its newest round.

    Raises:
        Problem: 404.
    """
    row = row_of(parts, who, run_id)
    with parts.database.read() as connection:
        rows = run_queries.tasks(connection, row.id, row.run)
    return RunDetail(
        **dict(run_of(row)),
        tasks=[task_of(each) for each in rows],
        possible=list(possible(InstanceState(row.state))),
    )


def tasks(parts: Parts, who: Identity, run_id: int, number: int | None = None) -> list[Task]:
    """Return the tasks of a round of a run, in the order of the definition. None: the newest round.

    Raises:
        Problem: 404.
    """
    row = row_of(parts, who, run_id)
    with parts.database.read() as connection:
        return [task_of(each) for each in run_queries.tasks(connection, row.id, number or row.run)]


def attempts(parts: Parts, who: Identity, run_id: int) -> list[Attempt]:
    """Return the attempts of all rounds of a run, the newest first.

    Raises:
        Problem: 404.
    """
    row = row_of(parts, who, run_id)
    with parts.database.read() as connection:
        return [attempt_of(each) for each in run_queries.attempts(connection, row.id)]


def start(
    parts: Parts, who: Identity, project: str, name: str, given: StartRequest, *, unique_key: str | None = None
) -> CommandSent:
    """Request a run.

    Raises:
        Problem: 403, 404, 422 naming the field.
        WrongState: The workflow is offline.
        KeyReused: The key was used before, for another command.
    """
    row, body = workflow_to_start(parts, who, project, name)
    check_start(
        body, given.params, priority=given.priority, start_from=given.start_from, schedule_time=given.schedule_time
    )
    args = {
        "code": row.code,
        "version": row.version,
        "params": dict(given.params),
        "priority": given.priority,
        "start_from": list(given.start_from),
        "scope": given.scope,
        "dry": given.dry,
        "no_cache": given.no_cache,
        "schedule_time": given.schedule_time,
    }
    with parts.database.write() as connection:
        asked = ask_to_start(connection, CommandType.START, row, body, args, unique_key=unique_key, by=who.name)
        if asked.is_new:
            details = {"workflow": name, "command": asked.id}
            told(connection, "start", by=who.name, project=project, details=details)
    parts.poke(asked.shard)
    return sent(parts, asked)


def workflow_to_start(parts: Parts, who: Identity, project: str, name: str) -> tuple[Row, Definition]:
    """Return the row and the newest definition of a workflow that the account may start.

    Raises:
        Problem: 403, 404.
    """
    with parts.database.read() as connection:
        row = seen(who, workflow_queries.find(connection, project, name), f"workflow {project}.{name}")
        need(who, Role.OPERATOR, project)
        return row, load_definition(connection, row.code, row.version)


def ask_to_start(
    connection: sa.Connection,
    kind: CommandType,
    row: Row,
    body: Definition,
    args: Mapping[str, Any],
    *,
    unique_key: str | None,
    by: str,
) -> Asked:
    """Write the command that starts a workflow, for a random shard.

    Raises:
        WrongState: The workflow is offline, and no earlier command has this key.
        KeyReused: The key was used before, for another command.
    """
    if not row.online and not was_asked(connection, body.project, unique_key):
        raise WrongState(f"{body.key} is offline; set it online to start it")
    shard = draw(connection)
    return ask(connection, kind, shard_id=shard, args=args, project=body.project, unique_key=unique_key, by=by)


def check_start(
    body: Definition,
    params: Mapping[str, Any],
    *,
    priority: str | None = None,
    start_from: Sequence[str] = (),
    schedule_time: float | None = None,
) -> None:
    """Refuse unknown parameters and tasks, and invalid values.

    Raises:
        Problem: 422, naming each field.
    """
    problems = [
        (f"params.{each}", f"{body.key} has no parameter {each!r}; it has {', '.join(body.params) or 'none'}")
        for each in params
        if each not in body.params
    ]
    wrong = list(plain_problems(params, "params"))
    problems += wrong
    if not wrong and len(json.dumps(params).encode()) > MOST_PARAMS_BYTES:
        problems.append(("params", f"they take more than {MOST_PARAMS_BYTES:,} bytes; hand large things over in files"))
    if schedule_time is not None and not (is_number(schedule_time, 0) and schedule_time <= MAX_TIME_S):
        what = f"{schedule_time!r:.40} is no time of a run; give seconds since 1970, at most {MAX_TIME_S:.0f}"
        problems.append(("schedule_time", what))
    known = {each.name for each in body.tasks}
    problems += [
        (f"start_from[{place}]", f"{body.key} has no task {each!r}")
        for place, each in enumerate(start_from)
        if each not in known
    ]
    if priority is not None and priority not in PRIORITIES:
        problems.append(("priority", f"{str(priority)[:40]!r} is none of {', '.join(PRIORITIES)}"))
    if problems:
        path, message = problems[0]
        raise Problem(422, f"{path}: {message}", errors=problems)


def act(
    parts: Parts,
    who: Identity,
    run_id: int,
    action: str,
    *,
    start_from: Sequence[str] = (),
    no_cache: bool = False,
    unique_key: str | None = None,
) -> CommandSent:
    """Request an action on a run.

    Args:
        parts: The parts of this process.
        who: The account that asks. Must be an operator of the project.
        run_id: ID of the run.
        action: One of ``ACTIONS``.
        start_from: For ``recover``: tasks that run again with everything downstream of them.
        no_cache: For ``rerun``: run every task, even if a cached result exists.
        unique_key: Idempotency key: repeating it with the same command changes nothing.
    Raises:
        Problem: 403, also for internal commands; 404; 409 naming the possible actions.
        KeyReused: The key was used before, for another command.
    """
    row = row_of(parts, who, run_id)
    if action in _REFUSED:
        raise Problem(403, f"{action} is what masters tell each other; nobody else asks for it")
    if action not in ACTIONS:
        raise Problem(404, f"a run cannot be asked to {action[:40]!r}; it takes {', '.join(ACTIONS)}")
    need(who, Role.OPERATOR, row.project)
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
    return send(parts, who, row, kind, events[kind], args, unique_key)


def send(  # noqa: PLR0917 - one caller for each kind
    parts: Parts, who: Identity, row: Row, kind: CommandType, event: Event, args: dict[str, Any], unique_key: str | None
) -> CommandSent:
    """Send a command to the master of a run, if its state allows it.

    Raises:
        Problem: 409 with the actions that are possible.
    """
    with parts.database.write() as connection:
        is_restarted = kind is CommandType.STOP and is_restarting(connection, row.id)
        if not was_asked(connection, row.project, unique_key) and not is_restarted:
            _check_state(connection, row, kind, event)
        asked = ask(
            connection,
            kind,
            shard_id=row.shard,
            instance=row.id,
            args=args,
            project=row.project,
            unique_key=unique_key,
            by=who.name,
        )
        if asked.is_new:
            told(
                connection,
                kind.value.replace("_", " "),
                by=who.name,
                project=row.project,
                instance=row.id,
                task=args.get("task", ""),
            )
    parts.poke(asked.shard)
    return sent(parts, asked)


def sent(parts: Parts, asked: Asked) -> CommandSent:
    """Return a sent command, with its run if a master has already carried it out."""
    with parts.database.read() as connection:
        row = run_queries.find_command(connection, asked.id)
    return CommandSent(command=asked.id, is_new=asked.is_new, run=None if row is None else row.instance)


def _check_state(connection: sa.Connection, row: Row, kind: CommandType, event: Event) -> None:
    """Try the command without writing. The master decides later, by the state that it finds then."""
    stored = runs.load(connection, [row.id]).get(row.id)
    if stored is None:
        raise Problem(404, f"there is no run {row.id}")
    try:
        related_runs.check_alone(connection, row.id, stored.parent, kind.value)
        advance(_plan(connection, row), stored.known, [event], time.time())
    except WrongState as error:
        raise Problem(
            409, str(error), possible=list(possible(stored.known.state)), state=stored.known.state.value
        ) from None
    except UnknownWorkflow as error:
        raise Problem(422, str(error), errors=[("start_from", str(error))]) from None


def _plan(connection: sa.Connection, row: Row) -> Any:
    body = load_definition(connection, row.code, row.version)
    return plan_of(body, in_order({each.name: each.after for each in body.tasks}))
