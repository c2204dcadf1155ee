"""Runs: what somebody may see of them, and what they ask of the master."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork.spi import MOST_MOMENT_S, is_number
from latchwork_workflows.db import families, runs
from latchwork_workflows.db.commands import INTERNAL, Asked, CommandType, ask, draw, was_asked
from latchwork_workflows.db.consuming import is_restarting, withdraw
from latchwork_workflows.db.definitions import load as load_definition
from latchwork_workflows.db.history import told
from latchwork_workflows.db.views import catalog, instances
from latchwork_workflows.errors import UnknownWorkflow, WrongState
from latchwork_workflows.model.model import PRIORITIES, Definition, plan_of
from latchwork_workflows.model.plain import MOST_PARAMS_BYTES, plain_problems
from latchwork_workflows.model.validate import in_order
from latchwork_workflows.services.parts import Parts, need, seen
from latchwork_workflows.state import (
    Event,
    ForceStart,
    ForceSuccess,
    Pause,
    Recover,
    Rerun,
    Resume,
    Scope,
    Stop,
    advance,
    possible,
)
from latchwork_workflows.web import Identity, Problem, Role

Row: TypeAlias = Any
#: What the owner of a shard is asked of an instance, by the word in the address.
ACTIONS = {
    "pause": CommandType.PAUSE,
    "resume": CommandType.RESUME,
    "stop": CommandType.STOP,
    "recover": CommandType.RECOVER,
    "rerun": CommandType.RERUN,
}
FORCES = {"force-success": CommandType.FORCE_SUCCESS, "force-start": CommandType.FORCE_START}
_REFUSED = {each.value.replace("_", "-") for each in INTERNAL}


class Start(NamedTuple):
    """What a start says.

    Attributes:
        params: instead of the definition's values.
        priority: instead of the definition's.
        start_from: tasks to begin with; empty: all.
        scope: what else runs.
        dry: every task succeeds without running.
        no_cache: every task runs, whatever is known of its outputs.
        schedule_time: that ``${time:...}`` counts from, in seconds since the epoch; None: now.
    """

    params: Mapping[str, Any] = {}
    priority: str | None = None
    start_from: tuple[str, ...] = ()
    scope: Scope = Scope.DOWNSTREAM
    dry: bool = False
    no_cache: bool = False
    schedule_time: float | None = None


def find(parts: Parts, who: Identity, run_id: int) -> Row:
    """An instance that somebody may see.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        return seen(who, instances.find(connection, run_id), f"run {run_id}")


