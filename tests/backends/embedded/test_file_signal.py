"""A commit wakes the other processes that follow the file; what was not signaled is found by a slow poll."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from backends.embedded.conftest import PRELUDE
from latchwork.backends.embedded import watches
from latchwork.backends.embedded.file_signal import FileSignal, signal_commit
from latchwork.types import Put

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems poll")

WRITE = """
store.commit([], [Put(sys.argv[2], b"")]).result()
say("written")
"""
#: Writes in the store of the third argument, as nobody; the modules that it needs were imported for the first one.
WRITE_AS_NOBODY = """
store.close()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
shared = open_backend(parse_url(sys.argv[3]), SYSTEM_CLOCK)
shared.commit([], [Put(sys.argv[2], b"")]).result()
say("written")
"""
DIE_BEFORE_THE_SIGNAL = """
from latchwork.backends.embedded import backend
backend.signal_commit = lambda path: os.kill(os.getpid(), signal.SIGKILL)
store.commit([], [Put(sys.argv[2], b"")]).result()
"""


@pytest.fixture
def only_signals(monkeypatch):
    """No poll comes to the rescue."""
    monkeypatch.setattr(watches, "_SIGNALED_POLL_S", 600.0)


@pytest.fixture
def polls(monkeypatch):
    """The pollers that have looked, once for each time."""
    found = []
    really = watches.Poller._poll
    monkeypatch.setattr(watches.Poller, "_poll", lambda poller: found.append(poller) or really(poller))
    return found


@pytest.fixture
def followed(opened, collector, eventually):
    """Follow a file; the sink has had the first event."""

    def follow(url):
        sink = collector()
        opened(url).watch("", sink)
        eventually(lambda: sink.events)
        return sink

    return follow


def can(*command):
    found = shutil.which(command[0])
    return found is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("only_signals")
def test_a_commit_of_another_process_wakes_a_watch_without_a_poll(sqlite_url, followed, child, eventually):
    sink = followed(sqlite_url)
    for key in ("a", "b"):
        child(WRITE, sqlite_url, key)
        eventually(lambda key=key: key in sink.changed_keys())


@pytest.mark.usefixtures("only_signals")
def test_a_path_longer_than_the_name_of_a_socket_is_signaled(tmp_path, followed, child, eventually):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    sink = followed(f"sqlite:///{folder}/store.db")
    child(WRITE, f"sqlite:///{folder}/store.db", "a")
    eventually(lambda: sink.changed_keys() == ["a"])
    assert {path.name for path in folder.iterdir()} == {"store.db", "store.db-wal", "store.db-shm"}, (
        "nothing to clean up"
    )


@pytest.mark.usefixtures("only_signals")
def test_a_commit_between_the_look_and_the_wait_is_not_lost(sqlite_url, opened, collector, eventually, monkeypatch):
    other, sink = opened(sqlite_url), collector()
    late = ["late"]
    really = FileSignal.wait

    def wait(signal, timeout_s, *, for_commits):
        if for_commits and late and sink.events:
            other.commit([], [Put(late.pop(), b"")]).result()
        return really(signal, timeout_s, for_commits=for_commits)

    store = opened(sqlite_url)
    monkeypatch.setattr(FileSignal, "wait", wait)
    store.watch("", sink)
    eventually(lambda: sink.changed_keys() == ["late"])


def test_a_commit_of_a_process_that_died_before_its_signal_is_found_by_a_poll(sqlite_url, followed, child, eventually):
    sink = followed(sqlite_url)
    assert child(DIE_BEFORE_THE_SIGNAL, sqlite_url, "a").wait(30) < 0
    eventually(lambda: sink.changed_keys() == ["a"])


@pytest.mark.usefixtures("only_signals")
def test_a_forked_child_takes_no_signal_from_its_parent(sqlite_url, opened, followed, child, eventually):
    sink = followed(sqlite_url)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(tell)
            own = followed(sqlite_url)
            opened(sqlite_url).commit([], [Put("of-the-child", b"")]).result()
            eventually(lambda: "of-another" in own.changed_keys())
            os.read(told, 1)
        finally:
            os._exit(0)
    os.close(told)
    try:
        eventually(lambda: "of-the-child" in sink.changed_keys())
        child(WRITE, sqlite_url, "of-another")
        eventually(lambda: "of-another" in sink.changed_keys())
    finally:
        os.close(tell)
        os.waitpid(pid, 0)


@pytest.mark.usefixtures("only_signals")
@pytest.mark.skipif(not can("unshare", "--mount", "true"), reason="mount namespaces need root")
def test_a_process_in_another_mount_namespace_signals_the_same_file(tmp_path, followed, eventually):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    sink = followed(f"sqlite:///{mine}/store.db")
    script = f'mount --bind {mine} {theirs} && exec "$@"'
    command = [sys.executable, "-c", PRELUDE + WRITE, f"sqlite:///{theirs}/store.db", "a"]
    subprocess.run(["unshare", "--mount", "--fork", "sh", "-c", script, "sh", *command], check=True, timeout=60)
    eventually(lambda: sink.changed_keys() == ["a"])
    assert not list(theirs.iterdir()), "it was mounted in the other namespace only"


@pytest.mark.usefixtures("only_signals")
@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_a_process_of_another_user_signals(sqlite_url, followed, child, eventually):
    with tempfile.TemporaryDirectory() as folder:
        shared = f"sqlite:///{folder}/store.db?file_mode=666"
        sink = followed(shared)
        Path(folder).chmod(0o777)
        child(WRITE_AS_NOBODY, sqlite_url, "a", shared)
        eventually(lambda: sink.changed_keys() == ["a"])


def test_without_a_signal_changes_are_found_by_frequent_polls(tmp_path, child):
    command = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    forbid = "echo 0 > /proc/sys/user/max_inotify_instances"
    if not can(*command, forbid):
        pytest.skip("limits of an account need a user namespace")
    url = f"sqlite:///{tmp_path}/store.db"
    body = """
