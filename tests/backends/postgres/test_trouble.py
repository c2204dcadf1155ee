"""A server in trouble: without room for connections or data, read-only, with a wrong clock, or unable to vacuum."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

import latchwork
from disks import mounted
from latchwork.errors import ConnectFailed, LatchworkError, OutcomeUnknown, QuotaExceeded, Unavailable
from latchwork_testkit.postgres import find_faketime, unprivileged_user
from latchwork_testkit.servers import PostgresServer
from levels import LONG
from missing import found_or_skipped
from patience import eventually


def test_a_server_without_a_free_connection_is_named_and_used_as_soon_as_there_is_one(opened):
    with PostgresServer(settings={"max_connections": "8", "superuser_reserved_connections": "0"}) as server:
        store = opened(server.url("app", call_timeout_s=1))
        store.put("k", b"1")
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    stack.enter_context(psycopg.connect(f"postgresql://latchwork@{server.endpoint}/postgres"))
            with pytest.raises(ConnectFailed, match="too many clients"):
                latchwork.connect(server.url("app", connect_timeout_s=0.5))
            store.put("k", b"2")  # it has its own
        latchwork.connect(server.url("app", connect_timeout_s=10)).close()


def test_a_store_whose_account_may_have_no_connection_is_told_so_and_works_again_once_it_may(own, opened, sql):
    opened(own.url("app")).put("k", b"1")
    sql(own, "create role limited login connection limit 3")
    for grant in ("usage on schema", "select, insert, update, delete on all tables in schema"):
        sql(own, f"grant {grant} latchwork to limited")
    sql(own, "grant usage, select, update on all sequences in schema latchwork to limited")
    store = opened(own.url("app", call_timeout_s=1).replace("latchwork@", "limited@"))
    with store.watch("k") as watch:
        watch.next(5.0)
        assert store.put("k", b"2").value == b"2"
        sql(own, "alter role limited connection limit 0")
        sql(own, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'limited'")
        with pytest.raises((OutcomeUnknown, Unavailable), match="too many connections for role"):
            store.put("k", b"3")
        sql(own, "alter role limited connection limit 3")
        began = time.monotonic()
        eventually(lambda: put(store, b"4"))
        assert time.monotonic() - began < 3.0
        eventually(lambda: any(change.entry.value == b"4" for change in watch.next(5.0)))


def put(store, value):
    try:
        return store.put("k", value)
    except LatchworkError:
        return None


def test_a_link_on_which_connecting_takes_longer_than_a_call_is_used_again_after_it_was_cut(
    postgresql, proxied, root, opened, sql
):
    """A connection takes seven trips, and a read two. Were attempts given up with their calls, none would succeed."""
    proxy, url = proxied(postgresql, root, call_timeout_s=1, connect_timeout_s=10)
    store = opened(url)
    store.put("k", b"1")
    with store.watch("k") as watch:
        watch.next(5.0)
        proxy.delay(0.2, "answers")
        proxy.cut()
        assert eventually(lambda: value_of(store, "k"), 30.0) == b"1"
        assert eventually(lambda: put(store, b"2"), 20.0)
        assert [change.entry.value for change in watch.next(20.0)] == [b"2"]
        assert value_of(store, "k") == b"2"


def value_of(store, key):
    """The value of a key; None if it could not be read in time."""
    try:
        return store.get(key).value
    except LatchworkError:
        return None


def test_a_server_that_becomes_read_only_refuses_writes_and_serves_what_is_connected(own, opened, sql):
    store, other = opened(own.url("app", call_timeout_s=1)), opened(own.url("app", call_timeout_s=1))
    store.put("k", b"1")
    with other.watch("k") as watch:
        watch.next(5.0)
        sql(own, "alter system set default_transaction_read_only = on")
        sql(own, "select pg_reload_conf()")
        eventually(lambda: refusal(lambda: store.put("other", b"")))
        assert isinstance(refusal(lambda: store.put("k", b"2")), Unavailable)
        assert other.get("k").value == b"1"
        assert isinstance(refusal(lambda: latchwork.connect(own.url("app", connect_timeout_s=0.5))), ConnectFailed)
        with psycopg.connect(f"postgresql://latchwork@{own.endpoint}/postgres", autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = off")
            connection.execute("alter system reset default_transaction_read_only")
            connection.execute("select pg_reload_conf()")
        began = time.monotonic()
        eventually(lambda: put(store, b"3"), 10.0)
        assert time.monotonic() - began < 3.0
        assert [change.entry.value for change in watch.next(5.0)] == [b"3"]


def refusal(call):
    """The error that a call ends with; None if it succeeds."""
    try:
        call()
    except LatchworkError as error:
        return error
    return None


@pytest.fixture
def folder():
    """A folder that the account of the server can enter."""
    with tempfile.TemporaryDirectory(prefix="latchwork-disk-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_full_disk_refuses_writes_and_all_is_well_once_there_is_room(own, opened, sql, folder):
    """The tables are on the small disk and the server's log is not: it can refuse in an orderly way."""
    with mounted(folder, 12) as disk:
        ballast, space = disk / "ballast", disk / "space"
        ballast.write_bytes(b"\0" * 4_000_000)
        space.mkdir()
        if unprivileged_user() is not None:
            shutil.chown(space, unprivileged_user())
        store = opened(own.url("app"))
        store.put("k", b"1")
        sql(own, f"create tablespace small location '{space}'")
        for table in ("entries", "changes"):
            sql(own, f"alter table latchwork.{table} set tablespace small")
        stored = []
        with pytest.raises(QuotaExceeded, match="free space"):
            stored.extend(store.put(f"big/{number}", os.urandom(20_000)) for number in range(1_000))
        assert store.get(f"big/{len(stored)}") is None, "a refused write was applied"
        assert [store.get(entry.key) for entry in stored] == stored
        ballast.unlink()
        assert store.put("k", b"2").value == b"2"
        assert store.delete_tree("big") == len(stored)
        own.kill()


