"""The database: its schema, its transactions, and the guard without which nothing of a run is written."""

import os
import re
import sqlite3
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from latchwork.errors import LatchworkError
from latchwork_workflows.db import Database, ShardGuard, pools, related_runs
from latchwork_workflows.db.database import DatabaseUnavailable, FairLock
from latchwork_workflows.db.migrations import is_upgrade_needed, upgrade_schema, versions
from latchwork_workflows.db.tables import about, metadata, shard, workflow_run
from latchwork_workflows.errors import NotOwner, SchemaTooNew
from latchwork_workflows.installation import initialize
from latchwork_workflows.state.related_runs import Span
from patience import eventually


def test_the_migrations_make_the_tables(database):
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    assert not is_upgrade_needed(database)
    texts = [each.read_text() for each in Path(versions.__file__).parent.glob("v0*.py")]
    made, before = (
        {number for text in texts for number in re.findall(rf'^{name} = "(\d+)"', text, re.MULTILINE)}
        for name in ("revision", "down_revision")
    )
    (newest,) = made - before  # one after the other, whatever their numbers
    assert upgrade_schema(database) == newest


def test_several_that_start_at_once_make_the_tables_once(database_url):
    databases = [Database(database_url) for _ in range(4)]
    threads = [threading.Thread(target=upgrade_schema, args=(each,)) for each in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not is_upgrade_needed(databases[0])
    for each in databases:
        each.close()


def test_a_schema_of_a_later_version_is_refused(database):
    with database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaTooNew, match="revision 9999"):
        upgrade_schema(database)
    with pytest.raises(SchemaTooNew, match="revision 9999"):
        is_upgrade_needed(database)


@pytest.fixture
def shards(database):
    with database.write() as connection:
        connection.execute(sa.insert(shard), [{"id": 0}, {"id": 1}])
    return database


def test_a_former_owner_writes_nothing(shards):
    old, new = ShardGuard(0, 2**40), ShardGuard(0, 2**40 + 1)
    with shards.write() as connection:
        assert old.acquire(connection, "a") == 0
    with shards.write() as connection:
        assert old.begin_owned_transaction(connection) == 1
    with shards.write() as connection:
        assert new.acquire(connection, "b") == 1
    for attempt in (old.begin_owned_transaction, lambda connection: old.acquire(connection, "a")):
        with pytest.raises(NotOwner), shards.write() as connection:
            attempt(connection)
    with shards.write() as connection:
        assert ShardGuard(1, 1).acquire(connection, "a") == 0


def test_a_run_that_starts_again_under_its_hold_owns_the_shard_again(shards):
    for _ in range(2):
        with shards.write() as connection:
            ShardGuard(0, 5).acquire(connection, "a")


def test_a_transaction_that_a_new_owner_overtakes_is_undone(shards):
    """The guard comes first, so the new owner waits for it, or it for the new owner: never do both write."""
    old, new = ShardGuard(0, 1), ShardGuard(0, 2)
    with shards.write() as connection:
        old.acquire(connection, "old")
    taken = threading.Event()

    def take_over():
        with shards.write() as connection:
            new.acquire(connection, "new")
        taken.set()

    thread = threading.Thread(target=take_over)
    with shards.write() as connection:
        old.begin_owned_transaction(connection)
        thread.start()
        assert not taken.wait(0.2)  # it waits for the transaction that was there first
        connection.execute(sa.insert(about).values(name="written by", value="old"))
    thread.join()
    with pytest.raises(NotOwner), shards.write() as connection:
        old.begin_owned_transaction(connection)
        connection.execute(sa.update(about).values(value="old again"))
    with shards.read() as connection:
        assert connection.execute(sa.select(about.c.value)).scalars().all() == ["old"]


def test_a_block_that_raises_writes_nothing(database):
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.execute(sa.insert(about).values(name="a", value="b"))
        _ = 1 / 0
    with database.read() as connection:
        assert connection.execute(sa.select(about)).all() == []


def test_seventeen_writers_of_one_process_all_write(database):
    waits = []

    def write(number):
        for turn in range(5):
            begun = time.monotonic()
            with database.write() as connection:
                waits.append(time.monotonic() - begun)
                connection.execute(sa.insert(about).values(name=f"{number}-{turn}", value=""))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(about)).scalar() == 85


def test_unknown_and_malformed_urls_are_one_clear_error():
    for url, message in {"mysql://x": "not supported", "nonsense": "malformed"}.items():
        with pytest.raises(LatchworkError, match=message):
            Database(url)


def test_a_password_is_in_no_message():
    database = Database("postgresql+psycopg://me:secret@127.0.0.1:1/none")
    with pytest.raises(DatabaseUnavailable) as caught, database.read():
        pass
    assert "secret" not in str(caught.value)
    assert "***" in str(caught.value)
    database.close()


