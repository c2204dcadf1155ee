"""`latchwork plans`: run, inspect, draw, cancel and remove plans."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Literal

import typer

from latchwork._base.text import counted, utc_text
from latchwork.cli.cluster import open_store
from latchwork.cli.options import DrainS, Json, SessionTtlS, Url, command, group, require_url
from latchwork.cli.outcome import LOG_FORMAT, UsageError, debugging
from latchwork.cli.probe import ProbeHost, ProbePort, create_store_observers, serve_worker
from latchwork.cli.target import import_module
from latchwork.cli.text import Grid, Line, print_change, print_list, say, say_json, show
from latchwork.cli.watch import IntervalS, watch_state
from latchwork.drawing import to_dot, to_mermaid, to_svg
from latchwork.errors import BadRecord, LatchworkError, WaitTimeout
from latchwork.plans import (
    NoResult,
    NoSuchPlan,
    NoSuchTask,
    PlanHandle,
    Plans,
    PlanState,
    PlanStatus,
    PlanWorker,
    TaskState,
)
from latchwork.plans.records import PlanRecord
from latchwork.store import connect
from latchwork.tasks import DEFAULT, RunIn

PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="The ID of a plan; see `latchwork plans list`.")]
Name = Annotated[str, typer.Option("--name", metavar="KEY", help="The key of the plans.")]
#: So many of the tasks that wait, or failed, are shown.
_FEW = 10


@command(
    "latchwork plans worker --import reports --slots 4 --url sqlite:///plans.db",
    "latchwork plans worker --import reports --import mails --run-in process",
)
def worker(
    *,
    modules: Annotated[
        list[str],
        typer.Option(
            "--import",
            metavar="MODULE",
            help="A module with @task functions, found from the current directory. Repeatable.",
        ),
    ],
    slots: Annotated[int, typer.Option(min=1, max=1000, help="How many tasks run at a time.")] = 1,
    run_in: Annotated[
        RunIn,
        typer.Option(metavar="WHERE", help="thread or process. A process per slot can be killed."),
    ] = "thread",
    session_ttl_s: SessionTtlS = None,
    drain_s: DrainS = 30.0,
    probe_port: ProbePort = None,
    probe_host: ProbeHost = "127.0.0.1",
    name: Name = "default",
    url: Url = None,
) -> None:
    """Run tasks of plans until SIGTERM or Ctrl-C, then let running tasks end, release the rest, and exit with 0.

    Start it several times, on one machine or many. Each task is taken by one worker. Events are logged to stderr. A
    second signal does not wait for running tasks.
    """
    where = require_url(url)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=LOG_FORMAT)
    logging.getLogger("latchwork").setLevel(logging.DEBUG if debugging() else logging.INFO)
    for each in modules:
        import_module(each)
    if not list(DEFAULT):
        raise UsageError(f"{', '.join(modules)} has no @task functions; import the module that contains them")
    with connect(where, observers=create_store_observers(probe_port)) as store:
        node = PlanWorker(store, name, slots=slots, run_in=run_in, session_ttl_s=session_ttl_s)
        with serve_worker("plans", node, probe_host, probe_port, name=name):
            node.run_forever(drain_s=drain_s)


@command("latchwork plans list", "latchwork plans list --state failed --json")
def list_plans(
    *,
    state: Annotated[
        PlanState | None,
        typer.Option(metavar="STATE", help=f"Only plans in this state: {', '.join(each.value for each in PlanState)}."),
    ] = None,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List plans, oldest first. It takes one read, no matter how many tasks they have."""
    with open_store(url, of_cluster=False) as store:
        found = Plans(store, name).list(state=state)
    empty = "no plans" if state is None else f"no plans that are {state.value}"
    print_list("plans", found, _plan_row, plain=_plan_document, right=("tasks",), empty=empty, as_json=as_json)


def _plan_row(found: tuple[str, PlanRecord]) -> dict[str, str]:
    return {name: str(value) for name, value in _plan_document(found).items()}


def _plan_document(found: tuple[str, PlanRecord]) -> dict[str, str | int]:
    plan_id, record = found
    return {
        "plan": plan_id,
        "name": record.title,
        "state": record.state.value,
        "tasks": record.tasks,
        "started": _moment(record.started_ms),
        "ended": _moment(record.ended_ms),
    }


def _moment(ms: int) -> str:
    return utc_text(ms / 1000) if ms else ""


