"""Rows for pages: a site with people, workflows and runs, made by the functions that masters use."""

import time
from itertools import count

import sqlalchemy as sa

from latchwork_workflows.db import definitions, runs
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.tables import attempt, shard
from latchwork_workflows.logs import open_logs
from latchwork_workflows.model.definition import build_plan
from latchwork_workflows.model.specs import build_queue_key
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.state import Claimed, Ended, Outcome, Start, TaskState, advance
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import Role

TYPES = TaskTypes()
PASSWORD = "correct horse battery"
DAY_S = 86_400.0


def shell(name, after=(), **fields):
    return {"name": name, "type": "shell", "params": {"script": f"echo {name}"}, "after": list(after), **fields}


NIGHTLY = {
    "name": "nightly",
    "description": "Loads the day and reports it.",
    "schedule": {"cron": "0 3 * * *", "tz": "Europe/Berlin"},
    "params": {"day": "${logical_date}", "region": "eu"},
    "tasks": [
        shell("extract-orders", retries=2, retry_interval_s=30),
        shell("extract-customers"),
        shell("clean", ["extract-orders", "extract-customers"], timeout_s=600),
        shell("load", ["clean"], worker_group="warehouse"),
        shell("report", ["load"]),
        shell("archive", ["clean"]),
    ],
}
BILLING = {"name": "close", "project": "billing", "tasks": [shell("sum"), shell("send", ["sum"])]}


def apply(database, given, **more):
    with database.write() as connection:
        return definitions.save_definition(connection, check_definition(given, TYPES), shards=4, author="ann", **more)


class Seeds:
    """A database with something in it."""

    def __init__(self, database, folder=None):
        self.database = database
        self.claims = count(1)
        self.files = {}
        self.logs = open_logs(folder) if folder is not None else None
        with database.write() as connection:
            connection.execute(sa.insert(shard), [{"id": each, "owner": "master-1"} for each in range(4)])
        self.codes = {}
        for given in (NIGHTLY, BILLING):
            found = apply(database, given)
            self.codes[given["name"]] = found.code
        self.accounts = DatabaseAccounts(database)

    def people(self):
        """One account for each role in `default`, one for another project, one without any, two for everything."""
        self.accounts.ensure_account("admin", Role.ADMIN)
        self.accounts.ensure_account("editor", Role.EDITOR)
        for role in Role:
            name = f"{role.label}-of-default"
            self.accounts.create_account(name, None, by="test")
            self.accounts.set_role(name, "default", role, by="test")
        self.accounts.create_account("nobody", None, by="test")
        self.accounts.create_account("pupil", None, by="test")
        self.accounts.create_account("stranger", None, by="test")
        self.accounts.set_role("stranger", "billing", Role.ADMIN, by="test")
        return {
            name: self.token(name)
            for name in ("admin", "editor", "nobody", "stranger", *(f"{r.label}-of-default" for r in Role))
        }

    def token(self, name, **more):
        return self.accounts.create_token(name, "test", by="test", **more)[1]

    def run(self, story, *, name="nightly", given=NIGHTLY, at=None, by="", version=1):
        """A run: pairs of (seconds later, events)."""
        found = check_definition(given, TYPES)
        plan, code = build_plan(found.definition, found.order), self.codes[name]
        now = time.time() if at is None else at
        with self.database.write() as connection:
            made = runs.create_run(
                connection,
                code % 4,
                code,
                version,
                params={"day": "2026-11-21"},
                schedule_time=now,
                created_at=now,
                by=by,
            )
        for after_s, events in [(0.0, [Start()]), *story]:
            now += after_s
            self.tell(made, plan, events, now, found.definition)
        return made

    def tell(self, run_id, plan, events, now, given=None):
        """Events of a run, with attempts and logs as a master and a worker would write them."""
        with self.database.write() as connection:
            before = runs.load_runs(connection, [run_id])[run_id]
            after = advance(plan, before.known, events, now)
            outputs = {each.task: {"rows": 1200} for each in events if isinstance(each, Ended)}
            keys = {
                name: build_queue_key(
                    given, given.task(name), run_id, before.priority, now=now, order="run", forced=False
                )
                for name, task in after.tasks.items()
                if given is not None and task.state is TaskState.SUBMITTED
            }
            ids = runs.save_run(connection, before, after, now, queue_keys=keys, outputs=outputs)
            for each in events:
                self._attempt(connection, run_id, ids, each, now)

    def _attempt(self, connection, run_id, ids, event, now):
        if isinstance(event, Claimed):
            claim = next(self.claims)
            ref = f"1/{run_id}/{ids[event.task]}/{event.n}.{claim}.log"
            row = {
                "task": ids[event.task],
                "n": event.n,
                "claim": claim,
                "worker": "worker-1",
                "host": "host-a",
                "pid": 4711,
            }
            kind = "first" if event.n == 1 else "retry"
            connection.execute(sa.insert(attempt).values(**row, kind=kind, started_at=now, log_ref=ref))
            if self.logs is not None:
                self.files[ids[event.task], event.n] = file = self.logs.create(ref)
                file.append(f"starting {event.task}\nread 1,200 rows\n".encode())
        elif isinstance(event, Ended):
            mine = sa.and_(attempt.c.task == ids[event.task], attempt.c.n == event.n)
            failed = event.outcome is Outcome.FAILURE
            values = {"ended_at": now, "outcome": event.outcome.value, "exit_code": int(failed)}
            values["error"] = "exit code 1: no space left on device" if failed else None
            connection.execute(sa.update(attempt).where(mine).values(values))
            if file := self.files.pop((ids[event.task], event.n), None):
                file.end()
                file.close()


def works(task, n=1, took_s=4.0, outcome=Outcome.SUCCESS):
    """A task is claimed and ends."""
    return [(0.2, [Claimed(task, n)]), (took_s, [Ended(task, n, outcome)])]


GOOD = [
    *works("extract-orders", took_s=12.0),
    *works("extract-customers", took_s=7.0),
    *works("clean", took_s=30.0),
    *works("archive", took_s=3.0),
    *works("load", took_s=45.0),
    *works("report", took_s=2.0),
]
#: The extraction fails for good; what follows waits.
BAD = [
    *works("extract-customers", took_s=7.0),
    *works("extract-orders", 1, 5.0, Outcome.FAILURE),
    (31.0, []),
    *works("extract-orders", 2, 5.0, Outcome.FAILURE),
    (31.0, []),
    *works("extract-orders", 3, 5.0, Outcome.FAILURE),
]
#: Loading is running, archiving is queued.
HALF = [
    *works("extract-orders", took_s=12.0),
    *works("extract-customers", took_s=7.0),
    *works("clean", took_s=30.0),
    (0.5, [Claimed("load", 1)]),
]
