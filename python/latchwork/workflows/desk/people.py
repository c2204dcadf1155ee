"""Accounts: who may make and change them."""

from __future__ import annotations

from latchwork.web import Identity, Problem, Role
from latchwork.workflows.database import history
from latchwork.workflows.desk.parts import Parts, need


def create(parts: Parts, who: Identity, name: str, password: str | None) -> None:
    """Make an account; it may do nothing yet.

    Raises:
        Problem: 403, 409, 422.
    """
    need(who, Role.ADMIN)
    if any(each.name == name for each in parts.accounts.accounts()):
        raise Problem(409, f"there is an account {name!r} already")
    _or_422(lambda: parts.accounts.create(name, password, by=who.name))


def change(parts: Parts, who: Identity, name: str, *, enabled: bool | None = None, password: str | None = None) -> None:
    """Switch an account on or off (administrators, but not themselves), or give it another password (or one's own).

    Raises:
        Problem: 403, 404, 409, 422.
    """
    if name != who.name or enabled is not None:
        need(who, Role.ADMIN)
    if enabled is False and name == who.name:
        raise Problem(409, "nobody switches off their own account; ask another administrator")
    if enabled is not None:
        parts.accounts.set_enabled(name, enabled, by=who.name)
    if password is not None:
        _or_422(lambda: parts.accounts.set_password(name, password, by=who.name))


def set_role(parts: Parts, who: Identity, name: str, project: str, role: Role | None) -> None:
    """What an account may do in a project. Administrators of everything keep at least one of them.

    Raises:
        Problem: 403, 404, 409.
    """
    need(who, Role.ADMIN, project)
    if name == who.name and not project and role is not Role.ADMIN:
        raise Problem(409, "nobody takes away their own role; ask another administrator")
    parts.accounts.set_role(name, project, role, by=who.name)


def new_token(
    parts: Parts, who: Identity, title: str, *, role: Role | None = None, lasts_s: float | None = None
) -> tuple[int, str]:
    """A token for oneself. A program with a token makes no others: what leaks would never end.

    Raises:
        Problem: 403.
    """
    if not who.csrf:
        raise Problem(403, "a token makes no tokens; sign in with a browser for that")
    return parts.accounts.new_token(who.name, title, by=who.name, role=role, lasts_s=lasts_s)


def revoke(parts: Parts, who: Identity, token_id: int) -> None:
    """End a token: one's own, or as an administrator.

    Raises:
        UnknownAccount: there is none, or it is somebody else's.
    """
    only_of = None if who.may(Role.ADMIN) else who.name
    parts.accounts.revoke(token_id, by=who.name, only_of=only_of)


def audit(
    parts: Parts, who: Identity, *, by: str = "", before: int | None = None, most: int = 100
) -> list[history.Told]:
    """What people did in the projects that one administers, the newest first.

    Raises:
        Problem: 403.
    """
    if not who.may_somewhere(Role.ADMIN):
        need(who, Role.ADMIN)
    with parts.database.read() as connection:
        return history.of_people(connection, projects=who.projects(Role.ADMIN), by=by, before=before, most=most)


def _or_422(do: object) -> None:
    assert callable(do)
    try:
        do()
    except ValueError as error:
        raise Problem(422, f"password: {error}", errors=[("password", str(error))]) from None
