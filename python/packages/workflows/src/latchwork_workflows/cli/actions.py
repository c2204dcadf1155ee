"""`latchwork workflows start`; `pause`, `resume`, `stop`, `recover`, `rerun` of a run; `force-success`, `force-start`
of a task.
"""

from __future__ import annotations

import inspect
import sys
import time
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.errors import BadRecord
from latchwork.spi import (
    FAILURE,
    Json,
    Line,
    UsageError,
    command,
    print_change,
    printable,
    read_json,
    say,
    say_json,
    show,
)
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, LogsUrl, StoreUrl, open_client, resolve_home
from latchwork_workflows.cli.runs import STYLES, RunId, check_run_has_task, to_run_detail_json

if TYPE_CHECKING:
    from latchwork_workflows import WorkflowClient
    from latchwork_workflows.schemas.runs import Run, RunDetail

StartFrom = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="TASK", show_default=False, help="Start with this task. Repeatable."),
]

RecoverFrom = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="TASK",
        show_default=False,
        help="Also run this task again, with everything downstream. Repeatable.",
    ),
]
PriorityWord = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        show_default=False,
        help="highest, high, medium, low or lowest.  [default: that of the definition]",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Every task succeeds without running.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Ignore cached outputs and run every task.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the run has ended or paused.")]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="NAME=VALUE",
        show_default=False,
        help="A parameter that replaces that of the definition, as JSON or plain text. Repeatable.",
    ),
]


#: Parts of a log that are shown before the next log has its turn; bytes of a line that are waited for to be whole.
_PARTS, _LINE = 16, 65_536


@command(
    "latchwork workflows start nightly",
    "latchwork workflows start nightly -p day=2026-11-22 -p rows=100 --wait",
    "latchwork workflows start nightly --from load --follow",
)
def start_run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="project.name, or the name of a workflow in the project default.")
    ],
    *,
    param: Params = None,
    start_from: StartFrom = None,
    scope: Annotated[
        str,
        typer.Option(metavar="SCOPE", help="With --from: which other tasks run: only (none), downstream or upstream."),
    ] = "downstream",
    priority: PriorityWord = None,
    dry_run: DryRun = False,
    no_cache: NoCache = False,
    unique_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            help="Idempotency key: repeating the same start with the same key starts one run.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended. Exit code 1 unless it succeeded.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the logs of its tasks and wait for its end.")
    ] = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
    as_json: Json = False,
) -> None:
    """Start a run of a workflow. Print its ID once a master has created it."""
    params = parse_params(param or [])
    if scope not in {"only", "downstream", "upstream"}:
        raise UsageError(f"--scope is only, downstream or upstream, not {scope!r}")
    with open_client(resolve_home(home, database, store, logs), url) as client:
        asked = client.runs.start(
            name,
            params,
            priority=priority,
            start_from=start_from or (),
            scope=scope,
            dry_run=dry_run,
            no_cache=no_cache,
            unique_key=unique_key,
        )
        number = asked.id()
        if not (wait or follow):
            print_change(f"run {number} of {name} started", {"run": number}, as_json=as_json)
            return
        if not as_json:
            say(f"run {number} of {name} started")
        found = _follow_logs(client, number) if follow and not as_json else client.runs.wait(number)
        cause = _find_failure_causes(client, found)
    _print_end(found, cause, as_json=as_json)


def _find_failure_causes(client: WorkflowClient, found: Run) -> list[dict[str, str]]:
    """Return why a run failed: its failed tasks, with the reasons and the attempts whose logs show them."""
    if found.state.value == "success":
        return []
    mine = [each for each in client.runs.attempts(found.id) if each.round == found.round]
    newest = {each.name: each.id for each in reversed(mine)}
    return [
        {"task": each.task, "why": each.why, "attempt": newest.get(each.task, "")}
        for each in client.runs.explain(found.id).cause
    ]


def _print_causes(cause: list[dict[str, str]]) -> None:
    for each in cause:
        show(Line(f"{each['task']}: {each['why']}" if each["task"] else each["why"], "red"))
        if each["attempt"]:
            say(f"  its log: `latchwork workflows logs {each['attempt']}`")


def _print_end(found: RunDetail, cause: list[dict[str, str]], *, as_json: bool) -> None:
    if as_json:
        say_json({**to_run_detail_json(found), "cause": cause})
    else:
        show(Line(f"run {found.id}: {found.state.value}", STYLES.get(found.state.value, "")))
        _print_causes(cause)
    if found.state.value != "success":
        raise typer.Exit(FAILURE)


def _follow_logs(client: WorkflowClient, number: int) -> RunDetail:
    """Print the logs of all attempts of a run as they grow, until the run has ended. Lines start with their task."""
    tails: dict[str, _LogTail] = {}
    while True:
        found = client.runs.get(number)
        for each in reversed(client.runs.attempts(number)):
            tails.setdefault(each.id, _LogTail(each.name, each.id)).print_new_lines(client, to_end=found.has_ended)
        if found.has_ended:
            return found
        time.sleep(0.3)