seen = []
store.watch("", lambda event: seen.extend(getattr(event, "changes", ())))
say(store.capabilities.poll_interval_s)
while not seen:
    time.sleep(0.01)
say(seen[0].key)
"""
    run = [sys.executable, "-c", PRELUDE + body, url]
    with subprocess.Popen(
        [*command, f'{forbid} && exec "$@"', "sh", *run], stdout=subprocess.PIPE, text=True
    ) as limited:
        try:
            assert limited.stdout.readline().strip() == "0.035"
            time.sleep(0.1)  # its first event is behind it
            child(WRITE, url, "a")
            assert limited.stdout.readline().strip() == "a"
        finally:
            limited.kill()


def test_an_idle_store_polls_four_times_a_second(sqlite_url, followed, polls):
    followed(sqlite_url)
    time.sleep(0.3)
    polls.clear()
    time.sleep(1.0)
    assert len(polls) <= 5


def test_a_store_without_watches_is_not_woken_by_commits(sqlite_url, opened, polls):
    writer = opened(sqlite_url)
    opened(sqlite_url)
    polls.clear()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        writer.commit([], [Put("a", b"")]).result()
    assert len(polls) <= 2 * 5


def test_stores_that_were_closed_leave_no_descriptors(sqlite_url, opened):
    opened(sqlite_url).close()
    before = descriptors()
    for _ in range(5):
        opened(sqlite_url).close()
    assert descriptors() == before


def test_a_signal_that_was_closed_writes_to_no_other_file(tmp_path):
    path = tmp_path / "store.db"
    path.touch()
    signal = FileSignal(path)
    own = signal._own
    signal.close()
    reused = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert reused == own
        signal.set()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(reused)
    finally:
        os.close(reused)


def test_the_signal_of_a_file_that_is_gone_raises_nothing(tmp_path):
    signal_commit(tmp_path / "gone")
