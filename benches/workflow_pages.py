"""How long pages take with a long history: rows are written as masters would leave them, then each page is asked for.

    python benches/workflow_pages.py --attempts 1000000 --database sqlite:////var/tmp/pages.db

The rows stay: a second call with the same database measures again without writing. Figures are of one client, the app
called in its process, without a network between.
"""

import argparse
import os
import statistics
import time

import sqlalchemy as sa
from fastapi.testclient import TestClient

from latchwork.web import Role
from latchwork.workflows.database import Database, definitions
from latchwork.workflows.database.accounts import DatabaseAccounts
from latchwork.workflows.database.migrations import upgrade
from latchwork.workflows.database.tables import attempt, definition, event, instance, shard, task
from latchwork.workflows.definitions.validate import checked
from latchwork.workflows.site import make_site
from latchwork.workflows.types import TaskTypes

WORKFLOWS, TASKS = 50, 10
BATCH = 500


def fill(database, attempts):
    """Runs of some workflows, ten tasks each, one attempt for a task; one of fifty failed."""
    types = TaskTypes()
    names = [f"t{number}" for number in range(TASKS)]
    tasks = [
        {"name": name, "type": "shell", "params": {"script": "true"}, "after": names[number - 1 : number]}
        for number, name in enumerate(names)
    ]
    with database.write() as connection:
        if connection.execute(sa.select(definition.c.code).limit(1)).first():
            return
        connection.execute(sa.insert(shard), [{"id": each, "owner": "m"} for each in range(4)])
        codes = [
            definitions.apply(connection, checked({"name": f"flow-{number}", "tasks": tasks}, types), shards=4).code
            for number in range(WORKFLOWS)
        ]
    now, runs = time.time(), attempts // TASKS
    for start in range(0, runs, BATCH):
        ids = range(start + 1, min(start + BATCH, runs) + 1)
        with database.write() as connection:
            connection.execute(sa.insert(instance), [of_run(each, codes, runs, now) for each in ids])
            rows = [of_task(run, number, name, now) for run in ids for number, name in enumerate(names)]
            connection.execute(sa.insert(task), rows)
            connection.execute(sa.insert(attempt), [of_attempt(row, now) for row in rows])
            connection.execute(
                sa.insert(event),
                [{"at": now, "instance": each, "kind": "start", "by": "ann" if each % 10 == 0 else ""} for each in ids],
            )


def of_run(number, codes, runs, now):
    is_active = number > runs - 20
    state = "running" if is_active else "failure" if number % 50 == 0 else "success"
    at = now - (runs - number)
    known = {"id": number, "code": codes[number % WORKFLOWS], "version": 1, "shard": number % 4, "state": state}
    times = {"schedule_time": at, "created_at": at, "started_at": at, "ended_at": None if is_active else at + 5}
    return {**known, **times, "active": is_active, "priority": 2, "params": {}}


def of_task(run, number, name, now):
    return {
        "id": run * TASKS + number,
        "instance": run,
        "name": name,
        "run": 1,
        "state": "success",
        "n": 1,
        "changed_at": now,
    }


def of_attempt(row, now):
    known = {"task": row["id"], "n": 1, "claim": row["id"], "kind": "first", "worker": "w", "log_ref": ""}
    return {**known, "started_at": now, "ended_at": now + 1, "outcome": "success", "exit_code": 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--database", default="sqlite:////var/tmp/latchwork-pages.db")
    parser.add_argument("--times", type=int, default=15)
    given = parser.parse_args()
    database = Database(given.database)
    upgrade(database)
    begun = time.monotonic()
    fill(database, given.attempts)
    print(f"rows for {given.attempts:,} attempts in {time.monotonic() - begun:.0f} s; load {os.getloadavg()[0]:.1f}")
    accounts = DatabaseAccounts(database)
    accounts.ensure("admin", Role.ADMIN)
    accounts.ensure("viewer", Role.VIEWER)
    accounts.set_role("viewer", "", None, by="bench")
    accounts.set_role("viewer", "default", Role.VIEWER, by="bench")
    site = make_site(database, hosts=["testserver"])
    middle = given.attempts // TASKS // 2
    pages = ["/", "/runs", "/runs?state=failure", f"/runs?before={middle}", f"/runs/{middle}", "/workflows", "/audit"]
    pages += [
        "/workflows/default/flow-7",
        "/workflows/default/flow-7/runs",
        f"/tasks/{middle * TASKS}",
        "/api/v1/instances?limit=500",
    ]
    print(f"{'page':44} {'who':8} {'p50 ms':>8} {'cpu ms':>8} {'max ms':>8} {'kB':>7}")
    for name in ("admin", "viewer"):
        token = accounts.new_token(name, "bench", by="bench")[1]
        client = TestClient(site, headers={"Authorization": f"Bearer {token}", "Accept": "text/html"})
        for page in pages:
            if page == "/audit" and name == "viewer":
                continue
            took, used = [], time.process_time()
            for _ in range(given.times):
                begun = time.perf_counter()
                answer = client.get(page)
                took.append((time.perf_counter() - begun) * 1000)
                assert answer.status_code == 200, (page, answer.text[:300])
            took.sort()
            used = (time.process_time() - used) * 1000 / given.times
            middle_ms, kilobytes = statistics.median(took), len(answer.content) / 1000
            print(f"{page:44} {name:8} {middle_ms:8.1f} {used:8.1f} {took[-1]:8.1f} {kilobytes:7.1f}")
    database.close()


if __name__ == "__main__":
    main()
