"""What others see and do, without latchwork: raw clients of each server that read, probe, revoke and compact.

Each reads everything below one root (``state``), and latchwork's own keys there, which no store shows (``hidden``).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import sqlite3
import struct
from pathlib import Path
from typing import Any

import grpc
import psycopg
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError

from latchwork_testkit.etcd_rpc import Stub, pb
from patience import came_true
from trials.judges.contract.facts import Stored

_OWNER_CHARS = 32
_PROBE_S = 0.5
_RAW_TTL_S = 4.0
_REVOKE_S = 90.0
_READ_ATTEMPTS = 5
#: Below the root: sessions, guards of writers, and counts of deletions.
_FOLDERS_OF_ZOOKEEPER = ("@s", "@w", "@gen")
_HIDDEN = "@"
#: Made once and kept for ever: numbers of sequential keys, and ZooKeeper's guards; there are no more of them with time.
KEPT = ("@q/", "@gen/")
#: Members may be behind each other for so long; clients write their guards and sessions meanwhile.
_AGREE_S = 5.0


def secret(session: Any) -> list[Any]:
    """What it takes to end a session from outside: its id; on ZooKeeper the server's, and its password."""
    connection = getattr(session._backend, "connection", None)
    if connection is None:
        return [session.id]
    number, password = connection._link._client.client_id
    return [number, password.hex()]


class RawEtcd:
    """The generated stubs on plain channels."""

    def __init__(self, endpoints: list[str], root: str) -> None:
        self._root = f"/{root}/".encode()
        impatient = [("grpc.max_reconnect_backoff_ms", 500)]
        self._channel = grpc.insecure_channel("ipv4:" + ",".join(endpoints), impatient)

    def state(self) -> list[Stored]:
        found = self._range(self._root, self._root[:-1] + b"0")
        return [one for one in found if not one.key.startswith(_HIDDEN)]

    def hidden(self) -> list[str]:
        """Markers of sessions, guards of writers, numbers.

        Without the guards that are bound to a lease: those of a writer that died go with it, a minute later.
        """
        found = self._range(self._root + b"@", self._root + b"A")
        return [one.key for one in found if not (one.owner and one.key.startswith("@w/"))]

    def revoke(self, secret: list[Any]) -> None:
        """As an operator could."""
        Stub(self._channel, "Lease").LeaseRevoke(pb.LeaseRevokeRequest(ID=int(secret[0], 16)), timeout=10)

    def revision(self) -> int:
        answer = Stub(self._channel, "KV").Range(pb.RangeRequest(key=b"\0"), timeout=10, wait_for_ready=True)
        return int(answer.header.revision)

    def compact(self) -> None:
        """Forget everything but the present state."""
        revision = self.revision()
        with contextlib.suppress(grpc.RpcError):  # somebody compacted there already
            Stub(self._channel, "KV").Compact(pb.CompactionRequest(revision=revision, physical=True), timeout=10)

    def churn(self, writes: int) -> None:
        """Write keys of the play, and delete them, behind everybody's back."""
        kv = Stub(self._channel, "KV")
        for number in range(writes):
            key = self._root + b"raw/%d" % (number % 5)
            kv.Put(pb.PutRequest(key=key, value=b"raw:%d" % number), timeout=10)
            if number % 7 == 0:
                kv.DeleteRange(pb.DeleteRangeRequest(key=key), timeout=10)

    def close(self) -> None:
        self._channel.close()

    def _range(self, start: bytes, end: bytes) -> list[Stored]:
        request = pb.RangeRequest(key=start, range_end=end)
        answer = Stub(self._channel, "KV").Range(request, timeout=10, wait_for_ready=True)
        found = [(kv.key[len(self._root) :], kv.value, kv.mod_revision, kv.lease) for kv in answer.kvs]
        return [
            Stored(key.decode(), value.decode(errors="replace"), token, f"{lease:x}" if lease else None)
            for key, value, token, lease in found
        ]


