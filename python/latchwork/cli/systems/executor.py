"""`latchwork executor`: nodes that run tasks, and tasks looked at, taken back and fetched from a shell."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from latchwork.cli.cluster import open_store
from latchwork.cli.options import Json, Url, command, group
from latchwork.cli.outcome import attempted
from latchwork.cli.systems.progress import waiting
from latchwork.cli.systems.tasks import Name, refuse_own_error, run, say_value, submit
from latchwork.cli.text import Grid, Line, say, say_json, show, told
from latchwork.errors import LatchworkError
from latchwork.executor import (
    Executor,
    ExecutorState,
    LaneInfo,
    NoSuchTask,
    RunnerInfo,
    TaskRecord,
    cancel_task,
    dead_tasks,
    drop_task,
    find_task,
    inspect,
    list_tasks,
    revive_task,
)
from latchwork.store import Store
from latchwork.tasks import Functions
from latchwork.words import counted, utc_text

TaskId = Annotated[str, typer.Argument(metavar="ID", help="A task's id, as submit and tasks print it.")]
Letter = Annotated[str, typer.Argument(metavar="LETTER", help="A dead letter, as dead list prints it.")]


class Phase(StrEnum):
    """States of tasks that are not over."""

    QUEUED = "queued"
    RUNNING = "running"


@command("latchwork executor status", "latchwork executor status --watch", "latchwork executor status --json")
def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again until Ctrl-C.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --watch.")] = 2.0,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show who runs tasks, how many are queued and running, and where; dead letters too."""
    with open_store(url, of_cluster=False) as store:
        if not watch:
            _show(inspect(store, name), as_json=as_json)
            return
        never = threading.Event()
        while True:
            state, failure = attempted(lambda: inspect(store, name))
            if state is not None:
                _show(state, as_json=as_json, one_line=True)
            elif as_json:
                say_json({"error": failure}, one_line=True)
            else:
                show(Line(f"error: {failure}", "red"))
            store.clock.wait(never, interval_s)


def _show(state: ExecutorState, *, as_json: bool, one_line: bool = False) -> None:
    if as_json:
        say_json(asdict(state), one_line=one_line)
        return
    tasks, running = sum(lane.tasks for lane in state.lanes), sum(lane.running for lane in state.lanes)
    say(
        f"{state.name}: {counted(len(state.runners), 'runner')}, {counted(state.submitters, 'submitter')}, "
        f"{tasks - running:,} queued, {running:,} running, {counted(state.dead, 'dead letter')}"
    )
    if state.runners:
        show(Grid(map(_runner_row, state.runners), right=("slots", "running", "queued", "weight")))
    if state.lanes:
        show(Grid(map(_lane_row, state.lanes), right=("tasks", "running")))


def _runner_row(runner: RunnerInfo) -> dict[str, str]:
    return {
        "runner": runner.id,
        "host": f"{runner.host}:{runner.pid}",
        "slots": str(runner.slots or "?"),
        "running": str(runner.running),
        "queued": str(runner.queued - min(runner.queued, runner.running)),
        "weight": f"{runner.weight:g}",
        "labels": " ".join(f"{label}={value}" for label, value in sorted(runner.labels.items())),
        "functions": str(len(runner.functions)),
        "since": utc_text(runner.joined_at_s),
    }


def _lane_row(lane: LaneInfo) -> dict[str, str]:
    return {
        "lane": lane.name,
        "tasks": str(lane.tasks),
        "running": str(lane.running),
        "": "its runner is gone; others take from it" if lane.is_orphan else "",
    }


