"""Measures how long the pages take with a long history. Writes rows as masters would, then requests each page.

    python benches/workflow_pages.py --attempts 1000000 --database sqlite:////var/tmp/pages.db
    python benches/workflow_pages.py --attempts 1000000 --database postgres

The rows stay, so a second call with the same database measures again without writing. ``postgres`` starts a separate
server, which is removed at the end. One client calls the app in its process, without a network. Every page of the site
is requested. A page without an address in this file is reported.
"""

import argparse
import os
import re
import statistics
import time
from contextlib import ExitStack

import psutil
import sqlalchemy as sa
from fastapi.responses import HTMLResponse
from fastapi.testclient import TestClient

from latchwork_testkit.postgres import PostgresServer
from latchwork_workflows.app import make_web_app
from latchwork_workflows.db import Database, backfills, definitions, pools
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.migrations import upgrade
from latchwork_workflows.db.tables import command, definition, shard, task, workflow_run
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.schemas.pools import PoolSettings
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import Role

WORKFLOWS, TASKS = 50, 10
#: Backfills, and the dates of each; elements of the map of one run.
BACKFILLS, DATES, ELEMENTS = 40, 5000, 1000
BATCH = 10_000
#: Rows of one batch are made inside the database: ten million through Python take a quarter of an hour.
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT CAST(:first AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < :last) "
RUNS = """
INSERT INTO workflow_run (id, code, version, shard, state, active, priority, params, schedule_time, created_at,
                      started_at, ended_at)
SELECT i, :code + i % 50, 1, i % 4,
       CASE WHEN i > :runs - 20 THEN 'running' WHEN i % 50 = 0 THEN 'failure' ELSE 'success' END,
       i > :runs - 20, 2, '{}', :now - (:runs - i), :now - (:runs - i), :now - (:runs - i),
       CASE WHEN i > :runs - 20 THEN NULL ELSE :now - (:runs - i) + 5 END FROM n
"""
EVENTS = """
INSERT INTO event (at, run, kind, by, task, project)
SELECT :now, i, 'start', CASE WHEN i % 10 = 0 THEN 'ann' ELSE '' END, '', '' FROM n
"""
OF_TASKS = """
INSERT INTO task (id, run, name, run, map_index, state, n, changed_at)
SELECT i * 10 + t, i, 't' || t, 1, -1, 'success', 1, :now FROM n CROSS JOIN
(SELECT 0 AS t UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) AS ten
"""
ATTEMPTS = """
INSERT INTO attempt (task, n, claim, kind, worker, host, started_at, ended_at, outcome, exit_code, log_ref)
SELECT id, 1, id, 'first', 'w', '', :now, :now + 1, 'success', 0, '' FROM task
WHERE run >= :first AND run <= :last
"""


def shell(number):
    after = [f"t{number - 1}"] if number else []
    return {"name": f"t{number}", "type": "shell", "params": {"script": "true"}, "after": after}


