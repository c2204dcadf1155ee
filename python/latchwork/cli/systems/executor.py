"""`latchwork executor`: run a worker, and submit, list, cancel and fetch tasks.

A command that waits for a task shows a status line on stderr if that is a terminal. `--probe-port` serves the health of
the worker and metrics.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from latchwork._base.event import Signal
from latchwork._base.text import counted, printable, utc_text
from latchwork.cli.cluster import open_store
from latchwork.cli.options import DrainS, Json, SessionTtlS, Url, command, group, parse_label, require_url
from latchwork.cli.outcome import LOG_FORMAT, UsageError, debugging, quiet_logs
from latchwork.cli.probe import ProbeHost, ProbePort, create_store_observers, serve_worker
from latchwork.cli.target import import_module
from latchwork.cli.text import Grid, Line, console, print_change, print_list, say_json, show
from latchwork.cli.watch import IntervalS, watch_state
from latchwork.errors import LatchworkError
from latchwork.executor import (
    DeadTask,
    Executor,
    ExecutorState,
    ExecutorWorker,
    ExecutorWorkerInfo,
    FinishedTask,
    Member,
    NoSuchTask,
    PartitionInfo,
    PendingTask,
    TaskFuture,
    TaskState,
    cancel_task,
    dead_tasks,
    drop_task,
    find_task,
    finished_tasks,
    forget_finished_tasks,
    forget_task,
    inspect,
    list_tasks,
    requeue_task,
)
from latchwork.store import Store, connect
from latchwork.tasks import Functions, RemoteTraceback, RunIn, UnknownFunction

#: Seconds between two reads of the task.
_LOOK_S = 1.0

Name = Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the executor, a key.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        show_default=False,
        help="A module with @task functions, found from the current directory. Repeatable.",
    ),
]

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The ID of a task, as submit and tasks print it.")]
Letter = Annotated[str, typer.Argument(metavar="LETTER", help="A dead letter, as dead list prints it.")]


def progress_line(task_id: str, state: TaskState) -> str:
    """Describe the state of a task in one line of text.

    Args:
        task_id: ID of the task.
        state: Its state.
    """
    where = f" on {', '.join(state.running_on)}" if state.running_on else ""
    again = f", taken {counted(state.attempts, 'time')}" if state.attempts > 1 else ""
    failed = f", failed {counted(state.failures, 'time')}" if state.failures else ""
    why = f": {state.why}" if state.why else ""
    return f"{task_id} {state.phase}{where}{again}{failed}{why}"


@contextmanager
def show_waiting(task_id: str, state: Callable[[], TaskState]) -> Iterator[None]:
    """Return a context manager that shows the state of a task on the terminal while the caller waits for the task.

    Args:
        task_id: The ID of the task.
        state: Reads the state; called repeatedly in a separate thread.
    """
    if not sys.stderr.isatty():
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True) as shown:
        line, over = shown.add_task(printable(f"{task_id} submitted"), total=None), Signal()

        def look() -> None:
            while not over.wait(_LOOK_S):
                try:
                    text = progress_line(task_id, state())
                except LatchworkError as error:
                    text = f"{task_id}: {error}"
                shown.update(line, description=printable(text))

        thread = threading.Thread(target=look, name="latchwork-cli-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_LOOK_S)


def _load_functions(modules: Sequence[str]) -> Functions:
    """Import modules, and return the functions that they have registered as tasks."""
    found = Functions()
    for module in modules:
        import_module(module)
        try:
            found.load(module)
        except UnknownFunction as error:
            raise UsageError(str(error)) from error
    return found


@command(
    "latchwork executor run --import tasks --url sqlite:///tasks.db",
    "latchwork executor run --import tasks --slots 8 --run-in process --node-id n1 --probe-port 9100",
    "latchwork executor run --import tasks --label gpu=yes --weight 2",
)
def run(
    *,
    modules: Imports = None,
    node_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            show_default=False,
            help="The ID of this node, unique among running nodes.  [default: host name and six characters]",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="How many tasks run at a time.  [default: one per processor of this machine]",
        ),
    ] = None,
    run_in: Annotated[
        RunIn, typer.Option(metavar="HOW", help="Where tasks run by default: thread or process.")
    ] = "thread",
    weight: Annotated[
        float, typer.Option(min=0.0, help="The capacity of this node, for pickers that use weights.")
    ] = 1.0,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="A label of this node, for targets. Repeatable."),
    ] = None,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="After this many attempts without an end, a task becomes a dead letter.")
    ] = 5,
    session_ttl_s: SessionTtlS = None,
    drain_s: DrainS = 30.0,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle",
            help="Also run pickled functions. Anyone who can write to the store can then run any code here.",
        ),
    ] = False,
    probe_port: ProbePort = None,
    probe_host: ProbeHost = "127.0.0.1",
    name: Name = "default",
    url: Url = None,
) -> None:
    """Run tasks in the foreground until SIGTERM or Ctrl-C, then let running tasks end and exit.

    Only functions that the imported modules register with @task are run. Nothing from the store is imported.
    """
    if not modules and not allow_pickle:
        raise UsageError("no module was given; add --import MODULE, a module with @task functions")
    logging.basicConfig(level=logging.DEBUG if debugging() else logging.INFO, stream=sys.stderr, format=LOG_FORMAT)
    functions = _load_functions(modules or ())
    labels = dict(map(parse_label, label or ()))
    with connect(require_url(url), observers=create_store_observers(probe_port)) as store:
        worker = ExecutorWorker(
            store,
            name,
            node_id=node_id,
            slots=slots,
            run_in=run_in,
            functions=functions,
            allow_pickle=allow_pickle,
            weight=weight,
            labels=labels,
            session_ttl_s=session_ttl_s,
            max_attempts=max_attempts,
        )
        with serve_worker("executor", worker, probe_host, probe_port, name=name):
            worker.run_forever(drain_s=drain_s)


@command(
    "latchwork executor submit tasks:square '[12]' --wait",
    'latchwork executor submit tasks:report \'{"day": "2026-11-22"}\' --id report-22',
    "latchwork executor submit cleanup --import tasks --target n1",
)
def submit(
    function: Annotated[
        str, typer.Argument(metavar="FUNCTION", help="The name of a function: MODULE:NAME, or its name in @task.")
    ],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Its arguments as JSON: a list, or an object of named arguments.")
    ] = "[]",
    *,
    modules: Imports = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--detach", help="Wait for the value and print it. Ctrl-C and --timeout-s cancel the task."
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=0.0, help="The longest wait of --wait in seconds; 0 waits forever.")
    ] = 0.0,
    task_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            show_default=False,
            help="The ID of the task. The same call with the same ID is one task.  [default: generated]",
        ),
    ] = None,
    result_ttl_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds for which the result of a detached task is kept.")
    ] = 86_400.0,
    target: Annotated[
        str | None,
        typer.Option(metavar="NODE", show_default=False, help="The only node that may run it.  [default: any]"),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="The priority: 0 runs before 9.")] = 5,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Submit a call and print its ID. The task outlives this command, and `result ID` prints its value.

    With --wait, print the value as JSON instead. The task is then canceled when the command ends.
    """
    if wait and task_id is not None:
        raise UsageError(
            "--id cannot be used with --wait: only tasks that outlive this command can have an ID of your own"
        )
    args, kwargs = _arguments(arguments)
    module, colon, _ = function.partition(":")
    functions = _load_functions(modules or ([module] if colon else []))
    if not len(functions):
        raise UsageError(f"where is {function!r}? give --import MODULE, or MODULE:NAME")
    quiet_logs()
    with connect(require_url(url)) as store, Executor(store, name, functions=functions, priority=priority) as whole:
        pool = whole if target is None else whole.with_options(target=Member(target))
        if not wait:
            with _report_as_usage_error():
                made = pool.detached(function, *args, id=task_id, result_ttl_s=result_ttl_s, **kwargs).id
            print_change(made, {"id": made}, as_json=as_json)
            return
        with _report_as_usage_error():
            future: TaskFuture[Any] = pool.submit(function, *args, **kwargs)
        value = _wait_for_value(future, function, timeout_s)
    print_value(value, as_json=as_json)


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        given = json.loads(text)  # noqa: TID251 - what the user has typed
    except ValueError as error:
        raise UsageError(f"arguments {text!r} are not JSON: {error}; for example, write '[12]'") from error
    if isinstance(given, dict):
        return [], given
    if isinstance(given, list):
        return given, {}
    raise UsageError(f"arguments {text!r} are neither a list nor an object; for example, write '[12]'")


