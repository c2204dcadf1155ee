"""The schema: made once, by whoever may, and used by accounts that may do no more than that."""

from __future__ import annotations

import threading
import uuid

import pytest

import latchwork
from latchwork.errors import AuthenticationFailed, ConnectFailed, PermissionDenied


def url_of(server, database="postgres", user="latchwork", **options):
    query = "&".join(f"{name}={value}" for name, value in {"root": "app", **options}.items())
    return f"postgresql://{user}@{server.endpoint}/{database}?{query}"


@pytest.fixture
def database(postgresql, sql):
    """A database of its own."""
    name = f"db_{uuid.uuid4().hex[:12]}"
    sql(postgresql, f"create database {name}")
    return name


@pytest.fixture
def account(postgresql, sql):
    """An account without any right but to connect."""
    name = f"user_{uuid.uuid4().hex[:12]}"
    sql(postgresql, f"create role {name} login")
    return name


def test_many_stores_that_connect_to_an_empty_database_at_once_make_one_schema(postgresql, database, sql):
    errors, ready = [], threading.Barrier(6)

    def connect(number):
        ready.wait()
        try:
            with latchwork.connect(url_of(postgresql, database)) as store:
                store.put(f"from/{number}", b"")
        except latchwork.LatchworkError as error:
            errors.append(error)

    threads = [threading.Thread(target=connect, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sql(postgresql, "select count(*) from latchwork.meta", database=database) == [(1,)]
    assert sql(postgresql, "select name from latchwork.roots", database=database) == [("app",)]
    assert sql(postgresql, "select count(*) from latchwork.entries", database=database) == [(6,)]


def test_roots_and_schemas_of_one_database_know_nothing_of_each_other(postgresql, database, opened):
    stores = [
        opened(url_of(postgresql, database)),
        opened(url_of(postgresql, database, root="other")),
        opened(url_of(postgresql, database, schema="apart")),
    ]
    for number, store in enumerate(stores):
        store.put("key", b"%d" % number)
    assert [store.get("key").value for store in stores] == [b"0", b"1", b"2"]
    assert stores[0].delete_tree("") == 1
    assert [store.get("key") is None for store in stores] == [True, False, False]


def test_an_account_needs_no_more_than_the_reference_says(postgresql, database, account, opened, sql):
    opened(url_of(postgresql, database)).put("there", b"")
    with pytest.raises(PermissionDenied, match="schema latchwork"):
        latchwork.connect(url_of(postgresql, database, account))
    for grant in (
        f"grant usage on schema latchwork to {account}",
        f"grant select, insert, update, delete on all tables in schema latchwork to {account}",
        f"grant usage, select, update on all sequences in schema latchwork to {account}",
    ):
        sql(postgresql, grant, database=database)
    store = opened(url_of(postgresql, database, account))
    store.create("bound", b"", session=store.session)
    with store.watch("") as watch:
        assert {change.key for change in watch.next(5.0)} == {"there", "bound"}
        store.create("n/t-", b"", sequential=True)
        assert [change.key for change in watch.next(5.0)] == ["n/t-0000000000"]
    assert store.delete_tree("n") == 1


def test_an_account_that_may_not_make_the_schema_is_told_so(postgresql, database, account):
    with pytest.raises(PermissionDenied, match="make the schema latchwork"):
        latchwork.connect(url_of(postgresql, database, account))


def test_a_right_that_is_taken_away_ends_watches_and_is_named_by_calls(postgresql, database, account, opened, sql):
    opened(url_of(postgresql, database)).put("there", b"")
    for grant in ("usage on schema", "select, insert, update, delete on all tables in schema"):
        sql(postgresql, f"grant {grant} latchwork to {account}", database=database)
    store = opened(url_of(postgresql, database, account))
    watch = store.watch("")
    watch.next(5.0)
    sql(postgresql, f"revoke select on all tables in schema latchwork from {account}", database=database)
    with pytest.raises(PermissionDenied):
        watch.next(5.0)
    with pytest.raises(PermissionDenied, match="read 'there'"):
        store.get("there")


def test_a_newer_format_is_refused_and_named(postgresql, database, opened, sql):
    opened(url_of(postgresql, database)).put("key", b"")
    sql(postgresql, "update latchwork.meta set format = 99", database=database)
    with pytest.raises(ConnectFailed, match="format 99"):
        latchwork.connect(url_of(postgresql, database))


@pytest.mark.parametrize(
    ("where", "error", "match"),
    [
        ({"user": "nobody_known"}, AuthenticationFailed, "nobody_known"),
        ({"database": "absent"}, ConnectFailed, "create"),
    ],
    ids=["account", "database"],
)
def test_what_the_server_does_not_know_is_said_at_once(postgresql, where, error, match):
    with pytest.raises(error, match=match):
        latchwork.connect(url_of(postgresql, **where, connect_timeout_s=20))
