"""`latchwork workflows grants`: the projects that may use the workflows of another project."""

from __future__ import annotations

from typing import Annotated

import typer

from latchwork.spi import Json, UsageError, command, group, print_change, print_list
from latchwork_workflows.cli.options import ApiUrl, DatabaseUrl, HomeDir, open_client, resolve_home

#: As people write the grantee that stands for all projects.
_ALL = "all"
Project = Annotated[str, typer.Argument(metavar="PROJECT", help="The project whose workflows are used.")]
Grantee = Annotated[
    str, typer.Argument(metavar="GRANTEE", help="The project whose tasks use them. all stands for every project.")
]


@command("latchwork workflows grants list", "latchwork workflows grants list billing --json")
def list_grants(
    project: Annotated[
        str, typer.Argument(metavar="PROJECT", show_default=False, help="Only grants of this project.  [default: all]")
    ] = "",
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List the projects that may use the workflows of another project."""
    with open_client(resolve_home(home, database), url) as client:
        found = client.grants.list(project)
    print_list(
        "grants",
        found,
        lambda each: {"project": each.project, "used by": each.grantee or _ALL, "role": each.role},
        plain=lambda each: each.model_dump(),
        empty="no project may use another",
        as_json=as_json,
    )


@command(
    "latchwork workflows grants set billing reports viewer",
    "latchwork workflows grants set shared all operator",
)
def set_grant(
    project: Project,
    grantee: Grantee,
    role: Annotated[
        str,
        typer.Argument(
            metavar="ROLE",
            help="viewer (its tasks may wait for runs and read their outputs) or operator (they may also "
            "start workflows).",
        ),
    ],
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Allow the tasks of a project to use the workflows of another project."""
    if role not in {"viewer", "operator"}:
        raise UsageError(f"ROLE is viewer or operator, not {role!r}")
    with open_client(resolve_home(home, database), url) as client:
        client.grants.set(project, _named(grantee), role)
    document = {"project": project, "grantee": _named(grantee), "role": role}
    print_change(f"project {grantee} is {role} of project {project}", document, as_json=as_json)


@command("latchwork workflows grants rm billing reports")
def remove_grant(
    project: Project,
    grantee: Grantee,
    *,
    url: ApiUrl = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Remove a grant. Tasks that need it fail from now on."""
    with open_client(resolve_home(home, database), url) as client:
        client.grants.remove(project, _named(grantee))
    document = {"project": project, "grantee": _named(grantee), "removed": True}
    print_change(f"project {grantee} may not use project {project} any more", document, as_json=as_json)


def _named(grantee: str) -> str:
    return "" if grantee == _ALL else grantee


grants_app = group(
    "Grants: which projects may use the workflows of another project in sub-processes and dependents.",
    list=list_grants,
    set=set_grant,
    rm=remove_grant,
)
