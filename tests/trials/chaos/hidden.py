"""Latchwork's own keys on each server, which no store shows: read with plain clients, to see that none is left over."""

from __future__ import annotations

import contextlib
import sqlite3

import grpc
from etcd3 import etcdrpc as pb
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

#: Made once and kept for ever: numbers of sequential keys, and ZooKeeper's guards; there are no more of them with time.
KEPT = ("@q/", "@gen/")


def hidden_of_etcd(endpoint, root):
    """All reserved keys below a root: markers of sessions, guards of writers, numbers.

    Without the guards that are bound to a lease: those of a writer that died go with it, a minute later.
    """
    prefix = f"/{root}/".encode()
    with grpc.insecure_channel(endpoint) as channel:
        request = pb.RangeRequest(key=prefix + b"@", range_end=prefix + b"A")
        answer = pb.KVStub(channel).Range(request, timeout=10, wait_for_ready=True)
    found = [(kv.key[len(prefix) :].decode(), kv.lease) for kv in answer.kvs]
    return sorted(key for key, lease in found if not (lease and key.startswith("@w/")))


def hidden_of_zookeeper(endpoint, root):
    """The same; folders themselves are none."""
    client = KazooClient(endpoint, timeout=5.0)
    client.start(10)
    try:
        client.sync("/")
        found = []
        for folder in ("@s", "@w", "@gen"):
            with contextlib.suppress(NoNodeError):
                found += [f"{folder}/{name}" for name in client.get_children(f"/{root}/{folder}")]
        return sorted(found)
    finally:
        client.stop()
        client.close()


def hidden_of_sqlite(path, root):
    """The same, and the sessions, which have a table of their own."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        keys = connection.execute("SELECT key FROM entries WHERE root = ? AND key LIKE '@%'", (root,))
        found = [key for (key,) in keys]
        found += [f"@s/{name}" for (name,) in connection.execute("SELECT id FROM sessions WHERE root = ?", (root,))]
    return sorted(found)
