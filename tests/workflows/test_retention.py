"""What is too old is deleted: whole runs with their logs, and nothing that somebody may still want."""

import logging
import threading
import time

import pytest
import sqlalchemy as sa

from latchwork.schedules import WallClock
from latchwork_workflows.db import Database, definitions, retention
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.tables import (
    about,
    attempt,
    backfill,
    command,
    event,
    fire,
    schedule,
    shard,
    task,
    workflow_run,
)
from latchwork_workflows.installation import initialize, load_installation
from latchwork_workflows.logs import open_logs
from latchwork_workflows.master import Master, Retention
from latchwork_workflows.master.cleanup import Cleanup
from patience import eventually
from workflows.hands import a_workflow

DAY = 86_400.0
NOW = 1_800_000_000.0
ON_FILE = pytest.mark.parametrize("database_url", [pytest.param("sqlite", id="file")], indirect=True)


class Past:
    """A database with a history, and logs of it."""

    def __init__(self, url, folder):
        self.database = Database(url)
        initialize(self.database, shards=2)
        self.logs = open_logs(str(folder))
        self.logs.set_owner(load_installation(self.database).id)
        self.id = 0

    def run(self, code, days, *, state="success", tasks=2, runs=1, on=0):
        """A run of some days ago."""
        at, over = NOW - days * DAY, state in {"success", "failure"}
        self.id += 1
        row = {
            "code": code,
            "version": 1,
            "shard": on,
            "state": state,
            "active": not over,
            "round": runs,
            "priority": 2,
        }
        more = {"params": {}, "schedule_time": at, "created_at": at, "started_at": at, "ended_at": at if over else None}
        with self.database.write() as connection:
            connection.execute(sa.insert(workflow_run).values(id=self.id, **row, **more))
            for number in range(1, runs + 1):
                rows = [{"run_id": self.id, "name": f"t{each}", "round": number} for each in range(tasks)]
                made = sa.insert(task).values(state="success", n=1, changed_at=at).returning(task.c.id)
                ids = list(connection.execute(made, rows).scalars())
                of_task = {"n": 1, "claim": 7, "kind": "first", "worker": "w", "started_at": at}
                connection.execute(sa.insert(attempt), [{"task": each, **of_task} for each in ids])
            told = {"at": at, "run_id": self.id}
            connection.execute(
                sa.insert(event), [{**told, "kind": "begin", "by": ""}, {**told, "kind": "stop", "by": "eve"}]
            )
        log = self.logs.create(f"{code}/{self.id}/{ids[-1]}/1.7.log")
        log.append(b"text")
        log.close()
        return self.id

    def chores(self, **keep):
        keep = Retention(**{"keep_runs": 1, **keep})
        return Cleanup(self.database, self.logs, keep, now=lambda: NOW).run()

    def ids(self, table=workflow_run, column="id"):
        with self.database.read() as connection:
            return sorted(connection.execute(sa.select(table.c[column])).scalars())

    def count(self, table):
        with self.database.read() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()

    def debts(self):
        with self.database.read() as connection:
            return [run for _, run in retention.list_pending_log_deletions(connection)]

    def has_log(self, code, run):
        return (self.folder / str(code) / str(run)).exists()


@pytest.fixture
def past(database_url, tmp_path):
    made = Past(database_url, tmp_path / "logs")
    made.folder = tmp_path / "logs"
    yield made
    made.database.close()


@pytest.fixture
def flow(past):
    return apply(past, "flow")


def apply(past, name, **fields):
    with past.database.write() as connection:
        return definitions.save_definition(connection, a_workflow(name, **fields), shards=2).code


def test_old_runs_go_with_tasks_attempts_timeline_and_logs_and_what_people_did_stays(past, flow):
    old, stays, newest = past.run(flow, 200), past.run(flow, 170), past.run(flow, 1)
    gone = past.chores()
    assert (gone.runs, gone.logs, gone.events) == (1, 1, 1)
    assert past.ids() == [stays, newest]
    assert (past.count(task), past.count(attempt)) == (4, 4)
    assert not past.has_log(flow, old)
    assert past.has_log(flow, stays)
    with past.database.read() as connection:
        kinds = connection.execute(sa.select(event.c.kind).where(event.c.run_id == old)).scalars().all()
    assert kinds == ["stop"]
    assert past.debts() == []


