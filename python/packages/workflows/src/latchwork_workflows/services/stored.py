"""Connections, environments and parameters, from a program on the database itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from latchwork_workflows.db.settings import SettingKind
from latchwork_workflows.looking import Looks, told
from latchwork_workflows.services import settings as desk
from latchwork_workflows.services.settings import Seen


class StoredSettings(Looks):
    """What is stored beside workflows for them to name. Safe to share between threads.

    A run reads it when a task of it is given to workers: what is changed later is for later attempts. The empty project
    stands for all; what a project has by a name counts before what all have.
    """

    def settings(self, kind: SettingKind, project: str | None = None) -> list[Seen]:
        """Every ``connection``, ``environment`` or ``parameter``; of this project and of all. By project and name."""
        with told():
            return desk.listed(self._parts, self._who, kind, project)

    def set_connection(self, name: str, url: str, *, secret: str = "", project: str = "") -> bool:
        """Store a connection for ``sql("name", ...)``; whether it is new.

        Args:
            name: of it.
            url: as SQLAlchemy reads it, without a password.
            secret: the name of the password among the secrets of workers; empty: it has none.
            project: whose it is; empty: of all.
        Raises:
            BadRequest: the name or the URL is none, or the URL has a password; no message repeats it.
        """
        with told():
            return desk.set_connection(self._parts, self._who, project, name, url=url, secret=secret)

    def set_environment(
        self,
        name: str,
        variables: Mapping[str, str],
        *,
        project: str = "",
        keep: bool = False,
        drop: Iterable[str] = (),
    ) -> bool:
        """Store variables for ``environment="name"``; whether it is new.

        Args:
            name: of the environment.
            variables: its variables; ``${secret:name}`` in them is filled in by workers.
            project: whose it is; empty: of all.
            keep: the variables that it has stay, but for ``drop``.
            drop: with ``keep``: these go.
        Raises:
            BadRequest: a name is none, or it is too large.
        """
        with told():
            return desk.set_environment(self._parts, self._who, project, name, variables, keep=keep, drop=drop)

    def set_parameter(self, name: str, value: Any, *, project: str = "") -> bool:
        """Store a value, any JSON, for ``${name}``; whether it is new.

        Raises:
            BadRequest: the name is none, or built in; the value is too large.
        """
        with told():
            return desk.set_parameter(self._parts, self._who, project, name, value)

    def remove_setting(self, kind: SettingKind, name: str, *, project: str = "") -> list[str]:
        """Delete a ``connection``, ``environment`` or ``parameter``; the workflows that name it still.

        Raises:
            UnknownWorkflow: there is none of this name.
        """
        with told():
            return desk.remove(self._parts, self._who, kind, project, name)

    def ask_to_try(self, name: str, *, project: str = "", within: str = "", group: str = "default") -> int:
        """Let a worker open a connection; the number of the command that starts the run.

        Args:
            name: of the connection.
            project: whose it is; empty: of all.
            within: the project that it is tried in, for one of all; empty: ``default``.
            group: whose workers try it.
        Raises:
            UnknownWorkflow: there is none of this name.
        """
        with told():
            return desk.try_connection(self._parts, self._who, project, name, within=within, group=group).command
