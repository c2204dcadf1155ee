"""One database and one store that belong together: made, checked, and joined again after a restore.

The database has a random id, and the store has the same; a pair that does not is refused before anything is written.
The order of making leaves no gap: first the database's id, then the store's, while no shard there ever had an owner.
The store has a random name of its own, too, which the first to join writes to the database: of two stores that were
given one database, also at the same moment, one is refused.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork.errors import KeyExists, LatchworkError
from latchwork.store import Store, refuse_old_layout
from latchwork_workflows.db import Database
from latchwork_workflows.db.migrations import needs_upgrade, upgrade
from latchwork_workflows.db.shard import NOTES
from latchwork_workflows.db.tables import SENDER, about, shard
from latchwork_workflows.errors import StoreMismatch
from latchwork_workflows.keys import Keys, workflows_store

#: Shards of a database, unless said otherwise.
SHARDS_SQLITE, SHARDS_POSTGRES = 4, 16
MOST_SHARDS = 256
#: Of the table ``about``: the name of the store.
_STORE = "store"
#: What every installation had in its store before there were reserved segments: two random ids.
_OLD = dict.fromkeys(
    ("workflows/id", "workflows/pair"), lambda value: re.fullmatch(rb"[0-9a-f]{32}", value) is not None
)


class NotInitialized(LatchworkError):
    """The database has no tables, or older ones."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What a database and its store are.

    Attributes:
        id: random; the same in both.
        shards: how many there are; it never changes.
    """

    id: str
    shards: int


def initialize(database: Database, *, shards: int | None = None) -> Installation:
    """Make the tables, or bring them to this version; what is there stays.

    Args:
        database: empty, or of this or an earlier version.
        shards: of a new one, 1 to 256; default 4 with SQLite and 16 with PostgreSQL.
    Raises:
        SchemaTooNew: a later version has changed it.
        LatchworkError: it has another number of shards.
    """
    if shards is not None and not (type(shards) is int and 1 <= shards <= MOST_SHARDS):
        raise LatchworkError(f"shards must be a whole number from 1 to {MOST_SHARDS}, not {shards!r}")
    upgrade(database)
    with database.write() as connection:
        insert = sqlite.insert if database.is_sqlite else postgresql.insert
        count = shards or (SHARDS_SQLITE if database.is_sqlite else SHARDS_POSTGRES)
        rows = [{"name": "id", "value": uuid.uuid4().hex}, {"name": "shards", "value": str(count)}]
        connection.execute(insert(about).on_conflict_do_nothing(), rows)
        found = _of(connection)
        numbers = [{"id": each} for each in range(found.shards)]
        connection.execute(insert(shard).on_conflict_do_nothing(), numbers)
    if shards is not None and found.shards != shards:
        raise LatchworkError(f"database {database.url} has {found.shards} shards, which never changes")
    return found


def installation_of(database: Database) -> Installation:
    """What a database is.

    Raises:
        NotInitialized: it is empty, or older than this version.
        SchemaTooNew: it is newer.
    """
    if needs_upgrade(database):
        raise NotInitialized(
            f"database {database.url} is empty, or older than this version; make it with `latchwork workflows init`, "
            "or bring it up with `latchwork workflows upgrade`"
        )
    with database.read() as connection:
        return _of(connection)


def join_store(database: Database, store: Store, keys: Keys) -> Installation:
    """Let a database and a store that belong together pass; a store that is new is joined to its database.

    Raises:
        StoreMismatch: they do not.
        NotInitialized, SchemaTooNew: as for ``installation_of``.
    """
    root, store = store, workflows_store(store)
    found = installation_of(database)
    there = store.get(keys.id)
    if there is None:
        refuse_old_layout(root, "an installation of workflows", _OLD)
        _refuse_owned(database, store)
        try:
            store.create(keys.id, found.id.encode())
        except KeyExists:
            there = store.get(keys.id)
    if there is not None and there.value != found.id.encode():
        raise StoreMismatch(
            f"store {store.url} belongs to another database than {database.url}; give the right pair, or join these "
            "two with `latchwork workflows adopt-store`"
        )
    _pair_up(database, store, keys)
    return found


def adopt_store(database: Database, store: Store, keys: Keys) -> Installation:
    """Join a database to a store whatever they were before: what was queued, ran or had ended in the store is dropped.

    Tasks that the database has as submitted or running are run again.

    Raises:
        LatchworkError: masters live, in that store.
    """
    from latchwork.jobs import inspect  # which takes longer to load than all the rest

    store = workflows_store(store)
    found = installation_of(database)
    cluster = inspect(store, namespace=keys.cluster)
    if cluster is not None and cluster.nodes:
        names = ", ".join(sorted(cluster.nodes))
        raise LatchworkError(f"masters live in store {store.url}: {names}; stop them first")
    for prefix in (keys.backlog, keys.shards, keys.cancels, keys.every_data, keys.high_marks):
        store.delete_tree(prefix)
    with database.write() as connection:
        connection.execute(sa.update(shard).values(token=0, owner=""))
        of_store = sa.or_(about.c.name.in_((SENDER, _STORE)), about.c.name.startswith(NOTES))
        connection.execute(sa.delete(about).where(of_store))
    store.put(keys.id, found.id.encode())
    _pair_up(database, store, keys)
    return found


def check_pair(connection: sa.Connection, told: bytes | None, where: str) -> None:
    """Let a store pass that is the one of its database.

    Args:
        connection: a transaction.
        told: what the store has below ``pair``.
        where: what the store is called in the message.
    Raises:
        StoreMismatch: it is another.
    """
    found = connection.execute(sa.select(about.c.value).where(about.c.name == _STORE)).scalar()
    if found is not None and (told is None or told != found.encode()):
        raise StoreMismatch(
            f"the database belongs to another store than {where}: it was given two stores, or was joined to another "
            "one since; give the right one, or join these two with `latchwork workflows adopt-store`"
        )


def _pair_up(database: Database, store: Store, keys: Keys) -> None:
    """Have the name of the store in both; the first that writes it to the database is the one."""
    there = store.get(keys.pair)
    if there is None:
        with suppress(KeyExists):
            store.create(keys.pair, uuid.uuid4().hex.encode())
        there = store.get(keys.pair)
    told = None if there is None else there.value
    with database.read() as connection:
        check_pair(connection, told, store.url)
        is_new = connection.execute(sa.select(about.c.name).where(about.c.name == _STORE)).first() is None
    if is_new and told is not None:
        insert = sqlite.insert if database.is_sqlite else postgresql.insert
        with database.write() as connection:
            connection.execute(insert(about).on_conflict_do_nothing(), [{"name": _STORE, "value": told.decode()}])
            check_pair(connection, told, store.url)


def _refuse_owned(database: Database, store: Store) -> None:
    with database.read() as connection:
        owned = connection.execute(sa.select(sa.func.max(shard.c.token))).scalar() or 0
    if owned:
        raise StoreMismatch(
            f"database {database.url} had masters before, and store {store.url} knows nothing of it: it is another "
            "store, or was emptied; give the right one, or join these two with `latchwork workflows adopt-store`"
        )


def _of(connection: sa.Connection) -> Installation:
    chosen = sa.select(about.c.name, about.c.value).where(about.c.name.in_(("id", "shards")))
    values = {row.name: row.value for row in connection.execute(chosen)}
    if not {"id", "shards"} <= values.keys():
        raise NotInitialized("the database has tables, but no shards; run `latchwork workflows init`")
    return Installation(values["id"], int(values["shards"]))