@ON_FILE
def test_the_newest_runs_of_each_workflow_stay_however_old_they_are(past, flow):
    other = apply(past, "other")
    mine = [past.run(flow, 900 - each) for each in range(5)]
    theirs = [past.run(other, 900 - each) for each in range(2)]
    assert past.chores(keep_runs=3).runs == 2
    assert past.ids() == [*mine[2:], *theirs]


@ON_FILE
def test_a_run_that_is_not_over_stays_and_keeps_none_behind_it(past, flow):
    paused, old = past.run(flow, 400, state="paused"), past.run(flow, 300)
    newest = past.run(flow, 1)
    past.chores()
    assert past.ids() == [paused, newest]
    assert old not in past.ids()


@ON_FILE
def test_dates_of_a_backfill_that_is_not_over_stay_and_are_counted(past, flow):
    dates = [past.run(flow, days) for days in (400, 399)]
    newest = past.run(flow, 1)
    row = {
        "shard": 0,
        "code": flow,
        "version": 1,
        "parallel": 1,
        "direction": "asc",
        "stop_on_failure": True,
        "dates": 9,
    }
    row |= {"id": 1, "state": "held", "created_at": NOW - 400 * DAY, "ended_at": NOW - 399 * DAY}
    with past.database.write() as connection:
        connection.execute(sa.insert(backfill).values(**row))
        connection.execute(sa.update(workflow_run).where(workflow_run.c.id.in_(dates)).values(backfill=1))
        moved = sa.case((workflow_run.c.id == dates[0], 1.0), else_=2.0)
        connection.execute(sa.update(workflow_run).where(workflow_run.c.id.in_(dates)).values(schedule_time=moved))
    past.chores()
    assert past.ids() == [*dates, newest]
    with past.database.write() as connection:
        connection.execute(sa.update(backfill).values(state="stopped"))
    past.chores()
    assert past.ids() == [newest]


def test_the_run_with_the_newest_task_stays_so_that_its_number_is_not_given_again(past, flow):
    old, newest = past.run(flow, 300), past.run(flow, 200)
    with past.database.write() as connection:
        last = connection.execute(sa.select(sa.func.max(task.c.id))).scalar_one()
        connection.execute(sa.delete(attempt))
        connection.execute(sa.update(task).where(task.c.run_id == old, task.c.name == "t0").values(id=last + 10))
    past.chores()
    assert past.ids() == [old, newest]


def test_a_run_that_somebody_runs_again_meanwhile_stays_whole(past, flow):
    """A master that has the shard's row is waited for, and what it wrote counts."""
    old = past.run(flow, 300)
    past.run(flow, 1)
    with past.database.read() as connection:
        page = retention.find_old_runs(connection, flow, before=NOW - 180 * DAY, keep=1)
    assert page.old == {0: [old]}
    removed, started = [], threading.Event()

    def remove():
        started.set()
        with past.database.write() as connection:
            removed.append(retention.delete_runs(connection, 0, [old], NOW - 180 * DAY))

    thread = threading.Thread(target=remove)
    with past.database.write() as connection:
        connection.execute(sa.update(shard).where(shard.c.id == 0).values(seq=shard.c.seq + 1))
        thread.start()
        started.wait(10.0)
        again = {"state": "running", "active": True, "ended_at": None}
        connection.execute(sa.update(workflow_run).where(workflow_run.c.id == old).values(**again))
        thread.join(0.5)  # it waits by now
    thread.join(30.0)
    assert removed == [[]]
    assert old in past.ids()


def test_large_histories_go_in_transactions_of_some_hundred_rows(past, flow, monkeypatch):
    for _ in range(4):
        past.run(flow, 300, tasks=300)
    many = past.run(flow, 250, tasks=200, runs=4)
    newest = past.run(flow, 1)
    sizes = []
    write = past.database.write
    before = {}

    def rows():
        return past.count(task) + past.count(workflow_run) + past.count(event)

    def measured():
        before["rows"] = rows()
        return write()

    monkeypatch.setattr(past.database, "write", measured)
    keep = Retention(keep_runs=1)

    def pause():
        sizes.append(before["rows"] - rows())
        return False

    Cleanup(past.database, past.logs, keep, now=lambda: NOW, pause=pause).run()
    assert max(sizes) <= retention.ROWS
    assert sum(sizes) >= 4 * 300 + 800
    assert past.ids() == [newest]
    assert many not in past.ids()


