"""The file: whose it is, and processes that see another clock than the one in it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from urllib.parse import quote

import pytest

import latchwork
from latchwork.backends.embedded import layout, sessions
from latchwork.backends.embedded.connection import retry_while_locked
from latchwork.clock import SYSTEM_CLOCK, SystemClock
from latchwork.errors import ConnectFailed, InvalidURL
from latchwork.primitives import Lock


def modes(folder):
    return {path.name: f"{stat.S_IMODE(path.stat().st_mode):o}" for path in folder.iterdir()}


@pytest.fixture
def umask():
    """Let everybody read and write what is made."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("option", "mode"), [("", "600"), ("?file_mode=660", "660"), ("?file_mode=0640", "640")])
def test_a_file_that_is_made_has_the_mode_asked_for_and_so_have_its_log_and_index(tmp_path, option, mode):
    with latchwork.connect(f"sqlite:///{tmp_path}/s.db{option}") as store:
        store.put("k", b"secret")
        assert modes(tmp_path) == {"s.db": mode, "s.db-wal": mode, "s.db-shm": mode}
        assert ("file_mode" in store.url) == bool(option)
        with latchwork.connect(store.url) as again:
            assert again.get("k").value == b"secret"


@pytest.mark.usefixtures("umask")
def test_a_file_that_is_there_keeps_its_mode_and_one_that_all_can_read_is_warned_of(tmp_path, caplog):
    path = tmp_path / "s.db"
    latchwork.connect(f"sqlite:///{path}").close()
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        with latchwork.connect(f"sqlite:///{path}?file_mode=600"):
            assert "has mode" not in caplog.text
        with latchwork.connect(f"sqlite:///{path}"):
            assert f"store file {path} has mode 644: every account of this machine can read it" in caplog.text
    assert modes(tmp_path)["s.db"] == "644"


@pytest.mark.parametrize("mode", ["6", "066", "700", "rw", "8", "60a", "-600"])
def test_a_mode_that_is_none_is_refused(tmp_path, mode):
    with pytest.raises(InvalidURL, match="a mode in octal digits between 600 and 666"):
        latchwork.connect(f"sqlite:///{tmp_path}/s.db?file_mode={mode}")


def test_write_does_not_wait_for_a_reader_in_the_middle_of_a_list(tmp_path):
    path = tmp_path / "s.db"
    with (
        latchwork.connect(f"sqlite:///{path}") as store,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader,
    ):
        store.put("a", b"1")
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,)
        store.put("b", b"2")
        assert [entry.key for entry in store.list("")] == ["a", "b"]
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,)


