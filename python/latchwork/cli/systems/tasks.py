"""`latchwork executor run` and `submit`: what imports functions of a user's own."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Annotated, Any

import typer

from latchwork.cli.options import Json, Url, command, wanted_url
from latchwork.cli.outcome import LOG_FORMAT, UsageError, debugging, quiet_logs
from latchwork.cli.probe import served
from latchwork.cli.systems.progress import waiting
from latchwork.cli.systems.runner_probe import answer
from latchwork.cli.target import import_module
from latchwork.cli.text import say_json, told
from latchwork.errors import LatchworkError
from latchwork.executor import Executor, Member, Runner, TaskFuture
from latchwork.store import connect
from latchwork.tasks import Functions, RemoteTraceback, UnknownFunction

Name = Annotated[str, typer.Option("--name", metavar="NAME", help="The executor's name: the key below which it is.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        show_default=False,
        help="A module that has functions with @task; the current directory is importable. May be given several times.",
    ),
]


class RunIn(StrEnum):
    """Where tasks run that do not say it themselves."""

    THREAD = "thread"
    PROCESS = "process"


def _functions(modules: Sequence[str]) -> Functions:
    """What these modules have registered."""
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
            help="This node's id, unique among the living ones.  [unless given: the host's name and six characters]",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, show_default=False, help="Tasks at a time.  [unless given: one for each processor of this machine]"
        ),
    ] = None,
    run_in: Annotated[
        RunIn, typer.Option(metavar="HOW", help="Where tasks run that do not say it: thread, or process.")
    ] = RunIn.THREAD,
    weight: Annotated[float, typer.Option(min=0.0, help="How much this node can bear, for pickers that ask.")] = 1.0,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Something about this node, for targets; may be repeated."),
    ] = None,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="A task that was taken so often, and never ended, becomes a dead letter.")
    ] = 5,
    session_ttl_s: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            show_default=False,
            help="Seconds after which others have our tasks when this node is dead. "
            "Unless given: that of the URL, else 10.",
        ),
    ] = None,
    drain_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds for tasks to end after SIGTERM or Ctrl-C, before they have to stop.")
    ] = 30.0,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Run pickled functions too: who can write to the store runs any code here then."
        ),
    ] = False,
    probe_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            show_default=False,
            help="Serve /healthz, /readyz and /metrics on this port; 0 picks one.  [unless given: none]",
        ),
    ] = None,
    probe_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address of --probe-port; 0.0.0.0 is all.")
    ] = "127.0.0.1",
    name: Name = "default",
    url: Url = None,
) -> None:
    """Run tasks in the foreground, until SIGTERM or Ctrl-C: then let them end, and leave.

    Only what the imported modules register with @task is run; what the store says is never imported.
    """
    if not modules and not allow_pickle:
        raise UsageError("what may be run? give --import MODULE, a module that has functions with @task")
    logging.basicConfig(level=logging.DEBUG if debugging() else logging.INFO, stream=sys.stderr, format=LOG_FORMAT)
    functions = _functions(modules or ())
    labels = dict(map(_label, label or ()))
    with connect(wanted_url(url)) as store:
        runner = Runner(
            store,
            name,
            node_id=node_id,
            slots=slots,
            run_in=run_in.value,
            functions=functions,
            allow_pickle=allow_pickle,
            weight=weight,
            labels=labels,
            session_ttl_s=session_ttl_s,
            max_attempts=max_attempts,
        )
        what = f"runner {runner.node_id}"
        with served(what, probe_host, probe_port, lambda path: answer(runner, path)):
            runner.run_forever(drain_s=drain_s)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--label {text!r} is no NAME=VALUE, for example --label gpu=yes")
    return name, value


@command(
    "latchwork executor submit tasks:square '[12]' --wait",
    'latchwork executor submit tasks:report \'{"day": "2026-11-22"}\' --id report-22',
    "latchwork executor submit cleanup --import tasks --target n1",
)
def submit(
    function: Annotated[
        str, typer.Argument(metavar="FUNCTION", help="The name of a function: MODULE:NAME, or what @task gave it.")
    ],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Its arguments: a list, or an object of arguments by name.")
    ] = "[]",
    *,
    modules: Imports = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--detach", help="Wait for the value and print it: Ctrl-C, or --timeout-s, cancels the task then."
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds that --wait waits at most; 0 waits for ever.")
    ] = 0.0,
    task_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            show_default=False,
            help="Names the task: the same call under the same id is one task.  [unless given: made up]",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="NODE", show_default=False, help="The node that alone may run it.  [unless given: any]"),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="0 runs before 9.")] = 5,
    name: Name = "default",
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Submit a call and print its id; the task outlives this command, and `result ID` has its value.

    With --wait it does not: the value is printed, as JSON, and a task that nobody waits for is cancelled.
    """
    if wait and task_id is not None:
        raise UsageError("--id goes without --wait: only tasks that outlive this command have ids of their own")
    args, kwargs = _arguments(arguments)
    module, colon, _ = function.partition(":")
    functions = _functions(modules or ([module] if colon else []))
    if not len(functions):
        raise UsageError(f"where is {function!r}? give --import MODULE, or MODULE:NAME")
    quiet_logs()
    with connect(wanted_url(url)) as store, Executor(store, name, functions=functions, priority=priority) as whole:
        pool = whole if target is None else whole.with_options(target=Member(target))
        if not wait:
            with _own_mistakes():
                made = pool.detached(function, *args, id=task_id, **kwargs).id
            told(made, {"id": made}, as_json=as_json)
            return
        with _own_mistakes():
            future: TaskFuture[Any] = pool.submit(function, *args, **kwargs)
        value = _waited(future, function, timeout_s)
    say_value(value, as_json=as_json)


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        given = json.loads(text)  # noqa: TID251 - what the user has typed
    except ValueError as error:
        raise UsageError(f"arguments {text!r} are no JSON: {error}; write for example '[12]'") from error
    if isinstance(given, dict):
        return [], given
    if isinstance(given, list):
        return given, {}
    raise UsageError(f"arguments {text!r} are neither a list nor an object; write for example '[12]'")


@contextmanager
def _own_mistakes() -> Iterator[None]:
    """What is wrong with a call before it is stored is a mistake in the command."""
    try:
        yield
    except (UnknownFunction, TypeError) as error:
        raise UsageError(str(error)) from error


def _waited(future: TaskFuture[Any], function: str, timeout_s: float) -> Any:
    """The value of a call; whatever ends the wait cancels it."""
    try:
        with waiting(function, future.state):
            return future.result(timeout_s or None)
    except BaseException as error:
        if future.done():
            refuse_own_error(error, function)
            raise
        with suppress(LatchworkError):
            future.cancel(interrupt=True)
        if isinstance(error, TimeoutError):
            raise LatchworkError(f"task of {function!r} did not end within {timeout_s:g} s; it was cancelled") from None
        raise


def refuse_own_error(error: BaseException, what: str) -> None:
    """What a task raised is no defect of this command: one line, as of any other failure.

    Raises:
        LatchworkError: instead of what a task raised.
    """
    if isinstance(error.__cause__, RemoteTraceback) and not isinstance(error, LatchworkError):
        raise LatchworkError(f"task {what!r} raised {type(error).__name__}: {error}") from error


def say_value(value: object, *, as_json: bool) -> None:
    """A value as JSON; what JSON does not know, as Python writes it."""
    say_json({"value": value} if as_json else value, one_line=not as_json, default=repr)
