"""Files that cannot be used: one clear error each, and nothing that was stored is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from latchwork.backends.embedded import layout
from latchwork.errors import (
    ConnectFailed,
    LatchworkError,
    OutcomeUnknown,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)
from latchwork.types import Delete, Put

UNPRIVILEGED = 65534


def put(store, key, value=b"v"):
    return store.commit([], [Put(key, value)]).result()


def value_of(store, key):
    entry = store.get(key, stale_ok=False).result()
    return entry and entry.value


def fails_to_open(opened, url, error, *words, **overrides):
    with pytest.raises(error) as caught:
        opened(url, **overrides)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    return caught.value


def test_missing_directory_is_named_with_the_remedy(opened, tmp_path):
    fails_to_open(opened, f"sqlite:///{tmp_path}/nowhere/a.db", ConnectFailed, "nowhere", "create it first")
    assert not (tmp_path / "nowhere").exists()


def test_directory_in_place_of_the_file_is_refused(opened, tmp_path):
    (tmp_path / "a.db").mkdir()
    fails_to_open(opened, f"sqlite:///{tmp_path}/a.db", ConnectFailed, "not a regular file")


def test_pipe_in_place_of_the_file_is_refused_at_once(opened, tmp_path):
    os.mkfifo(tmp_path / "a.db")
    fails_to_open(opened, f"sqlite:///{tmp_path}/a.db", ConnectFailed, "not a regular file")


def test_link_to_a_missing_file_makes_nothing_where_it_leads(opened, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "a.db").symlink_to(tmp_path / "theirs" / "b.db")
    fails_to_open(opened, f"sqlite:///{tmp_path}/a.db", ConnectFailed, "cannot be created")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_file_that_is_no_database_is_refused_and_kept(opened, tmp_path):
    text = b"important notes, not a database\n" * 200
    (tmp_path / "a.db").write_bytes(text)
    fails_to_open(opened, f"sqlite:///{tmp_path}/a.db", ConnectFailed, "a.db", "no SQLite database")
    assert (tmp_path / "a.db").read_bytes() == text


def test_database_of_another_application_is_refused_and_kept(opened, tmp_path):
    raw = sqlite3.connect(tmp_path / "a.db")
    raw.execute("CREATE TABLE theirs (x)")
    raw.commit()
    fails_to_open(opened, f"sqlite:///{tmp_path}/a.db", ConnectFailed, "another application")
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    raw.close()


def test_newer_format_is_refused_with_the_remedy_and_kept(opened, sqlite_url, tmp_path):
    first = opened(sqlite_url)
    put(first, "a")
    first.close()
    raw = sqlite3.connect(tmp_path / "store.db")
    raw.execute(f"PRAGMA user_version = {layout.FORMAT_VERSION + 1}")
    fails_to_open(opened, sqlite_url, ConnectFailed, "newer", "upgrade latchwork")
    raw.execute(f"PRAGMA user_version = {layout.FORMAT_VERSION}")
    raw.close()
    assert value_of(opened(sqlite_url), "a") == b"v"


@pytest.mark.parametrize(
    ("added", "kind"),
    [
        ("CREATE TRIGGER theirs BEFORE INSERT ON entries BEGIN DELETE FROM entries; END", "trigger"),
        ("ALTER TABLE entries RENAME TO e2; CREATE VIEW theirs AS SELECT * FROM e2", "view"),
    ],
    ids=["trigger", "view"],
)
def test_file_with_a_trigger_or_view_of_somebody_else_is_refused_and_kept(opened, sqlite_url, tmp_path, added, kind):
    first = opened(sqlite_url)
    put(first, "a")
    first.close()
    raw = sqlite3.connect(tmp_path / "store.db")
    raw.executescript(added)
    fails_to_open(opened, sqlite_url, ConnectFailed, f"has a {kind} 'theirs'", "drop it")
    assert raw.execute("SELECT name FROM sqlite_master WHERE name = 'theirs'").fetchall() == [("theirs",)]
    raw.close()


def test_damaged_file_is_refused(opened, sqlite_url, tmp_path):
    first = opened(sqlite_url)
    for n in range(200):
        put(first, f"k{n}", bytes(500))
    first.close()
    with (tmp_path / "store.db").open("r+b") as file:
        for page in range(1, 20):
            file.seek(4096 * page)
            file.write(os.urandom(4096))
    with pytest.raises(LatchworkError, match="damaged"):
        list_everything(opened(sqlite_url))


def list_everything(store):
    return store.list("", recursive=True, limit=None, start_after=None).result()


def test_locked_file_is_connect_failed_within_the_connect_timeout(opened, sqlite_url, tmp_path):
    raw = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    raw.execute("CREATE TABLE x (y)")
    raw.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    fails_to_open(opened, sqlite_url, ConnectFailed, "locked", connect_timeout_s=0.3)
    assert time.monotonic() - started < 3
    raw.close()


@pytest.fixture
def open_place(tmp_path):
    """A directory that every account may enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def opened_without_rights(path):
    """What a process of another account prints when it opens the file. It drops root's rights after its imports."""
    body = f"""
import os, sys
from latchwork.backends.embedded.backend import EmbeddedBackend
from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK
parsed = parse_url("sqlite:///" + sys.argv[1])
if os.geteuid() == 0:
    os.setuid({UNPRIVILEGED})
try:
    open_backend(parsed, SYSTEM_CLOCK)
except Exception as error:
    print(type(error).__name__, error)
"""
    command = [sys.executable, "-c", body, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def test_account_that_cannot_write_the_file_is_told_so(opened, open_place):
    first = opened(f"sqlite:///{open_place}/store.db")
    put(first, "a")
    first.close()
    (open_place / "store.db").chmod(0o444)
    answer = opened_without_rights(open_place / "store.db")
    assert answer.startswith("PermissionDenied ")
    assert "not readable and writable for this account" in answer


def test_account_that_cannot_write_the_directory_is_told_so(open_place):
    open_place.chmod(0o555)
    answer = opened_without_rights(open_place / "new.db")
    assert answer.startswith("PermissionDenied ")
    assert "directory" in answer


def test_account_that_cannot_enter_the_directory_is_told_so(open_place):
    (open_place / "closed").mkdir(mode=0o000)
    answer = opened_without_rights(open_place / "closed" / "below" / "new.db")
    assert answer.startswith("PermissionDenied ")
    assert "change the mode" in answer


def test_a_file_that_turns_read_only_stays_with_those_who_have_it_open_and_refuses_others(opened, open_place):
    store = opened(f"sqlite:///{open_place}/store.db")
    put(store, "a")
    for path in open_place.iterdir():
        path.chmod(0o444)
    put(store, "a", b"new")
    assert value_of(store, "a") == b"new"
    assert opened_without_rights(open_place / "store.db").startswith("PermissionDenied ")


@pytest.fixture
def immutable(tmp_path):
    """Takes every right to write to the files here, of those who have them open too; only root can do so.

    Not of SQLite's ``-shm``: that is written through mapped memory, and once the kernel has put a page of it away, it
    answers the next such write to an immutable file with SIGBUS.
    """
    chosen = [str(path) for path in tmp_path.iterdir()]

    def mark(sign):
        return subprocess.run(["chattr", f"{sign}i", *chosen], capture_output=True, check=False).returncode == 0

    probe = tmp_path / "probe"
    probe.touch()
    chosen.append(str(probe))
    if os.geteuid() != 0 or shutil.which("chattr") is None or not mark("+"):
        pytest.skip("needs root, chattr and a file system that knows it")

    def change():
        chosen[:] = [str(path) for path in tmp_path.iterdir() if not path.name.endswith("-shm")]
        assert mark("+")

    yield change
    mark("-")


def test_files_that_turn_read_only_under_an_open_store_lose_nothing(sqlite_url, opened, immutable, tmp_path):
    store = opened(sqlite_url)
    put(store, "a", b"old")
    immutable()
    with pytest.raises((PermissionDenied, OutcomeUnknown), match=r"store\.db"):
        put(store, "a", b"new")
    assert value_of(store, "a") == b"old"
    fails_to_open(opened, sqlite_url, PermissionDenied, "for this account")
    subprocess.run(["chattr", "-i", *map(str, tmp_path.iterdir())], check=True)
    put(store, "a", b"newer")
    assert value_of(store, "a") == b"newer"


def test_database_that_turned_read_only_is_permission_denied(store):
    put(store, "a")
    store._db.write(lambda conn: None, 1)  # so that the writing connection is open
    conn = store._db._writer.use(lambda conn: conn, time.monotonic() + 1e9)
    conn.execute("PRAGMA query_only = 1")
    with pytest.raises(PermissionDenied, match="read-only"):
        put(store, "a", b"new")
    conn.execute("PRAGMA query_only = 0")
    put(store, "b")
    assert value_of(store, "a") == b"v"


def test_full_disk_is_quota_exceeded_and_nothing_is_applied(store):
    before = put(store, "a")
    conn = store._db._writer.use(lambda conn: conn, time.monotonic() + 1e9)
    (pages,) = conn.execute("PRAGMA page_count").fetchone()
    conn.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(QuotaExceeded, match="free space"):
        store.commit([], [Put("a", b"changed"), Put("big", bytes(900_000))]).result()
    assert value_of(store, "a") == b"v"
    assert value_of(store, "big") is None
    store.commit([], [Delete("a")]).result()
    assert put(store, "small").token > before.token


class FailingCommit:
    """A connection whose disk fails at COMMIT, after the write reached it or before."""

    def __init__(self, conn, *, applied):
        self._conn = conn
        self._applied = applied
        self.in_transaction = False

    def execute(self, statement, *parameters):
        if statement == "COMMIT":
            self._conn.execute("COMMIT" if self._applied else "ROLLBACK")
            raise sqlite3.OperationalError("disk I/O error")
        return self._conn.execute(statement, *parameters)

    def close(self):
        self._conn.close()


@pytest.mark.parametrize("applied", [True, False])
def test_disk_that_fails_while_committing_leaves_the_outcome_unknown(sqlite_url, opened, applied):
    store = opened(sqlite_url)
    put(store, "a")
    writer = store._db._writer
    writer._open[:] = [FailingCommit(conn, applied=applied) for conn in writer._open]
    with pytest.raises(OutcomeUnknown, match="read back"):
        put(store, "b")
    assert (value_of(store, "b") == b"v") == applied


@pytest.mark.parametrize("replaced", [True, False])
def test_deleted_or_replaced_file_is_noticed_before_anything_is_written_to_it(opened, sqlite_url, tmp_path, replaced):
    store = opened(sqlite_url)
    session = store.open_session(5, lambda: None).result()
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"store.db{suffix}").unlink(missing_ok=True)  # whoever notices at once may be faster
    if replaced:
        put(opened(sqlite_url), "new")
    for call in (lambda: put(store, "a"), lambda: value_of(store, "a"), lambda: session.renew().result()):
        with pytest.raises(Unavailable, match="connect again"):
            call()
    store.close()
    if replaced:
        assert [entry.key for entry in list_everything(opened(sqlite_url))] == ["new"]


