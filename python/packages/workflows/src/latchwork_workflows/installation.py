"""A database and a store that belong together: created, checked, and joined again after a restore.

The database has a random ID, and the store has the same. Pairs that differ are refused before anything is written. The
database's ID is written first, then the store's, and only while no shard has ever had an owner. The store also has a
random name, which the first process that joins it writes to the database. If two stores are given one database, even
concurrently, one of them is refused.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork.errors import KeyExists, LatchworkError
from latchwork.store import Store
from latchwork_workflows.db import Database
from latchwork_workflows.db.migrations import is_upgrade_needed, upgrade_schema
from latchwork_workflows.db.shard import NOTES
from latchwork_workflows.db.tables import SENDER, about, shard
from latchwork_workflows.errors import StoreMismatch
from latchwork_workflows.keys import Keys, get_workflows_store

#: The default numbers of shards.
SHARDS_SQLITE, SHARDS_POSTGRES = 4, 16
MAX_SHARDS = 256
#: The row of the table ``about`` with the name of the store.
_STORE = "store"


class NotInitialized(LatchworkError):
    """The database has no tables, or those of an earlier version."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The identity of a database and its store.

    Attributes:
        id: Random, and the same in both.
        shards: The number of shards. It never changes.
    """

    id: str
    shards: int


def initialize(database: Database, *, shards: int | None = None) -> Installation:
    """Create the tables of a database, or upgrade them to this version. Existing data is kept.

    Args:
        database: A database that is empty, or of this or an earlier version.
        shards: For a new database, 1 to 256. Default 4 with SQLite and 16 with PostgreSQL.
    Raises:
        SchemaTooNew: A later version has changed the database.
        LatchworkError: The database has another number of shards.
    """
    if shards is not None and not (type(shards) is int and 1 <= shards <= MAX_SHARDS):
        raise LatchworkError(f"shards must be a whole number from 1 to {MAX_SHARDS}, not {shards!r}")
    upgrade_schema(database)
    with database.write() as connection:
        insert = sqlite.insert if database.is_sqlite else postgresql.insert
        count = shards or (SHARDS_SQLITE if database.is_sqlite else SHARDS_POSTGRES)
        rows = [{"name": "id", "value": uuid.uuid4().hex}, {"name": "shards", "value": str(count)}]
        connection.execute(insert(about).on_conflict_do_nothing(), rows)
        found = _load(connection)
        numbers = [{"id": each} for each in range(found.shards)]
        connection.execute(insert(shard).on_conflict_do_nothing(), numbers)
    if shards is not None and found.shards != shards:
        raise LatchworkError(f"database {database.url} has {found.shards} shards, which never changes")
    return found


def load_installation(database: Database) -> Installation:
    """Return the identity of a database.

    Raises:
        NotInitialized: The database is empty, or older than this version.
        SchemaTooNew: The database is newer than this version.
    """
    if is_upgrade_needed(database):
        raise NotInitialized(
            f"database {database.url} is empty, or older than this version; create it with `latchwork workflows init`, "
            "or upgrade it with `latchwork workflows upgrade`"
        )
    with database.read() as connection:
        return _load(connection)


def join_store(database: Database, store: Store, keys: Keys) -> Installation:
    """Check that a database and a store belong together. If neither belongs to another one yet, join them.

    Raises:
        StoreMismatch: They do not belong together.
        NotInitialized, SchemaTooNew: As for ``load_installation``.
    """
    store = get_workflows_store(store)
    found = load_installation(database)
    there = store.get(keys.id)
    if there is None:
        _check_unowned(database, store)
        try:
            store.create(keys.id, found.id.encode())
        except KeyExists:
            there = store.get(keys.id)
    if there is not None and there.value != found.id.encode():
        raise StoreMismatch(
            f"store {store.url} belongs to another database than {database.url}; give the right pair, or join these "
            "two with `latchwork workflows adopt-store`"
        )
    _bind_store(database, store, keys)
    return found


def adopt_store(database: Database, store: Store, keys: Keys) -> Installation:
    """Bind a database to another store, or again after one of them was restored from a backup.

    Deletes the queue, the claims and the results from the store. Tasks that are queued or running in the database run
    again.

    Raises:
        LatchworkError: Masters are still registered in the store.
    """
    from latchwork.jobs import inspect  # lazy, because it is slow to load

    store = get_workflows_store(store)
    found = load_installation(database)
    cluster = inspect(store, namespace=keys.cluster)
    if cluster is not None and cluster.nodes:
        names = ", ".join(sorted(cluster.nodes))
        raise LatchworkError(
            f"masters are running in store {store.url}: {names}; stop them first. Those of a restored backup end when "
            "their sessions expire"
        )
    for prefix in (keys.backlog, keys.shards, keys.cancels, keys.every_data, keys.high_marks):
        store.delete_tree(prefix)
    with database.write() as connection:
        connection.execute(sa.update(shard).values(token=0, owner=""))
        of_store = sa.or_(about.c.name.in_((SENDER, _STORE)), about.c.name.startswith(NOTES))
        connection.execute(sa.delete(about).where(of_store))
    store.put(keys.id, found.id.encode())
    _bind_store(database, store, keys)
    return found


def check_store_of_database(connection: sa.Connection, store_name: bytes | None, store_url: str) -> None:
    """Check that a database belongs to a store.

    Args:
        connection: A transaction.
        store_name: The name that is stored in the store, in the key ``pair``. None: it has none.
        store_url: The URL of the store, for the error message.
    Raises:
        StoreMismatch: It belongs to another store.
    """
    found = connection.execute(sa.select(about.c.value).where(about.c.name == _STORE)).scalar()
    if found is not None and (store_name is None or store_name != found.encode()):
        raise StoreMismatch(
            f"the database belongs to another store than {store_url}: it was given two stores, or was joined to another"
            " one since; give the right one, or join these two with `latchwork workflows adopt-store`"
        )


def _bind_store(database: Database, store: Store, keys: Keys) -> None:
    """Bind a database to a store, if neither is bound yet: write the same random store name to both.

    If a database is bound to two stores at the same time, the first one wins and the other raises ``StoreMismatch``.
    """
    there = store.get(keys.pair)
    if there is None:
        with suppress(KeyExists):
            store.create(keys.pair, uuid.uuid4().hex.encode())
        there = store.get(keys.pair)
    store_identity = None if there is None else there.value
    with database.read() as connection:
        check_store_of_database(connection, store_identity, store.url)
        is_new = connection.execute(sa.select(about.c.name).where(about.c.name == _STORE)).first() is None
    if is_new and store_identity is not None:
        insert = sqlite.insert if database.is_sqlite else postgresql.insert
        with database.write() as connection:
            connection.execute(
                insert(about).on_conflict_do_nothing(), [{"name": _STORE, "value": store_identity.decode()}]
            )
            check_store_of_database(connection, store_identity, store.url)


def _check_unowned(database: Database, store: Store) -> None:
    with database.read() as connection:
        owned = connection.execute(sa.select(sa.func.max(shard.c.token))).scalar() or 0
    if owned:
        raise StoreMismatch(
            f"database {database.url} had masters before, and store {store.url} has no data of it: it is another "
            "store, or was emptied; give the right one, or join these two with `latchwork workflows adopt-store`"
        )


def _load(connection: sa.Connection) -> Installation:
    chosen = sa.select(about.c.name, about.c.value).where(about.c.name.in_(("id", "shards")))
    values = {row.name: row.value for row in connection.execute(chosen)}
    if not {"id", "shards"} <= values.keys():
        raise NotInitialized("the database has tables, but no shards; run `latchwork workflows init`")
    return Installation(values["id"], int(values["shards"]))
