"""Accounts: who may create and change them.

Only a person who signed in with a browser changes accounts, roles and tokens. So a leaked token, whatever its role,
creates nothing that outlives it.
"""

from __future__ import annotations

from latchwork_workflows.db import history
from latchwork_workflows.services.parts import Parts, need
from latchwork_workflows.web import Identity, Problem, Role


def create(parts: Parts, who: Identity, name: str, password: str | None) -> None:
    """Create an account without roles.

    Raises:
        Problem: 403, 409, 422.
    """
    need_session(who)
    need(who, Role.ADMIN)
    if any(each.name == name for each in parts.accounts.accounts()):
        raise Problem(409, f"there is an account {name!r} already")
    _or_422(lambda: parts.accounts.create(name, password, by=who.name))


def change(
    parts: Parts,
    who: Identity,
    name: str,
    *,
    enabled: bool | None = None,
    password: str | None = None,
    current: str = "",
) -> None:
    """Enable or disable an account, or change its password.

    Administrators may change any account, but not disable their own. Others may change only their own password.

    Args:
        parts: The parts of this process.
        who: The account that asks.
        name: Name of the account.
        enabled: Whether it is enabled. None: no change.
        password: New password, which ends all sessions and tokens of the account. None: no change.
        current: Current password of the account that asks. Needed for a new password if it has one, so that a browser
            left open is not enough.
    Raises:
        Problem: 403, 404, 409, 422.
        TooManyTries: The current password was wrong too often.
    """
    need_session(who)
    if name != who.name or enabled is not None:
        need(who, Role.ADMIN)
    if enabled is False and name == who.name:
        raise Problem(409, "nobody switches off their own account; ask another administrator")
    if enabled is not None:
        parts.accounts.set_enabled(name, enabled, by=who.name)
    if password is not None:
        if not parts.accounts.confirm(who.name, current):
            raise Problem(403, "current: this is not your present password; nothing was changed", needs="password")
        _or_422(lambda: parts.accounts.set_password(name, password, by=who.name))


def set_role(parts: Parts, who: Identity, name: str, project: str, role: Role | None) -> None:
    """Set the role of an account in a project. At least one administrator of all projects remains.

    Raises:
        Problem: 403, 404, 409.
    """
    need_session(who)
    need(who, Role.ADMIN, project)
    if name == who.name and not project and role is not Role.ADMIN:
        raise Problem(409, "nobody takes away their own role; ask another administrator")
    parts.accounts.set_role(name, project, role, by=who.name)


def new_token(
    parts: Parts, who: Identity, title: str, *, role: Role | None = None, lasts_s: float | None = None
) -> tuple[int, str]:
    """Create a token for one's own account. Return its ID and secret.

    Raises:
        Problem: 403.
    """
    need_session(who)
    return parts.accounts.new_token(who.name, title, by=who.name, role=role, lasts_s=lasts_s)


def revoke(parts: Parts, who: Identity, token_id: int) -> None:
    """Revoke a token: one's own, or any as an administrator.

    Raises:
        Problem: 403.
        UnknownAccount: The token does not exist, or belongs to another account.
    """
    need_session(who)
    only_of = None if who.may(Role.ADMIN) else who.name
    parts.accounts.revoke(token_id, by=who.name, only_of=only_of)


def new_link(parts: Parts, who: Identity, name: str) -> str:
    """Return a secret that signs a browser in as an account, once.

    Raises:
        Problem: 403.
        UnknownAccount: The account does not exist.
    """
    need_session(who)
    need(who, Role.ADMIN)
    return parts.accounts.new_link(name, by=who.name)


def need_session(who: Identity) -> None:
    """Refuse requests with a token.

    Raises:
        Problem: 403.
    """
    if who.by_token:
        raise Problem(403, "a token changes no accounts, roles or tokens; sign in with a browser for that")


def audit(
    parts: Parts, who: Identity, *, by: str = "", before: int | None = None, most: int = 100
) -> list[history.Told]:
    """Return the actions of users in the projects that the account administers, the newest first.

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