@command("latchwork executor tasks", "latchwork executor tasks --state running --json")
def tasks(
    *,
    state: Annotated[
        Phase | None,
        typer.Option(metavar="STATE", show_default=False, help="Only those: queued or running.  [unless given: all]"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many are read at most, copies counted each.")] = 100,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List tasks that are not over, in the order in which they are taken: who runs them, since when they wait."""
    with open_store(url, of_cluster=False) as store:
        found = [task for task in list_tasks(store, name, limit=limit) if state is None or task.phase == state.value]
    if as_json:
        say_json({"tasks": [asdict(task) for task in found]})
    elif found:
        show(Grid(map(_task_row, found), right=("age_s", "taken")))
    else:
        say("no tasks")


def _task_row(task: TaskRecord) -> dict[str, str]:
    return {
        "id": task.id,
        "function": task.function or "?",
        "state": task.phase,
        "on": " ".join(task.running_on),
        "lane": " ".join(task.lanes),
        "age_s": f"{max(0.0, time.time() - task.queued_at_s):.0f}",
        "taken": str(task.attempts),
        "why": task.why,
    }


@command("latchwork executor cancel d.nightly", "latchwork executor cancel 3f0c2a9d81b74e55.000000007 --interrupt")
def cancel(
    task_id: TaskId,
    *,
    interrupt: Annotated[
        bool, typer.Option("--interrupt", help="Also when it runs: it is told to stop, and its result is dropped.")
    ] = False,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Take a task back, whoever submitted it: who waits for its result is told that it was cancelled."""
    with open_store(url, of_cluster=False) as store:
        if not cancel_task(store, task_id, name, interrupt=interrupt):
            now = _state(store, task_id, name)
            hint = "; with --interrupt it is stopped" if now == Phase.RUNNING.value else ""
            raise LatchworkError(f"task {task_id} is not cancelled: it is {now}{hint}")
    told(f"{task_id}: cancelled", {"id": task_id, "cancelled": True}, as_json=as_json)


def _state(store: Store, task_id: str, name: str) -> str:
    try:
        return find_task(store, task_id, name).phase
    except NoSuchTask:
        return "over"


@command("latchwork executor result d.nightly", "latchwork executor result d.nightly --timeout-s 60 --forget")
def result(
    task_id: TaskId,
    *,
    timeout_s: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for it; 0 waits for ever.")] = 0.0,
    forget: Annotated[bool, typer.Option("--forget", help="Delete what is known of the task afterwards.")] = False,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Wait for a task that outlives its submitter, and print its value as JSON; its error is exit code 1."""
    with open_store(url, of_cluster=False) as store, Executor(store, name, functions=Functions()) as pool:
        ref = pool.ref(task_id)
        try:
            with waiting(task_id, ref.state):
                value = ref.result(timeout_s or None)
        except TimeoutError as error:
            raise LatchworkError(str(error)) from None
        except Exception as error:
            refuse_own_error(error, task_id)
            raise
        if forget:
            ref.forget()
    say_value(value, as_json=as_json)


@command("latchwork executor dead list", "latchwork executor dead list --json")
def dead_list(
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many are shown at most.")] = 100,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List dead letters: tasks that were taken too often and never ended, with what was said last."""
    with open_store(url, of_cluster=False) as store:
        found = dead_tasks(store, name, limit=limit)
    if as_json:
        say_json({"dead": [asdict(each) for each in found]})
    elif found:
        rows = [{name: str(value) for name, value in asdict(each).items()} for each in found]
        show(Grid(rows, right=("attempts",)))
    else:
        say("no dead letters")


@command("latchwork executor dead revive d.nightly.0")
def dead_revive(letter: Letter, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Put a dead letter back, with all its attempts before it; only of a task that outlives its submitter."""
    with open_store(url, of_cluster=False) as store:
        task_id = revive_task(store, letter, name)
    told(f"{task_id}: queued again", {"id": task_id}, as_json=as_json)


@command("latchwork executor dead drop d.nightly.0")
def dead_drop(letter: Letter, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Delete a dead letter for good."""
    with open_store(url, of_cluster=False) as store:
        drop_task(store, letter, name)
    told(f"{letter}: dropped", {"letter": letter}, as_json=as_json)


executor_app = group(
    "Calls that any process submits and one node runs: nodes, tasks, results, dead letters.",
    run=run,
    submit=submit,
    status=status,
    tasks=tasks,
    cancel=cancel,
    result=result,
)
executor_app.add_typer(
    group("Dead letters: tasks that were given up.", list=dead_list, revive=dead_revive, drop=dead_drop), name="dead"
)
