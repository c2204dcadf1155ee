"""Grants, for clients."""

from __future__ import annotations

import builtins

from latchwork_workflows.client.transport import Transport, path, request_of
from latchwork_workflows.schemas.grants import Grant, GrantChange


class Grants:
    """Which projects may use the workflows of which."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self, project: str = "") -> builtins.list[Grant]:
        """Return the grants of a project, or of all, sorted by project and grantee."""
        return self._api.get("/grants", list[Grant], project=project)

    def set(self, project: str, grantee: str, role: str) -> None:
        """Let the tasks of a project use the workflows of another. Not with a token.

        Args:
            project: The project whose workflows are used.
            grantee: The project whose tasks use them. Empty: all projects.
            role: ``viewer``: they may wait for its runs and read their outputs. ``operator``: they may also start them.
        Raises:
            BadRequest: A value is invalid.
        """
        body = request_of(GrantChange, grantee=grantee, role=role)
        self._api.put(path("projects", project, "grants"), body, type(None))

    def remove(self, project: str, grantee: str) -> None:
        """Remove a grant: tasks that need it fail from now on. Not with a token.

        Raises:
            UnknownWorkflow: There is no such grant.
        """
        body = request_of(GrantChange, grantee=grantee, role=None)
        self._api.put(path("projects", project, "grants"), body, type(None))
