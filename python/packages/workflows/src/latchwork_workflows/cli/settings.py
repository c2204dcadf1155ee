"""`latchwork workflows connections`, `environments`, `parameters`: the stored settings that workflows refer to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.errors import WaitTimeout
from latchwork.spi import (
    FAILURE,
    Json,
    Line,
    UsageError,
    command,
    counted,
    group,
    print_change,
    print_list,
    printable,
    say,
    say_json,
    show,
)
from latchwork_workflows.cli.actions import parse_value
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, StoreUrl, open_client, resolve_home

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from latchwork_workflows import WorkflowClient
    from latchwork_workflows.schemas.settings import Connection, Environment, SettingKind

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '_', '-' and '.'.")]
Project = Annotated[
    str,
    typer.Option(
        "--project",
        metavar="PROJECT",
        show_default=False,
        help="The project that it belongs to.  [default: all projects]",
    ),
]
Among = Annotated[
    str,
    typer.Option(
        "--project",
        metavar="PROJECT",
        show_default=False,
        help="Only settings that this project can use.  [default: settings of all projects]",
    ),
]
#: Seconds beyond those of the try itself that are waited for a worker.
_WAIT_S = 60.0


@command("latchwork workflows connections list", "latchwork workflows connections list --project billing --json")
def list_connections(
    *,
    project: Among = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List the stored connections. They name a secret of the workers instead of a password."""
    _list(
        "connection",
        project,
        open_client(resolve_home(home, database), url),
        as_json,
        lambda each: {"url": each.url or "", "secret": each.secret or ""},
    )


@command(
    "latchwork workflows connections set warehouse postgresql+psycopg://etl@db/warehouse --secret warehouse",
    "latchwork workflows connections set shop sqlite:////srv/shop.db --project billing",
)
def set_connection(
    name: Name,
    target: Annotated[str, typer.Argument(metavar="URL", help="A SQLAlchemy URL without a password.")],
    *,
    secret: Annotated[
        str, typer.Option(metavar="SECRET", show_default=False, help="The name of the secret that holds the password.")
    ] = "",
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Store a connection for `sql`, `procedure` and ${connection:NAME}. A URL with a password is refused."""
    with open_client(resolve_home(home, database), url) as client:
        is_new = client.connections.set(name, target, secret=secret, project=project)
    _set("connection", project, name, is_new, as_json)


@command("latchwork workflows connections test warehouse", "latchwork workflows connections test shop --group reports")
def check_connection(
    name: Name,
    *,
    project: Project = "",
    within: Annotated[
        str,
        typer.Option(
            metavar="PROJECT",
            show_default=False,
            help="The project in which to test a connection of all projects.  [default: default]",
        ),
    ] = "",
    group_: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            show_default=False,
            help="The worker group that runs the test.  [default: default]",
        ),
    ] = None,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Let a worker open a connection, with the network, drivers and secrets of tasks. Exit code 1 if it fails.

    The test is a run of the workflow `_connection.NAME`, which is created for it and has one task. Its log is kept.
    """
    worker_group = group_ or "default"
    with open_client(resolve_home(home, database, store), url) as client:
        sent = client.connections.test(name, project=project, test_project=within, group=worker_group)
        run = client.commands.wait(sent.command).run
        assert run is not None  # of a start that was carried out
        try:
            state = client.runs.wait(run, _WAIT_S).state.value
        except WaitTimeout:
            what = f"no worker of group {worker_group!r} has run the test within {_WAIT_S:.0f} s"
            raise WaitTimeout(f"{what}; see `latchwork workflows why {run}`") from None
        why = (
            "" if state == "success" else next((each.error for each in client.runs.attempts(run) if each.error), state)
        )
    told_ = {"connection": name, "project": project, "run": run, "ok": state == "success", "error": why}
    line = f"connection {name}: {'a worker connected' if not why else printable(why)} (run {run})"
    if as_json:
        say_json(told_)
    else:
        show(Line(line, "red" if why else "green"))
    if why:
        raise typer.Exit(FAILURE)


@command("latchwork workflows connections rm warehouse")
def remove_connection(
    name: Name,
    *,
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Delete a stored connection, and print the workflows that still name it."""
    _remove("connection", project, name, open_client(resolve_home(home, database), url), as_json)


@command("latchwork workflows environments list", "latchwork workflows environments list --project billing --json")
def list_environments(
    *,
    project: Among = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List the environments with their variables."""
    _list("environment", project, open_client(resolve_home(home, database), url), as_json, _environment_cells)


@command(
    "latchwork workflows environments set production REGION=eu BUCKET=facts",
    "latchwork workflows environments set production 'TOKEN=${secret:token}' --unset REGION --project billing",
)
def set_environment(
    name: Name,
    variables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VARIABLE=VALUE...", help="Variables to set. Other variables are kept.", show_default=False
        ),
    ] = None,
    *,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="VARIABLE", show_default=False, help="A variable to remove. Repeatable."),
    ] = None,
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Set variables of an environment, which is created if needed. Workflows and tasks select it by `environment:`."""
    given = dict(map(_parse_variable, variables or []))
    with open_client(resolve_home(home, database), url) as client:
        is_new = client.environments.set(name, given, project=project, keep=True, drop=unset or [])
    _set("environment", project, name, is_new, as_json)


@command("latchwork workflows environments rm production")
def remove_environment(
    name: Name,
    *,
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Delete an environment, and print the workflows that still name it."""
    _remove("environment", project, name, open_client(resolve_home(home, database), url), as_json)