def etcd_members_differ(endpoints: list[str]) -> str:
    """What members that should all have the same data differ in; empty as soon as they agree."""
    told: list[dict[bytes, tuple[int, bytes]]] = []

    def agree() -> bool:
        told[:] = [_all_keys(endpoint) for endpoint in endpoints]
        return all(one == told[0] for one in told)

    if came_true(agree, _AGREE_S, every_s=0.2):
        return ""
    keys = sorted({key for one in told for key in one if any(other.get(key) != one[key] for other in told)})
    first = [one.get(keys[0]) for one in told]
    return f"the members of the cluster differ in {len(keys)} keys, at {keys[0].decode()!r} they have {first}"


def _all_keys(endpoint: str) -> dict[bytes, tuple[int, bytes]]:
    """Key to revision and value, as this one member has it."""
    with grpc.insecure_channel(endpoint) as channel:
        request = pb.RangeRequest(key=b"\0", range_end=b"\0", serializable=True)
        answer = Stub(channel, "KV").Range(request, timeout=10, wait_for_ready=True)
    return {kv.key: (kv.mod_revision, kv.value) for kv in answer.kvs}


class RawZooKeeper:
    """A plain kazoo client; another one when that has lost its connection.

    A server that is just starting may swallow a handshake: kazoo then waits until its session has run out.
    """

    def __init__(self, endpoints: list[str], root: str) -> None:
        self._root = f"/{root}"
        self._hosts = ",".join(endpoints)
        self._client = self._connect()

    def state(self) -> list[Stored]:
        for _ in range(_READ_ATTEMPTS):
            with contextlib.suppress(SessionExpiredError, ConnectionLoss):
                self._client.sync("/")
                return list(self._walk(""))
            self.close()
            self._client = self._connect()
        raise TimeoutError("the raw client could not read in peace")

    def hidden(self) -> list[str]:
        """The same; folders themselves are none."""
        self._client.sync("/")
        found = []
        for folder in _FOLDERS_OF_ZOOKEEPER:
            with contextlib.suppress(NoNodeError):
                found += [f"{folder}/{name}" for name in self._client.get_children(f"{self._root}/{folder}")]
        return sorted(found)

    def system_keys(self) -> list[str]:
        """What systems keep below a segment that begins with "@". Parents that are empty are none."""
        leaves, level = [], [""]
        while level:
            asked = [(key, self._client.get_children_async(f"{self._root}/{key}".rstrip("/"))) for key in level]
            level = []
            for key, answer in asked:
                with contextlib.suppress(NoNodeError):
                    names = answer.get(timeout=20.0)
                    below = [f"{key}/{name}" for name in names] if key else [n for n in names if n.startswith("@")]
                    level += [each for each in below if each not in _FOLDERS_OF_ZOOKEEPER]
                    leaves += [key] if not names else []
        found = []
        for key, answer in [(key, self._client.get_async(f"{self._root}/{key}")) for key in leaves]:
            with contextlib.suppress(NoNodeError):
                found += [key] if answer.get(timeout=20.0)[0] else []
        return sorted(found)

    def revoke(self, secret: list[Any]) -> None:
        """Take the session over, knowing its password, and close it: again if its owner was quick to take it back."""
        number, password = secret
        is_there = True
        while is_there:
            thief = KazooClient(self._hosts, client_id=(number, bytes.fromhex(password)), timeout=5.0)
            thief.start(timeout=_REVOKE_S)
            is_there = thief.client_id[0] == number  # else it was gone, and the server gave another one
            thief.stop()
            thief.close()

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def _connect(self) -> KazooClient:
        client = KazooClient(self._hosts, timeout=_RAW_TTL_S)
        client.start(timeout=20)
        return client

    def _walk(self, key: str) -> Any:
        path = f"{self._root}/{key}" if key else self._root
        with contextlib.suppress(NoNodeError):
            data, stat = self._client.get(path)
            if key and data:
                yield _stored(key, data, stat)
            for name in sorted(self._client.get_children(path)):
                if not name.startswith(("@", "#")):
                    yield from self._walk(f"{key}/{name}" if key else name)


def _stored(key: str, data: bytes, stat: Any) -> Stored:
    """A ``=`` and the value, or a ``@``, the session, a ``=`` and the value."""
    if data[:1] == b"@":
        owner = data[1 : 1 + _OWNER_CHARS].decode()
        value = data[1 + _OWNER_CHARS :].partition(b"=")[2]  # before it may be when the key was made
        return Stored(key, value.decode(errors="replace"), stat.mzxid, owner)
    return Stored(key, data[1:].decode(errors="replace"), stat.mzxid, None)