@ON_FILE
def test_logs_that_could_not_be_deleted_are_deleted_by_the_next_pass(past, flow, monkeypatch):
    first, second = past.run(flow, 300, tasks=400), past.run(flow, 299, tasks=400)
    past.run(flow, 1)
    remove = past.logs.remove

    def refuse(code, run):
        raise OSError("the bucket is away")

    monkeypatch.setattr(past.logs, "remove", refuse)
    assert past.chores().runs == 1
    assert past.debts() == [first]
    assert past.has_log(flow, first)
    monkeypatch.setattr(past.logs, "remove", remove)
    assert past.chores().runs == 1
    assert past.debts() == []
    assert not past.has_log(flow, first)
    assert not past.has_log(flow, second)


@ON_FILE
def test_without_the_logs_of_the_workers_runs_stay(past, flow, tmp_path, caplog):
    old, _ = past.run(flow, 300), past.run(flow, 1)
    Cleanup(past.database, None, Retention(keep_runs=1), now=lambda: NOW).run()
    other = open_logs(str(tmp_path / "elsewhere"))
    Cleanup(past.database, other, Retention(keep_runs=1), now=lambda: NOW).run()
    assert old in past.ids()
    assert "old runs are kept" in caplog.text


def test_commands_that_are_done_go_after_a_week_and_open_ones_stay(past):
    rows = [(10, 10), (9, None), (8, 1), (1, 1), (9, 9)]  # written and done so many days ago
    with past.database.write() as connection:
        for number, (written, done) in enumerate(rows, 1):
            at = None if done is None else NOW - done * DAY
            plain = {"shard": 0, "type": "pause", "args": {}, "created_at": NOW - written * DAY, "done_at": at}
            connection.execute(sa.insert(command).values(id=number, **plain))
    assert past.chores().commands == 1
    assert past.ids(command) == [2, 3, 4, 5]


@ON_FILE
def test_many_commands_are_read_once_and_those_of_this_week_are_not(past):
    with past.database.write() as connection:
        plain = {"shard": 0, "type": "pause", "args": {}}
        rows = [{**plain, "created_at": NOW - 9 * DAY, "done_at": NOW - 9 * DAY} for _ in range(1200)]
        rows += [{**plain, "created_at": NOW, "done_at": NOW} for _ in range(600)]
        connection.execute(sa.insert(command), rows)
    assert past.chores().commands == 1200
    assert past.count(command) == 600


def test_fire_times_go_that_nobody_can_start_again(past):
    code = apply(past, "timed", schedule={"cron": "0 3 * * *", "max_lateness_s": 50 * DAY})
    with past.database.write() as connection:
        connection.execute(sa.update(schedule).values(cursor=NOW))
        rows = [{"code": code, "fire_time": NOW - each * DAY, "command": 1} for each in (60, 40, 10)]
        connection.execute(sa.insert(fire), rows)
    assert past.chores().fires == 1
    assert past.ids(fire, "fire_time") == [NOW - 40 * DAY, NOW - 10 * DAY]


def test_audit_goes_after_a_year(past):
    with past.database.write() as connection:
        rows = [{"at": NOW - each * DAY, "kind": "sign-in link", "by": "eve"} for each in (800, 400, 300, 1)]
        connection.execute(sa.insert(event), rows)
    assert past.chores().events == 2
    assert past.count(event) == 2


@ON_FILE
def test_sqlite_gives_pages_that_are_empty_back(past, flow, tmp_path):
    with past.database.write() as connection:
        details = {"text": "x" * 3000}
        connection.execute(sa.insert(event), [{"at": 1.0, "kind": "k", "details": details} for _ in range(3000)])
        connection.execute(sa.insert(event).values(at=NOW, kind="k"))
    gone = past.chores()
    assert gone.events == 3000
    assert gone.pages > 1000
    with past.database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA freelist_count").scalar() <= 1000