@command("latchwork plans show 3f2a", "latchwork plans show 3f2a --watch")
def show_plan(
    plan: PlanId,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until the plan has ended.")] = False,
    interval_s: IntervalS = 2.0,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a plan: the number of tasks per state, running tasks, failures with reasons, and tasks that wait for others.

    It reads all tasks of the plan. With --watch and --json, it prints one JSON document per line.
    """
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        handle = Plans(store, name).get(plan)
        if watch:
            handle.state()
            watch_state(
                lambda: _read_status(handle),
                lambda found: _parts(*found),
                lambda found: _document(*found),
                clock=store.clock,
                interval_s=interval_s,
                as_json=as_json,
                has_ended=lambda found: found[0].has_ended,
            )
            return
        status = _read_status(handle)
        if as_json:
            say_json(_document(*status))
        else:
            show(*_parts(*status))


def _read_status(handle: PlanHandle) -> tuple[PlanStatus, dict[str, list[str]]]:
    status = handle.status()
    return status, _find_pending_dependencies(handle, status)


def _find_pending_dependencies(handle: PlanHandle, status: PlanStatus) -> dict[str, list[str]]:
    """Find the unfinished dependencies of the first waiting tasks. Return their names by the name of the waiting task.

    Args:
        handle: Handle of the plan.
        status: Status of the plan.
    """
    if not status.tasks.get(TaskState.WAITING):
        return {}
    names = [node.id for node in handle.graph().nodes if node.kind == TaskState.WAITING.value]
    return {each: handle.pending_deps(each) for each in names[:_FEW]}


def _parts(status: PlanStatus, waiting: dict[str, list[str]]) -> list[Line | Grid]:
    counts = ", ".join(f"{status.tasks[each]:,} {each.value}" for each in TaskState if status.tasks.get(each))
    ended = f", ended {_moment(status.ended_ms)}" if status.ended_ms else ""
    named = f" {status.name!r}" if status.name else ""
    parts: list[Line | Grid] = [
        Line(f"{status.id}{named}: {status.state.value}, started {_moment(status.started_ms)}{ended}"),
        Line(f"tasks: {counts or 'none'}"),
    ]
    if status.running:
        rows = [
            {"running": each.task, "worker": each.worker, "host": each.host, "pid": str(each.pid)}
            for each in status.running
        ]
        parts.append(Grid(rows, right=("pid",)))
    parts += [Line(f"failed {task}: {why}", "red") for task, why in status.failed]
    for task, deps in waiting.items():
        more = f" and {len(deps) - _FEW:,} more" if len(deps) > _FEW else ""
        parts.append(Line(f"waiting {task}: for {', '.join(deps[:_FEW]) or 'a worker'}{more}", "dim"))
    left = status.tasks.get(TaskState.WAITING, 0) - len(waiting)
    return [*parts, Line(f"and {left:,} more that wait", "dim")] if left > 0 else parts


def _document(status: PlanStatus, waiting: dict[str, list[str]]) -> dict[str, object]:
    return {
        "plan": status.id,
        "name": status.name,
        "state": status.state.value,
        "started": _moment(status.started_ms),
        "ended": _moment(status.ended_ms),
        "tasks": {each.value: status.tasks.get(each, 0) for each in TaskState},
        "running": [vars(each) for each in status.running],
        "failed": [{"task": task, "why": why} for task, why in status.failed],
        "waiting": waiting,
    }


@command("latchwork plans graph 3f2a --form svg > plan.svg", "latchwork plans graph 3f2a | tee plan.mmd")
def graph(
    plan: PlanId,
    *,
    form: Annotated[
        Literal["mermaid", "dot", "svg"], typer.Option(metavar="FORM", help="The format: mermaid, dot or svg.")
    ] = "mermaid",
    name: Name = "default",
    url: Url = None,
) -> None:
    """Print the graph of a plan with the state of each task, as Mermaid, Graphviz or SVG."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        found = Plans(store, name).get(plan).graph()
    text = {"mermaid": to_mermaid, "dot": to_dot, "svg": to_svg}[form](found)
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


@command("latchwork plans result 3f2a total", "latchwork plans result 3f2a total --timeout-s 60 --json")
def result(
    plan: PlanId,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The name of a task; t00003 is a generated name.")],
    *,
    timeout_s: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for its end; 0 checks once.")] = 0.0,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print the result of a task. The exit code is 1 if the task has no result, or if it raised an exception."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        handle = Plans(store, name).get(plan)
        handle.state()
        try:
            value = handle.result(task, timeout_s)
        except (NoResult, WaitTimeout, NoSuchTask, NoSuchPlan):
            raise
        except Exception as error:
            raise LatchworkError(f"task {task} failed: {type(error).__name__}: {error}") from error
    if as_json:
        say_json({"plan": plan, "task": task, "result": _plain(value)})
    else:
        say(value if isinstance(value, str) else repr(value))


def _plain(value: object) -> object:
    """Return a value unchanged if JSON supports it, otherwise its text form."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


@command("latchwork plans cancel 3f2a")
def cancel(plan: PlanId, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Cancel a plan: running tasks are asked to stop, and no more start. Workers do it; the command does not wait."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        Plans(store, name).get(plan).cancel()
    print_change(f"{plan}: canceling", {"plan": plan, "state": PlanState.CANCELLING.value}, as_json=as_json)


@command("latchwork plans recover 3f2a")
def recover(plan: PlanId, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Retry the failed, skipped and canceled tasks of a plan that has ended. Existing results are kept."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        Plans(store, name).get(plan).recover()
    print_change(f"{plan}: recovering", {"plan": plan, "state": PlanState.RECOVERING.value}, as_json=as_json)


@command("latchwork plans rm 3f2a")
def rm(plan: PlanId, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Remove a plan with all its results, in any state."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        handle = Plans(store, name).get(plan)
        with suppress(BadRecord):
            handle.state()
        handle.remove()
    print_change(f"{plan}: removed", {"plan": plan, "removed": True}, as_json=as_json)


@command("latchwork plans sweep")
def sweep(*, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Remove drafts of dead builders, leftovers of removed plans, and expired plans and results."""
    with open_store(url, of_cluster=False) as store:
        count = Plans(store, name).sweep()
    print_change(f"swept {counted(count, 'plan')}", {"plans": count}, as_json=as_json)


@contextmanager
def _missing_is_usage() -> Iterator[None]:
    try:
        yield
    except NoSuchTask as error:
        raise UsageError(f"{error}; see latchwork plans show") from error
    except NoSuchPlan as error:
        raise UsageError(f"{error}; see latchwork plans list") from error


plans_app = group(
    "Plans: durable graphs of calls, which workers on any machine run.",
    worker=worker,
    list=list_plans,
    show=show_plan,
    graph=graph,
    result=result,
    cancel=cancel,
    recover=recover,
    rm=rm,
    sweep=sweep,
)