class RawSqlite:
    """The file itself."""

    def __init__(self, path: Path, root: str) -> None:
        self._path, self._root = path, root

    def state(self) -> list[Stored]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=10)) as connection:
            rows = connection.execute(
                "SELECT key, value, token, owner FROM entries WHERE root = ? ORDER BY key", (self._root,)
            )
            return [
                Stored(key, bytes(value).decode(errors="replace"), token, owner) for key, value, token, owner in rows
            ]

    def hidden(self) -> list[str]:
        """The same, and the sessions, which have a table of their own."""
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            keys = connection.execute("SELECT key FROM entries WHERE root = ? AND key LIKE '@%'", (self._root,))
            found = [key for (key,) in keys]
            ids = connection.execute("SELECT id FROM sessions WHERE root = ?", (self._root,))
            return sorted(found + [f"@s/{name}" for (name,) in ids])

    def revoke(self, secret: list[Any]) -> None:
        """Let its deadline have passed."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=10)) as connection:
            connection.execute("UPDATE sessions SET deadline = 0 WHERE id = ?", (secret[0],))
            connection.commit()

    def close(self) -> None:
        """Nothing stays open."""


class RawPostgres:
    """Plain statements on the tables."""

    def __init__(self, url: str, root: str) -> None:
        self._url, self._root = url, root

    def state(self) -> list[Stored]:
        rows = self._rows('select key, value, token, owner from {entries} order by key collate "C"')
        return [Stored(key, bytes(value).decode(errors="replace"), token, owner) for key, value, token, owner in rows]

    def hidden(self) -> list[str]:
        """Sessions and writers; the counters are kept for ever."""
        sessions = self._rows("select id from latchwork.sessions where root = {root}")
        writers = self._rows("select id from latchwork.writers where root = {root}")
        return sorted([f"@s/{name}" for (name,) in sessions] + [f"@writers/{number}" for (number,) in writers])

    def revoke(self, secret: list[Any]) -> None:
        """As an operator could."""
        self._rows("select latchwork.close_sessions({root}, array['" + secret[0] + "'])")

    def close(self) -> None:
        """Nothing stays open."""

    def _rows(self, query: str) -> list[Any]:
        root = "(select id from latchwork.roots where name = %(root)s)"
        entries = f"latchwork.entries where root = {root}"
        for _ in range(_READ_ATTEMPTS):
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self._url, autocommit=True, connect_timeout=20) as connection,
            ):
                return connection.execute(query.format(root=root, entries=entries), {"root": self._root}).fetchall()
        raise TimeoutError("the raw client could not read in peace")


def postgres_serves(endpoint: str) -> bool:
    """Whether this server answers a query at once."""
    try:
        with psycopg.connect(f"postgresql://latchwork@{endpoint}/postgres", connect_timeout=2) as connection:
            return connection.execute("select 1").fetchone() == (1,)
    except psycopg.Error:
        return False


def etcd_serves(endpoint: str) -> bool:
    """Whether this member answers a linearizable read at once."""
    host, _, port = endpoint.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=_PROBE_S)
    try:
        body = json.dumps({"key": base64.b64encode(b"probe").decode()})
        connection.request("POST", "/v3/kv/range", body=body)
        answer = connection.getresponse()
        return answer.status == 200 and "header" in json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def zookeeper_serves(endpoint: str) -> bool:
    """Whether this server opens a session at once, which takes a quorum."""
    host, _, port = endpoint.partition(":")
    hello = struct.pack("!iqiqi16s?", 0, 0, 2000, 0, 16, b"", False)
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_S) as connection:
            connection.settimeout(_PROBE_S)
            connection.sendall(struct.pack("!i", len(hello)) + hello)
            answer = connection.recv(100)
            if len(answer) < 20 or not struct.unpack_from("!q", answer, 12)[0]:
                return False
            connection.sendall(struct.pack("!iii", 8, 1, -11))  # and ends it
            connection.recv(100)
            return True
    except OSError:
        return False