@ON_FILE
def test_a_pass_ends_when_it_is_told_to_and_the_next_goes_on(past, flow):
    for _ in range(3):
        past.run(flow, 300, tasks=400)
    past.run(flow, 1)
    pauses = iter([False, False, True])
    keep = Retention(keep_runs=1)
    first = Cleanup(past.database, past.logs, keep, now=lambda: NOW, pause=lambda: next(pauses)).run()
    assert first.runs < 3
    assert first.runs + past.chores().runs == 3


def test_a_retention_that_keeps_nothing_is_refused():
    for wrong in ({"keep_runs": 0}, {"runs_days": -1.0}, {"audit_days": float("nan")}):
        with pytest.raises(ValueError, match="must be at least"):
            Retention(**wrong)


@pytest.fixture
def old_runs(stage, tmp_path):
    """A database with two runs, the newer of which the chores keep; arguments of a master for it."""
    logs = open_logs(str(tmp_path / "logs"))
    logs.set_owner(load_installation(stage.database).id)
    version = stage.apply(a_workflow())
    with stage.database.write() as connection:
        for days in (300, 200):
            at = time.time() - days * DAY
            row = {"code": version.code, "version": 1, "shard": 0, "state": "success", "active": False, "priority": 2}
            made = sa.insert(workflow_run).values(**row, params={}, schedule_time=at, created_at=at, ended_at=at)
            connection.execute(made)
    return {"logs": logs, "keep": Retention(keep_runs=1), "chores_every_s": 0.1}


def test_a_master_does_its_chores(stage, old_runs):
    with Master(stage.database, stage.store, **old_runs):
        eventually(lambda: stage.count(workflow_run) == 1, 30.0)


def test_a_wall_clock_that_has_just_jumped_deletes_no_history(stage, old_runs, monkeypatch):
    jump_s, passes, run = [-400 * DAY], [], Cleanup.run
    clock = WallClock(wall_s=lambda: time.time() + jump_s[0])
    monkeypatch.setattr("latchwork_workflows.master.master.WallClock", lambda: clock)
    monkeypatch.setattr(Cleanup, "run", lambda self: passes.append(run(self)))
    jump_s[0] = 0.0
    with Master(stage.database, stage.store, **old_runs):
        eventually(lambda: len(passes) >= 2, 30.0)
        assert stage.count(workflow_run) == 2
        monkeypatch.setattr("latchwork.schedules.wall_clock.CONFIRM_S", 0.0)
        eventually(lambda: stage.count(workflow_run) == 1, 30.0)


def test_logs_that_cannot_be_deleted_are_one_warning_of_all_passes_of_a_master(stage, tmp_path, caplog):
    caplog.set_level(logging.INFO, "latchwork_workflows")
    logs = open_logs(str(tmp_path / "logs"))
    passes, check = [], logs.check_owner
    logs.check_owner = lambda owner: passes.append(owner) or check(owner)
    with Master(stage.database, stage.store, logs=logs, chores_every_s=0.1):
        eventually(lambda: len(passes) >= 4, 30.0)
        assert caplog.text.count("old runs are kept") == 1
        logs.set_owner(load_installation(stage.database).id)
        eventually(lambda: "the logs of old runs can be deleted again" in caplog.text, 30.0)
    assert caplog.text.count("old runs are kept") == 1


def test_a_database_that_is_away_is_left_for_the_next_pass(stage, monkeypatch, caplog):
    write = stage.database.write
    refused = threading.Event()

    def sometimes():
        if "chores" in threading.current_thread().name and not refused.is_set():
            refused.set()
            raise DatabaseUnavailable("away")
        return write()

    monkeypatch.setattr(stage.database, "write", sometimes)
    with Master(stage.database, stage.store, chores_every_s=0.1) as master:
        eventually(refused.is_set, 30.0)
        eventually(lambda: "old data is deleted later" in caplog.text, 30.0)
        assert master.health().ok


def test_logs_that_are_owed_do_not_hide_what_a_database_is(past):
    with past.database.write() as connection:
        connection.execute(sa.insert(about).values(name="logs/5", value="3"))
    assert load_installation(past.database).shards == 2
