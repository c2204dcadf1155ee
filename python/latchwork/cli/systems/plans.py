"""`latchwork plans`: plans run, looked at, drawn, ended and removed from a shell."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Annotated, Literal

import typer
from rich.console import Group
from rich.live import Live

from latchwork.cli.cluster import open_store
from latchwork.cli.options import DrainS, Json, Url, command, group, wanted_url
from latchwork.cli.outcome import LOG_FORMAT, UsageError, attempted, debugging
from latchwork.cli.target import import_module
from latchwork.cli.text import Grid, Line, console, say, say_json, show, told
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
from latchwork.store import Store, connect
from latchwork.tasks import DEFAULT
from latchwork.words import counted, utc_text

PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="The id of a plan; `latchwork plans list` has them.")]
Name = Annotated[str, typer.Option("--name", metavar="KEY", help="The key below which the plans are.")]
#: So many of the tasks that wait, or failed, are shown.
_FEW = 10


class Form(StrEnum):
    """How a graph is written."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


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
            help="A module with functions of @task; the current directory is importable. May be given several times.",
        ),
    ],
    slots: Annotated[int, typer.Option(min=1, max=1000, help="How many tasks run at a time.")] = 1,
    run_in: Annotated[
        Literal["thread", "process"],
        typer.Option(metavar="WHERE", help="thread, or process: a child for each slot, which can be ended by force."),
    ] = "thread",
    session_ttl_s: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            show_default=False,
            help="Seconds after which the tasks of a worker that died are run by others. "
            "Unless given: that of the URL, else 10.",
        ),
    ] = None,
    drain_s: DrainS = 30.0,
    name: Name = "default",
    url: Url = None,
) -> None:
    """Run tasks of plans until SIGTERM or Ctrl-C: then let them end, give back what does not, and exit with 0.

    Start it several times, on one machine or many: each task is taken by one of them. What happens is logged to
    stderr. A second signal does not wait for tasks to end by themselves.
    """
    where = wanted_url(url)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=LOG_FORMAT)
    logging.getLogger("latchwork").setLevel(logging.DEBUG if debugging() else logging.INFO)
    for each in modules:
        import_module(each)
    if not list(DEFAULT):
        raise UsageError(f"{', '.join(modules)} has no function of @task; import the module that has them")
    with connect(where) as store:
        PlanWorker(store, name, slots=slots, run_in=run_in, session_ttl_s=session_ttl_s).run_forever(drain_s=drain_s)