def test_a_server_that_cannot_write_its_log_has_every_confirmed_write_afterwards(opened, folder):
    with mounted(folder, 150) as disk, PostgresServer(data_dir=disk / "server") as server:
        store = opened(server.url("app", call_timeout_s=3))
        store.put("k", b"")
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * (shutil.disk_usage(disk).free - 6_000_000))
        confirmed, errors = {}, []
        for number in range(3_000):
            key = f"k/{number % 20}"
            try:
                confirmed[key] = store.put(key, os.urandom(20_000)).token
            except LatchworkError as error:
                errors.append(error)
                if len(errors) == 2:
                    break
        assert errors, "the disk was never full"
        ballast.unlink()
        if not server.running:
            server.start()
        eventually(lambda: put(store, b"after"), 30.0)
        found = {entry.key: entry.token for entry in store.list("k")}
        assert all(found[key] >= token for key, token in confirmed.items()), "a confirmed write is gone"
        store.close()


@pytest.fixture
def clocked():
    """A server whose wall clock the test can set."""
    found_or_skipped(find_faketime)
    with PostgresServer(fake_clock=True) as server:
        yield server


def test_keys_of_a_dead_process_vanish_in_time_although_the_servers_clock_was_set_back_an_hour(clocked, opened, sql):
    store, other = opened(clocked.url("app")), opened(clocked.url("app"))
    living, dead = store.open_session(2.0), store.open_session(2.0)
    store.create("living", b"", session=living)
    store.create("dead", b"", session=dead)
    before = sql(clocked, "select clock_timestamp()")[0][0]
    clocked.set_clock(-3600)
    assert sql(clocked, "select clock_timestamp()")[0][0] < before, "the clock was not set"
    store._core.backend._sessions._open.pop(dead.id)  # from here on nobody renews it
    eventually(lambda: other.get("dead") is None, 20.0)
    assert living.state == "active"
    assert other.get("living").owner == living.id


def test_a_servers_clock_that_jumps_ahead_ends_sessions_and_fences_refuse_their_writes(clocked, opened):
    store, other = opened(clocked.url("app")), opened(clocked.url("app"))
    session = store.open_session(20.0)
    store.create("bound", b"", session=session)
    time.sleep(1.0)
    clocked.set_clock(3600)
    eventually(lambda: other.get("bound") is None, 20.0)
    with pytest.raises(latchwork.errors.Conflict):
        store.commit([session.fence], [latchwork.Put("guarded", b"")])
    assert session.lost.wait(20.0)


@pytest.mark.timeout(4000 if LONG else 120)
def test_a_long_transaction_beside_full_load_costs_no_session_and_no_write(own, opened, sql):
    """Nothing can be vacuumed meanwhile; afterwards the tables become small again. In `make check` for an hour."""
    store, other = opened(own.url("app")), opened(own.url("app"))
    sessions = [store.open_session(3.0) for _ in range(20)]
    with psycopg.connect(f"postgresql://latchwork@{own.endpoint}/postgres") as beside, other.mirror("k") as mirror:
        beside.execute("set transaction isolation level repeatable read")
        beside.execute("select pg_current_xact_id(), count(*) from latchwork.entries")
        until, number, rates = time.monotonic() + (3600.0 if LONG else 8.0), 0, []
        while time.monotonic() < until:
            began = time.monotonic()
            with store.pipeline() as pipeline:
                for key in range(100):
                    pipeline.put(f"k/{key}", b"%d" % number)
            number += 1
            rates.append(100 / (time.monotonic() - began))
        eventually(lambda: mirror.get("k/99") is not None and mirror["k/99"].value == b"%d" % (number - 1))
        assert all(session.state == "active" for session in sessions)
        part = max(1, len(rates) // 10)
        print(f"puts/s: {sum(rates[:part]) / part:.0f} first tenth, {sum(rates[-part:]) / part:.0f} last tenth")
        assert sum(rates[-part:]) > sum(rates[:part]) / 20
        beside.rollback()
    sql(own, "select latchwork.trim((select id from latchwork.roots), 1000, 0)")
    sql(own, "vacuum latchwork.entries, latchwork.sessions, latchwork.changes")
    dead = "select sum(n_dead_tup) from pg_stat_user_tables where schemaname = 'latchwork'"
    eventually(lambda: sql(own, dead)[0][0] < 1000, 20.0)
