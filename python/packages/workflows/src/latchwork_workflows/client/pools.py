"""Pools, for clients."""

from __future__ import annotations

import builtins

from latchwork_workflows.client.transport import Transport, build_request, resource_path
from latchwork_workflows.schemas.pools import Pool, PoolChange, PoolDetail, PoolSettings


class PoolsClient:
    """Pools, which limit how many tasks run at a time."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self) -> builtins.list[Pool]:
        """Return all pools, sorted by name, with the workflows that name them."""
        return self._api.get("/pools", list[Pool])

    def get(self, name: str, *, limit: int = 100) -> PoolDetail:
        """Return a pool, the tasks that hold its slots, and the first ``limit`` tasks that wait for one.

        Raises:
            UnknownWorkflow: There is no such pool.
        """
        return self._api.get(resource_path("pools", name), PoolDetail, limit=limit)

    def set(self, name: str, size: int, admission: str = "suspend") -> PoolSettings:
        """Create or change a pool. Tasks that run beyond a smaller size are not stopped.

        Args:
            name: What tasks name as ``pool``, or ``@<project>`` for all tasks of a project.
            size: How many of its tasks run at a time. 1 to 10,000.
            admission: Of a project: what a start does while as many tasks are queued or running: ``suspend`` (its tasks
                wait), ``fail``, or ``precompute`` (it waits until they fit).
        Raises:
            BadRequest: A value is invalid.
        """
        body = build_request(PoolChange, size=size, admission=admission)
        return self._api.put(resource_path("pools", name), body, PoolSettings)

    def remove(self, name: str) -> None:
        """Remove a pool that no workflow names.

        Raises:
            UnknownWorkflow: There is no such pool.
            WrongState: Workflows name it.
        """
        self._api.delete(resource_path("pools", name), type(None))