@command("latchwork plans list", "latchwork plans list --state failed --json")
def list_plans(
    *,
    state: Annotated[
        PlanState | None,
        typer.Option(metavar="STATE", help=f"Only those: {', '.join(each.value for each in PlanState)}."),
    ] = None,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List plans, the oldest first. One read, however many tasks they have."""
    with open_store(url, of_cluster=False) as store:
        found = Plans(store, name).list(state=state)
    rows = [
        {
            "plan": plan_id,
            "name": record.title,
            "state": record.state.value,
            "tasks": str(record.tasks),
            "started": _moment(record.started_ms),
            "ended": _moment(record.ended_ms),
        }
        for plan_id, record in found
    ]
    if as_json:
        say_json({"plans": [{**row, "tasks": int(row["tasks"])} for row in rows]})
    elif rows:
        show(Grid(rows, right=("tasks",)))
    else:
        say("no plans" if state is None else f"no plans that are {state.value}")


def _moment(ms: int) -> str:
    return utc_text(ms / 1000) if ms else ""


@command("latchwork plans show 3f2a", "latchwork plans show 3f2a --watch")
def show_plan(
    plan: PlanId,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again until it has ended.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --watch.")] = 2.0,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a plan: how many tasks are in which state, what runs where, what failed and why, what waits for what.

    Reads all its tasks. With --watch and --json: one JSON document a line.
    """
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        handle = Plans(store, name).get(plan)
        if watch:
            _watch(store, handle, interval_s, as_json=as_json)
            return
        status = handle.status()
        if as_json:
            say_json(_document(status, _waiting(handle, status)))
        else:
            show(*_parts(status, _waiting(handle, status)))


def _watch(store: Store, handle: PlanHandle, interval_s: float, *, as_json: bool) -> None:
    handle.state()
    out, never = console(), threading.Event()
    with Live(console=out, auto_refresh=False) as live:
        while True:
            body: list[Line | Grid]
            document: dict[str, object]
            found, failure = attempted(lambda: _looked(handle))
            if found is None:
                body, document = [Line(f"error: {failure}", "red")], {"error": failure or ""}
            else:
                body, document = _parts(*found), _document(*found)
            if as_json:
                say_json(document, one_line=True)
            elif out.is_terminal:
                live.update(Group(Line(utc_text(time.time()), "dim"), *body), refresh=True)
            else:
                show(Line(utc_text(time.time()), "dim"), *body)
            if found is not None and found[0].has_ended:
                return
            store.clock.wait(never, interval_s)


def _looked(handle: PlanHandle) -> tuple[PlanStatus, dict[str, list[str]]]:
    status = handle.status()
    return status, _waiting(handle, status)


def _waiting(handle: PlanHandle, status: PlanStatus) -> dict[str, list[str]]:
    """Of the first tasks that wait, what for."""
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
    form: Annotated[Form, typer.Option(metavar="FORM", help="mermaid, dot or svg.")] = Form.MERMAID,
    name: Name = "default",
    url: Url = None,
) -> None:
    """Write what depends on what, with the state of each task, for a page or for Graphviz."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        found = Plans(store, name).get(plan).graph()
    text = {Form.MERMAID: to_mermaid, Form.DOT: to_dot, Form.SVG: to_svg}[form](found)
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


@command("latchwork plans result 3f2a total", "latchwork plans result 3f2a total --timeout-s 60 --json")
def result(
    plan: PlanId,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The name of a task, as t00003 if it was given none.")],
    *,
    timeout_s: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for its end; 0 looks once.")] = 0.0,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print the result of a task. Exit code 1 if it has none, or not yet; what it raised is the error then."""
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
    """The value itself, or as text if it cannot be JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


@command("latchwork plans cancel 3f2a")
def cancel(plan: PlanId, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """End a plan: what runs is told to stop, and nothing more begins. Workers do it; this does not wait for them."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        Plans(store, name).get(plan).cancel()
    told(f"{plan}: cancelling", {"plan": plan, "state": PlanState.CANCELLING.value}, as_json=as_json)


@command("latchwork plans recover 3f2a")
def recover(plan: PlanId, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Run again what failed, was skipped or cancelled in a plan that has ended so; results that are there are kept."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        Plans(store, name).get(plan).recover()
    told(f"{plan}: recovering", {"plan": plan, "state": PlanState.RECOVERING.value}, as_json=as_json)


@command("latchwork plans rm 3f2a")
def rm(plan: PlanId, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Remove a plan with all its results, whatever it does. A worker does it; this does not wait for that."""
    with open_store(url, of_cluster=False) as store, _missing_is_usage():
        handle = Plans(store, name).get(plan)
        with suppress(BadRecord):
            handle.state()
        handle.remove()
    told(f"{plan}: removing", {"plan": plan, "state": PlanState.REMOVING.value}, as_json=as_json)


@command("latchwork plans sweep")
def sweep(*, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Remove drafts whose builder died, what is left of plans that are gone, and results whose time is over."""
    with open_store(url, of_cluster=False) as store:
        count = Plans(store, name).sweep()
    told(f"swept {counted(count, 'plan')}", {"plans": count}, as_json=as_json)


@contextmanager
def _missing_is_usage() -> Iterator[None]:
    try:
        yield
    except NoSuchTask as error:
        raise UsageError(f"{error}; see latchwork plans show") from error
    except NoSuchPlan as error:
        raise UsageError(f"{error}; see latchwork plans list") from error


plans_app = group(
    "Plans: functions that depend on each other, run by workers anywhere, without a server of ours.",
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
