"""`latchwork workflows start`, and what is asked of a run: `pause`, `resume`, `stop`, `recover`, `rerun`; of a task:
`force-success`, `force-start`.
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
from latchwork.spi import FAILURE, Json, Line, UsageError, command, printable, read_json, say, say_json, show, told
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, LogsUrl, StoreUrl, client_of, home_of
from latchwork_workflows.cli.runs import STYLES, RunId, check_task, plain

if TYPE_CHECKING:
    from latchwork_workflows import WorkflowClient
    from latchwork_workflows.schemas.runs import Run, RunDetail

StartFrom = Annotated[
    list[str] | None,
    typer.Option(
        "--from", metavar="TASK", show_default=False, help="Begin with this task; may be given several times."
    ),
]

RecoverFrom = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="TASK",
        show_default=False,
        help="Run this task again too, with all behind it; may be given several times.",
    ),
]
PriorityWord = Annotated[
    str | None,
    typer.Option(
        metavar="WORD", show_default=False, help="highest, high, medium, low or lowest.  [unless given: its own]"
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Every task succeeds without running.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Every task runs, whatever is known of its outputs.")]
Wait = Annotated[bool, typer.Option("--wait", help="Until a master has done it, and the run is over or paused.")]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="NAME=VALUE",
        show_default=False,
        help="A value instead of the definition's; JSON, or text as it stands. May be given several times.",
    ),
]


#: Parts of a log that are shown before the next log has its turn; bytes of a line that are waited for to be whole.
_PARTS, _LINE = 16, 65_536


@command(
    "latchwork workflows start nightly",
    "latchwork workflows start nightly -p day=2026-11-22 -p rows=100 --wait",
    "latchwork workflows start nightly --from load --follow",
)
def start(
    name: Annotated[str, typer.Argument(metavar="NAME", help="project.name, or a name of the project default.")],
    *,
    param: Params = None,
    start_from: StartFrom = None,
    scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="With --from, what else runs: only, downstream or upstream.")
    ] = "downstream",
    priority: PriorityWord = None,
    dry_run: DryRun = False,
    no_cache: NoCache = False,
    unique_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", show_default=False, help="The same key and the same start again are one run."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is over; exit code 1 unless it succeeded.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show what its tasks write, and wait.")] = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
    as_json: Json = False,
) -> None:
    """Start a run of a workflow, and print its number once a master has taken it."""
    params = params_of(param or [])
    if scope not in {"only", "downstream", "upstream"}:
        raise UsageError(f"--scope is only, downstream or upstream, not {scope!r}")
    with client_of(home_of(home, database, store, logs), url) as client:
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
            told(f"run {number} of {name} is started", {"run": number}, as_json=as_json)
            return
        if not as_json:
            say(f"run {number} of {name} is started")
        found = _followed(client, number) if follow and not as_json else client.runs.wait(number)
        cause = _cause(client, found)
    _end(found, cause, as_json=as_json)


def _cause(client: WorkflowClient, found: Run) -> list[dict[str, str]]:
    """Why a run that is over did not succeed: the tasks, what each says, and which attempt has the log."""
    if found.state.value == "success":
        return []
    mine = [each for each in client.runs.attempts(found.id) if each.round == found.round]
    newest = {each.name: each.id for each in reversed(mine)}
    return [
        {"task": each.task, "why": each.why, "attempt": newest.get(each.task, "")}
        for each in client.runs.explain(found.id).cause
    ]


def _say_cause(cause: list[dict[str, str]]) -> None:
    for each in cause:
        show(Line(f"{each['task']}: {each['why']}" if each["task"] else each["why"], "red"))
        if each["attempt"]:
            say(f"  its log: `latchwork workflows logs {each['attempt']}`")


def _end(found: RunDetail, cause: list[dict[str, str]], *, as_json: bool) -> None:
    if as_json:
        say_json({**plain(found), "cause": cause})
    else:
        show(Line(f"run {found.id}: {found.state.value}", STYLES.get(found.state.value, "")))
        _say_cause(cause)
    if found.state.value != "success":
        raise typer.Exit(FAILURE)


def _followed(client: WorkflowClient, number: int) -> RunDetail:
    """Show the logs of all attempts as they come, each line behind the name of its task, to the last of them."""
    tails: dict[str, _Tail] = {}
    while True:
        found = client.runs.get(number)
        for each in reversed(client.runs.attempts(number)):
            tails.setdefault(each.id, _Tail(each.name, each.id)).show(client, all_of_it=found.has_ended)
        if found.has_ended:
            return found
        time.sleep(0.3)


@dataclass
class _Tail:
    """How far the log of an attempt was shown.

    Attributes:
        name: of its task.
        attempt: of which it is.
        next: where to go on.
        rest: the beginning of a line whose end has not come.
        ended: all of it was shown.
    """

    name: str
    attempt: str
    next: int = 0
    rest: bytes = b""
    ended: bool = False

    def show(self, client: WorkflowClient, *, all_of_it: bool) -> None:
        """Show what has come; of one that is written faster than shown so much that others have their turn."""
        parts = 0
        while not self.ended and (all_of_it or parts < _PARTS):
            part = client.attempts.log(self.attempt, self.next)
            self.next, self.ended = part.next, part.ended
            *lines, self.rest = (self.rest + part.data).split(b"\n")
            if self.ended or len(self.rest) > _LINE or (all_of_it and not part.data):
                lines, self.rest = [*lines, *filter(None, [self.rest])], b""
            _print([f"{self.name} | {line.decode('utf-8', 'replace').rstrip(chr(13))}" for line in lines])
            if not part.data:
                return
            parts += 1


def _print(lines: list[str]) -> None:
    """Many lines at once: one after the other they take as long as a task needs to write twenty."""
    if sys.stdout.isatty():
        show(*lines)
    elif lines:
        sys.stdout.write("\n".join([*map(printable, lines), ""]))
        sys.stdout.flush()


def _asks(action: str, about: str, *lines: str, option: tuple[str, Any, object] | None = None) -> Any:
    """Return a command that sends an action to a run. All these commands have the same options.

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
        with client_of(home_of(home, database, store), url) as client:
            number = client.runs.act(run, action, **{name: each for name, each in more.items() if each})
            client.commands.wait(number)
            found = client.runs.wait(run) if wait else client.runs.get(run)
            cause = _cause(client, found) if wait else []
        document = {"run": run, "command": number, "state": found.state.value, **({"cause": cause} if wait else {})}
        told(f"run {run}: {action} is done; it is {found.state.value}", document, as_json=as_json)
        if not as_json:
            _say_cause(cause)

    own = inspect.signature(ask, eval_str=True)
    named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    if option is not None:
        name, kind, default = option
        named.insert(1, Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    ask.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
    ask.__doc__ = about
    ask.__name__ = action
    return command(*lines)(ask)


pause = _asks("pause", "Let the running tasks of a run end, and start none.", "latchwork workflows pause 12 --wait")
resume = _asks("resume", "Let a paused run go on.", "latchwork workflows resume 12")
stop = _asks("stop", "End the running tasks of a run, and start none.", "latchwork workflows stop 12 --wait")


recover = _asks(
    "recover",
    "Run what failed or was ended once more, and what follows; what succeeded is kept, unless --from names it.",
    "latchwork workflows recover 12",
    "latchwork workflows recover 12 --from load",
    option=("start_from", RecoverFrom, None),
)
rerun = _asks(
    "rerun",
    "Run everything of a run from the start, as the same instance; its history stays.",
    "latchwork workflows rerun 12",
    "latchwork workflows rerun 12 --no-cache --wait",
    option=("no_cache", NoCache, False),
)


def _forces(action: str, outcome: str, about: str, *lines: str) -> Any:
    """A command that asks something of a task: its word, what is said of the task then, its help, its examples."""

    def force(
        run: RunId,
        task: Annotated[str, typer.Argument(metavar="TASK", help="Of the run; of a map an element, as load[3].")],
        *,
        url: ApiUrl = None,
        home: HomeDir = None,
        database: DatabaseUrl = None,
        store: StoreUrl = None,
        as_json: Json = False,
    ) -> None:
        with client_of(home_of(home, database, store), url) as client:
            found = {each.name: each.id for each in client.runs.tasks(run)}
            check_task(run, task, found)
            ask = client.tasks.force_success if action == "force-success" else client.tasks.force_start
            client.commands.wait(number := ask(found[task]))
            after = client.runs.get(run)
        document = {"run": run, "command": number, "state": after.state.value, "task": task}
        document["task_state"] = after.task_states.get(task, "")
        hint = "; recover it, and what follows goes on" if after.state.value in {"failure", "stopped"} else ""
        told(f"run {run}: task {task} {outcome}; the run is {after.state.value}{hint}", document, as_json=as_json)

    force.__doc__ = about
    force.__name__ = action
    return command(*lines)(force)


force_success = _forces(
    "force-success",
    "counts as success",
    "Count a task that failed as success; a run that is over goes on once it is recovered.",
    "latchwork workflows force-success 12 load",
)
force_start = _forces(
    "force-start",
    "waits for no slot",
    "Let a queued task start without waiting for slots.",
    "latchwork workflows force-start 12 load",
)


def params_of(given: list[str]) -> dict[str, Any]:
    """Parameters as they were written: ``name=value`` each."""
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise UsageError(f"{each!r} is no parameter; write -p name=value")
        found[name] = value_of(value)
    return found


def value_of(text: str) -> Any:
    """A value as it was written: JSON, or else text."""
    try:
        return read_json(text.encode())
    except BadRecord:
        return text