@dataclass
class _LogTail:
    """The part of an attempt's log that was already printed.

    Attributes:
        name: Name of the task.
        attempt: ID of the attempt.
        next: Offset of the next byte to read.
        partial_line: Start of a line whose end has not been written yet.
        ended: Whether the whole log was printed.
    """

    name: str
    attempt: str
    next: int = 0
    partial_line: bytes = b""
    ended: bool = False

    def print_new_lines(self, client: WorkflowClient, *, to_end: bool) -> None:
        """Print the new lines of the log.

        If the log grows faster than it is printed, only a part is printed, so that other logs get a turn.

        Args:
            client: The client that reads the log.
            to_end: Print everything that was written until now.
        """
        parts = 0
        while not self.ended and (to_end or parts < _PARTS):
            part = client.attempts.log(self.attempt, self.next)
            self.next, self.ended = part.next, part.ended
            *lines, self.partial_line = (self.partial_line + part.data).split(b"\n")
            if self.ended or len(self.partial_line) > _LINE or (to_end and not part.data):
                lines, self.partial_line = [*lines, *filter(None, [self.partial_line])], b""
            _print([f"{self.name} | {line.decode('utf-8', 'replace').rstrip(chr(13))}" for line in lines])
            if not part.data:
                return
            parts += 1


def _print(lines: list[str]) -> None:
    """Print many lines with one write. Separate writes take longer than a task needs to write the lines."""
    if sys.stdout.isatty():
        show(*lines)
    elif lines:
        sys.stdout.write("\n".join([*map(printable, lines), ""]))
        sys.stdout.flush()


def _build_run_command(action: str, about: str, *lines: str, option: tuple[str, Any, object] | None = None) -> Any:
    """Build a command that sends an action to a run. All these commands have the same options.

    Args:
        action: The action's name in the client.
        about: The help text.
        lines: The examples.
        option: One further option: its name in the client, its annotation and its default.
    """

    def ask(
        run: RunId,
        *,
        wait: Wait = False,
        url: ApiUrl = None,
        home: HomeDir = None,
        database: DatabaseUrl = None,
        store: StoreUrl = None,
        as_json: Json = False,
        **more: Any,
    ) -> None:
        with open_client(resolve_home(home, database, store), url) as client:
            number = client.runs.send_action(run, action, **{name: each for name, each in more.items() if each})
            client.commands.wait(number)
            found = client.runs.wait(run) if wait else client.runs.get(run)
            cause = _find_failure_causes(client, found) if wait else []
        document = {"run": run, "command": number, "state": found.state.value, **({"cause": cause} if wait else {})}
        print_change(f"run {run}: {action} done; the run is {found.state.value}", document, as_json=as_json)
        if not as_json:
            _print_causes(cause)

    own = inspect.signature(ask, eval_str=True)
    named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    if option is not None:
        name, kind, default = option
        named.insert(1, Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    ask.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
    ask.__doc__ = about
    ask.__name__ = action
    return command(*lines)(ask)


pause = _build_run_command(
    "pause", "Start no more tasks of a run. Running tasks complete.", "latchwork workflows pause 12 --wait"
)
resume = _build_run_command("resume", "Continue a paused run.", "latchwork workflows resume 12")
stop = _build_run_command(
    "stop", "Stop a run: end its running tasks and start no more.", "latchwork workflows stop 12 --wait"
)


recover = _build_run_command(
    "recover",
    "Retry the failed and stopped tasks of a run, and everything downstream. Succeeded tasks "
    "are kept, unless --from names them.",
    "latchwork workflows recover 12",
    "latchwork workflows recover 12 --from load",
    option=("start_from", RecoverFrom, None),
)
rerun = _build_run_command(
    "rerun",
    "Run all tasks of a run again, as a new round of the same run. Its history is kept.",
    "latchwork workflows rerun 12",
    "latchwork workflows rerun 12 --no-cache --wait",
    option=("no_cache", NoCache, False),
)


def _build_task_command(action: str, outcome: str, about: str, *lines: str) -> Any:
    """Build a command that sends an action to a task.

    Args:
        action: The action's name in the client.
        outcome: What the command prints afterwards.
        about: The help text.
        lines: The examples.
    """

    def force(
        run: RunId,
        task: Annotated[
            str, typer.Argument(metavar="TASK", help="The name of the task, or of a map element such as load[3].")
        ],
        *,
        url: ApiUrl = None,
        home: HomeDir = None,
        database: DatabaseUrl = None,
        store: StoreUrl = None,
        as_json: Json = False,
    ) -> None:
        with open_client(resolve_home(home, database, store), url) as client:
            found = {each.name: each.id for each in client.runs.tasks(run)}
            check_run_has_task(run, task, found)
            ask = client.tasks.force_success if action == "force-success" else client.tasks.force_start
            client.commands.wait(number := ask(found[task]))
            after = client.runs.get(run)
        document = {"run": run, "command": number, "state": after.state.value, "task": task}
        document["task_state"] = after.task_states.get(task, "")
        hint = "; recover it to run the tasks that follow" if after.state.value in {"failure", "stopped"} else ""
        print_change(
            f"run {run}: task {task} {outcome}; the run is {after.state.value}{hint}", document, as_json=as_json
        )

    force.__doc__ = about
    force.__name__ = action
    return command(*lines)(force)


force_success = _build_task_command(
    "force-success",
    "is marked as successful",
    "Mark a failed task as successful. If its run has ended, recover the run to continue it.",
    "latchwork workflows force-success 12 load",
)
force_start = _build_task_command(
    "force-start",
    "does not wait for a slot",
    "Start a queued task without waiting for a slot.",
    "latchwork workflows force-start 12 load",
)


def parse_params(given: list[str]) -> dict[str, Any]:
    """Parse parameters that are given as ``name=value``."""
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise UsageError(f"{each!r} is not a parameter; write -p name=value")
        found[name] = parse_value(value)
    return found


def parse_value(text: str) -> Any:
    """Parse a value that is given as JSON. Other text is returned unchanged."""
    try:
        return read_json(text.encode())
    except BadRecord:
        return text
