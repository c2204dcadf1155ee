"""Minimal stores on raw clients (grpcio, kazoo, sqlite3), and the same interface on a latchwork store.

Each of them has

    open(ttl_s)                 a session; returns the name of a key ``s/<name>`` that is bound to it
    txn(checks, ops, done)      checks: (key, version) as read, (key, True) exists, (key, False) does not exist;
                                ops: (key, value), value None deletes; then done(is_committed, versions of the ops)
    list(prefix)                [(key, value, version)]
    follow(prefix, notify)      notify([(key, value, version)]) of later writes; value None for deletions

If ``blocks`` is true, ``txn`` returns after ``done``. Otherwise it returns at once, and another thread calls ``done``.
Only transactions are fenced. Lost answers, large values, several servers and authentication are not supported.
"""

from __future__ import annotations

import queue
import sqlite3
import struct
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress

POLL_S = 0.05


def connect(kind, url):
    """Connect to the URL of a store, with a ``raw`` client or a ``store``. ``counts`` has the transactions and keys of
    this process.
    """
    store = StoreBaseline(url) if kind == "store" else RAW[url.partition(":")[0]](url)
    store.counts, txn = Counter(), store.txn

    def counted(checks, ops, done):
        store.counts.update(requests=1, keys=len(ops))
        txn(checks, ops, done)

    store.txn = counted
    return store


def in_background(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


class EtcdBaseline:
    """etcd's messages on one gRPC channel."""

    blocks = False

    def __init__(self, url):
        import grpc

        from latchwork_testkit.etcd_rpc import Stub, pb

        host, _, root = url.partition("://")[2].partition("/")
        self.pb, self.root = pb, root + "/"
        channel = grpc.insecure_channel(host)
        self.kv, self.watch, self.lease = Stub(channel, "KV"), Stub(channel, "Watch"), Stub(channel, "Lease")

    def key(self, key):
        return (self.root + key).encode()

    def open(self, ttl_s):
        sid, pb = uuid.uuid4().hex[:8], self.pb
        lease = self.lease.LeaseGrant(pb.LeaseGrantRequest(TTL=int(ttl_s))).ID
        self.kv.Put(pb.PutRequest(key=self.key("s/" + sid), value=b"", lease=lease))

        def renewals():
            while True:
                time.sleep(ttl_s / 3)
                yield pb.LeaseKeepAliveRequest(ID=lease)

        in_background(lambda: list(self.lease.LeaseKeepAlive(renewals())))
        return sid

    def txn(self, checks, ops, done):
        pb, compare = self.pb, self.pb.Compare
        compares, writes = [], []
        for key, want in checks:
            if isinstance(want, bool):
                result = compare.GREATER if want else compare.EQUAL
                compares.append(compare(key=self.key(key), result=result, target=compare.VERSION, version=0))
            else:
                target = compare.MOD
                compares.append(compare(key=self.key(key), result=compare.EQUAL, target=target, mod_revision=want))
        for key, value in ops:
            if value is None:
                writes.append(pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=self.key(key))))
            else:
                writes.append(pb.RequestOp(request_put=pb.PutRequest(key=self.key(key), value=value)))

        def ended(call):
            answer = call.result()
            done(answer.succeeded, [answer.header.revision] * len(ops))

        self.kv.Txn.future(pb.TxnRequest(compare=compares, success=writes)).add_done_callback(ended)

    def _range(self, prefix):
        return {"key": self.key(prefix), "range_end": self.key(prefix[:-1] + chr(ord(prefix[-1]) + 1))}

    def list(self, prefix):
        answer = self.kv.Range(self.pb.RangeRequest(**self._range(prefix)))
        return [(kv.key.decode()[len(self.root) :], kv.value, kv.mod_revision) for kv in answer.kvs]

    def follow(self, prefix, notify, *, deletes=False):
        pb, requests, ready = self.pb, queue.SimpleQueue(), threading.Event()
        filters = [] if deletes else [pb.WatchCreateRequest.NODELETE]
        requests.put(pb.WatchRequest(create_request=pb.WatchCreateRequest(filters=filters, **self._range(prefix))))

        def listen():
            for answer in self.watch.Watch(iter(requests.get, None)):
                ready.set()
                found = [(e.kv.key.decode()[len(self.root) :], e.kv, e.type == pb.Event.PUT) for e in answer.events]
                if found:
                    notify([(key, kv.value if is_put else None, kv.mod_revision) for key, kv, is_put in found])

        in_background(listen)
        ready.wait(5)


class _AddWatch:
    """The request for a recursive watch, which kazoo does not offer."""

    type = 106

    def __init__(self, path):
        self.path = path

    def serialize(self):
        return struct.pack("!i", len(self.path)) + self.path.encode() + struct.pack("!i", 1)

    def deserialize(self, _bytes, _offset):
        return True


