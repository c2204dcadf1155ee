"""Taking a shard over: be its owner in the database, and find out first whether database and store are of one moment.

Each restores its backups without the other. A database of before has made fewer transactions than the store has the
mark of (``high/<shard>``); a store of before has older marks than the database has noted, or knows another pair.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from latchwork.store import Store
from latchwork_workflows.db import Shard
from latchwork_workflows.errors import NotOwner, StoreMismatch
from latchwork_workflows.installation import check_pair
from latchwork_workflows.keys import Keys


class Owning:
    """One hold of one shard, as it begins. For one thread.

    Args:
        guard: of the shard.
        store: of the process.
        keys: of the installation.
        check_owner: raises ``NotOwner`` unless the shard is ours in the store.
    """

    def __init__(self, guard: Shard, store: Store, keys: Keys, check_owner: Callable[[], None]) -> None:
        self._guard = guard
        self._store = store
        self._keys = keys
        self._check_owner = check_owner

    def look(self) -> tuple[int, bytes | None]:
        """What the store says before the transaction: the newest mark, and which of all stores it is."""
        shard = self._guard.id
        high, pair = self._store.get(self._keys.high(shard)), self._store.get(self._keys.pair)
        marked = int(high.value) if high is not None and high.value.isdigit() else 0
        return marked, None if pair is None else pair.value

    def take(self, connection: sa.Connection, node: str, marked: int, pair: bytes | None) -> None:
        """Be the owner, in a transaction.

        Raises:
            NotOwner: another has the shard.
            StoreMismatch: store and database are not of one moment, or no pair.
        """
        shard = self._guard.id
        check_pair(connection, pair, self._store.url)
        try:
            seq = self._guard.own(connection, node)
        except NotOwner as error:
            self._refuse_store(error)
            raise
        if marked < self._guard.noted(connection):
            raise StoreMismatch(
                f"shard {shard}: the store has no mark after that of transaction {marked}, and later ones were made: "
                "the store was restored from a backup, or emptied; see `latchwork workflows adopt-store`"
            )
        if marked > seq:
            raise StoreMismatch(
                f"shard {shard}: results of transaction {marked} were deleted from the store, and the database has "
                f"made {seq}: it was restored from a backup. What ended since then runs again: agree to that with "
                "`latchwork workflows adopt-store`"
            )

    def _refuse_store(self, error: NotOwner) -> None:
        self._check_owner()
        raise StoreMismatch(
            f"shard {self._guard.id} is ours in the store, but the database has a newer owner: the store was restored "
            "from a backup, or replaced; see `latchwork workflows adopt-store`"
        ) from error
