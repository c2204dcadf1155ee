"""The guard of what masters write: each of their transactions begins with it, so that a former owner writes nothing.

A shard's owner has a token of the store, which grows with each owner. ``own`` writes it; from then on ``seq`` moves
only where the token is the same, in one statement for both databases: PostgreSQL looks at the row again once it has
waited for another transaction. A run that starts again under the same hold has the same token: ``own`` lets it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.tables import about, shard
from latchwork_workflows.errors import NotOwner

#: What notes of the store's marks are called in the table ``about``; the shard's number follows.
NOTES = "high/"
_OURS = sa.update(shard).where(shard.c.id == sa.bindparam("_id"), shard.c.token == sa.bindparam("_token"))
_GUARD = _OURS.values(seq=shard.c.seq + 1).returning(shard.c.seq)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as one owner has it.

    Attributes:
        id: which.
        token: of the owner, from the store.
    """

    id: int
    token: int

    def own(self, connection: sa.Connection, owner: str) -> int:
        """Be its owner from now on; how many transactions its owners have made.

        Raises:
            NotOwner: a newer one has it.
        """
        mine = sa.update(shard).where(shard.c.id == self.id, shard.c.token <= self.token)
        found = connection.execute(mine.values(token=self.token, owner=owner[:200]).returning(shard.c.seq)).first()
        if found is None:
            raise NotOwner(f"shard {self.id} has a newer owner than token {self.token}")
        return int(found.seq)

    def noted(self, connection: sa.Connection) -> int:
        """The newest transaction of which the store was known to have the mark ``high/<shard>``; 0: of none."""
        value = connection.execute(sa.select(about.c.value).where(about.c.name == self._high)).scalar()
        return int(value or 0)

    def note(self, connection: sa.Connection, marked: int) -> None:
        """The store has the mark of this transaction: from now on one without it is from before."""
        insert = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(about)
        new = {"name": self._high, "value": str(marked)}
        again = insert.on_conflict_do_update(index_elements=["name"], set_={"value": new["value"]})
        connection.execute(again, new)

    @property
    def _high(self) -> str:
        return f"{NOTES}{self.id}"

    def former(self, connection: sa.Connection) -> str:
        """Who owned it and has not given it up; empty: nobody."""
        return str(connection.execute(sa.select(shard.c.owner).where(shard.c.id == self.id)).scalar() or "")

    def give_up(self, connection: sa.Connection) -> None:
        """It is nobody's, if it is ours still: whoever comes next takes it over from nobody who died."""
        connection.execute(_OURS.values(owner=""), self._mine)

    def guard(self, connection: sa.Connection) -> int:
        """The first statement of each transaction of an owner; the number of that transaction.

        Raises:
            NotOwner: it is no more; roll back.
        """
        found = connection.execute(_GUARD, self._mine).first()
        if found is None:
            raise NotOwner(f"shard {self.id} is no more that of token {self.token}")
        return int(found.seq)

    @property
    def _mine(self) -> dict[str, int]:
        return {"_id": self.id, "_token": self.token}
