"""A raw sqlite3 client that writes the same rows as the embedded store, in durable transactions.

A put writes the row of the key and the row of the newest token in one transaction, in WAL mode with the ``sync``
setting of the store's URL. It does nothing else: no checks, no sessions, no watches, no other threads.
"""

from __future__ import annotations

import sqlite3

from store_sides import CHILDREN, IN_FLIGHT, KEYS, VALUE, Side

_TABLES = """
CREATE TABLE state (id INTEGER PRIMARY KEY, token INTEGER NOT NULL);
INSERT INTO state VALUES (1, 0);
CREATE TABLE entries (
    root TEXT NOT NULL, key TEXT NOT NULL, token INTEGER NOT NULL, created INTEGER NOT NULL,
    owner TEXT, value BLOB NOT NULL, UNIQUE (root, key));
CREATE INDEX entries_by_token ON entries (root, token, key);
"""
_GET = "SELECT key, value, token, created, owner FROM entries WHERE root = 'app' AND key = ?"
_TOKEN = "UPDATE state SET token = token + 1 RETURNING token"
_UPDATE = "UPDATE entries SET value = ?, token = ? WHERE root = 'app' AND key = ?"
_INSERT = "INSERT INTO entries VALUES ('app', ?, ?, ?, NULL, ?)"
_DELETE = "DELETE FROM entries WHERE root = 'app' AND key = ?"
_CHECK = "SELECT token FROM entries WHERE root = 'app' AND key = ?"
_LIST = "SELECT key, value, token FROM entries WHERE root = 'app' AND key >= 'folder/' AND key < 'folder0' ORDER BY key"


class RawSqlite(Side):
    """A client with one connection."""

    name = "sqlite3"

    def __init__(self, path, sync):
        super().__init__()
        self.conn = sqlite3.connect(path, isolation_level=None)
        self.conn.execute("PRAGMA journal_mode = WAL")
        self.conn.execute(f"PRAGMA synchronous = {sync}")
        self.conn.executescript(_TABLES)
        self.tokens = {}
        self.do = {
            "get": lambda n: self.conn.execute(_GET, (f"k{n % KEYS}",)).fetchone(),
            "put": lambda n: self._durably(self._put, f"k{n % KEYS}"),
            "create": lambda n: self._durably(self._create, f"new{n}"),
            "delete": lambda n: self._durably(self._delete, f"gone{n}"),
            "txn": lambda n: self._durably(self._two, n % IN_FLIGHT),
        }
        self.fill(f"k{n}" for n in range(KEYS))
        self.fill(f"t{n}{side}" for n in range(IN_FLIGHT) for side in "ab")
        self.tokens = dict(self.conn.execute("SELECT key, token FROM entries"))

    def fill(self, names):
        self.conn.execute("BEGIN IMMEDIATE")
        for name in names:
            self._create(name)
        self.conn.execute("COMMIT")

    def fill_folder(self):
        self.fill(f"folder/{n:05d}" for n in range(CHILDREN))

    def list_folder(self):
        return self.conn.execute(_LIST).fetchall()

    def close(self):
        self.conn.close()

    def _durably(self, work, key):
        self.conn.execute("BEGIN IMMEDIATE")
        work(key)
        self.conn.execute("COMMIT")

    def _token(self):
        return self.conn.execute(_TOKEN).fetchall()[0][0]

    def _put(self, key):
        self.conn.execute(_UPDATE, (VALUE, self._token(), key))

    def _create(self, key):
        token = self._token()
        self.conn.execute(_INSERT, (key, token, token, VALUE))

    def _delete(self, key):
        self._token()
        self.conn.execute(_DELETE, (key,))

    def _two(self, n):
        keys = (f"t{n}a", f"t{n}b")
        for key in keys:
            assert self.conn.execute(_CHECK, (key,)).fetchone()[0] == self.tokens[key]
        token = self._token()
        for key in keys:
            self.conn.execute(_UPDATE, (VALUE, token, key))
            self.tokens[key] = token