def test_store_works_optimized_in_a_file_with_spaces_and_letters_beyond_ascii(tmp_path):
    folder = tmp_path / "a b é中"
    folder.mkdir()
    script = f"""if True:
        import sys
        import latchwork
        from latchwork.primitives import Lock
        with latchwork.connect({"sqlite:///" + quote(str(folder / "st ore.db"))!r}) as store, Lock(store, "x"):
            store.put("k", b"v")
        print(sys.flags.optimize)
    """
    done = subprocess.run([sys.executable, "-OO", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2\n", "")
    assert "st ore.db" in modes(folder)


class Shifted(SystemClock):
    """The clock of a time namespace."""

    def __init__(self, clock_offset_s):
        self.clock_offset_s = clock_offset_s

    def now(self):
        return super().now() + self.clock_offset_s


@pytest.fixture
def in_namespace(tmp_path, monkeypatch):
    """Open a store as a process of another time namespace would."""
    opened = []

    def connect(clock_offset_s, **options):
        with monkeypatch.context() as patched:
            patched.setattr(sessions, "clock_offset_s", lambda: clock_offset_s)
            opened.append(latchwork.connect(f"sqlite:///{tmp_path}/s.db", clock=Shifted(clock_offset_s), **options))
        return opened[-1]

    yield connect
    for store in opened:
        store.close()


@pytest.mark.parametrize("clock_offset_s", [1000.0, -1000.0])
def test_stores_of_two_time_namespaces_see_the_same_sessions(in_namespace, clock_offset_s):
    first, second = in_namespace(0.0, session_ttl_s=2.0), in_namespace(clock_offset_s, session_ttl_s=2.0)
    for one, other in ((first, second), (second, first)):
        entry = one.put("bound", b"", session=one.session)
        other.put("written", b"")  # a write sweeps what is dead
        with other.mirror("bound") as mirror:
            assert other.get("bound") == entry == mirror["bound"]
            assert not one.session.lost.wait(3.0), "renewals count"
            assert other.get("bound") == entry
            one.session.close()
            mirror.wait_until(lambda now: not now, 10.0)


@pytest.mark.parametrize("clock_offset_s", [1000.0, -1000.0])
def test_a_session_of_another_time_namespace_ends_at_its_deadline(in_namespace, clock_offset_s):
    first, second = in_namespace(0.0), in_namespace(clock_offset_s)
    session = second.open_session(1.0)
    second.put("bound", b"", session=session)
    session._renewer._send = sessions.Future  # its process is frozen
    with first.mirror("bound") as mirror:
        mirror.wait_until(lambda now: not now, 10.0)


def proc(folder, offsets, own="time:[1]", of_children="time:[1]"):
    (folder / "ns").mkdir()
    (folder / "ns/time").symlink_to(own)
    (folder / "ns/time_for_children").symlink_to(of_children)
    (folder / "timens_offsets").write_text(offsets)
    return folder


def test_the_offset_is_what_the_kernel_says_of_its_boottime_clock(tmp_path):
    offsets = "monotonic           5         0\nboottime         -1001 500000000\n"
    assert sessions.clock_offset_s(proc(tmp_path, offsets)) == -1000.5
    assert sessions.clock_offset_s(tmp_path / "none") == 0.0


def test_a_process_that_has_unshared_its_time_namespace_is_refused(tmp_path):
    with pytest.raises(ConnectFailed, match="has unshared its time namespace"):
        sessions.clock_offset_s(proc(tmp_path, "boottime 7 0\n", of_children="time:[2]"))


def _can_unshare():
    unshare = shutil.which("unshare")
    command = [unshare, "--time", "--fork", "--boottime", "1000", "true"]
    return unshare is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="time namespaces need a kernel that has them, and root")
@pytest.mark.parametrize("clock_offset_s", [1000, 0])
def test_a_lock_has_one_holder_across_real_time_namespaces(tmp_path, clock_offset_s):
    url = f"sqlite:///{tmp_path}/s.db?session_ttl_s=10"
    other = f"""
        import latchwork
        from latchwork.primitives import Lock
        with latchwork.connect({url!r}) as store:
            lock = Lock(store, "l")
            try:
                lock.acquire(1.0)
            except latchwork.WaitTimeout:
                print("waited")
            else:
                print("held")
    """
    with latchwork.connect(url) as store, Lock(store, "l"):
        command = [
            "unshare",
            "--time",
            "--fork",
            "--boottime",
            str(clock_offset_s),
            sys.executable,
            "-c",
            textwrap.dedent(other),
        ]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (found.stdout.strip(), found.stderr) == ("waited", "")
        assert store.session.state == "active"


class Interrupted:
    """A connection; before one of its statements another one makes the file's tables, or is refused."""

    def __init__(self, conn, statement, other):
        self._conn, self._statement, self._other = conn, statement, other

    def execute(self, sql):
        if self._other is not None and self._statement in sql:
            other, self._other = self._other, None
            with contextlib.suppress(sqlite3.OperationalError):
                other()
        return self._conn.execute(sql)

    @property
    def in_transaction(self):
        return self._conn.in_transaction


@pytest.mark.parametrize("statement", ["user_version", "application_id", "sqlite_master", "journal_mode"])
def test_a_file_whose_tables_another_makes_at_this_moment_is_no_file_of_another_application(tmp_path, statement):
    path = tmp_path / "store.db"
    with (
        contextlib.closing(layout.open_file_connection(path, "normal")) as mine,
        contextlib.closing(layout.open_file_connection(path, "normal")) as other,
    ):
        conn = Interrupted(mine, statement, lambda: layout.prepare_file(other, path))
        retry_while_locked(lambda: layout.prepare_file(conn, path), SYSTEM_CLOCK.now() + 10, "the file")
        retry_while_locked(lambda: layout.prepare_file(other, path), SYSTEM_CLOCK.now() + 10, "the file")
