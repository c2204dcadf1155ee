"""Sessions and watches: one statement for all renewals, changes that were forgotten, notifications that got lost."""

from __future__ import annotations

import shutil
import time

import pytest

from latchwork_testkit.servers import PostgresServer
from patience import eventually

ROOT = "(select id from latchwork.roots where name = %s)"


def test_the_sessions_of_a_store_are_renewed_together(opened):
    with PostgresServer(settings={"log_statement": "all"}) as server:
        store = opened(server.url("app"))
        sessions = [store.open_session(3.0) for _ in range(40)]
        count, began = renewals(server), time.monotonic()
        time.sleep(4.0)
        passed = (time.monotonic() - began) / 1.0  # each is renewed every second
        sent = renewals(server) - count
        assert all(session.state == "active" for session in sessions)
        assert 3 <= sent <= 8 * passed, "forty sessions alone would be forty a second"


def renewals(server):
    return server.log_path.read_text(errors="replace").count("renew_sessions($1, $2)\n")


def test_any_store_ends_the_sessions_of_one_that_died(postgresql, root, opened, sql):
    store, other = opened(postgresql.url(root)), opened(postgresql.url(root))
    session = store.open_session(2.0)
    store.create("bound", b"", session=session)
    with other.watch("") as watch:
        watch.next(5.0)
        # A server that has just started gives every session a TTL.
        sql(postgresql, "select pg_sleep_until(pg_postmaster_start_time() + interval '2.1 seconds')")
        sql(postgresql, "update latchwork.sessions set deadline = now() where id = %s", session.id)
        other._core.backend._hub.schedule_expiry_check(0.0)  # what it does by itself when the next deadline comes
        eventually(lambda: other.get("bound") is None, 5.0)
        assert [(change.key, change.entry) for change in watch.next(5.0)] == [("bound", None)]


@pytest.mark.slow
def test_a_session_that_was_found_dead_stays_dead_when_the_server_restarts(own, opened, sql):
    """A restart gives the living a TTL more: the dead must not come back by it."""
    store, other = opened(own.url("app")), opened(own.url("app"))
    session = store.open_session(1.0)
    store.create("bound", b"", session=session)
    time.sleep(1.1)  # since the start of the server
    sql(own, "update latchwork.sessions set deadline = now() - interval '1 minute'")
    alive = sql(own, "select latchwork.is_alive(root, id) from latchwork.sessions")
    own.kill()
    own.restart()
    assert alive == [(False,)]
    assert other.get("bound") is None


def test_a_session_survives_a_crash_of_the_server_that_forgets_its_last_renewals(own, opened, sql):
    store, other = opened(own.url("app")), opened(own.url("app"))
    session = store.open_session(30.0)
    store.create("bound", b"", session=session)
    own.kill()
    own.restart()
    sql(own, "update latchwork.sessions set deadline = now() - interval '1 second'")  # as if they had been lost
    other._core.backend._hub.schedule_expiry_check(0.0)
    time.sleep(1.0)
    assert other.get("bound").owner == session.id
    eventually(lambda: session.state == "active")


def test_a_watch_that_missed_what_was_forgotten_begins_again_with_a_snapshot(postgresql, root, opened, proxied, sql):
    proxy, url = proxied(postgresql, root)
    store, other = opened(url), opened(postgresql.url(root))
    other.put("w/gone", b"1")
    other.put("w/kept", b"1")
    with store.mirror("w") as mirror:
        mirror.ready(5.0)
        proxy.refuse()
        other.delete("w/gone")
        for number in range(30):
            other.put("w/kept", b"%d" % number)
        sql(postgresql, f"select latchwork.trim({ROOT}, 3, 0)", root)
        proxy.accept()
        eventually(lambda: {key: entry.value for key, entry in mirror.items()} == {"w/kept": b"29"}, 8.0)


def test_old_changes_are_forgotten_but_never_the_last_ones(postgresql, root, opened, sql):
    store = opened(postgresql.url(root))
    for number in range(20):
        store.put("k", b"%d" % number)
    (number,) = sql(postgresql, f"select {ROOT}", root)[0]
    count = "select count(*) from latchwork.changes where root = %s"
    sql(postgresql, "select latchwork.trim(%s, 5, 60)", number)
    assert sql(postgresql, count, number)[0][0] >= 20, "the young ones are kept"
    sql(postgresql, "select latchwork.trim(%s, 5, 0)", number)
    assert sql(postgresql, count, number) == [(6,)]


