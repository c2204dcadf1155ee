"""`latchwork workflows connections`, `environments`, `parameters`: what workflows name, stored beside them."""

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
    listed,
    printable,
    say,
    say_json,
    show,
    told,
)
from latchwork_workflows.cli.actions import value_of
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, StoreUrl, client_of, home_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from latchwork_workflows import WorkflowClient
    from latchwork_workflows.schemas.settings import Connection, Environment, SettingKind

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '_', '-' and '.'.")]
Project = Annotated[
    str, typer.Option("--project", metavar="PROJECT", show_default=False, help="Whose it is.  [unless given: of all]")
]
Among = Annotated[
    str,
    typer.Option(
        "--project", metavar="PROJECT", show_default=False, help="Of this project, and of all.  [unless given: every]"
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
    """List the stored connections. None has a password: it is a secret of the workers, by name."""
    _list(
        "connection",
        project,
        client_of(home_of(home, database), url),
        as_json,
        lambda each: {"url": each.url or "", "secret": each.secret or ""},
    )


@command(
    "latchwork workflows connections set warehouse postgresql+psycopg://etl@db/warehouse --secret warehouse",
    "latchwork workflows connections set shop sqlite:////srv/shop.db --project billing",
)
def set_connection(
    name: Name,
    target: Annotated[str, typer.Argument(metavar="URL", help="As SQLAlchemy reads it, without a password.")],
    *,
    secret: Annotated[
        str, typer.Option(metavar="SECRET", show_default=False, help="The name of the password among the secrets.")
    ] = "",
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Store a connection by a name, for `sql`, `procedure` and ${connection:NAME}; a URL with a password is refused."""
    with client_of(home_of(home, database), url) as client:
        is_new = client.connections.set(name, target, secret=secret, project=project)
    _set("connection", project, name, is_new, as_json)


@command("latchwork workflows connections test warehouse", "latchwork workflows connections test shop --group reports")
def try_connection(
    name: Name,
    *,
    project: Project = "",
    within: Annotated[
        str, typer.Option(metavar="PROJECT", show_default=False, help="Try one of all here.  [unless given: default]")
    ] = "",
    group_: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="GROUP", show_default=False, help="Whose workers try it.  [unless given: default]"
        ),
    ] = None,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Let a worker open a connection, with the network, drivers and secrets that tasks have; exit code 1 if it cannot.

    It is a run of a workflow of one task, `_connection.NAME`, which is made for it; its log is kept.
    """
    worker_group = group_ or "default"
    with client_of(home_of(home, database, store), url) as client:
        sent = client.connections.test(name, project=project, within=within, group=worker_group)
        run = client.commands.wait(sent.command).run
        assert run is not None  # of a start that was carried out
        try:
            state = client.runs.wait(run, _WAIT_S).state.value
        except WaitTimeout:
            what = f"no worker of group {worker_group!r} has tried it in {_WAIT_S:.0f} s"
            raise WaitTimeout(f"{what}; see `latchwork workflows why {run}`") from None
        why = (
            "" if state == "success" else next((each.error for each in client.runs.attempts(run) if each.error), state)
        )
    told_ = {"connection": name, "project": project, "run": run, "ok": state == "success", "error": why}
    line = f"connection {name}: {'a worker has opened it' if not why else printable(why)} (run {run})"
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
    """Delete a stored connection, and name the workflows that still want it."""
    _remove("connection", project, name, client_of(home_of(home, database), url), as_json)


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
    _list("environment", project, client_of(home_of(home, database), url), as_json, _variables)


@command(
    "latchwork workflows environments set production REGION=eu BUCKET=facts",
    "latchwork workflows environments set production 'TOKEN=${secret:token}' --unset REGION --project billing",
)
def set_environment(
    name: Name,
    variables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VARIABLE=VALUE...", help="Variables; those that it has besides stay.", show_default=False
        ),
    ] = None,
    *,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="VARIABLE", show_default=False, help="This one goes.")
    ] = None,
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Give variables to an environment, made if there is none; `environment:` of a workflow or a task names it."""
    given = dict(map(_pair, variables or []))
    with client_of(home_of(home, database), url) as client:
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
    """Delete an environment, and name the workflows that still want it."""
    _remove("environment", project, name, client_of(home_of(home, database), url), as_json)


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
        client_of(home_of(home, database), url),
        as_json,
        lambda each: {"value": _text(each.value)},
    )


@command(
    "latchwork workflows parameters set bucket facts-eu",
    'latchwork workflows parameters set regions \'["eu", "us"]\' --project billing',
)
def set_parameter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits and '_'.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON, or text.")],
    *,
    project: Project = "",
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Store a value for ${NAME} in all workflows of a project, or of all; what is nearer to a run counts before it."""
    with client_of(home_of(home, database), url) as client:
        is_new = client.parameters.set(name, value_of(value), project=project)
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
    _remove("parameter", project, name, client_of(home_of(home, database), url), as_json)


connections_app = group(
    "Stored connections: what `sql` and `procedure` connect to by a name. Passwords are secrets of the workers.",
    list=list_connections,
    set=set_connection,
    test=try_connection,
    rm=remove_connection,
)
environments_app = group(
    "Environments: named sets of variables for tasks, of a project or of all.",
    list=list_environments,
    set=set_environment,
    rm=remove_environment,
)
parameters_app = group(
    "Parameters: values for ${name} in all workflows of a project, or of all.",
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
    listed(
        f"{kind}s",
        found,
        lambda each: {"project": each.project or "(all)", "name": each.name, **cells(each)},
        plain=lambda each: each.model_dump(exclude={"shown"}),
        empty=f"no {kind}s",
        as_json=as_json,
    )


def _set(kind: SettingKind, project: str, name: str, is_new: bool, as_json: bool) -> None:
    line = f"{kind} {name} of {_of(project)} {'is new' if is_new else 'was there already, and is as given now'}"
    told(line, {kind: name, "project": project, "is_new": is_new}, as_json=as_json)


def _remove(
    kind: SettingKind, project: str, name: str, opened: AbstractContextManager[WorkflowClient], as_json: bool
) -> None:
    with opened as client:
        missed = getattr(client, f"{kind}s").remove(name, project=project)
    if as_json:
        say_json({kind: name, "project": project, "missed_by": missed})
        return
    say(f"{kind} {name} of {_of(project)} is deleted")
    if missed:
        show(Line(f"{counted(len(missed), 'workflow')} named it, whose tasks will fail: {', '.join(missed)}", "red"))


def _place(found: Connection) -> dict[str, str]:
    return {"url": found.url or "", "secret": found.secret or ""}


def _variables(found: Environment) -> dict[str, str]:
    return {"variables": "  ".join(f"{name}={value}" for name, value in sorted((found.variables or {}).items()))}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{printable(text[:60])!r} is no variable; write NAME=value")
    return name, value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _of(project: str) -> str:
    return f"project {project}" if project else "all projects"