@contextmanager
def _report_as_usage_error() -> Iterator[None]:
    """Report an unknown function or wrong arguments of a call as a mistake in the command line."""
    try:
        yield
    except (UnknownFunction, TypeError) as error:
        raise UsageError(str(error)) from error


def _wait_for_value(future: TaskFuture[Any], function: str, timeout_s: float) -> Any:
    """Wait for the value of a task and return it. If the wait ends early, cancel the task.

    Args:
        future: Future of the task.
        function: Name of the function, for messages.
        timeout_s: Seconds to wait; 0 waits forever.
    """
    try:
        with show_waiting(function, future.state):
            return future.result(timeout_s or None)
    except BaseException as error:
        if future.done():
            raise_task_error(error, function)
            raise
        with suppress(LatchworkError):
            future.cancel(interrupt=True)
        if isinstance(error, TimeoutError):
            raise LatchworkError(f"task of {function!r} did not end within {timeout_s:g} s; it was canceled") from None
        raise


def raise_task_error(error: BaseException, what: str) -> None:
    """If a task has raised an exception, raise an error whose message describes it in one line. Otherwise do nothing.

    Args:
        error: The exception that waiting for the task raised.
        what: Description of the task, for the message.
    Raises:
        LatchworkError: The task has raised an exception.
    """
    if isinstance(error.__cause__, RemoteTraceback) and not isinstance(error, LatchworkError):
        raise LatchworkError(f"task {what!r} raised {type(error).__name__}: {error}") from error


