"""Database and store in trouble: away, slow, full, read-only, both at once, two for one, restored from a backup."""

import shutil
import sqlite3
import time
import uuid
from contextlib import closing

import pytest
import sqlalchemy as sa

import latchwork
from latchwork.testing import Fault, FaultyStore
from latchwork_workflows.db import Database
from latchwork_workflows.db import database as of_database
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.tables import event
from latchwork_workflows.errors import NotOwner, StoreMismatch
from latchwork_workflows.installation import adopt_store, join_store
from latchwork_workflows.keys import Keys, get_workflows_store
from latchwork_workflows.maintenance.doctor import Doctor
from patience import eventually
from trials.fault import locked
from workflows.hands import Hand, Stage, a_workflow, stage_in_memory


@pytest.fixture
def path(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path / "flows.db")
    return tmp_path / "flows.db"


@pytest.fixture
def stage(path, store):
    """On a file, which tests fill, lock and restore."""
    made = Stage(f"sqlite:///{path}", store)
    yield made
    made.close()


@pytest.fixture
def faulty(path):
    """A stage whose master has a store that can be cut off; workers have it always."""
    name = f"memory://{uuid.uuid4().hex}"
    with FaultyStore(latchwork.connect(name)) as store, latchwork.connect(name) as plain:
        made = Stage(f"sqlite:///{path}", store)
        made.plain = plain
        yield made
        made.close()


def half_way(stage, hand):
    """A run whose first task is at work."""
    made = stage.start(stage.apply(a_workflow()))
    claim = hand.wait("a")
    stage.until_task(made, a="running")
    return made, claim


def run_out(stage, hand, made):
    hand.end(hand.wait("b"))
    stage.until(made, "success")
    eventually(lambda: stage.left() == [])
    assert [outcome for _, _, outcome, _, _ in stage.attempts()] == ["success"] * 2


def pragma(stage, monkeypatch, text):
    """Each connection of the database has this setting from now on."""
    told = [text]
    sa.event.listen(stage.database.engine, "checkout", lambda connection, *_: connection.execute(told[0]))
    stage.database.engine.dispose()
    return told


# The database


@pytest.mark.parametrize(
    ("bad", "good", "words"),
    [
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000", "full"),
        ("PRAGMA query_only = ON", "PRAGMA query_only = OFF", "readonly"),
    ],
    ids=["full", "read-only"],
)
def test_a_database_that_is_full_or_read_only_for_a_while_loses_nothing(stage, monkeypatch, bad, good, words, caplog):
    hand = stage.hand()
    with stage.master():
        made, claim = half_way(stage, hand)
        told = pragma(stage, monkeypatch, bad)
        hand.end(claim, outputs={"rows": "x" * 30_000})  # more than the pages that are there can take
        eventually(lambda: words in caplog.text)
        with pytest.raises(DatabaseUnavailable, match=words), stage.database.write() as connection:
            connection.execute(sa.insert(event).values(at=0.0, kind="x" * 30, details={"much": "x" * 100_000}))
        told[0] = good
        run_out(stage, hand, made)


def test_a_file_that_another_program_keeps_longer_than_a_writer_waits_loses_nothing(path, store, monkeypatch, caplog):
    monkeypatch.setattr(of_database, "_BUSY_S", 0.3)
    stage = Stage(f"sqlite:///{path}", store)
    hand = stage.hand()
    with stage.master():
        made, claim = half_way(stage, hand)
        with locked(path):
            hand.end(claim)
            eventually(lambda: "database is locked" in caplog.text)
        run_out(stage, hand, made)
    stage.close()


@pytest.fixture
def on_postgres(database_url):
    with stage_in_memory(database_url) as made:
        yield made


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_server_that_only_reads_for_a_while_loses_nothing(on_postgres, caplog):
    stage, hand = on_postgres, on_postgres.hand()
    with stage.master():
        made, claim = half_way(stage, hand)
        name = stage.database.engine.url.database
        with stage.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            stage.database.engine.dispose()
            hand.end(claim)
            eventually(lambda: "read-only transaction" in caplog.text, 20.0)
            connection.exec_driver_sql("SET default_transaction_read_only = off")
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
            stage.database.engine.dispose()
        run_out(stage, hand, made)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_server_that_is_slower_than_a_statement_may_be_loses_nothing(on_postgres, caplog, monkeypatch):
    stage, hand = on_postgres, on_postgres.hand()
    with stage.master():
        made, claim = half_way(stage, hand)
        other = Database(stage.database.engine.url.render_as_string(hide_password=False))
        with other.write() as connection:
            connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
            connection.exec_driver_sql("SELECT 1 FROM shard FOR UPDATE")
            hand.end(claim)
            eventually(lambda: "statement timeout" in caplog.text, 30.0)
        run_out(stage, hand, made)
        other.close()


# The store, and both


def test_a_store_that_is_away_from_a_master_for_a_while_loses_nothing(faulty):
    hand = Hand(faulty.plain)
    with faulty.master():
        made, claim = half_way(faulty, hand)
        faulty.opened.cut_off()
        hand.end(claim)
        time.sleep(1.0)
        assert faulty.states(made)["a"] == "running"
        faulty.opened.reconnect()
        run_out(faulty, hand, made)
    hand.die()


