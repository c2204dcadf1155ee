"""`latchwork workflows runs`, `show`, `logs`, `why` and `workers`: the state of runs and workers."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.spi import (
    MAX_WHOLE,
    Grid,
    Json,
    Line,
    UsageError,
    command,
    print_list,
    printable,
    say,
    say_json,
    show,
    utc_text,
)
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, LogsUrl, StoreUrl, open_client, resolve_home
from latchwork_workflows.cli.workflows import show_definition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from latchwork_workflows import WorkflowClient
    from latchwork_workflows.schemas.nodes import Worker
    from latchwork_workflows.schemas.runs import Run, RunDetail
    from latchwork_workflows.schemas.tasks import Attempt, Task

RunId = Annotated[
    int, typer.Argument(metavar="RUN", min=1, max=MAX_WHOLE, help="The ID of a run, as printed by start and runs.")
]
#: So many tasks of a worker are named.
_MAX_NAMED = 5
STYLES = {"success": "green", "failure": "red", "killed": "red", "running": "cyan", "forced_success": "green"}


@command("latchwork workflows runs", "latchwork workflows runs nightly --state failure --json")
def list_runs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", show_default=False, help="Only runs of this workflow.  [default: all]"),
    ] = None,
    *,
    state: Annotated[
        str, typer.Option(metavar="STATE", help="Only runs in this state, such as running or failure.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of entries, newest first.")] = 20,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    with open_client(resolve_home(home, database), url) as client:
        rows = client.runs.list(name, state=state, limit=limit)
    right = ("run", "version", "took_s")
    print_list("runs", rows, _run_row, plain=_to_run_json, right=right, empty="no runs", as_json=as_json)


def _to_run_json(run: Run) -> dict[str, Any]:
    """Convert a run to JSON."""
    names = ("version", "state", "round", "schedule_time", "started_at", "ended_at", "by")
    return {"run": run.id, "workflow": run.workflow, **{name: getattr(run, name) for name in names}}


def _run_row(row: Run) -> dict[str, str]:
    return {
        "run": str(row.id),
        "workflow": row.workflow,
        "version": str(row.version),
        "state": row.state.value,
        "for": utc_text(row.schedule_time),
        "started": "-" if row.started_at is None else utc_text(row.started_at),
        "took_s": _duration(row.started_at, row.ended_at),
        "by": row.by,
    }


def _duration(started: float | None, ended: float | None) -> str:
    return "-" if started is None else f"{(ended or time.time()) - started:.1f}"


@command(
    "latchwork workflows show 12",
    "latchwork workflows show nightly",
    "latchwork workflows show nightly --svg > dag.svg",
)
def show_workflow_or_run(
    what: Annotated[str, typer.Argument(metavar="NAME|RUN", help="The name of a workflow, or the ID of a run.")],
    *,
    svg: Annotated[bool, typer.Option("--svg", help="Print the graph of the tasks as SVG.")] = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Show the definition of a workflow, or a run with its tasks and attempts."""
    where = resolve_home(home, database)
    if not what.isdecimal():
        show_definition(what, svg=svg, home=where, url=url, as_json=as_json)
        return
    number = _parse_run_id(what)
    with open_client(where, url) as client:
        found = client.runs.get(number)
        attempts = client.runs.attempts(found.id)
    if as_json:
        say_json({**to_run_detail_json(found), "attempts": [_attempt_json(each) for each in attempts]})
        return
    style = STYLES.get(found.state.value, "")
    line = f"run {found.id} of {found.workflow}, version {found.version}: {found.state.value}"
    show(Line(line, style))
    say(f"for {utc_text(found.schedule_time)}, took {_duration(found.started_at, found.ended_at)} s")
    newest = {each.task: each for each in reversed(attempts)}
    show(Grid([_task_row(each, newest.get(each.id)) for each in found.tasks], right=("attempt", "took_s", "exit")))
    for each in attempts:
        if each.error and each.round == found.round:
            show(Line(f"{each.name}, attempt {each.n}: {each.error.splitlines()[0]}", "red"))


def _task_row(task: Task, attempt: Attempt | None) -> dict[str, str]:
    row = {"task": task.name, "state": task.state.value, "attempt": str(task.n or "-")}
    if attempt is None:
        return {**row, "worker": "", "started": "", "took_s": "", "exit": "", "log": ""}
    return {
        **row,
        "worker": attempt.worker,
        "started": utc_text(attempt.started_at),
        "took_s": _duration(attempt.started_at, attempt.ended_at),
        "exit": "" if attempt.exit_code is None else str(attempt.exit_code),
        "log": attempt.id,
    }


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    found = attempt.model_dump(mode="json", exclude={"id", "task", "name", "pid", "has_log"})
    return {"attempt": attempt.id, "task": attempt.name, **found}


