"""Copies the sizes of pools from the database to the store, where workers read them.

The master of the first shard is the only writer, and each write has its fence. It reads the store once after it has
become the owner of the shard. From then on the store has what this master wrote.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from latchwork.types import Delete, Op, Put
from latchwork_workflows.db import pools
from latchwork_workflows.keys import PROJECT, build_pool_key
from latchwork_workflows.master.dispatcher import Dispatcher
from latchwork_workflows.schemas.pools import MAX_SIZE

#: The master of this shard writes the sizes.
FIRST_SHARD = 0


class PoolSizes:
    """Copies pool sizes to the store when they change. Not thread-safe.

    Args:
        shard: The shard of this master. All but the first do nothing.
        dispatcher: The store, under the fence of the shard.
    """

    def __init__(self, shard: int, dispatcher: Dispatcher) -> None:
        self._is_ours = shard == FIRST_SHARD
        self._dispatcher = dispatcher
        self._wanted: Mapping[str, int] | None = None
        self._written: Mapping[str, int] | None = None

    def reset(self) -> None:
        """Forget what the store contains, so that the store is read again before the next write."""
        self._written = None

    def read_from_database(self, connection: sa.Connection) -> None:
        """Read the sizes of all pools from the database."""
        if self._is_ours:
            self._wanted = {build_pool_key(each.name): each.size for each in pools.list_pools(connection)}

    def write_to_store(self) -> None:
        """Update the pool sizes in the store that differ from those in the database.

        Pools that no longer exist are deleted. A deleted pool of a project gets the largest size instead, because tasks
        that were queued earlier still need its slots.
        """
        if self._wanted is None or self._wanted == self._written:
            return
        keys = self._dispatcher.keys
        there = {key: value for key, value in self._dispatcher.list_values(keys.slots).items() if key.endswith("/size")}
        now = {keys.pool_size_key(name): str(size).encode() for name, size in self._wanted.items()}
        ops: list[Op] = [Put(key, value) for key, value in now.items() if there.get(key) != value]
        gone = [key for key in there if key not in now]
        free = str(MAX_SIZE).encode()
        ops += [Put(key, free) for key in gone if f"/{PROJECT}" in key and there[key] != free]
        ops += [Delete(key) for key in gone if f"/{PROJECT}" not in key]
        self._dispatcher.write(ops)
        self._written = self._wanted
