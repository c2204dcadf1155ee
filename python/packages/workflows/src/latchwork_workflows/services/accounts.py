"""Create, change and list accounts, and check the permissions for that.

Only a person who signed in with a browser changes accounts, roles and tokens. So a leaked token, whatever its role,
creates nothing that outlives it.
"""

from __future__ import annotations

from latchwork_workflows.db import history
from latchwork_workflows.services.context import ServiceContext, require_role
from latchwork_workflows.web import HttpProblem, Identity, Role


def create_account(context: ServiceContext, user: Identity, name: str, password: str | None) -> None:
    """Create an account without roles.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 409 (conflict) if an account of this name exists,
            422 (invalid) for a bad name or password.
    """
    require_session(user)
    require_role(user, Role.ADMIN)
    if any(each.name == name for each in context.accounts.list_accounts()):
        raise HttpProblem(409, f"there is an account {name!r} already")
    _as_problem(lambda: context.accounts.create_account(name, password, by=user.name))


def change_account(
    context: ServiceContext,
    user: Identity,
    name: str,
    *,
    enabled: bool | None = None,
    password: str | None = None,
    current: str = "",
) -> None:
    """Enable or disable an account, or change its password.

    Administrators may change any account, but may not disable their own. All others may only change their own password.

    Args:
        context: The service context of this process.
        user: The requesting account.
        name: Name of the account.
        enabled: Whether it is enabled. None: no change.
        password: New password, which ends all sessions and tokens of the account. None: no change.
        current: Current password of the requesting account. Needed for a new password if it has one, so that a browser
            left open is not enough.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this or the current password is wrong, 404 (not found) if
            the account does not exist, 409 (conflict) if administrators would disable their own account, 422 (invalid)
            for a bad password.
        TooManyAttempts: The current password was wrong too often.
    """
    require_session(user)
    if name != user.name or enabled is not None:
        require_role(user, Role.ADMIN)
    if enabled is False and name == user.name:
        raise HttpProblem(409, "you cannot disable your own account; ask another administrator")
    if enabled is not None:
        context.accounts.set_enabled(name, enabled, by=user.name)
    if password is not None:
        if not context.accounts.is_own_password(user.name, current):
            raise HttpProblem(403, "current: this is not your current password; nothing was changed", needs="password")
        _as_problem(lambda: context.accounts.set_password(name, password, by=user.name))


def set_role(context: ServiceContext, user: Identity, name: str, project: str, role: Role | None) -> None:
    """Set the role of an account in a project. At least one administrator of all projects remains.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if the account does not exist, 409
            (conflict) if administrators would remove their own role.
    """
    require_session(user)
    require_role(user, Role.ADMIN, project)
    if name == user.name and not project and role is not Role.ADMIN:
        raise HttpProblem(409, "you cannot remove your own role; ask another administrator")
    context.accounts.set_role(name, project, role, by=user.name)


def create_token(
    context: ServiceContext, user: Identity, title: str, *, role: Role | None = None, lasts_s: float | None = None
) -> tuple[int, str]:
    """Create an API token for the user's own account, and return the ID of the token and its text.

    Args:
        context: The service context of this process.
        user: The requesting account.
        title: A description for users.
        role: The highest role that the token has. None: the roles of the account.
        lasts_s: Seconds until the token expires. None: never.
    Raises:
        HttpProblem: 403 (forbidden) if the request was made with a token.
    """
    require_session(user)
    return context.accounts.create_token(user.name, title, by=user.name, role=role, lasts_s=lasts_s)


def revoke_token(context: ServiceContext, user: Identity, token_id: int) -> None:
    """Revoke one of the user's own tokens. Administrators of all projects may revoke any token.

    Raises:
        HttpProblem: 403 (forbidden) if the request was made with a token.
        NotFound: The token does not exist, or belongs to another account.
    """
    require_session(user)
    only_of = None if user.has_role(Role.ADMIN) else user.name
    context.accounts.revoke_token(token_id, by=user.name, only_of=only_of)


def create_sign_in_link(context: ServiceContext, user: Identity, name: str) -> str:
    """Create a one-time sign-in link for an account, and return the secret part of the link.

    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this.
        NotFound: The account does not exist.
    """
    require_session(user)
    require_role(user, Role.ADMIN)
    return context.accounts.create_sign_in_link(name, by=user.name)


def require_session(user: Identity) -> None:
    """Check that a request was made with a browser session and not with an API token.

    Raises:
        HttpProblem: 403 (forbidden) if the request was made with a token.
    """
    if user.by_token:
        raise HttpProblem(403, "a token cannot change accounts, roles or tokens; sign in with a browser")


def list_user_actions(
    context: ServiceContext, user: Identity, *, by: str = "", before: int | None = None, limit: int = 100
) -> list[history.HistoryEvent]:
    """Return actions of users from the audit log, newest first, in the projects that the account administers.

    Args:
        context: The service context of this process.
        user: The requesting account.
        by: Return only actions of this account. Empty: any account.
        before: Return only actions with lower IDs, for the next page.
        limit: The maximum number of results.
    Raises:
        HttpProblem: 403 (forbidden) if the account administers no project.
    """
    if not user.has_any_role(Role.ADMIN):
        require_role(user, Role.ADMIN)
    with context.database.read() as connection:
        return history.list_user_actions(
            connection, projects=user.get_projects(Role.ADMIN), by=by, before=before, limit=limit
        )


def _as_problem(do: object) -> None:
    assert callable(do)
    try:
        do()
    except ValueError as error:
        raise HttpProblem(422, f"password: {error}", errors=[("password", str(error))]) from None
