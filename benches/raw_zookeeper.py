"""A raw ZooKeeper client: kazoo with one connection.

A linearizable read is a sync and a get on the same connection, sent together. The client does not find out the outcome
if an answer is lost. Versions are those of ZooKeeper, which start at 0 again when a znode is created again.
``put+fence`` and ``txn+fence`` also check a guard, which changes when a znode of its bucket is deleted, and write a
number to another znode in the same multi. With these, the outcome of a lost answer can be decided.
"""

from __future__ import annotations

import threading

from kazoo.client import KazooClient
from store_sides import CHILDREN, IN_FLIGHT, KEYS, VALUE, Side


class RawZooKeeper(Side):
    """A client with one KazooClient."""

    name = "kazoo"

    def __init__(self, server, root):
        super().__init__()
        self.client = client = KazooClient(server.endpoint)
        client.start()
        self.root = f"/{root}"
        for name in ("", "/folder", "/guard", "/evidence"):
            client.create(self.root + name)
        path = self.path
        self.versions = {}
        self.do = {
            "get": lambda n: self._read(n).get(),
            "stale": lambda n: client.get(path(f"k{n % KEYS}")),
            "put": lambda n: client.set(path(f"k{n % KEYS}"), VALUE),
            "create": lambda n: client.create(path(f"new{n}"), VALUE),
            "delete": lambda n: client.delete(path(f"gone{n}")),
            "txn": self._txn,
            "put+fence": lambda n: self._fenced_put(n).commit(),
            "txn+fence": lambda n: self._txn(n, fenced=True),
        }
        self.start = {
            "get": self._read,
            "stale": lambda n: client.get_async(path(f"k{n % KEYS}")),
            "put": lambda n: client.set_async(path(f"k{n % KEYS}"), VALUE),
            "create": lambda n: client.create_async(path(f"new{n}"), VALUE),
            "delete": lambda n: client.delete_async(path(f"gone{n}")),
            "txn": lambda n: self._transaction(n).commit_async(),
            "put+fence": lambda n: self._fenced_put(n).commit_async(),
            "txn+fence": lambda n: self._transaction(n, fenced=True).commit_async(),
        }
        self.fill(f"k{n}" for n in range(KEYS))
        self.fill(f"t{n}{side}" for n in range(IN_FLIGHT) for side in "ab")

    def path(self, name):
        return f"{self.root}/{name}"

    def wait(self, started):
        return started.get()

    def prepare(self, operation, count):
        super().prepare(operation, count)
        if operation.startswith("txn"):
            names = [f"t{n}{side}" for n in range(IN_FLIGHT) for side in "ab"]
            started = [self.client.exists_async(self.path(name)) for name in names]
            self.versions = {name: one.get().version for name, one in zip(names, started, strict=True)}

    def fill(self, names):
        for started in [self.client.create_async(self.path(name), VALUE) for name in names]:
            started.get()

    def fill_folder(self):
        self.fill(f"folder/{n:05d}" for n in range(CHILDREN))

    def list_folder(self):
        """Get each child in sequence, because the client has no other way."""
        found = []
        for name in sorted(self.client.get_children(self.path("folder"))):
            value, stat = self.client.get(self.path(f"folder/{name}"))
            found.append((f"folder/{name}", value, stat.last_modified_transaction_id))
        return found

    def follow(self, name, notify):
        """Call ``notify`` with each new value. Return a function that ends it."""
        ended = threading.Event()

        def changed(value, _):
            if value is not None:
                notify(value)
            return not ended.is_set()

        self.client.DataWatch(self.path(name), changed)
        return None, ended.set

    def put_value(self, name, value):
        self.client.set(self.path(name), value)

    def close(self):
        self.client.stop()
        self.client.close()

    def _read(self, n):
        path = self.path(f"k{n % KEYS}")
        self.client.sync_async(path)
        return self.client.get_async(path)

    def _fence(self, transaction, n):
        transaction.check(self.path("guard"), 0)
        transaction.set_data(self.path("evidence"), n.to_bytes(8, "big"))

    def _fenced_put(self, n):
        transaction = self.client.transaction()
        transaction.set_data(self.path(f"k{n % KEYS}"), VALUE)
        self._fence(transaction, n)
        return transaction

    def _transaction(self, n, *, fenced=False):
        n %= IN_FLIGHT
        transaction = self.client.transaction()
        for name in (f"t{n}a", f"t{n}b"):
            transaction.check(self.path(name), self.versions[name])
        for name in (f"t{n}a", f"t{n}b"):
            transaction.set_data(self.path(name), VALUE)
        if fenced:
            self._fence(transaction, n)
        return transaction

    def _txn(self, n, *, fenced=False):
        results = self._transaction(n, fenced=fenced).commit()
        n %= IN_FLIGHT
        self.versions[f"t{n}a"], self.versions[f"t{n}b"] = results[2].version, results[3].version