@command("latchwork workflows parameters list", "latchwork workflows parameters list --project billing --json")
def list_parameters(
    *,
    project: Among = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List the parameters with their values."""
    _list(
        "parameter",
        project,
        open_client(resolve_home(home, database), url),
        as_json,
        lambda each: {"value": _value_text(each.value)},
    )


@command(
    "latchwork workflows parameters set bucket facts-eu",
    'latchwork workflows parameters set regions \'["eu", "us"]\' --project billing',
)
def set_parameter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits and '_'.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A value, as JSON or plain text.")],
    *,
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Store a value for ${NAME} in all workflows of one project or of all. Parameters of a run take precedence."""
    with open_client(resolve_home(home, database), url) as client:
        is_new = client.parameters.set(name, parse_value(value), project=project)
    _set("parameter", project, name, is_new, as_json)


@command("latchwork workflows parameters rm bucket")
def remove_parameter(
    name: Name,
    *,
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Delete a parameter."""
    _remove("parameter", project, name, open_client(resolve_home(home, database), url), as_json)


connections_app = group(
    "Stored database connections for `sql` and `procedure` tasks. Their passwords are secrets of the workers.",
    list=list_connections,
    set=set_connection,
    test=check_connection,
    rm=remove_connection,
)
environments_app = group(
    "Environments: named sets of variables for tasks, of one project or of all.",
    list=list_environments,
    set=set_environment,
    rm=remove_environment,
)
parameters_app = group(
    "Parameters: values for ${name} in all workflows of one project or of all.",
    list=list_parameters,
    set=set_parameter,
    rm=remove_parameter,
)


def _list(
    kind: SettingKind,
    project: str,
    opened: AbstractContextManager[WorkflowClient],
    as_json: bool,
    cells: Callable[[Any], dict[str, str]],
) -> None:
    with opened as client:
        found = getattr(client, f"{kind}s").list(project or None)
    print_list(
        f"{kind}s",
        found,
        lambda each: {"project": each.project or "(all)", "name": each.name, **cells(each)},
        plain=lambda each: each.model_dump(exclude={"shown"}),
        empty=f"no {kind}s",
        as_json=as_json,
    )


def _set(kind: SettingKind, project: str, name: str, is_new: bool, as_json: bool) -> None:
    line = f"{kind} {name} of {_project_text(project)} {'created' if is_new else 'updated'}"
    print_change(line, {kind: name, "project": project, "is_new": is_new}, as_json=as_json)


def _remove(
    kind: SettingKind, project: str, name: str, opened: AbstractContextManager[WorkflowClient], as_json: bool
) -> None:
    with opened as client:
        missed = getattr(client, f"{kind}s").remove(name, project=project)
    if as_json:
        say_json({kind: name, "project": project, "missed_by": missed})
        return
    say(f"{kind} {name} of {_project_text(project)} deleted")
    if missed:
        show(
            Line(
                f"{counted(len(missed), 'workflow')} still name it, and their tasks will fail: {', '.join(missed)}",
                "red",
            )
        )


def _connection_cells(found: Connection) -> dict[str, str]:
    return {"url": found.url or "", "secret": found.secret or ""}


def _environment_cells(found: Environment) -> dict[str, str]:
    return {"variables": "  ".join(f"{name}={value}" for name, value in sorted((found.variables or {}).items()))}


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{printable(text[:60])!r} is not a variable; write NAME=value")
    return name, value


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _project_text(project: str) -> str:
    return f"project {project}" if project else "all projects"
