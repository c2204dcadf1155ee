"""Pools, for clients."""

from __future__ import annotations

import builtins

from latchwork_workflows.client.transport import Transport, build_request, build_resource_path
from latchwork_workflows.schemas.pools import Pool, PoolChange, PoolDetail, PoolSettings


class PoolsClient:
    """Pools, which limit how many tasks run at a time."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self) -> builtins.list[Pool]:
        """Return all pools with the workflows that use them, sorted by name."""
        return self._api.get("/pools", list[Pool])

    def get(self, name: str, *, limit: int = 100) -> PoolDetail:
        """Return a pool with the tasks that hold its slots and the first tasks that wait for a slot.

        Args:
            name: The name of the pool.
            limit: The maximum number of waiting tasks.
        Raises:
            NotFound: There is no pool of this name.
        """
        return self._api.get(build_resource_path("pools", name), PoolDetail, limit=limit)

    def set(self, name: str, size: int, admission: str = "suspend") -> PoolSettings:
        """Create or change a pool. If it becomes smaller, running tasks are not stopped.

        Args:
            name: The name to which tasks refer as ``pool``, or ``@<project>`` for all tasks of a project.
            size: The maximum number of tasks of the pool that run at a time. 1 to 10,000.
            admission: Only for the pool of a project: how a run starts while the pool is full. ``suspend`` lets its
                tasks wait, ``fail`` refuses the run, ``precompute`` delays the run until its tasks fit.
        Raises:
            BadRequest: A value is invalid.
        """
        body = build_request(PoolChange, size=size, admission=admission)
        return self._api.put(build_resource_path("pools", name), body, PoolSettings)

    def remove(self, name: str) -> None:
        """Remove a pool that no workflow uses.

        Raises:
            NotFound: There is no pool of this name.
            WrongState: Workflows use the pool.
        """
        self._api.delete(build_resource_path("pools", name), type(None))