@command(
    "latchwork workflows logs 12 load", "latchwork workflows logs 12 load --follow", "latchwork workflows logs 57.1.903"
)
def show_log(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN|ATTEMPT", help="A run, together with a task; or an attempt, as printed by show."),
    ],
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", show_default=False, help="A task of the run: its newest attempt.")
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until its end.")] = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    logs: LogsUrl = None,
) -> None:
    """Print the log of an attempt of a task."""
    with open_client(resolve_home(home, database, None, logs), url) as client:
        attempt = _attempt_of(client, run, task)
        if follow:
            for data in client.attempts.follow(attempt):
                _write_bytes(data)
            return
        offset = 0
        while True:
            part = client.attempts.log(attempt, offset)
            if not part.data:
                return
            _write_bytes(part.data)
            offset = part.next


def _attempt_of(client: WorkflowClient, run: str, task: str | None) -> str:
    if task is None:
        if run.count(".") == 2 and run.replace(".", "").isdecimal():
            return run
        raise UsageError("give a run and a task, such as `logs 12 load`, or an attempt, as printed by `show`")
    if not run.isdecimal():
        raise UsageError(f"{run!r} is not a run ID; `latchwork workflows runs` lists them")
    found = [each for each in client.runs.attempts(_parse_run_id(run)) if each.name == task]
    if not found:
        raise UsageError(f"run {run} has no attempt of a task {task!r} yet; `latchwork workflows show {run}` lists all")
    return found[0].id


def check_run_has_task(run: int, task: str, task_names: Iterable[str]) -> None:
    """Check that a run has a task.

    Args:
        run: ID of the run.
        task: Name of the task.
        task_names: Names of the tasks that the run has.
    Raises:
        UsageError: The run has no such task. The message names some that it has.
    """
    names = list(task_names)
    if task not in names:
        raise UsageError(f"run {run} has no task {task!r}; it has {', '.join(names[:20]) or 'none yet'}")


def _parse_run_id(text: str) -> int:
    if len(text) > len(str(MAX_WHOLE)) or int(text) > MAX_WHOLE:
        raise UsageError(f"there is no run {text[:40]}; `latchwork workflows runs` lists them")
    return int(text)


def _write_bytes(data: bytes) -> None:
    """Write bytes to stdout. For a terminal, control characters are escaped."""
    if sys.stdout.isatty():
        for line in data.decode("utf-8", "replace").splitlines():
            say(printable(line))
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@command("latchwork workflows why 12", "latchwork workflows why 12 load --json")
def explain_states(
    run: RunId,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", show_default=False, help="A task of the run.  [default: all]")
    ] = None,
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Explain why each task of a run is in its state, and what would change that."""
    with open_client(resolve_home(home, database, store), url) as client:
        explained = client.runs.explain(run)
    cause, reasons = explained.cause, explained.tasks
    if task is not None:
        check_run_has_task(run, task, reasons)
    found = {name: each for name, each in reasons.items() if task in {None, name}}
    if as_json:
        say_json({"run": run, "cause": [each.model_dump() for each in cause], "tasks": found})
        return
    for each in cause if task is None else ():
        if not each.task:
            say(f"run {run}: {each.why}")
    for name, text in found.items():
        say(f"{name}: {text}" if task is None else text)
    if not found and not cause:
        say(f"run {run} has not started: no master has picked it up yet")


@command("latchwork workflows workers", "latchwork workflows workers --json")
def list_workers(
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List the running workers, their groups, and the tasks that they run."""
    with open_client(resolve_home(home, database, store), url) as client:
        found = client.workers.list()
    empty = "no workers are online; start one with `latchwork workflows worker`"
    print_list("workers", found, _worker_row, plain=_worker_json, right=("busy", "slots"), empty=empty, as_json=as_json)


def _worker_json(worker: Worker) -> dict[str, Any]:
    return worker.model_dump(mode="json")


def _worker_row(worker: Worker) -> dict[str, str]:
    running = worker.running
    named = [f"{each.name} of {each.run}" for each in running]
    more = f" and {len(running) - _MAX_NAMED} more" if len(running) > _MAX_NAMED else ""
    return {
        "worker": worker.name,
        "host": worker.host,
        "groups": " ".join(worker.groups),
        "busy": str(worker.busy),
        "slots": str(worker.slots or "?"),
        "runs": ", ".join(named[:_MAX_NAMED]) + more,
        "state": worker.state,
        "version": worker.version,
        "types": " ".join(worker.types),
    }


def to_run_detail_json(found: RunDetail) -> dict[str, Any]:
    """Convert a run and the states of its tasks to JSON."""
    return {**_to_run_json(found), "tasks": found.task_states}
