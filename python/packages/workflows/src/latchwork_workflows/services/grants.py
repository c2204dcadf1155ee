"""Grants: which projects may use the workflows of a project."""

from __future__ import annotations

from typing import Any

from latchwork_workflows.db import grants
from latchwork_workflows.db.history import told
from latchwork_workflows.schemas.grants import Grant
from latchwork_workflows.services.accounts import need_session
from latchwork_workflows.services.parts import Parts, need, valid
from latchwork_workflows.web import Identity, Problem, Role


def listed(parts: Parts, who: Identity, project: str = "") -> list[Grant]:
    """Return the grants of the projects that ``who`` may see, sorted by project and grantee.

    Args:
        parts: The parts of this process.
        who: The account that asks.
        project: Only grants of this project. Empty: all.
    """
    with parts.database.read() as connection:
        found = grants.every(connection)
    return [each for each in found if project in {"", each.project} and who.may(Role.VIEWER, each.project)]


def put(parts: Parts, who: Identity, **values: Any) -> None:
    """Let a project use another. As with roles of accounts, a person must do it.

    Args:
        parts: The parts of this process.
        who: Must be an administrator of the project that is used.
        values: The fields of ``Grant``.
    Raises:
        Problem: 403; 422 with the invalid fields.
    """
    need_session(who)
    need(who, Role.ADMIN, str(values.get("project", "")))
    given = valid(Grant, **values)
    with parts.database.write() as connection:
        grants.put(connection, given)
        details = {"grantee": given.grantee or "*", "role": given.role}
        told(connection, "grant", by=who.name, project=given.project, details=details)


def remove(parts: Parts, who: Identity, project: str, grantee: str) -> None:
    """Remove the role of a project in another: its tasks that use it fail from now on.

    Raises:
        Problem: 403, 404.
    """
    need_session(who)
    need(who, Role.ADMIN, project)
    with parts.database.write() as connection:
        if not grants.remove(connection, project, grantee):
            whom = f"project {grantee!r}" if grantee else "all projects"
            raise Problem(404, f"there is no grant of project {project!r} to {whom}")
        told(connection, "grant end", by=who.name, project=project, details={"grantee": grantee or "*"})
