"""The context of the services: the database and, if available, the log store and the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from fastapi import Request
from pydantic import BaseModel, ValidationError

from latchwork.errors import LatchworkError
from latchwork_workflows.db import Database, workflow_queries
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.lineage import ReferenceCache
from latchwork_workflows.logs import LogStore
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import HttpProblem, Identity, Role

_log = logging.getLogger(__name__)
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class WorkerStatus(NamedTuple):
    """A worker that is online.

    Attributes:
        name: Its name.
        host: Machine on which it runs.
        groups: Worker groups whose tasks it claims.
        slots: Maximum number of tasks at a time.
        busy: Current number of tasks.
        types: Task types that it knows.
        version: Version of Latchwork.
        state: Such as ``running`` or ``draining``.
        attempts: Current attempts, as ``<task>.<n>``, sorted.
        tenants: Users that tasks may name there. ``-``: tasks without a tenant. Empty: not known.
    """

    name: str
    host: str = ""
    groups: tuple[str, ...] = ()
    slots: int = 0
    busy: int = 0
    types: tuple[str, ...] = ()
    version: str = ""
    state: str = "running"
    attempts: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()


class UnclaimedItems(NamedTuple):
    """The first unclaimed items in a partition of the work queue.

    Attributes:
        free: The unclaimed items in order, as ``<sort key>/<id>``.
        is_whole: Whether these are all unclaimed items.
    """

    free: tuple[str, ...]
    is_whole: bool


class Cluster(Protocol):
    """Queries to the store. Thread-safe. Its methods block, and may raise ``LatchworkError``."""

    def notify_master(self, shard: int) -> None:
        """Notify the master of a shard that commands are waiting. The notification may be lost."""
        ...

    def list_workers(self) -> Sequence[WorkerStatus]:
        """Return the workers that are online, sorted by name."""
        ...

    def get_slot_holders(self) -> Mapping[str, Sequence[str]]:
        """Return the attempts that hold slots, as ``<task>.<attempt number>``, by pool key."""
        ...

    def list_unclaimed_items(self, partition: str, limit: int) -> UnclaimedItems | None:
        """Return the first queue items of a partition that no worker has claimed.

        Args:
            partition: The partition of the work queue.
            limit: The maximum number of items.
        Returns:
            The items, or None if they cannot be determined, because workers have claimed too many items before them.
        """
        ...

    def get_cancel_times(self, attempts: Sequence[str]) -> Mapping[str, float]:
        """Return the times at which attempts were requested to cancel, in seconds since the epoch.

        Args:
            attempts: Attempts as ``<task>.<attempt number>``.
        Returns:
            The times by attempt. 0: time unknown. Attempts without such a request are left out.
        """
        ...


@dataclass(eq=False)
class ServiceContext:
    """Everything that routes need. Thread-safe.

    Attributes:
        database: Database of the workflows.
        accounts: Accounts that may sign in.
        types: Task types that may be applied.
        logs: Log store of attempts. None: logs cannot be read here.
        cluster: The store. None: masters find commands by polling every few seconds, and workers are not visible.
        lineage: Cached links of workflows, read once for each version.
    """

    database: Database
    accounts: DatabaseAccounts
    types: TaskTypes = field(default_factory=TaskTypes)
    logs: LogStore | None = None
    cluster: Cluster | None = None
    lineage: ReferenceCache = field(default_factory=ReferenceCache)

    def notify_master(self, shard: int) -> None:
        """Notify the master of a shard that commands are waiting.

        Never raises, because masters also poll the database.
        """
        if self.cluster is None:
            return
        try:
            self.cluster.notify_master(shard)
        except LatchworkError:
            _log.debug("shard %s was not notified", shard, exc_info=True)

    def get_slot_holders(self) -> Mapping[str, Sequence[str]] | None:
        """Return the attempts that hold slots, by pool key, or None if the store cannot be reached."""
        return self._query("slots", lambda cluster: cluster.get_slot_holders())

    def list_workers(self) -> Sequence[WorkerStatus] | None:
        """Return the workers that are online, or None if the store cannot be reached."""
        return self._query("workers", lambda cluster: cluster.list_workers())

    def list_unclaimed_items(self, partition: str, limit: int) -> UnclaimedItems | None:
        """Return the first unclaimed queue items of a partition, or None if they cannot be determined.

        Args:
            partition: The partition of the work queue.
            limit: The maximum number of items.
        """
        return self._query("queue", lambda cluster: cluster.list_unclaimed_items(partition, limit))

    def get_cancel_times(self, attempts: Sequence[str]) -> Mapping[str, float]:
        """Return the times at which attempts were requested to cancel, by attempt. Empty if the store cannot be
        reached.

        Args:
            attempts: Attempts as ``<task>.<attempt number>``.
        """
        return (self._query("cancels", lambda cluster: cluster.get_cancel_times(attempts)) if attempts else None) or {}

    def _query(self, what: str, ask: Callable[[Cluster], T]) -> T | None:
        if self.cluster is None:
            return None
        try:
            return ask(self.cluster)
        except LatchworkError:
            _log.debug("the %s were not read", what, exc_info=True)
            return None


def get_context(request: Request) -> ServiceContext:
    """Return the service context of the app that handles a request."""
    context: ServiceContext = request.app.state.context
    return context


def require_role(user: Identity, role: Role, project: str = "") -> None:
    """Check that an account has a role in a project, or in all projects.

    Raises:
        HttpProblem: 403 (forbidden). The message names the role and the project where the account lacks it.
    """
    if not user.has_role(role, project):
        where = f"in project {project!r}" if project else "in all projects"
        raise HttpProblem(
            403,
            f"{user.name} does not have the role {role.label} {where}; ask an administrator for it",
            needs=role.label,
        )


def validate(kind: type[M], **values: Any) -> M:
    """Return an instance of a model with these values, after validation.

    Raises:
        HttpProblem: 422 (invalid). The problem names each invalid field.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
        raise HttpProblem(422, f"{errors[0][0]}: {errors[0][1]}", errors=errors) from None


def require_any_role(user: Identity) -> None:
    """Check that an account has a role in at least one project.

    Raises:
        HttpProblem: 403 (forbidden) if the account has no role.
    """
    if not user.has_any_role(Role.VIEWER):
        raise HttpProblem(403, f"{user.name} has no role in any project; ask an administrator for one", needs="viewer")


def list_visible_codes(connection: sa.Connection, user: Identity, project: str = "") -> list[int] | None:
    """Return the codes of the workflows that the account may see, or None if it may see all workflows.

    Args:
        connection: A transaction.
        user: The requesting account.
        project: Return only workflows of this project. Empty: all projects.
    """
    among = user.get_projects()
    return (
        None if among is None and not project else list(workflow_queries.get_workflow_names(connection, among, project))
    )


def require_visible(user: Identity, row: sa.Row[Any] | None, what: str) -> sa.Row[Any]:
    """Return a database row if it exists and the account may see its project.

    Args:
        user: The requesting account.
        row: The row, with the column ``project``. None: there is no such row.
        what: What the row represents, for the error message, such as ``run 7``.
    Raises:
        HttpProblem: 404 (not found) if there is no row or the account may not see its project.
    """
    if row is None or not user.has_role(Role.VIEWER, row.project):
        raise object_not_found(f"there is no {what}")
    return row