def print_value(value: object, *, as_json: bool) -> None:
    """Print a value as JSON. If JSON does not support it, print its Python representation.

    Args:
        value: The value.
        as_json: Whether to print a JSON document instead of the value alone.
    """
    say_json({"value": value} if as_json else value, one_line=not as_json, default=repr)


@command("latchwork executor status", "latchwork executor status --watch", "latchwork executor status --json")
def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval_s: IntervalS = 2.0,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show the workers, the queued and running tasks, and the dead letters."""
    with open_store(url, of_cluster=False) as store:
        if watch:
            watch_state(
                lambda: inspect(store, name),
                _state_parts,
                asdict,
                clock=store.clock,
                interval_s=interval_s,
                as_json=as_json,
            )
        state = inspect(store, name)
    if as_json:
        say_json(asdict(state))
    else:
        show(*_state_parts(state))


def _state_parts(state: ExecutorState) -> list[Line | Grid]:
    tasks = sum(partition.tasks for partition in state.partitions)
    running = sum(partition.running for partition in state.partitions)
    parts: list[Line | Grid] = [
        Line(
            f"{state.name}: {counted(len(state.workers), 'worker')}, {counted(state.submitters, 'submitter')}, "
            f"{tasks - running:,} queued, {running:,} running, {counted(state.dead, 'dead letter')}"
        )
    ]
    if state.workers:
        parts.append(Grid(map(_worker_row, state.workers), right=("slots", "running", "queued", "weight")))
    if state.partitions:
        parts.append(Grid(map(_partition_row, state.partitions), right=("tasks", "running")))
    return parts


def _worker_row(worker: ExecutorWorkerInfo) -> dict[str, str]:
    return {
        "worker": worker.id,
        "host": f"{worker.host}:{worker.pid}",
        "slots": str(worker.slots or "?"),
        "running": str(worker.running),
        "queued": str(worker.queued - min(worker.queued, worker.running)),
        "weight": f"{worker.weight:g}",
        "labels": " ".join(f"{label}={value}" for label, value in sorted(worker.labels.items())),
        "functions": str(len(worker.functions)),
        "since": utc_text(worker.joined_at_s),
    }


def _partition_row(partition: PartitionInfo) -> dict[str, str]:
    return {
        "partition": partition.name,
        "tasks": str(partition.tasks),
        "running": str(partition.running),
        "": "its worker is gone; others take from it" if partition.is_orphan else "",
    }


@command("latchwork executor tasks", "latchwork executor tasks --state running --json")
def tasks(
    *,
    state: Annotated[
        Literal["queued", "running"] | None,
        typer.Option(metavar="STATE", show_default=False, help="Show only queued or running tasks.  [default: all]"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number to read; each copy counts.")] = 100,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List tasks that have not ended, in the order in which they are taken, with their workers and waiting times."""
    with open_store(url, of_cluster=False) as store:
        found = [task for task in list_tasks(store, name, limit=limit) if state is None or task.phase == state]
    print_list(
        "tasks", found, _task_row, plain=asdict, right=("age_s", "taken", "failed"), empty="no tasks", as_json=as_json
    )


def _task_row(task: PendingTask) -> dict[str, str]:
    return {
        "id": task.id,
        "function": task.function or "?",
        "state": task.phase,
        "on": " ".join(task.running_on),
        "partition": " ".join(task.partitions),
        "age_s": f"{max(0.0, time.time() - task.queued_at_s):.0f}",
        "taken": str(task.attempts),
        "failed": str(task.failures),
        "why": task.why,
    }