class _MultiRead:
    """A request that reads several znodes, which kazoo does not offer."""

    type = 22

    def __init__(self, paths):
        self.paths = paths

    def serialize(self):
        reads = [struct.pack("!i?ii", 4, False, -1, len(path)) + path.encode() + b"\0" for path in self.paths]
        return b"".join(reads) + struct.pack("!i?i", -1, True, -1)

    def deserialize(self, data, at):
        found = []
        while True:
            kind, is_last, _ = struct.unpack_from("!i?i", data, at)
            at += 9
            if is_last:
                return found
            if kind == -1:
                at += 4
                found.append(None)
                continue
            (size,) = struct.unpack_from("!i", data, at)
            at += 4
            value = bytes(data[at : at + max(size, 0)])
            at += max(size, 0)
            found.append((value, struct.unpack_from("!qqqqi", data, at)[4]))
            at += 68


class ZooKeeperBaseline:
    """kazoo, with recursive watches and reads of several znodes."""

    blocks = False
    READ_TOGETHER = 100

    def __init__(self, url):
        self.hosts, _, root = url.partition("://")[2].partition("/")
        self.root, self.followers = f"/{root}/", {}
        self._connect(30)

    def _connect(self, ttl_s):
        from kazoo.client import KazooClient

        self.zk = KazooClient(self.hosts, timeout=ttl_s)
        self.zk._connection._read_watch_event = self._event  # noqa: SLF001 - kazoo knows no recursive watches
        self.zk.start()
        for part in "sqrtc":
            self.zk.ensure_path(self.root + part)

    def _event(self, data, offset):
        kind, _, size = struct.unpack_from("!iii", data, offset)
        self._changed(kind, bytes(data[offset + 12 : offset + 12 + size]).decode())

    def open(self, ttl_s):
        self.zk.stop()
        self._connect(ttl_s)
        self.sid = uuid.uuid4().hex[:8]
        self.zk.create(f"{self.root}s/{self.sid}", b"", ephemeral=True)
        return self.sid

    def call(self, request, then):
        result = self.zk.handler.async_result()
        result.rawlink(lambda ended: then(ended.value if ended.successful() else None))
        self.zk._call(request, result)  # noqa: SLF001 - nor these requests

    def txn(self, checks, ops, done):
        multi, wanted, written = self.zk.transaction(), dict(checks), {key for key, _ in ops}
        for key, want in checks:
            if want is True and key != f"s/{self.sid}":  # a request of an ended session fails anyway
                multi.check(self.root + key, -1)
            elif want is False and key not in written:
                multi.create(self.root + key)
                multi.delete(self.root + key)
        version = 0
        for key, value in ops:
            read = wanted.get(key)
            if value is None:
                multi.delete(self.root + key, -1 if read is None else read)
            elif read is None or read is False:
                multi.create(self.root + key, value)
            else:
                multi.set_data(self.root + key, value, read)
                version = read + 1

        def ended(result):
            answers = result.value if result.successful() else []
            is_committed = bool(answers) and not any(isinstance(answer, Exception) for answer in answers)
            done(is_committed, [version] * len(ops))

        multi.commit_async().rawlink(ended)

    def list(self, prefix):
        found = []
        for name in sorted(self.zk.get_children(self.root + prefix[:-1])):
            value, stat = self.zk.get(self.root + prefix + name)
            found.append((prefix + name, value, stat.version))
        return found

    def _changed(self, kind, path):
        key = path[len(self.root) :]
        follower = self.followers.get(key[:2])
        if follower is None or kind not in (1, 2):
            return
        if kind == 1:
            follower.created(key)
        elif follower.deletes:
            in_background(lambda: follower.notify([(key, None, 0)]))  # it asks the server

    def follow(self, prefix, notify, *, deletes=False):
        self.followers[prefix[:2]] = _Follower(self, notify, deletes=deletes)
        done = threading.Event()
        self.call(_AddWatch(self.root + prefix[:-1]), lambda _: done.set())
        done.wait(5)


class _Follower:
    """Reads the znodes that events have named, many in one request."""

    def __init__(self, store, notify, *, deletes):
        self.store, self.notify, self.deletes = store, notify, deletes
        self.lock, self.keys, self.is_reading = threading.Lock(), [], False

    def created(self, key):
        with self.lock:
            self.keys.append(key)
            if self.is_reading:
                return
            self.is_reading = True
        self._read()

    def _read(self):
        with self.lock:
            keys, self.keys = self.keys[: self.store.READ_TOGETHER], self.keys[self.store.READ_TOGETHER :]
            self.is_reading = bool(keys)
        if not keys:
            return

        def answered(found):
            self.notify([(key, *each) for key, each in zip(keys, found or (), strict=False) if each])
            self._read()

        self.store.call(_MultiRead([self.store.root + key for key in keys]), answered)


