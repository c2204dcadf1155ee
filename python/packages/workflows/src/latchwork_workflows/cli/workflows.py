"""`latchwork workflows apply`, `deploy`, `validate`, `list`, `schedule`, `online`, `offline`: the workflows."""

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
    print_change,
    print_list,
    say,
    say_json,
    show,
    utc_text,
)
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, LogsUrl, StoreUrl, open_client, resolve_home

if TYPE_CHECKING:
    from latchwork_workflows import Home, Problem
    from latchwork_workflows.schemas.schedules import LastFire, Schedule
    from latchwork_workflows.schemas.workflows import AppliedVersion
    from latchwork_workflows.schemas.workflows import Workflow as WorkflowRow

File = Annotated[str, typer.Argument(metavar="FILE", help="A YAML or JSON file. - reads standard input.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="project.name, or the name of a workflow in the project default.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Set the workflow offline. By default, an existing workflow keeps its state.")
]


@command("latchwork workflows validate nightly.yaml", "cat nightly.yaml | latchwork workflows validate - --json")
def validate_file(file: File, *, home: HomeDir = None, as_json: Json = False) -> None:
    """List all problems of a definition with their locations. Exit code 1 if there are any.

    It does not open the database. It lists the settings that the project must have, and `apply` checks them.
    """
    resolve_home(home)
    from latchwork_workflows.model import find_problems_in_text, report_used_settings
    from latchwork_workflows.types import TaskTypes

    text, types = read_text(file), TaskTypes()
    problems = find_problems_in_text(text, types)
    needs = [] if problems else report_used_settings(text, types)
    if as_json:
        say_json({"problems": [each._asdict() for each in problems], "needs": [each._asdict() for each in needs]})
    elif needs:
        say("valid, if its project has these settings:")
        for each in needs:
            show(Line(str(each), "yellow"))
    elif not problems:
        say("valid")
    else:
        _print_problems(problems)
    if problems:
        raise typer.Exit(FAILURE)


@command("latchwork workflows apply nightly.yaml", "latchwork workflows apply nightly.yaml --offline")
def apply_file(
    file: File,
    *,
    offline: Offline = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Apply a definition. It becomes a new version if it differs from the newest one.

    A new or changed schedule starts with its next fire time. Earlier fire times are skipped.
    """
    where = resolve_home(home, database, store)
    text = read_text(file)
    with open_client(where, url) as client:
        from latchwork_workflows.model import parse_yaml

        _fail_with_problems(client.workflows.validate(text))
        plain = parse_yaml(text)
        found = client.workflows.apply(plain, online=False if offline else None)
    name = f"{found.project}.{found.name}"
    print_change(f"{name}: version {found.version} {_applied_text(found)}", _applied_json(found), as_json=as_json)


@command("latchwork workflows deploy flows.py", "latchwork workflows deploy mypackage.flows --no-bundle")
def deploy_module(
    target: Annotated[
        str, typer.Argument(metavar="FILE|MODULE", help="A Python file or a module with @workflow functions.")
    ],
    *,
    no_bundle: Annotated[
        bool, typer.Option("--no-bundle", help="Do not pack the code, because it is installed on the workers.")
    ] = False,
    offline: Offline = False,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
    as_json: Json = False,
) -> None:
    """Apply all workflows of a module, with its code as a bundle.

    The bundle contains the file, or the package of the module. Workers download it to run its functions.
    """
    where = resolve_home(home, database, store, logs)
    from latchwork_workflows import DefinitionInvalid

    if url is None and not no_bundle and not where.can_read_worker_logs:
        raise UsageError(
            "the code is stored in the log store of the workers, whose location is not known; give "
            "--logs, or --no-bundle for code that is installed on the workers"
        )
    module = _import_module(target)
    with open_client(where, url) as client:
        try:
            rows = client.workflows.deploy(module, bundle=not no_bundle, online=False if offline else None)
        except DefinitionInvalid as error:
            _fail_with_problems(error.problems)
            raise
    if as_json:
        say_json({"workflows": [_applied_json(version) for _, version in rows]})
        return
    for each, version in rows:
        tasks = counted(len(each.order), "task")
        say(f"{each.definition.key}: version {version.version} {_applied_text(version, f', {tasks}')}")


def _applied_text(found: AppliedVersion, tasks: str = "") -> str:
    return f"{'created' if found.is_new else 'unchanged'}{tasks}{'' if found.online else '; it is offline'}"


def _applied_json(found: AppliedVersion) -> dict[str, Any]:
    name = f"{found.project}.{found.name}"
    return {"workflow": name, "version": found.version, "is_new": found.is_new, "online": found.online}


def _import_module(target: str) -> ModuleType:
    path = Path(target)
    if path.suffix == ".py" or path.exists():
        if not path.is_file():
            raise UsageError(f"{target} is not a file; give a Python file or the name of a module")
        sys.path.insert(0, str(path.resolve().parent))
        return import_module(path.stem)
    if not all(part.isidentifier() for part in target.split(".")):
        raise UsageError(f"there is no file {target}; give a Python file or the name of a module")
    return import_module(target)


@command("latchwork workflows list", "latchwork workflows list --contains nightly --json")
def list_workflows(
    *,
    contains: Annotated[str, typer.Option(metavar="TEXT", help="Only workflows whose name contains this text.")] = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List the workflows with their newest versions and schedules, and whether they are online."""
    with open_client(resolve_home(home, database), url) as client:
        rows = client.workflows.list(contains)
    empty = "no workflows; create one with `latchwork workflows apply` or `deploy`"
    print_list("workflows", rows, _shown, plain=_row, right=("version",), empty=empty, as_json=as_json)


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
def show_schedule(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", show_default=False, help="project.name.  [default: all workflows with a schedule]"
        ),
    ] = None,
    *,
    on: Annotated[
        bool | None, typer.Option("--on/--off", show_default=False, help="Enable or disable the schedule.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=100, help="The number of next fire times to show.")] = 5,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show the next fire times of workflows, or enable or disable a schedule. It continues with its next fire time."""
    if on is not None and name is None:
        raise UsageError("name the workflow whose schedule to enable or disable")
    with open_client(resolve_home(home, database, store), url) as client:
        if on is not None and name is not None:
            client.schedules.set_enabled(name, enabled=on)
        if name is None:
            found = client.schedules.list(count=count)
        else:
            found = [each for each in [client.schedules.find(name, count=count)] if each is not None]
    if as_json:
        say_json({"schedules": [_schedule_json(each) for each in found]})
    elif not found:
        say("no schedules")
    for each in found if not as_json else ():
        state = "" if each.enabled and each.online else " (off)" if each.online else " (offline)"
        show(Line(f"{each.key}: {each.cron} {each.tz}{state}", "bold"))
        for at in each.next_fires:
            say(f"  {utc_text(at)}")
        if each.last is not None:
            _print_last_fire(each.last)


def _schedule_json(found: Schedule) -> dict[str, Any]:
    return {"workflow": found.key, **found.model_dump(mode="json", exclude={"project", "name"})}


@command("latchwork workflows online nightly")
def set_online(
    name: Name,
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Set a workflow online, so that it can be started. Its schedule continues with its next fire time."""
    _set_online(name, resolve_home(home, database, store), url, as_json=as_json, is_online=True)


@command("latchwork workflows offline nightly")
def set_offline(
    name: Name,
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Set a workflow offline. Neither users nor its schedule can start it. Active runs continue."""
    _set_online(name, resolve_home(home, database, store), url, as_json=as_json, is_online=False)


def _set_online(name: str, where: Home, url: str | None, *, as_json: bool, is_online: bool) -> None:
    with open_client(where, url) as client:
        client.workflows.set_online(name, online=is_online)
    print_change(
        f"{name} is {'online' if is_online else 'offline'}", {"workflow": name, "online": is_online}, as_json=as_json
    )


def _print_last_fire(last: LastFire) -> None:
    at = f"  last: {utc_text(last.fire_time)}"
    if last.error:
        show(Line(f"{at}, not started: {last.error}", "red"))
    elif last.run is not None:
        say(f"{at}, run {last.run}" + (f": {last.state.value}" if last.state else ""))
    else:
        say(at)


def show_definition(name: str, *, svg: bool, home: Home, url: str | None, as_json: bool) -> None:
    """Print the definition of a workflow as YAML, or its drawing."""
    with open_client(home, url) as client:
        found = client.workflows.get(name)
    if svg:
        from latchwork.drawing import Edge, Graph, GraphNode, to_svg

        tasks = found.definition.tasks
        edges = [Edge(before, each.name) for each in tasks for before in each.after]
        say(to_svg(Graph([GraphNode(each.name) for each in tasks], edges, found.definition.key)))
        return
    if as_json:
        plain = found.definition.model_dump(mode="json", exclude_defaults=True)
        say_json({"version": found.shown_version, "online": found.online, "definition": plain})
        return
    from latchwork_workflows.model import format_yaml

    state = "online" if found.online else "offline"
    show(Line(f"# {found.definition.key}, version {found.shown_version}, {state}", "bold"))
    for line in format_yaml(found.definition).splitlines():
        say(line)


def read_text(file: str) -> str:
    """Return the content of a file, or of standard input if the file is ``-``."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _fail_with_problems(problems: list[Problem]) -> None:
    if problems:
        _print_problems(problems)
        raise typer.Exit(USAGE)


def _print_problems(problems: list[Problem]) -> None:
    for each in problems:
        show(Line(str(each), "red"))