def test_a_database_file_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "flows.db").mkdir()
    database = Database(f"sqlite:///{tmp_path}/flows.db")
    with pytest.raises(DatabaseUnavailable, match="unable to open"):
        upgrade_schema(database)


def test_ids_and_tokens_have_64_bits(shards):
    with shards.write() as connection:
        ShardGuard(0, 2**62).acquire(connection, "a")
    with shards.read() as connection:
        assert connection.execute(sa.select(shard.c.token).where(shard.c.id == 0)).scalar() == 2**62
    assert str(workflow_run.c.id.type.dialect_impl(sa.dialects.postgresql.dialect())) == "BIGINT"


def test_a_fair_lock_passes_in_the_order_of_arrival():
    lock, order = FairLock(), []
    lock.acquire()

    def take(number):
        with lock:
            order.append(number)

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        eventually(lambda number=number: len(lock._line) == number + 1)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_a_fair_lock_that_is_not_passed_in_time_forgets_who_asked():
    lock = FairLock()
    lock.acquire()
    assert not lock.acquire(0.01)
    lock.release()
    assert lock.acquire(0.01)


def test_a_connection_is_opened_while_somebody_else_writes(tmp_path):
    database, other = (Database(f"sqlite:///{tmp_path}/flows.db") for _ in range(2))
    initialize(database)
    with database.write() as writing:
        writing.exec_driver_sql("INSERT INTO about (name, value) VALUES ('x', 'y')")
        with other.read() as reading:
            assert reading.exec_driver_sql("SELECT count(*) FROM about WHERE name = 'x'").scalar() == 0
    database.close()
    other.close()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_server_that_vanishes_is_noticed_by_the_connection_itself(database):
    with database.read() as connection:
        told = connection.connection.dbapi_connection.info.get_parameters()
    assert told["tcp_user_timeout"] == "10000"
    assert (told["keepalives_idle"], told["keepalives_interval"], told["keepalives_count"]) == ("5", "2", "3")


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_connection_that_the_server_has_closed_meanwhile_is_replaced_before_it_is_used(database, monkeypatch):
    monkeypatch.setattr("latchwork_workflows.db.database._IDLE_S", 0.0)
    other = Database(database.engine.url.render_as_string(hide_password=False))
    with database.read() as connection:
        before = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
    with other.read() as connection:
        connection.execute(sa.select(sa.func.pg_terminate_backend(before)))
    with database.read() as connection:
        assert connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one() != before
    other.close()


def test_the_dates_of_a_backfill_are_counted_by_an_index_that_has_all_that_is_asked(database):
    text = "SELECT state, count(*) FROM workflow_run WHERE backfill = 7 GROUP BY state"
    with database.write() as connection:
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # there is not a row in it
        explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
        assert "ix_workflow_run_backfill_state" in str(connection.exec_driver_sql(f"{explain} {text}").all())


def test_the_tasks_in_hands_are_counted_by_the_runs_that_go_and_not_by_all_tasks_there_ever_were(database):
    asked = []
    with database.write() as connection:
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # there is not a row in it
        sa.event.listen(connection, "before_cursor_execute", lambda *given: asked.append(given[2:4]))
        pools.count_active_tasks(connection, "default")
        pools.count_waiting_tasks_by_pool(connection)
        explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
        for text, given in asked[:2]:
            plan = str(connection.exec_driver_sql(f"{explain} {text}", given).all())
            assert re.search(r"ix_workflow_run_(going|state_id|code_state_id)", plan), plan
            assert not re.search(r"SCAN task|Scan on task", plan), plan


def test_an_old_sqlite_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(sqlite3.dbapi2, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3.dbapi2, "sqlite_version", "3.34.1")
    with pytest.raises(LatchworkError, match=r"SQLite of this Python is 3\.34\.1, and workflows need 3\.35; use a"):
        Database("sqlite://")


def test_the_newest_run_of_a_span_is_found_without_a_look_at_those_of_other_spans(database):
    with database.write() as connection:
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        said = []

        @sa.event.listens_for(connection, "before_cursor_execute", retval=True)
        def explained(_connection, _cursor, text, given, _context, _many):
            if text.startswith("SELECT workflow_run.id") and not said:
                said.append((f"{'EXPLAIN QUERY PLAN' if database.is_sqlite else 'EXPLAIN'} {text}", given))
            return text, given

        related_runs.find_newest_run(connection, 7, Span(0.0, 1.0), [1, 2])
        told = str(connection.exec_driver_sql(*said[0]).all())
        assert "ix_workflow_run_code_schedule_time_id" in told
        assert "Sort" not in told
        assert "ORDER BY" not in told


def test_a_database_file_is_for_its_user_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        made = Database(f"sqlite:///{tmp_path}/flows.db")
        initialize(made)
        modes = {each.name: oct(each.stat().st_mode & 0o777) for each in tmp_path.iterdir()}
        made.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("flows.db", "flows.db-wal", "flows.db-shm"), "0o600")
