"""Grants, for clients."""

from __future__ import annotations

import builtins

from latchwork_workflows.client.transport import Transport, build_request, build_resource_path
from latchwork_workflows.schemas.grants import Grant, GrantChange


class GrantsClient:
    """Grants: the projects that may use the workflows of another project."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self, project: str = "") -> builtins.list[Grant]:
        """Return the grants of a project or of all projects, sorted by project and grantee."""
        return self._api.get("/grants", list[Grant], project=project)

    def set(self, project: str, grantee: str, role: str) -> None:
        """Allow the tasks of a project to use the workflows of another project. Requires a session, not a token.

        Args:
            project: The project whose workflows are used.
            grantee: The project whose tasks use them. Empty: all projects.
            role: ``viewer`` allows tasks to wait for runs and read their outputs. ``operator`` also allows tasks to
                start workflows.
        Raises:
            BadRequest: A value is invalid.
        """
        body = build_request(GrantChange, grantee=grantee, role=role)
        self._api.put(build_resource_path("projects", project, "grants"), body, type(None))

    def remove(self, project: str, grantee: str) -> None:
        """Remove the grant of a project.

        Tasks that need the grant fail from now on. Requires a session, not a token.

        Raises:
            NotFound: There is no such grant.
        """
        body = build_request(GrantChange, grantee=grantee, role=None)
        self._api.put(build_resource_path("projects", project, "grants"), body, type(None))