def fill(database, attempts):
    """Write runs of some workflows with ten tasks each, and one attempt per task. One of fifty runs failed. Then write
    backfills and a map.
    """
    types = TaskTypes()
    with database.write() as connection:
        if connection.execute(sa.select(definition.c.code).limit(1)).first():
            return
        connection.execute(sa.insert(shard), [{"id": each, "owner": "m"} for each in range(4)])
        codes = []
        for number in range(WORKFLOWS):
            waits = {"type": "dependent", "params": {"on": {"workflow": f"flow-{number // 2}", "window": "today"}}}
            tasks = [*map(shell, range(TASKS)), *([{"name": "waits", **waits}] if number else [])]
            found = check_definition({"name": f"flow-{number}", "tasks": tasks}, types)
            codes.append(definitions.save_definition(connection, found, shards=4).code)
    assert codes == list(range(codes[0], codes[0] + WORKFLOWS))
    values = {"now": time.time(), "runs": attempts // TASKS, "code": codes[0]}
    for first in range(1, values["runs"] + 1, BATCH):
        values |= {"first": first, "last": min(first + BATCH - 1, values["runs"])}
        with database.write() as connection:
            for text in (NUMBERS + RUNS, NUMBERS + OF_TASKS, ATTEMPTS, NUMBERS + EVENTS):
                connection.execute(sa.text(text), values)
    with database.write() as connection:
        fill_more(connection, codes[0], values["runs"])


def fill_more(connection, code, runs):
    """Write long backfills, half of which have ended, and the elements of a map of the run in the middle."""
    now = time.time()
    connection.execute(sa.text("ANALYZE"))
    same = {"shard": 0, "code": code, "version": 1, "created_at": now}
    kinds = {"parallel": 3, "direction": "asc", "stop_on_failure": False}
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT setval('workflow_run_id_seq', :last)"), {"last": runs})
        connection.execute(sa.text("SELECT setval('task_id_seq', :last)"), {"last": (runs + 1) * TASKS})
    for _ in range(BACKFILLS):
        moments = [86_400.0 * each for each in range(DATES)]
        number = backfills.create_backfill(
            connection, {**same, **kinds}, moments, {**same, "params": {}, "priority": 2}
        )
        half = sa.and_(workflow_run.c.backfill == number, workflow_run.c.schedule_time < 86_400.0 * DATES / 2)
        connection.execute(sa.update(workflow_run).where(half).values(state="success", active=False))
    element = {"run_id": runs // 2, "name": "t3", "round": 1, "state": "success", "n": 1, "changed_at": now}
    connection.execute(sa.insert(task), [{**element, "map_index": each} for each in range(ELEMENTS)])


def command_of(database):
    """Add a start command that was executed, and pools, which also have pages."""
    with database.write() as connection:
        pools.save_pool(connection, PoolSettings(name="bench", size=3))
        pools.save_pool(connection, PoolSettings(name="@default", size=1000))
        found = connection.execute(sa.select(command.c.id).limit(1)).scalar()
        if found is None:
            code = connection.execute(sa.select(sa.func.min(definition.c.code))).scalar_one()
            row = {"type": "start", "args": {"code": code}, "by": "bench", "created_at": 1.0, "done_at": 2.0}
            made = sa.insert(command).values(**row, shard=0, run_id=1).returning(command.c.id)
            found = connection.execute(made).scalar_one()
    return found


def addresses(routes):
    """Return the paths of the site's pages as regular expressions, without sign-in."""
    for route in routes:
        if getattr(route, "response_class", None) is HTMLResponse and "GET" in route.methods:
            yield (
                re.sub(r"\{[^}]*\}", "[^/]+", re.escape(route.path).replace(r"\{", "{").replace(r"\}", "}"))
                + r"(\?.*)?"
            )
        yield from addresses(getattr(getattr(route, "original_router", None), "routes", ()))


def pages_of(middle, command_id):
    """Return the pages to request. ``middle`` is a run in the middle of all runs."""
    flow, made = "/workflows/default/flow-7", middle * TASKS
    return [
        *("/", "/runs", "/runs?state=failure", f"/runs?before={middle}", f"/runs/{middle}"),
        *("/workflows", flow, f"{flow}/runs", f"{flow}/versions", f"{flow}/start", f"{flow}/edit", "/edit"),
        *(f"{flow}/backfill", f"{flow}/backfill/schedule-times?first=2026-01-01&last=2026-02-01"),
        *(f"/tasks/{made}", f"/tasks/{made + 3}", f"/attempts/{made}.1.{made}", f"/commands/{command_id}"),
        *("/backfills", f"/backfills/{BACKFILLS}", f"/backfills/{BACKFILLS}?state=submitted"),
        *("/schedules", "/schedules/preview?cron=0+3+*+*+*", "/lineage", "/alerts", "/workers", "/settings"),
        *("/pools", "/pools/@default", "/pools/bench", "/audit", "/users", "/account", "/api"),
        *(f"/api/v1/backfills/{BACKFILLS}/runs?limit=500", "/api/v1/runs?limit=500"),
    ]


#: What only some may see.
OF_ADMINS = ("/audit", "/users")
OF_OPERATORS = ("/start", "/edit", "/backfill", "/backfill/schedule-times?first=2026-01-01&last=2026-02-01")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--database", default="sqlite:////var/tmp/latchwork-pages.db")
    parser.add_argument("--times", type=int, default=15)
    given = parser.parse_args()
    with ExitStack() as stack:
        if given.database == "postgres":
            given.database = stack.enter_context(PostgresServer(settings={"fsync": "off"})).database_url()
        measure(given)


def measure(given):
    """Write missing rows, and request each page."""
    database = Database(given.database)
    upgrade(database)
    begun = time.monotonic()
    fill(database, given.attempts)
    print(f"rows for {given.attempts:,} attempts in {time.monotonic() - begun:.0f} s; load {os.getloadavg()[0]:.1f}")
    accounts = DatabaseAccounts(database)
    accounts.ensure_account("admin", Role.ADMIN)
    accounts.ensure_account("viewer", Role.VIEWER)
    accounts.set_role("viewer", "", None, by="bench")
    accounts.set_role("viewer", "default", Role.VIEWER, by="bench")
    site = make_web_app(database, hosts=["testserver"])
    pages = pages_of(given.attempts // TASKS // 2, command_of(database))
    left = [each for each in addresses(site.routes) if not any(re.fullmatch(each, page) for page in pages)]
    print(f"no request covers {', '.join(left)}" if left else "every page is asked for")
    process = psutil.Process()
    print(f"{'page':44} {'who':8} {'p50 ms':>8} {'cpu ms':>8} {'max ms':>8} {'kB':>7}")
    for name in ("admin", "viewer"):
        token = accounts.create_token(name, "bench", by="bench")[1]
        client = TestClient(site, headers={"Authorization": f"Bearer {token}", "Accept": "text/html"})
        for page in pages:
            if name == "viewer" and (page in OF_ADMINS or page.endswith(OF_OPERATORS)):
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
            print(f"{page:44} {name:8} {middle_ms:8.1f} {used:8.1f} {took[-1]:8.1f} {kilobytes:7.1f}", flush=True)
        print(f"memory after all pages as {name}: {process.memory_info().rss / 1e6:.0f} MB")
    database.close()


if __name__ == "__main__":
    main()
