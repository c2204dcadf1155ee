"""`latchwork workflows apply`, `deploy`, `validate`, `list`, `show`, `schedule`: what workflows there are."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.spi import (
    FAILURE,
    USAGE,
    Json,
    Line,
    UsageError,
    command,
    counted,
    import_module,
    listed,
    say,
    say_json,
    show,
    told,
    utc_text,
)
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, LogsUrl, StoreUrl, client_of, home_of

if TYPE_CHECKING:
    from latchwork_workflows import Home, Problem
    from latchwork_workflows.schemas.schedules import LastFire, Schedule
    from latchwork_workflows.schemas.workflows import AppliedVersion
    from latchwork_workflows.schemas.workflows import Workflow as WorkflowRow

File = Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSON; - for what comes by a pipe.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="project.name, or a name of the project default.")]
Offline = Annotated[
    bool, typer.Option("--offline", help="It may not be started. Without it a workflow that is there stays as it is.")
]


@command("latchwork workflows validate nightly.yaml", "cat nightly.yaml | latchwork workflows validate - --json")
def validate(file: File, *, home: HomeDir = None, as_json: Json = False) -> None:
    """Name every problem of a definition, each by its place; exit code 1 if there are any.

    Opens no database: what has to be stored for the project is named, and `apply` refuses what is not.
    """
    home_of(home)
    from latchwork_workflows.model import needs_of, problems_of
    from latchwork_workflows.types import TaskTypes

    text, types = text_of(file), TaskTypes()
    problems = problems_of(text, types)
    needs = [] if problems else needs_of(text, types)
    if as_json:
        say_json({"problems": [each._asdict() for each in problems], "needs": [each._asdict() for each in needs]})
    elif needs:
        say("valid, if this is stored for its project:")
        for each in needs:
            show(Line(str(each), "yellow"))
    elif not problems:
        say("valid")
    else:
        _say_problems(problems)
    if problems:
        raise typer.Exit(FAILURE)


@command("latchwork workflows apply nightly.yaml", "latchwork workflows apply nightly.yaml --offline")
def apply(
    file: File,
    *,
    offline: Offline = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Write a definition: a new version if it differs from the newest of its name.

    A new or changed schedule begins with its next time: nothing before that is made up for.
    """
    where = home_of(home, database, store)
    text = text_of(file)
    with client_of(where, url) as client:
        from latchwork_workflows.model import read

        _refuse(client.workflows.validate(text))
        plain = read(text)
        found = client.workflows.apply(plain, online=False if offline else None)
    name = f"{found.project}.{found.name}"
    told(f"{name}: version {found.version} {_applied(found)}", _document(found), as_json=as_json)


@command("latchwork workflows deploy flows.py", "latchwork workflows deploy mypackage.flows --no-bundle")
def deploy(
    target: Annotated[
        str, typer.Argument(metavar="FILE|MODULE", help="A Python file, or a module, with functions of @workflow.")
    ],
    *,
    no_bundle: Annotated[
        bool, typer.Option("--no-bundle", help="Its code is installed on the workers; nothing is packed.")
    ] = False,
    offline: Offline = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
    as_json: Json = False,
) -> None:
    """Write all workflows of a module, with its code as a bundle that the version keeps.

    The bundle is the file, or the package that the module is in. Workers fetch it, and run its functions.
    """
    where = home_of(home, database, store, logs)
    from latchwork_workflows import DefinitionInvalid

    if url is None and not no_bundle and not where.has_logs:
        raise UsageError(
            "the code is kept in the log store of the workers, and nobody said where that is; give --logs, or "
            "--no-bundle for code that is installed on the workers"
        )
    module = _module(target)
    with client_of(where, url) as client:
        try:
            rows = client.workflows.deploy(module, bundle=not no_bundle, online=False if offline else None)
        except DefinitionInvalid as error:
            _refuse(error.problems)
            raise
    if as_json:
        say_json({"workflows": [_document(version) for _, version in rows]})
        return
    for each, version in rows:
        tasks = counted(len(each.order), "task")
        say(f"{each.definition.key}: version {version.version} {_applied(version, f', {tasks}')}")


def _applied(found: AppliedVersion, tasks: str = "") -> str:
    return f"{'is new' if found.is_new else 'was there already'}{tasks}{'' if found.online else '; it is offline'}"


def _document(found: AppliedVersion) -> dict[str, Any]:
    name = f"{found.project}.{found.name}"
    return {"workflow": name, "version": found.version, "is_new": found.is_new, "online": found.online}


def _module(target: str) -> ModuleType:
    path = Path(target)
    if path.suffix == ".py" or path.exists():
        if not path.is_file():
            raise UsageError(f"{target} is no file; give a Python file, or the name of a module")
        sys.path.insert(0, str(path.resolve().parent))
        return import_module(path.stem)
    if not all(part.isidentifier() for part in target.split(".")):
        raise UsageError(f"there is no file {target}; give a Python file, or the name of a module")
    return import_module(target)