def test_a_change_whose_notification_was_lost_is_seen_within_two_seconds(postgresql, root, opened, sql):
    store = opened(postgresql.url(root))
    store.put("k", b"1")
    with store.watch("k", single_key=True) as watch:
        watch.next(5.0)
        sql(
            postgresql,
            "with t as (select nextval('latchwork.tokens') as token), e as (update latchwork.entries set value = '2',"
            f" token = t.token from t where root = {ROOT} and key = 'k') insert into latchwork.changes"
            f" (root, token, request, key, created) select {ROOT}, token, 0, 'k', 1 from t",
            root,
            root,
        )
        assert [change.entry.value for change in watch.next(4.0)] == [b"2"]


@pytest.mark.slow
def test_a_watch_hears_of_a_server_that_has_gone_back_to_a_backup(own, opened, proxied, tmp_path):
    """Its tokens have come further than the watch had when it is reached again: a number alone would not show it."""
    proxy, url = proxied(own, "app")
    store = opened(url)
    store.put("w/kept", b"1")
    with store.mirror("w") as mirror:
        mirror.ready(5.0)
        own.stop()
        shutil.copytree(own.data_dir / "postgres", tmp_path / "backup")
        own.start()
        for number in range(20):
            store.put("w/lost", b"%d" % number)
        eventually(lambda: mirror.get("w/lost") is not None and mirror["w/lost"].value == b"19")
        proxy.refuse()
        own.stop()
        shutil.rmtree(own.data_dir / "postgres")
        shutil.copytree(tmp_path / "backup", own.data_dir / "postgres")
        hand_to_the_server(own)
        own.start()
        other = opened(own.url("app"))
        for _ in range(60):
            other.put("elsewhere", b"")
        proxy.accept()
        eventually(lambda: {key: entry.value for key, entry in mirror.items()} == {"w/kept": b"1"}, 15.0)


def hand_to_the_server(server):
    """A copy that root made belongs to root."""
    from latchwork_testkit.postgres import unprivileged_user

    user = unprivileged_user()
    if user is not None:
        for path in [server.data_dir / "postgres", *(server.data_dir / "postgres").rglob("*")]:
            shutil.chown(path, user)


@pytest.mark.parametrize("heartbeats", [True, False])
def test_a_put_is_told_to_another_store_in_milliseconds(postgresql, root, opened, heartbeats):
    store, other = opened(postgresql.url(root)), opened(postgresql.url(root))
    with other.watch("k", single_key=not heartbeats) as watch:
        watch.next(5.0)
        took = []
        for number in range(20):
            time.sleep(0.02)
            began = time.monotonic()
            store.put("k", b"%d" % number)
            watch.next(5.0)
            took.append(time.monotonic() - began)
    assert sorted(took)[10] < 0.25, took


def test_the_end_of_a_session_is_told_to_other_stores_at_once(postgresql, root, opened):
    """Sooner than they look by themselves, which is every two seconds."""
    other = opened(postgresql.url(root))
    took = []
    for _ in range(4):
        store = opened(postgresql.url(root))
        store.create("bound", b"", session=store.session)
        with other.watch("bound", single_key=True) as watch:
            watch.next(5.0)
            began = time.monotonic()
            store.close()
            assert [change.entry for change in watch.next(5.0)] == [None]
            took.append(time.monotonic() - began)
    assert sorted(took)[1] < 0.7, took


def test_a_store_does_not_look_for_writes_that_concern_none_of_its_watches(opened):
    with PostgresServer(settings={"log_statement": "all"}) as server:
        store, other = opened(server.url("app")), opened(server.url("app"))
        with other.watch("mine", single_key=True) as watch:
            watch.next(5.0)
            before = looks(server)
            for number in range(100):
                store.put("yours", b"%d" % number)
                time.sleep(0.006)
            beside = looks(server) - before
            store.put("mine", b"")
            assert [change.key for change in watch.next(5.0)] == ["mine"]
        assert beside <= 5, "a look every two seconds, whatever others write"


def looks(server):
    return server.log_path.read_text(errors="replace").count(
        "begin transaction isolation level repeatable read read only"
    )