class SqliteBaseline:
    """sqlite3 with one table. Commits notify the other processes as those of latchwork do."""

    blocks = True
    _TABLES = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value BLOB, version INTEGER, until REAL) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS by_version ON kv (version);
    CREATE TABLE IF NOT EXISTS newest (id INTEGER PRIMARY KEY, version INTEGER);
    INSERT OR IGNORE INTO newest VALUES (1, 1);
    """

    def __init__(self, url):
        from pathlib import Path

        path, _, options = url.partition("://")[2].partition("?")
        self.path, self.sync = Path(path), "NORMAL" if "sync=normal" in options else "FULL"
        self.db, self.lock = self._connect(), threading.Lock()
        self.db.executescript(self._TABLES)

    def _connect(self):
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10)
        db.execute(f"PRAGMA synchronous = {self.sync}")
        return db

    def open(self, ttl_s):
        key = f"s/{uuid.uuid4().hex[:8]}"
        self._txn((), [(key, b"")], lambda *_: None, until=time.time() + ttl_s)

        def renew():
            while True:
                time.sleep(ttl_s / 3)
                with self.lock:
                    self.db.execute("UPDATE kv SET until = ? WHERE key = ?", (time.time() + ttl_s, key))

        in_background(renew)
        return key[2:]

    def _begin(self):
        while True:  # SQLite's own wait for the lock sleeps 1 to 100 ms
            try:
                return self.db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                time.sleep(0.0002)

    def _fails(self, key, want):
        version, until = self.db.execute("SELECT version, until FROM kv WHERE key = ?", (key,)).fetchone() or (None, 0)
        exists = version is not None and (until is None or until > time.time())
        return exists is not want if isinstance(want, bool) else not exists or version != want

    def txn(self, checks, ops, done):
        self._txn(checks, ops, done)

    def _txn(self, checks, ops, done, until=None):
        from latchwork.backends.embedded.file_signal import signal_commit

        with self.lock:
            self._begin()
            is_committed = not any(self._fails(key, want) for key, want in checks)
            version = 0
            if is_committed:
                query = "UPDATE newest SET version = version + 1 RETURNING version"
                ((version,),) = self.db.execute(query).fetchall()
                self.db.executemany("DELETE FROM kv WHERE key = ?", [(key,) for key, value in ops if value is None])
                rows = [(key, value, version, until) for key, value in ops if value is not None]
                self.db.executemany("INSERT OR REPLACE INTO kv VALUES (?, ?, ?, ?)", rows)
            self.db.execute("COMMIT" if is_committed else "ROLLBACK")
        if is_committed:
            signal_commit(self.path)
        done(is_committed, [version] * len(ops))

    def list(self, prefix):
        query = "SELECT key, value, version FROM kv WHERE key >= ? AND key < ?"
        with self.lock:
            return self.db.execute(query, (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))).fetchall()

    def follow(self, prefix, notify, *, deletes=False):
        from latchwork.backends.embedded.file_signal import FileSignal

        if deletes:
            return  # sessions end by their deadlines: not written here, so it must not be used for kills
        signal, db = FileSignal(self.path), self._connect()
        (last,) = db.execute("SELECT version FROM newest").fetchone()

        def listen():
            seen = last
            while True:
                signal.clear()
                query = "SELECT key, value, version FROM kv WHERE version > ? ORDER BY version"
                rows = db.execute(query, (seen,)).fetchall()
                seen = rows[-1][2] if rows else seen
                if found := [row for row in rows if row[0].startswith(prefix)]:
                    notify(found)
                signal.wait(POLL_S, for_commits=True)

        in_background(listen)


class StoreBaseline:
    """The public API of a latchwork store."""

    blocks = True

    def __init__(self, url):
        import latchwork
        from latchwork import types

        self.types, self.store = types, latchwork.connect(url)

    def open(self, ttl_s):
        sid = uuid.uuid4().hex[:8]
        self.store.put("s/" + sid, b"", session=self.store.open_session(ttl_s))
        return sid

    def _check(self, key, want):
        if isinstance(want, bool):
            return self.types.Exists(key) if want else self.types.Absent(key)
        return self.types.At.of(key, want)

    def txn(self, checks, ops, done):
        from latchwork.errors import Conflict

        wanted = [self._check(key, want) for key, want in checks]
        writes = [self.types.Delete(key) if value is None else self.types.Put(key, value) for key, value in ops]
        try:
            committed = self.store.commit(wanted, writes)
        except Conflict:
            done(False, None)
            return
        done(True, [entry and entry.version for entry in committed.entries])

    def list(self, prefix):
        return [(each.key, each.value, each.version) for each in self.store.list(prefix[:-1], recursive=True)]

    def follow(self, prefix, notify, *, deletes=False):
        from latchwork.errors import Closed

        watch = self.store.watch(prefix[:-1])

        def listen():
            with suppress(Closed):
                while True:
                    changes = [each for each in watch.next() if deletes or each.entry is not None]
                    if changes:
                        entries = [(each.key, each.entry) for each in changes]
                        notify([(key, e and e.value, e and e.version) for key, e in entries])

        in_background(listen)


RAW = {"etcd": EtcdBaseline, "zk": ZooKeeperBaseline, "sqlite": SqliteBaseline}
