"""`latchwork workflows users`: the accounts of the web UI and the API."""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latchwork.spi import Json, UsageError, command, group, print_change, print_list
from latchwork_workflows.cli.options import DatabaseUrl, HomeDir, open_database, resolve_home

if TYPE_CHECKING:
    from latchwork_workflows.db import DatabaseAccounts
    from latchwork_workflows.schemas.accounts import Account
    from latchwork_workflows.web import Role


#: What takes a role away.
_NO_ROLE = "none"
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the account.")]


@command("latchwork workflows users list", "latchwork workflows users list --json")
def list_users(*, home: HomeDir = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """List the accounts of the web UI and the API, with their roles in each project."""
    with _open_accounts(home, database) as accounts:
        rows = accounts.list_accounts()
    empty = "no users; create one with `latchwork workflows users set NAME --role admin --password`"
    print_list("users", rows, _account_row, plain=_account_json, empty=empty, as_json=as_json)


def _account_json(each: Account) -> dict[str, Any]:
    roles = dict(sorted(each.roles.items()))
    return {"user": each.name, "enabled": each.enabled, "has_password": each.has_password, "roles": roles}


def _account_row(each: Account) -> dict[str, str]:
    roles = [f"{role} of {project or 'all'}" for project, role in sorted(each.roles.items())]
    return {
        "user": each.name,
        "state": "on" if each.enabled else "off",
        "password": "yes" if each.has_password else "no",
        "roles": ", ".join(roles) or "-",
    }


@command(
    "latchwork workflows users set ann --role admin --password",
    "latchwork workflows users set bob --role operator --project billing",
    "echo -n 'correct horse' | latchwork workflows users set ann --password",
    "latchwork workflows users set bob --off",
)
def set_user(
    name: Name,
    *,
    role: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE", show_default=False, help="viewer, operator, editor or admin. none removes the role."
        ),
    ] = None,
    project: Annotated[
        str,
        typer.Option(
            "--project", metavar="PROJECT", show_default=False, help="The project of the role.  [default: all projects]"
        ),
    ] = "",
    password: Annotated[
        bool, typer.Option("--password", help="Prompt for a password, or read it from a pipe.")
    ] = False,
    on: Annotated[
        bool | None, typer.Option("--on/--off", show_default=False, help="Enable or disable the account.")
    ] = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Create or change an account.

    An account without a role can do nothing. A new password ends its sessions and tokens.
    """
    _check_names(name, project)
    wanted = _role_of(role)
    given = _read_password(name) if password else None
    with _open_accounts(home, database) as accounts:
        is_new = all(each.name != name for each in accounts.list_accounts())
        by = getpass.getuser()
        try:
            if is_new:
                accounts.create_account(name, given, by=by)
            elif given is not None:
                accounts.set_password(name, given, by=by)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if role is not None:
            accounts.set_role(name, project, wanted, by=by)
        if on is not None:
            accounts.set_enabled(name, on, by=by)
        (found,) = (each for each in accounts.list_accounts() if each.name == name)
    line = f"user {name} {'created' if is_new else 'updated'}: {_account_row(found)['roles']}"
    print_change(line, {"is_new": is_new, **_account_json(found)}, as_json=as_json)


@command("latchwork workflows users link ann", "latchwork workflows users link ann --at https://flows.example.org")
def link_user(
    name: Name,
    *,
    at: Annotated[
        str, typer.Option("--at", metavar="ADDRESS", help="The address of the web UI, as a browser reaches them.")
    ] = "http://127.0.0.1:8770",
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Print a sign-in link for an account. It works once, within an hour, for anyone who has it."""
    if not at.startswith(("http://", "https://")):
        raise UsageError(f"--at is the address of the web UI, http://... or https://..., not {at!r}")
    with _open_accounts(home, database) as accounts:
        if any(each.name == name and not each.enabled for each in accounts.list_accounts()):
            raise UsageError(f"user {name} is disabled; `latchwork workflows users set {name} --on` enables it again")
        link = f"{at.rstrip('/')}/sign-in?link={accounts.create_sign_in_link(name, by=getpass.getuser())}"
    print_change(link, {"user": name, "link": link}, as_json=as_json)


def _check_names(name: str, project: str) -> None:
    from latchwork_workflows.model import NAME_PATTERN

    for what, each in (("NAME", name), ("--project", project or "default")):
        if re.fullmatch(NAME_PATTERN, each) is None:
            raise UsageError(f"{what} {each!r} is not a valid name; use up to 100 letters, digits, '_', '-' and '.'")


def _role_of(word: str | None) -> Role | None:
    from latchwork_workflows.web import Role

    if word is None or word == _NO_ROLE:
        return None
    try:
        return Role.from_label(word)
    except ValueError as error:
        raise UsageError(f"--role: {error}, and {_NO_ROLE}") from None


def _read_password(name: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True))
    return sys.stdin.read().removesuffix("\n")


@contextmanager
def _open_accounts(home: Path | None, database: str | None) -> Iterator[DatabaseAccounts]:
    """Open the accounts of an existing database whose schema has this version."""
    with open_database(resolve_home(home, database)) as opened:
        from latchwork_workflows import load_installation
        from latchwork_workflows.db import DatabaseAccounts

        load_installation(opened)
        yield DatabaseAccounts(opened)


users_app = group("Accounts of the web UI and the API.", list=list_users, set=set_user, link=link_user)
