"""Stores on a real PostgreSQL server, plain SQL beside them, and a network to hurt."""

from __future__ import annotations

import contextlib
import uuid

import psycopg
import pytest

import latchwork
from latchwork_testkit.postgres import postgres_url
from latchwork_testkit.proxy import Proxy
from latchwork_testkit.servers import PostgresServer


@pytest.fixture
def root():
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def own():
    """A server for this test alone, to be hurt."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def opened():
    """Opens stores by URL, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(latchwork.connect(url, **options))


@pytest.fixture
def sql():
    """Runs SQL on a server, as its superuser; gives the rows."""

    def run(server, query, *params, database="postgres"):
        address = f"postgresql://latchwork@{server.endpoint}/{database}"
        with psycopg.connect(address, autocommit=True) as connection:
            cursor = connection.execute(query, params)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def proxied():
    """Makes proxies before a server, with the URL of a root behind each."""
    with contextlib.ExitStack() as stack:

        def start(server, root, **options):
            proxy = stack.enter_context(Proxy(server.endpoint))
            return proxy, postgres_url(proxy.endpoint, root, **options)

        yield start
