"""Several processes on one file: killed, stopped, forked, all at once; nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time

import pytest

from latchwork.errors import Conflict, OutcomeUnknown, SessionLost, Unavailable
from latchwork.types import At, Delete, Put, SessionAlive


def keys_of(store, prefix=""):
    return [entry.key for entry in store.list(prefix, recursive=True, limit=None, start_after=None).result()]


def read_line(process):
    line = process.stdout.readline()
    assert line, "the child ended early"
    return line.strip()


def test_processes_that_create_the_file_at_once_all_succeed(sqlite_url, opened, child):
    body = """
say("ready")
store.commit([], [Put(f"p/{os.getpid()}", b"")]).result()
say("done")
"""
    children = [child(body, sqlite_url) for _ in range(6)]
    for process in children:
        assert [read_line(process), read_line(process)] == ["ready", "done"]
    assert len(keys_of(opened(sqlite_url))) == 6


def test_checked_increments_of_several_processes_add_up(sqlite_url, opened, child):
    body = """
for _ in range(150):
    while True:
        before = store.get("n", stale_ok=False).result()
        try:
            store.commit([At(before)], [Put("n", str(int(before.value) + 1).encode())]).result()
            break
        except Conflict:
            pass
say("done")
"""
    store = opened(sqlite_url)
    store.commit([], [Put("n", b"0")]).result()
    children = [child(body, sqlite_url) for _ in range(4)]
    assert [read_line(process) for process in children] == ["done"] * 4
    assert store.get("n", stale_ok=False).result().value == b"600"


def test_kill_during_commits_loses_nothing_acknowledged(sqlite_url, opened, child, tmp_path):
    body = """
name = sys.argv[2]
for n in range(1_000_000):
    done = store.commit([], [Put(f"{name}/{n % 50}", bytes(3000)), Put(f"last/{name}", str(n).encode())]).result()
    say(n, done.token)
"""
    rng = random.Random(7)
    store = opened(sqlite_url)
    highest = 0
    for round_number in range(6):
        names = [f"r{round_number}-{i}" for i in range(2)]
        children = [child(body, sqlite_url, name) for name in names]
        first = {name: read_line(process) for name, process in zip(names, children, strict=True)}
        time.sleep(rng.uniform(0.0, 0.15))
        for process in children:
            process.send_signal(signal.SIGKILL)
        for name, process in zip(names, children, strict=True):
            said = process.stdout.read().splitlines(keepends=True)
            whole = [line for line in said if line.endswith("\n")]  # the last may have been cut off by the kill
            number, token = map(int, (whole or [first[name]])[-1].split())
            entry = store.get(f"last/{name}", stale_ok=False).result()
            assert int(entry.value) in {number, number + 1}, "one more at most: committed, killed before it said so"
            assert entry.token >= token > 0
            highest = max(highest, entry.token)
        after = store.commit([], [Put("after", b"")]).result().token
        assert after > highest
    raw = sqlite3.connect(tmp_path / "store.db")
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    raw.close()


def test_transactions_of_killed_processes_are_all_or_nothing(sqlite_url, opened, child):
    body = """
say("ready")
for n in range(1_000_000):
    store.commit([], [Put(f"set/{i}", str(n).encode() * 200) for i in range(60)]).result()
"""
    store = opened(sqlite_url)
    for _ in range(4):
        process = child(body, sqlite_url)
        read_line(process)
        time.sleep(random.uniform(0.02, 0.1))
        process.kill()
        process.wait()
        entries = store.list("set", recursive=False, limit=None, start_after=None).result()
        assert len({(entry.value, entry.token) for entry in entries}) <= 1
        assert len(entries) in {0, 60}


def test_keys_of_a_killed_process_vanish_within_the_ttl(sqlite_url, opened, child, collector, eventually):
    body = """
session = store.open_session(1.0, lambda: None).result()
store.commit([], [Put("mine", b"", session)]).result()
say(session.id)
while True:
    session.renew().result()
    time.sleep(0.05)
"""
    store = opened(sqlite_url)
    sink = collector()
    store.watch("mine", sink)
    process = child(body, sqlite_url)
    owner = read_line(process)
    time.sleep(1.3)
    assert store.get("mine", stale_ok=False).result().owner == owner
    process.kill()
    killed = time.monotonic()
    eventually(lambda: sink.changes() and sink.changes()[-1].entry is None)
    assert 0.5 < time.monotonic() - killed < 2.0


def test_process_stopped_past_its_ttl_is_refused_when_it_wakes(sqlite_url, opened, child, eventually):
    body = """
