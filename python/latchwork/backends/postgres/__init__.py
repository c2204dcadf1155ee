"""Store on PostgreSQL 14 and newer, over psycopg's libpq.

The URL is ``postgresql://[user[:password]@]host[:port][,host...]/database?root=app``. All roots of a database share one
schema, ``latchwork`` unless the URL names another; ``schema.py`` draws its tables. Several hosts are the members of a
cluster: the one that takes writes is used. This module imports no client library.
"""

from __future__ import annotations

import re

from latchwork.backends.base import Backend
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.url import SchemeSpec, StoreURL, one_of, readable_file
from latchwork.clock import Clock


def _schema(text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", text):
        raise ValueError("must be a name of 1-63 characters of a-z0-9_ that does not start with a digit")
    return text


SPEC = SchemeSpec(
    schemes=("postgresql", "postgres"),
    capabilities=Capabilities("postgresql", min_ttl_s=1.0),
    default_port=5432,
    options={
        "schema": _schema,
        "synchronous_commit": one_of("off", "local", "remote_write", "on", "remote_apply"),
        "sslmode": one_of("disable", "prefer", "require", "verify-ca", "verify-full"),
        "tls_ca": readable_file,
        "tls_cert": readable_file,
        "tls_key": readable_file,
    },
    location="database",
    extra="postgres",
)


def open_backend(url: StoreURL, clock: Clock) -> Backend:
    """Connect to the server that takes writes. Create the schema and the root of the store if they do not exist.

    Raises:
        BackendNotInstalled: psycopg is not installed.
        ConnectFailed: No server that takes writes answered within ``connect_timeout_s``, or the schema has a format
            that this version does not know.
        AuthenticationFailed: The server refused the user, the password or the database.
        PermissionDenied: The account cannot use or create the schema.
    """
    from latchwork.backends.postgres.backend import PostgresBackend

    return PostgresBackend(url, clock)
