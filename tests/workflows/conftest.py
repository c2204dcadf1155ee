"""Databases to test on: SQLite in a file, and a database of its own on a PostgreSQL server that the run shares.

The stage of most tests is a pair as people have them: PostgreSQL with a server of etcd or ZooKeeper, a file with what
needs none. `DATABASE=postgres` or `sqlite` says otherwise.
"""

import os
import shutil
import uuid
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from latchwork_testkit.postgres import PostgresServer, find_postgres
from latchwork_workflows.db import Database
from latchwork_workflows.db.migrations import upgrade_schema
from latchwork_workflows.installation import initialize
from latchwork_workflows.secrets import Secrets
from missing import found_or_skipped
from workflows import working
from workflows.hands import Stage, client_of

SECRETS = {
    "LATCHWORK_SECRET_WAREHOUSE": "hunter2!",
    "LATCHWORK_SECRET_TOKEN": "t0ps3cret",
    "LATCHWORK_SECRET_X": "hunter2!",
}


@pytest.fixture(scope="session")
def postgres():
    found_or_skipped(find_postgres)
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture(params=[pytest.param("sqlite", id="file"), "postgres"])  # no backend of a store
def database_url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/flows.db"
        return
    server = request.getfixturevalue("postgres")
    with a_database(server) as url:
        yield url


@contextmanager
def a_database(server, template=""):
    """The URL of a database of its own, empty or a copy."""
    name = f"t{uuid.uuid4().hex}"
    admin = sa.create_engine(server.database_url(), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}{template and f' TEMPLATE {template}'}")
    yield server.database_url(name)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture(scope="session")
def empty_on_postgres(postgres):
    """The name of a database of one shard, to be copied."""
    with a_database(postgres) as url:
        database = Database(url)
        initialize(database, shards=1)
        database.close()
        yield sa.make_url(url).database


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    upgrade_schema(database)
    yield database
    database.close()


@pytest.fixture
def client(stage):
    """A client on the database of the stage."""
    with client_of(stage.database, stage.store) as client:
        yield client


@pytest.fixture
def logs(store, tmp_path):
    """The logs of attempts, known to the store."""
    return working.begun(store, tmp_path)


@pytest.fixture
def worker(store, logs, tmp_path):
    """A worker with two slots, and secrets of its own."""
    assert logs
    made = working.worker(store, tmp_path, secrets=Secrets(environ=SECRETS, providers=()))
    yield made
    made.close()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A file with a database of one shard, to be copied: to make one takes a second."""
    path = tmp_path_factory.mktemp("flows") / "flows.db"
    database = Database(f"sqlite:///{path}")
    initialize(database, shards=1)
    database.close()
    return path


@pytest.fixture
def stage_url(request, tmp_path, store, empty_database):
    """A database of one shard that suits the store."""
    needs_none = store.url.startswith(("memory:", "sqlite:"))
    if os.environ.get("DATABASE", "sqlite" if needs_none else "postgres") == "sqlite":
        shutil.copy(empty_database, tmp_path / "flows.db")
        yield f"sqlite:///{tmp_path}/flows.db"
        return
    server, template = request.getfixturevalue("postgres"), request.getfixturevalue("empty_on_postgres")
    with a_database(server, template) as url:
        yield url


@pytest.fixture
def stage(stage_url, store):
    """One database, and each store in turn, with one shard."""
    made = Stage(stage_url, store)
    yield made
    made.close()