@command("latchwork executor cancel d.nightly", "latchwork executor cancel 3f0c2a9d81b74e55.000000007 --interrupt")
def cancel(
    task_id: TaskId,
    *,
    interrupt: Annotated[
        bool,
        typer.Option("--interrupt", help="Also cancel a running task: it is asked to stop, and its result is dropped."),
    ] = False,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Cancel a task. Anyone who can reach the store may do so, and the submitter is notified."""
    with open_store(url, of_cluster=False) as store:
        if not cancel_task(store, task_id, name, interrupt=interrupt):
            now = _state(store, task_id, name)
            hint = "; with --interrupt it is stopped" if now == "running" else ""
            raise LatchworkError(f"task {task_id} is not canceled: it is {now}{hint}")
    print_change(f"{task_id}: canceled", {"id": task_id, "cancelled": True}, as_json=as_json)


def _state(store: Store, task_id: str, name: str) -> str:
    try:
        return find_task(store, task_id, name).phase
    except NoSuchTask:
        return "over"


@command("latchwork executor result d.nightly", "latchwork executor result d.nightly --timeout-s 60 --forget")
def result(
    task_id: TaskId,
    *,
    timeout_s: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for it; 0 waits forever.")] = 0.0,
    forget: Annotated[bool, typer.Option("--forget", help="Delete the record of the task afterward.")] = False,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Wait for a detached task, and print its value as JSON. The exit code is 1 if the task raised an error."""
    with open_store(url, of_cluster=False) as store, Executor(store, name, functions=Functions()) as pool:
        ref = pool.ref(task_id)
        try:
            with show_waiting(task_id, ref.state):
                value = ref.result(timeout_s or None)
        except TimeoutError as error:
            raise LatchworkError(str(error)) from None
        except Exception as error:
            raise_task_error(error, task_id)
            raise
        if forget:
            ref.forget()
    print_value(value, as_json=as_json)


@command("latchwork executor finished", "latchwork executor finished --limit 1000 --json")
def finished(
    *,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number to show.")] = 100,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List detached tasks that have ended and are still stored, in the order in which they expire."""
    with open_store(url, of_cluster=False) as store:
        found = finished_tasks(store, name, limit=limit)
    print_list("tasks", found, _finished_row, plain=asdict, empty="no finished tasks", as_json=as_json)


def _finished_row(task: FinishedTask) -> dict[str, str]:
    return {
        "id": task.id,
        "function": task.function or "?",
        "state": task.phase,
        "ended": utc_text(task.ended_at_s),
        "expires": "never" if task.expires_at_s is None else utc_text(task.expires_at_s),
        "why": task.why,
    }


@command("latchwork executor forget d.nightly", "latchwork executor forget --finished --older-than-s 3600")
def forget(
    task_id: Annotated[
        str | None, typer.Argument(metavar="ID", show_default=False, help="The ID of a detached task.")
    ] = None,
    *,
    all_finished: Annotated[
        bool, typer.Option("--finished", help="Delete all detached tasks that have ended, instead of one.")
    ] = False,
    older_than_s: Annotated[
        float, typer.Option(min=0.0, help="With --finished, only tasks that ended at least this many seconds ago.")
    ] = 0.0,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete the record and the result of one detached task that has ended, or of all such tasks."""
    if (task_id is None) != all_finished:
        raise UsageError("give the ID of a task, or --finished for all tasks that have ended")
    with open_store(url, of_cluster=False) as store:
        if task_id is None:
            count = forget_finished_tasks(store, name, older_than_s=older_than_s)
        else:
            count = int(forget_task(store, task_id, name))
    if task_id is not None and not count:
        raise NoSuchTask(f"no detached task {task_id!r} is stored")
    print_change(f"{counted(count, 'task')} forgotten", {"forgotten": count}, as_json=as_json)


@command("latchwork executor dead list", "latchwork executor dead list --json")
def dead_list(
    *,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number to show.")] = 100,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List dead letters: tasks that were taken too often without ending, with the last reason."""
    with open_store(url, of_cluster=False) as store:
        found = dead_tasks(store, name, limit=limit)
    print_list("dead", found, _dead_row, plain=asdict, right=("attempts",), empty="no dead letters", as_json=as_json)


def _dead_row(task: DeadTask) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(task).items()}


@command("latchwork executor dead requeue d.nightly.0")
def dead_requeue(letter: Letter, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Requeue a dead letter of a detached task. Its attempts are counted from zero again."""
    with open_store(url, of_cluster=False) as store:
        task_id = requeue_task(store, letter, name)
    print_change(f"{task_id}: queued again", {"id": task_id}, as_json=as_json)


@command("latchwork executor dead drop d.nightly.0")
def dead_drop(letter: Letter, *, name: Name = "default", url: Url = None, as_json: Json = False) -> None:
    """Delete a dead letter permanently."""
    with open_store(url, of_cluster=False) as store:
        drop_task(store, letter, name)
    print_change(f"{letter}: dropped", {"letter": letter}, as_json=as_json)


executor_app = group(
    "Calls that one process submits and another one runs: workers, tasks, results, dead letters.",
    run=run,
    submit=submit,
    status=status,
    tasks=tasks,
    cancel=cancel,
    result=result,
    finished=finished,
    forget=forget,
)


executor_app.add_typer(
    group("Dead letters: tasks that failed too often.", list=dead_list, requeue=dead_requeue, drop=dead_drop),
    name="dead",
)