session = store.open_session(0.5, lambda: None).result()
(mine,) = store.commit([], [Put("mine", b"", session)]).result().entries
say("ready")
sys.stdin.readline()
for name, call in (
    ("fenced", lambda: store.commit([SessionAlive(session.id)], [Put("x", b"late")]).result()),
    ("at", lambda: store.commit([At(mine)], [Put("x", b"late")]).result()),
    ("bound", lambda: store.commit([], [Put("x", b"late", session)]).result()),
    ("renew", lambda: session.renew().result()),
):
    try:
        call()
        say(name, "succeeded")
    except LatchworkError as error:
        say(name, type(error).__name__)
"""
    store = opened(sqlite_url)
    process = child(body, sqlite_url)
    assert read_line(process) == "ready"
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: keys_of(store) == [])
    store.commit([], [Put("mine", b"taken over")]).result()
    process.send_signal(signal.SIGCONT)
    process.stdin.write("go\n")
    process.stdin.flush()
    answers = [read_line(process) for _ in range(4)]
    assert answers == ["fenced Conflict", "at Conflict", "bound SessionLost", "renew SessionLost"]
    assert keys_of(store) == ["mine"]


def test_changes_of_another_process_are_seen(sqlite_url, opened, child, collector, eventually):
    body = """
for line in sys.stdin:
    store.commit([], [Put(line.strip(), b"")]).result()
"""
    store = opened(sqlite_url)
    sink = collector()
    store.watch("", sink)
    process = child(body, sqlite_url)
    for n in range(20):
        process.stdin.write(f"k{n}\n")
        process.stdin.flush()
        eventually(lambda n=n: f"k{n}" in sink.changed_keys())


def test_process_stopped_inside_a_write_makes_others_unavailable_until_it_goes(
    sqlite_url, opened, child, tmp_path, collector, eventually
):
    body = """
import sqlite3
raw = sqlite3.connect(sys.argv[2], isolation_level=None)
raw.execute("BEGIN IMMEDIATE")
raw.execute("UPDATE state SET token = token + 1000000")
say("inside")
os.kill(os.getpid(), signal.SIGSTOP)
"""
    store = opened(sqlite_url, call_timeout_s=0.3)
    store.commit([], [Put("a", b"")]).result()
    sink = collector()
    store.watch("", sink)
    process = child(body, sqlite_url, tmp_path / "store.db")
    assert read_line(process) == "inside"
    started = time.monotonic()
    with pytest.raises(Unavailable, match="stopped process") as caught:
        store.commit([], [Put("b", b"")]).result()
    assert 0.25 < time.monotonic() - started < 3
    assert not isinstance(caught.value, OutcomeUnknown)
    assert keys_of(store) == ["a"], "reads go on"
    process.kill()
    process.wait()
    assert store.commit([], [Put("c", b"")]).result().token < 1_000_000
    eventually(lambda: "c" in sink.changed_keys())
    assert keys_of(store) == ["a", "c"]


def test_forked_child_leaves_the_parents_file_alone(sqlite_url, opened, tmp_path):
    store = opened(sqlite_url)
    store.commit([], [Put("a", b"")]).result()
    session = store.open_session(20, lambda: None).result()
    pid = os.fork()
    if pid == 0:  # a child that drops what it inherited, works on a store of its own, and ends
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            mine = opened(sqlite_url)
            mine.commit([], [Put("child", b"")]).result()
            mine.close()
            status = 0
        finally:
            os._exit(status)
    ended = os.waitpid(pid, 0)[1]
    assert ended == 0
    assert store.commit([SessionAlive(session.id)], [Put("b", b"", session)]).result().token
    assert keys_of(store) == ["a", "b", "child"]
    raw = sqlite3.connect(tmp_path / "store.db")
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    raw.close()


def test_data_survives_all_processes(sqlite_url, opened, child):
    body = """
store.commit([], [Put("a/b", b"x")]).result()
store.create_sequential("q/n-", b"", None).result()
store.close()
say("closed")
"""
    assert read_line(child(body, sqlite_url)) == "closed"
    store = opened(sqlite_url)
    (entry,) = store.get_many(["a/b"]).result()
    assert entry.value == b"x"
    store.commit([At(entry)], [Delete("a/b")]).result()
    with pytest.raises(Conflict):
        store.commit([At(entry)], []).result()
    assert store.create_sequential("q/n-", b"", None).result().key == "q/n-0000000001"


def test_session_of_a_process_that_died_long_ago_is_gone_when_the_file_is_opened(sqlite_url, opened, child):
    body = """
session = store.open_session(0.5, lambda: None).result()
store.commit([], [Put("mine", b"", session)]).result()
say("ready")
time.sleep(60)
"""
    process = child(body, sqlite_url)
    assert read_line(process) == "ready"
    process.kill()
    process.wait()
    time.sleep(0.6)
    store = opened(sqlite_url)
    assert keys_of(store) == []
    with pytest.raises(SessionLost):
        store.commit([], [Put("x", b"", type("Old", (), {"id": "gone"})())]).result()