def test_relative_path_stays_where_it_was_opened(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = opened("sqlite:///here.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    put(store, "a")
    assert value_of(store, "a") == b"v"
    assert (tmp_path / "here.db").exists()


def test_sync_full_reaches_every_writing_connection(opened, tmp_path):
    levels = {}
    for sync in ("normal", "full"):
        store = opened(f"sqlite:///{tmp_path}/{sync}.db?sync={sync}")
        levels[sync] = store._db.write(lambda conn: conn.execute("PRAGMA synchronous").fetchone()[0], 1)
        assert store._db.read(lambda conn: conn.execute("PRAGMA journal_mode").fetchone()[0], 1) == "wal"
    assert levels == {"normal": 1, "full": 2}


def test_stores_left_behind_are_not_kept_alive_by_the_process(tmp_path):
    body = """
import sys
from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK
store = open_backend(parse_url(sys.argv[1]), SYSTEM_CLOCK)
store.watch("", lambda event: None)
"""
    url = f"sqlite:///{tmp_path}/a.db"
    done = subprocess.run([sys.executable, "-c", body, url], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""


def test_interrupt_while_a_connection_is_put_back_leaves_the_file_unlocked(store, monkeypatch):
    pool = store._db._writer
    give, interrupts = pool._return_connection, [KeyboardInterrupt]

    def interrupted(turn):
        if interrupts and threading.current_thread() is threading.main_thread():
            raise interrupts.pop()
        give(turn)

    monkeypatch.setattr(pool, "_return_connection", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(store, "a")
    put(store, "a")
    assert value_of(store, "a") == b"v"