@command("latchwork workflows list", "latchwork workflows list --contains nightly --json")
def list_(
    *,
    contains: Annotated[str, typer.Option(metavar="TEXT", help="Only those whose name has this text.")] = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List the workflows, with their newest versions, schedules, and whether they may be started."""
    with client_of(home_of(home, database), url) as client:
        rows = client.workflows.list(contains)
    empty = "no workflows; write one with `latchwork workflows apply`, or `deploy`"
    listed("workflows", rows, _shown, plain=_row, right=("version",), empty=empty, as_json=as_json)


def _row(row: WorkflowRow) -> dict[str, Any]:
    names = ("version", "online", "cron", "tz", "scheduled", "next_at", "changed_at")
    return {"workflow": row.key, **{name: getattr(row, name) for name in names}}


def _shown(row: WorkflowRow) -> dict[str, str]:
    schedule = f"{row.cron} {row.tz}" + ("" if row.scheduled else " (off)") if row.cron else "-"
    return {
        "workflow": row.key,
        "version": str(row.version),
        "state": "online" if row.online else "offline",
        "schedule": schedule,
        "changed": utc_text(row.changed_at),
    }


@command(
    "latchwork workflows schedule nightly",
    "latchwork workflows schedule nightly --off",
    "latchwork workflows schedule --count 3",
)
def schedule(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", show_default=False, help="project.name.  [unless given: all that have one]"),
    ] = None,
    *,
    on: Annotated[
        bool | None, typer.Option("--on/--off", show_default=False, help="Let it start runs, or not.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=100, help="How many of the next fire times to show.")] = 5,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show when workflows start next by themselves, or switch a schedule. Switched on, it begins with its next time."""
    if on is not None and name is None:
        raise UsageError("name the workflow whose schedule is to be switched")
    with client_of(home_of(home, database, store), url) as client:
        if on is not None and name is not None:
            client.schedules.set_enabled(name, enabled=on)
        if name is None:
            found = client.schedules.list(count=count)
        else:
            found = [each for each in [client.schedules.find(name, count=count)] if each is not None]
    if as_json:
        say_json({"schedules": [_schedule(each) for each in found]})
    elif not found:
        say("no schedules")
    for each in found if not as_json else ():
        state = "" if each.enabled and each.online else " (off)" if each.online else " (offline)"
        show(Line(f"{each.key}: {each.cron} {each.tz}{state}", "bold"))
        for at in each.next_fires:
            say(f"  {utc_text(at)}")
        if each.last is not None:
            _say_last(each.last)


def _schedule(found: Schedule) -> dict[str, Any]:
    return {"workflow": found.key, **found.model_dump(mode="json", exclude={"project", "name"})}


@command("latchwork workflows online nightly")
def online(
    name: Name,
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Let a workflow be started again. Its schedule begins with its next time."""
    _set_online(name, home_of(home, database, store), url, as_json=as_json, is_online=True)


@command("latchwork workflows offline nightly")
def offline(
    name: Name,
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Let nobody start a workflow, and its schedule neither; runs that are there go on."""
    _set_online(name, home_of(home, database, store), url, as_json=as_json, is_online=False)


def _set_online(name: str, where: Home, url: str | None, *, as_json: bool, is_online: bool) -> None:
    with client_of(where, url) as client:
        client.workflows.set_online(name, online=is_online)
    told(f"{name} is {'online' if is_online else 'offline'}", {"workflow": name, "online": is_online}, as_json=as_json)


def _say_last(last: LastFire) -> None:
    at = f"  last: {utc_text(last.fire_time)}"
    if last.error:
        show(Line(f"{at}, not started: {last.error}", "red"))
    elif last.run is not None:
        say(f"{at}, run {last.run}" + (f": {last.state.value}" if last.state else ""))
    else:
        say(at)


def show_definition(name: str, *, svg: bool, home: Home, url: str | None, as_json: bool) -> None:
    """A workflow as it is written, or drawn."""
    with client_of(home, url) as client:
        found = client.workflows.get(name)
    if svg:
        from latchwork.drawing import Edge, Graph, Node, to_svg

        tasks = found.definition.tasks
        edges = [Edge(before, each.name) for each in tasks for before in each.after]
        say(to_svg(Graph([Node(each.name) for each in tasks], edges, found.definition.key)))
        return
    if as_json:
        plain = found.definition.model_dump(mode="json", exclude_defaults=True)
        say_json({"version": found.shown_version, "online": found.online, "definition": plain})
        return
    from latchwork_workflows.model import write

    state = "online" if found.online else "offline"
    show(Line(f"# {found.definition.key}, version {found.shown_version}, {state}", "bold"))
    for line in write(found.definition).splitlines():
        say(line)


def text_of(file: str) -> str:
    """What is in a file, or comes by a pipe."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _refuse(problems: list[Problem]) -> None:
    if problems:
        _say_problems(problems)
        raise typer.Exit(USAGE)


def _say_problems(problems: list[Problem]) -> None:
    for each in problems:
        show(Line(str(each), "red"))