def test_a_database_and_a_store_that_are_away_at_once_lose_nothing(faulty, path, monkeypatch):
    monkeypatch.setattr(of_database, "_BUSY_S", 0.3)
    faulty.database.engine.dispose()
    hand = Hand(faulty.plain)
    with faulty.master():
        made, claim = half_way(faulty, hand)
        with locked(path):
            faulty.opened.cut_off()
            hand.end(claim)
            time.sleep(1.0)
        time.sleep(0.5)  # one comes back before the other
        faulty.opened.reconnect()
        run_out(faulty, hand, made)
    hand.die()


@pytest.mark.parametrize("kind", ["cut_before", "cut_after"])
def test_what_is_put_without_an_answer_is_put_again_and_runs_once(path, kind):
    """DolphinScheduler #16481: a dispatch that timed out was dispatched a second time."""
    name = f"memory://{uuid.uuid4().hex}"
    puts = [Fault(kind, op="commit", key="*/items/*")]
    with FaultyStore(latchwork.connect(name), puts) as store, latchwork.connect(name) as plain:
        stage, hand = Stage(f"sqlite:///{path}", store), Hand(plain)
        with stage.master():
            made = stage.start(stage.apply(a_workflow()))
            hand.end(hand.wait("a"))
            assert hand.take() == {}
            run_out(stage, hand, made)
        hand.die()
        stage.close()


# Pairs


def test_of_two_stores_that_are_given_one_database_one_is_refused(path):
    database, keys = Database(f"sqlite:///{path}"), Keys()
    first, second = (latchwork.connect(f"memory://{uuid.uuid4().hex}") for _ in range(2))
    with first, second, closing(database):
        join_store(database, first, keys)
        with pytest.raises(StoreMismatch, match="given two stores"):
            join_store(database, second, keys)
        join_store(database, first, keys)
        assert [each.kind for each in Doctor(database, second).check()] == ["wrong store"]


def test_a_master_whose_store_was_replaced_meanwhile_writes_nothing_more(path):
    first, second = (latchwork.connect(f"memory://{uuid.uuid4().hex}") for _ in range(2))
    with first, second:
        stage = Stage(f"sqlite:///{path}", first)
        join_store(stage.database, first, stage.keys)
        hand = stage.hand()
        with pytest.raises((NotOwner, StoreMismatch)), stage.master() as run:
            made, claim = half_way(stage, hand)
            adopt_store(stage.database, second, stage.keys)  # somebody forgot that a master lives elsewhere
            hand.end(claim)
            stage.poke()
            eventually(lambda: stage.is_over(run))
        with pytest.raises(StoreMismatch, match="another store"), stage.master() as run:
            eventually(lambda: stage.is_over(run))
        assert stage.states(made)["a"] == "running"
        stage.close()


def test_a_database_that_is_restored_is_refused_until_it_is_adopted_and_then_runs_what_it_knows(stage, tmp_path):
    join_store(stage.database, stage.store, stage.keys)
    hand = stage.hand()
    with stage.master():
        made, claim = half_way(stage, hand)
        with closing(sqlite3.connect(tmp_path / "flows.db")) as source, closing(sqlite3.connect(tmp_path / "b")) as to:
            source.backup(to)
        hand.end(claim)
        run_out(stage, hand, made)
    stage.database.engine.dispose()
    for name in ("flows.db-wal", "flows.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "b", tmp_path / "flows.db")
    with pytest.raises(StoreMismatch, match="restored from a backup"), stage.master() as run:
        eventually(lambda: stage.is_over(run))
    assert stage.states(made) == {"a": "running", "b": "waiting"}
    adopt_store(stage.database, stage.store, stage.keys)
    with stage.master():
        hand.end(hand.wait("a"))
        hand.end(hand.wait("b"))
        stage.until(made, "success")


def test_a_store_that_is_restored_is_refused_until_it_is_adopted_and_nothing_runs_twice(path, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    store = latchwork.connect(url)
    stage = Stage(f"sqlite:///{path}", store)
    join_store(stage.database, store, stage.keys)
    hand = stage.hand()
    with closing(sqlite3.connect(tmp_path / "store.db")) as source, closing(sqlite3.connect(tmp_path / "b")) as to:
        source.backup(to)
    with stage.master():
        made, claim = half_way(stage, hand)
        hand.end(claim)
        hand.wait("b")
        stage.until_task(made, b="running")
    stage.lose(hand)
    store.close()
    for each in tmp_path.glob("store.db*"):
        each.unlink()
    shutil.copy(tmp_path / "b", tmp_path / "store.db")
    with latchwork.connect(url) as restored:
        stage.store = get_workflows_store(restored)
        with pytest.raises(StoreMismatch, match="store was restored"), stage.master() as run:
            eventually(lambda: stage.is_over(run))  # though the lock has the very token that it had before
        adopt_store(stage.database, restored, stage.keys)
        again = stage.hand()
        with stage.master():
            again.end(again.wait("b"))
            stage.until(made, "success")
            assert stage.states(made) == {"a": "success", "b": "success"}
        stage.close()
