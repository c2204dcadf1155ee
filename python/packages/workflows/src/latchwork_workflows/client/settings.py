"""Connections, environments and parameters, for clients.

A task reads them when it is given to a worker: a change affects later attempts only. A setting of a project hides the
setting of all projects with the same name.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from typing import Any

from latchwork_workflows.client.transport import Transport, build_request, build_resource_path
from latchwork_workflows.schemas.commands import CommandSent
from latchwork_workflows.schemas.settings import (
    Connection,
    ConnectionChange,
    ConnectionTest,
    Environment,
    EnvironmentChange,
    Parameter,
    ParameterChange,
    SettingRemoved,
    SettingStored,
)


class ConnectionsClient:
    """Stored database connections, without their passwords, which are secrets of the workers."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self, project: str | None = None) -> builtins.list[Connection]:
        """Return stored connections, sorted by project and name.

        Args:
            project: Return the connections of this project and those shared by all projects. None: the connections of
                every project.
        """
        return self._api.get("/connections", list[Connection], project=project)

    def set(self, name: str, url: str, *, secret: str = "", project: str = "") -> bool:
        """Store a connection for ``sql("name", ...)``, and return whether it is new.

        Args:
            name: The name of the connection.
            url: A SQLAlchemy URL without a password.
            secret: The name of the password among the secrets of workers. Empty: no password.
            project: The project of the connection. Empty: shared by all projects.
        Raises:
            BadRequest: The name or the URL is invalid, or the URL has a password. No message contains the password.
        """
        body = build_request(ConnectionChange, url=url, secret=secret)
        return self._api.put(build_resource_path("connections", name), body, SettingStored, project=project).is_new

    def remove(self, name: str, *, project: str = "") -> builtins.list[str]:
        """Delete a connection, and return the workflows that still use it.

        Raises:
            NotFound: There is no connection of this name.
        """
        return self._api.delete(build_resource_path("connections", name), SettingRemoved, project=project).missed_by

    def test(self, name: str, *, project: str = "", test_project: str = "", group: str = "default") -> CommandSent:
        """Test a connection on a worker. Return the command that starts the run of the test.

        Args:
            name: The name of the connection.
            project: The project of the connection. Empty: shared by all projects.
            test_project: The project in which to test a shared connection. Empty: ``default``.
            group: The worker group whose workers test the connection.
        Raises:
            NotFound: There is no connection of this name.
        """
        body = build_request(ConnectionTest, within=test_project, group=group)
        return self._api.post(
            build_resource_path("connections", name, action="test"), body, CommandSent, project=project
        )


class EnvironmentsClient:
    """Environments, which are named sets of variables for tasks."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self, project: str | None = None) -> builtins.list[Environment]:
        """Return the environments of a project and those shared by all projects, sorted.

        None: the environments of every project.
        """
        return self._api.get("/environments", list[Environment], project=project)

    def set(
        self,
        name: str,
        variables: Mapping[str, str],
        *,
        project: str = "",
        keep: bool = False,
        drop: Iterable[str] = (),
    ) -> bool:
        """Store the variables of an environment. Return whether the environment is new.

        Args:
            name: The name of the environment.
            variables: The variables. Workers fill in references such as ``${secret:name}``.
            project: The project of the environment. Empty: shared by all projects.
            keep: Whether to keep the existing variables, except those in ``drop``. Default: remove them.
            drop: Existing variables to remove if ``keep`` is set.
        Raises:
            BadRequest: A name is invalid, or a value is too large.
        """
        body = build_request(EnvironmentChange, variables=dict(variables), keep=keep, drop=list(drop))
        return self._api.put(build_resource_path("environments", name), body, SettingStored, project=project).is_new

    def remove(self, name: str, *, project: str = "") -> builtins.list[str]:
        """Delete an environment. Return the workflows that still refer to it.

        Raises:
            NotFound: There is no environment of this name.
        """
        return self._api.delete(build_resource_path("environments", name), SettingRemoved, project=project).missed_by


class ParametersClient:
    """Values for ``${name}`` in all workflows of a project, or of all projects."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self, project: str | None = None) -> builtins.list[Parameter]:
        """Return the parameters of a project and those shared by all projects, sorted.

        None: the parameters of every project.
        """
        return self._api.get("/parameters", list[Parameter], project=project)

    def set(self, name: str, value: Any, *, project: str = "") -> bool:
        """Store a parameter, which can be any JSON value. Return whether the parameter is new.

        Raises:
            BadRequest: The name is invalid or built in, or the value is too large.
        """
        body = build_request(ParameterChange, value=value)
        return self._api.put(build_resource_path("parameters", name), body, SettingStored, project=project).is_new

    def remove(self, name: str, *, project: str = "") -> builtins.list[str]:
        """Delete a parameter. Return the workflows that still refer to it.

        Raises:
            NotFound: There is no parameter of this name.
        """
        return self._api.delete(build_resource_path("parameters", name), SettingRemoved, project=project).missed_by
