"""Takes over a shard: becomes its owner in the database after checking that database and store match.

Either may have been restored from a backup without the other. An older database has made fewer transactions than the
mark in the store (``high/<shard>``). An older store has lower marks than the database has noted, or another pair.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from latchwork.store import Store
from latchwork_workflows.db import ShardGuard
from latchwork_workflows.errors import NotOwner, StoreMismatch
from latchwork_workflows.installation import check_store_of_database
from latchwork_workflows.keys import Keys


class ShardTakeover:
    """Takes over a shard once: checks the store and the database, and becomes the owner. Not thread-safe.

    Args:
        guard: The guard of the shard.
        store: The store of the process.
        keys: The keys of the installation.
        check_owner: Raises ``NotOwner`` unless this process owns the shard according to the store.
    """

    def __init__(self, guard: ShardGuard, store: Store, keys: Keys, check_owner: Callable[[], None]) -> None:
        self._guard = guard
        self._store = store
        self._keys = keys
        self._check_owner = check_owner

    def read_store_state(self) -> tuple[int, bytes | None]:
        """Read from the store what ``take_over`` compares with the database.

        Returns:
            The number of the shard's transaction when results were last deleted from the store, or 0. The name of the
            store, or None if it has none.
        """
        shard = self._guard.id
        high, pair = self._store.get(self._keys.restore_mark_key(shard)), self._store.get(self._keys.pair)
        marked = int(high.value) if high is not None and high.value.isdigit() else 0
        return marked, None if pair is None else pair.value

    def take_over(self, connection: sa.Connection, node: str, store_transaction: int, store_name: bytes | None) -> None:
        """Become the owner of the shard, in a transaction of the database.

        Args:
            connection: The transaction.
            node: The name of this master.
            store_transaction: The transaction number from ``read_store_state``.
            store_name: The name of the store from ``read_store_state``.
        Raises:
            NotOwner: There is another owner.
            StoreMismatch: The store and the database do not match, or one of them is older.
        """
        shard = self._guard.id
        check_store_of_database(connection, store_name, self._store.url)
        try:
            seq = self._guard.acquire(connection, node)
        except NotOwner as error:
            self._check_store_age(error)
            raise
        if store_transaction < self._guard.get_confirmed_transaction(connection):
            raise StoreMismatch(
                f"shard {shard}: the store has no mark after that of transaction {store_transaction}, and later ones "
                "were made: the store was restored from a backup, or emptied; see `latchwork workflows adopt-store`"
            )
        if store_transaction > seq:
            raise StoreMismatch(
                f"shard {shard}: results of transaction {store_transaction} were deleted from the store, and the "
                f"database has made {seq}: it was restored from a backup. What ended since then runs again: agree to "
                "that with `latchwork workflows adopt-store`"
            )

    def _check_store_age(self, error: NotOwner) -> None:
        self._check_owner()
        raise StoreMismatch(
            f"shard {self._guard.id} is ours in the store, but the database has a newer owner: the store was restored "
            "from a backup, or replaced; see `latchwork workflows adopt-store`"
        ) from error
