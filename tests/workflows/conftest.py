"""Databases to test on: SQLite in a file, and a database of its own on a PostgreSQL server that the run shares."""

import shutil
import uuid

import pytest
import sqlalchemy as sa

from latchwork.workflows.client import WorkflowClient
from latchwork.workflows.database import Database
from latchwork.workflows.database.migrations import upgrade
from latchwork.workflows.installation import initialize
from latchwork_testbed.postgres import PostgresServer, find_postgres
from missing import found_or_skipped
from workflows.hands import Stage


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
    name = f"t{uuid.uuid4().hex}"
    admin = sa.create_engine(server.database_url(), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield server.database_url(name)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    upgrade(database)
    yield database
    database.close()


@pytest.fixture
def client(stage):
    """A client on the database of the stage."""
    with WorkflowClient.local(stage.database, stage.store) as client:
        yield client


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A file with a database of one shard, to be copied: to make one takes a second."""
    path = tmp_path_factory.mktemp("flows") / "flows.db"
    database = Database(f"sqlite:///{path}")
    initialize(database, shards=1)
    database.close()
    return path


@pytest.fixture
def stage(tmp_path, store, empty_database):
    """One database in a file, and each store in turn, with one shard."""
    shutil.copy(empty_database, tmp_path / "flows.db")
    made = Stage(f"sqlite:///{tmp_path}/flows.db", store)
    yield made
    made.close()
