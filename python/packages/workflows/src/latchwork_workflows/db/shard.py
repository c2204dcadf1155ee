"""The guard of a shard: the first statement of each transaction of a master, so a former owner cannot write.

The owner of a shard has a token from the store, which increases with each owner. ``acquire`` writes it. From then on,
``seq`` is only incremented if the token is the same. This takes one statement on both databases, since PostgreSQL reads
the row again after waiting for another transaction. A master that restarts under the same hold has the same token,
which ``acquire`` accepts.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.tables import about, shard
from latchwork_workflows.errors import NotOwner

#: The prefix of rows of ``about`` that record marks of the store. The shard's ID follows.
NOTES = "high/"
_OURS = sa.update(shard).where(shard.c.id == sa.bindparam("_id"), shard.c.token == sa.bindparam("_token"))
_GUARD = _OURS.values(seq=shard.c.seq + 1).returning(shard.c.seq)


@dataclass(frozen=True, slots=True)
class ShardGuard:
    """Makes sure that only the current owner of a shard writes to its rows.

    Attributes:
        id: The ID of the shard.
        token: The token of the owner, from the store.
    """

    id: int
    token: int

    def acquire(self, connection: sa.Connection, owner: str) -> int:
        """Become the owner of the shard, and return the number of transactions that its owners have made so far.

        Args:
            connection: A transaction.
            owner: The name of this master.
        Raises:
            NotOwner: There is a newer owner.
        """
        mine = sa.update(shard).where(shard.c.id == self.id, shard.c.token <= self.token)
        found = connection.execute(mine.values(token=self.token, owner=owner[:200]).returning(shard.c.seq)).first()
        if found is None:
            raise NotOwner(f"shard {self.id} has a newer owner than token {self.token}")
        return int(found.seq)

    def get_confirmed_transaction(self, connection: sa.Connection) -> int:
        """Return the highest transaction number that the store is known to contain, or 0.

        The master writes the number to the key ``high/<shard>`` of the store when it deletes results there, and then
        confirms it with ``record_confirmed_transaction``. A store with a lower number was restored from a backup.
        """
        value = connection.execute(sa.select(about.c.value).where(about.c.name == self._mark_name)).scalar()
        return int(value or 0)

    def record_confirmed_transaction(self, connection: sa.Connection, transaction: int) -> None:
        """Record in the database that the store contains the number of this transaction.

        See ``get_confirmed_transaction``.
        """
        insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(about)
        new = {"name": self._mark_name, "value": str(transaction)}
        again = insert.on_conflict_do_update(index_elements=["name"], set_={"value": new["value"]})
        connection.execute(again, new)

    @property
    def _mark_name(self) -> str:
        return f"{NOTES}{self.id}"

    def get_former_owner(self, connection: sa.Connection) -> str:
        """Return the name of the previous owner if it did not release the shard. Otherwise return an empty string."""
        return str(connection.execute(sa.select(shard.c.owner).where(shard.c.id == self.id)).scalar() or "")

    def release(self, connection: sa.Connection) -> None:
        """Release the shard if this process still owns it. The next owner then knows that no master has crashed."""
        connection.execute(_OURS.values(owner=""), self._parameters)

    def begin_owned_transaction(self, connection: sa.Connection) -> int:
        """Check that this process still owns the shard, and count the transaction.

        Call this before any other statement of the transaction.

        Returns:
            The number of the transaction. Each transaction of the shard's owners has the next number.

        Raises:
            NotOwner: Another process owns the shard. The transaction must be rolled back.
        """
        found = connection.execute(_GUARD, self._parameters).first()
        if found is None:
            raise NotOwner(f"shard {self.id} no longer belongs to token {self.token}")
        return int(found.seq)

    @property
    def _parameters(self) -> dict[str, int]:
        return {"_id": self.id, "_token": self.token}