def find_task(parts: Parts, who: Identity, task_id: int) -> Row:
    """A task that somebody may see.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        return seen(who, instances.find_task(connection, task_id), f"task {task_id}")


def start(
    parts: Parts, who: Identity, project: str, name: str, given: Start, *, unique_key: str | None = None
) -> Asked:
    """Ask for a run.

    Raises:
        Problem: 403, 404, 422 naming the field.
        WrongState: the workflow is offline.
        KeyReused: the key was given before, for another command.
    """
    with parts.database.read() as connection:
        row = seen(who, catalog.find(connection, project, name), f"workflow {project}.{name}")
        need(who, Role.OPERATOR, project)
        body = load_definition(connection, row.code, row.version)
    check_start(body, given)
    args = {
        "code": row.code,
        "version": row.version,
        "params": dict(given.params),
        "priority": given.priority,
        "start_from": list(given.start_from),
        "scope": given.scope.value,
        "dry": given.dry,
        "no_cache": given.no_cache,
        "schedule_time": given.schedule_time,
    }
    with parts.database.write() as connection:
        if not row.online and not was_asked(connection, project, unique_key):
            raise WrongState(f"{body.key} is offline; set it online to start it")
        kind = CommandType.START
        on = draw(connection)
        asked = ask(connection, kind, shard_id=on, args=args, project=project, unique_key=unique_key, by=who.name)
        if asked.is_new:
            details = {"workflow": name, "command": asked.id}
            told(connection, "start", by=who.name, project=project, details=details)
    parts.poke(asked.shard)
    return asked


def check_start(body: Definition, given: Start) -> None:
    """Refuse what the workflow does not have, and values that no run can have.

    Raises:
        Problem: 422, naming each field.
    """
    problems = [
        (f"params.{each}", f"{body.key} has no parameter {each!r}; it has {', '.join(body.params) or 'none'}")
        for each in given.params
        if each not in body.params
    ]
    problems += _value_problems(given)
    known = {each.name for each in body.tasks}
    problems += [
        (f"start_from[{place}]", f"{body.key} has no task {each!r}")
        for place, each in enumerate(given.start_from)
        if each not in known
    ]
    if given.priority is not None and given.priority not in PRIORITIES:
        problems.append(("priority", f"{str(given.priority)[:40]!r} is none of {', '.join(PRIORITIES)}"))
    if problems:
        path, message = problems[0]
        raise Problem(422, f"{path}: {message}", errors=problems)


def _value_problems(given: Start) -> Iterator[tuple[str, str]]:
    wrong = list(plain_problems(given.params, "params"))
    yield from wrong
    if not wrong and len(json.dumps(given.params).encode()) > MOST_PARAMS_BYTES:
        yield "params", f"they take more than {MOST_PARAMS_BYTES:,} bytes; hand large things over in files"
    at = given.schedule_time
    if at is not None and not (is_number(at, 0) and at <= MOST_MOMENT_S):
        yield "schedule_time", f"{at!r:.40} is no time of a run; give seconds since 1970, at most {MOST_MOMENT_S:.0f}"


def act(
    parts: Parts,
    who: Identity,
    run_id: int,
    action: str,
    *,
    start_from: Sequence[str] = (),
    no_cache: bool = False,
    unique_key: str | None = None,
) -> Asked:
    """Ask something of a run.

    Args:
        parts: of the desk.
        who: asks; needs to be an operator of its project.
        run_id: of the run.
        action: one of ``ACTIONS``.
        start_from: for a recovery: tasks that run again with all behind them.
        no_cache: for a rerun: every task runs, whatever is known of its outputs.
        unique_key: the same key and the same command again change nothing.
    Raises:
        Problem: 403, also for what only masters write; 404; 409 naming what would be possible.
        KeyReused: the key was given before, for another command.
    """
    row = find(parts, who, run_id)
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
    return _asked(parts, who, row, kind, events[kind], args, unique_key)


def stop_command(parts: Parts, who: Identity, number: int) -> None:
    """Stop what a command asks to be started: no master does it any more, or the run that it has led to is stopped.

    Raises:
        Problem: 403, 404; 409 if it asked for no run, or was refused, or its run has ended.
    """
    with parts.database.write() as connection:
        row = instances.find_command(connection, number)
        code = row.args.get("code") if row is not None and isinstance(row.args, dict) else None
        workflow = catalog.by_code(connection, code) if isinstance(code, int) else None
        of = seen(who, workflow, f"command {number} that starts something")
        need(who, Role.OPERATOR, of.project)
        if withdraw(connection, number, time.time(), by=who.name):
            details = {"workflow": of.name, "command": number}
            told(connection, "start withdrawn", by=who.name, project=of.project, details=details)
            return
        row = instances.find_command(connection, number)
    if row is None or row.instance is None:
        why = None if row is None else row.error
        raise Problem(409, f"command {number} has led to no run: {why or 'it asked for none'}", possible=[])
    act(parts, who, row.instance, "stop")


def force(parts: Parts, who: Identity, task_id: int, action: str, *, unique_key: str | None = None) -> Asked:
    """Ask something of a task: one of ``FORCES``.

    Raises:
        Problem: 403, 404, 409.
    """
    task = find_task(parts, who, task_id)
    if action not in FORCES:
        raise Problem(404, f"a task cannot be asked to {action[:40]!r}; it takes {', '.join(FORCES)}")
    need(who, Role.OPERATOR, task.project)
    if task.run != task.newest_run:
        raise Problem(409, f"task {task_id} is of run {task.run}; the newest is {task.newest_run}", possible=[])
    row = find(parts, who, task.instance)
    kind = FORCES[action]
    event = ForceSuccess(task.name) if kind is CommandType.FORCE_SUCCESS else ForceStart(task.name)
    return _asked(parts, who, row, kind, event, {"task": task.name}, unique_key)


def _asked(  # noqa: PLR0917 - one caller for each kind
    parts: Parts, who: Identity, row: Row, kind: CommandType, event: Event, args: dict[str, Any], unique_key: str | None
) -> Asked:
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
    return asked


def _check_state(connection: sa.Connection, row: Row, kind: CommandType, event: Event) -> None:
    """What the master would do, tried without writing: the master decides by what it finds then."""
    stored = runs.load(connection, [row.id]).get(row.id)
    if stored is None:
        raise Problem(404, f"there is no run {row.id}")
    try:
        families.check_alone(connection, row.id, stored.parent, kind.value)
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
