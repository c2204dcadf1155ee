"""Grants: which projects may use the workflows of a project."""

from __future__ import annotations

from typing import Any

from latchwork_workflows.db import grants
from latchwork_workflows.db.history import record_event
from latchwork_workflows.schemas.grants import Grant
from latchwork_workflows.services.accounts import require_session
from latchwork_workflows.services.context import ServiceContext, require_role, validate
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.web import Identity, Role


def list_grants(context: ServiceContext, user: Identity, project: str = "") -> list[Grant]:
    """Return the grants of the projects that the account may see, sorted by project and grantee.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Only grants of this project. Empty: all.
    """
    with context.database.read() as connection:
        found = grants.list_grants(connection)
    return [each for each in found if project in {"", each.project} and user.has_role(Role.VIEWER, each.project)]


def set_grant(context: ServiceContext, user: Identity, **values: Any) -> None:
    """Allow a project to use the workflows of another project. Only possible in a browser session, not with a token.

    Args:
        context: The service context of this process.
        user: Must be an administrator of the project that is used.
        values: The fields of ``Grant``.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 422 (invalid) with the invalid fields.
    """
    require_session(user)
    require_role(user, Role.ADMIN, str(values.get("project", "")))
    given = validate(Grant, **values)
    with context.database.write() as connection:
        grants.save_grant(connection, given)
        details = {"grantee": given.grantee or "*", "role": given.role}
        record_event(connection, "grant", by=user.name, project=given.project, details=details)


def remove_grant(context: ServiceContext, user: Identity, project: str, grantee: str) -> None:
    """Remove the role that a project has in another project. Tasks that rely on it fail from now on.

    Args:
        context: The service context of this process.
        user: Must be an administrator of the project that is used.
        project: The project that is used.
        grantee: The project that has the role.
    Raises:
        HttpProblem: 403 (forbidden) if the account may not do this, 404 (not found) if there is no such grant.
    """
    require_session(user)
    require_role(user, Role.ADMIN, project)
    with context.database.write() as connection:
        if not grants.remove_grant(connection, project, grantee):
            whom = f"project {grantee!r}" if grantee else "all projects"
            raise object_not_found(f"there is no grant of project {project!r} to {whom}")
        record_event(connection, "grant end", by=user.name, project=project, details={"grantee": grantee or "*"})
