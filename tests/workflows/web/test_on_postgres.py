"""The same on PostgreSQL, in short: every page and list once, a command twice, what people write freely."""

import json

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from latchwork_workflows.app import make_web_app
from latchwork_workflows.db import run_queries
from latchwork_workflows.db.tables import workflow_run
from workflows.web.seeds import BAD, GOOD, HALF, Seeds


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_pages_and_commands_on_postgresql(database, tmp_path):
    seeds = Seeds(database, tmp_path / "logs")
    seeds.tokens = seeds.people()
    runs = [seeds.run(story) for story in (GOOD, BAD, HALF)]
    site = make_web_app(database, logs=seeds.logs, hosts=["testserver"])
    paths = [
        "/",
        "/runs",
        "/runs?state=failure",
        "/runs?before=2",
        f"/runs/{runs[2]}",
        "/workflows",
        "/workflows?q=%25",
    ]
    paths += [f"/workflows/default/nightly{part}" for part in ("", "/runs", "/versions", "/start", "/edit")]
    paths += ["/schedules", "/workers", "/audit", "/users", "/account", "/healthz", "/metrics", "/tasks/1"]
    paths += [
        "/api/v1/runs",
        "/api/v1/runs?project=default&state=running",
        "/api/v1/tasks/1",
        "/api/v1/audit",
    ]
    for name in ("admin", "admin-of-default"):
        client = TestClient(site, headers={"Authorization": f"Bearer {seeds.tokens[name]}", "Accept": "text/html"})
        for path in paths:
            answer = client.get(path)
            assert answer.status_code == (403 if path == "/users" and name != "admin" else 200), (
                path,
                answer.text[:300],
            )
        key = {"Idempotency-Key": f"stop-{name}"}
        first, again = (client.post(f"/api/v1/runs/{runs[2]}:stop", headers=key).json() for _ in range(2))
        assert (first["is_new"], again["is_new"], first["command"]) == (True, False, again["command"])
        assert client.post(f"/api/v1/runs/{runs[0]}:pause", headers=key).status_code == 409
        for nasty in ("\x00", "\ud800", "%", "'"):
            body = {"definition": {"name": "x", "description": nasty, "tasks": [{"name": "a", "type": "noop"}]}}
            status = client.post("/api/v1/workflows", content=json.dumps(body)).status_code
            assert status in {200, 422}, nasty
    live = site.state.site.live
    assert live._look(["all", f"run:{runs[0]}"]).keys() == {"all", f"run:{runs[0]}"}


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("state", ["", "success"])
def test_the_newest_runs_of_a_workflow_are_found_by_its_own_index_behind_a_long_backfill_of_another(database, state):
    """One of two: by their shares, to go back by ids finds one at every second step, and so it goes through all."""
    seeds = Seeds(database)
    old, long = (seeds.codes[each] for each in ("nightly", "close"))
    row = {"version": 1, "shard": 0, "state": "success", "active": False, "priority": 2, "params": {}}
    row |= {"schedule_time": 1.0, "created_at": 1.0}
    with database.write() as connection:
        for code in (old, long):
            connection.execute(sa.insert(workflow_run), [{**row, "code": code} for _ in range(3000)])
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE workflow_run")
    seen = []
    with database.read() as connection:
        sa.event.listen(connection, "before_cursor_execute", lambda *args: seen.append(args[2:4]))
        found = run_queries.list_newest_runs(connection, codes=[old], state=state, limit=8)
        recent = run_queries.list_recent_runs(connection, [old, long], 8)
        plans = [
            "\n".join(connection.exec_driver_sql(f"EXPLAIN {text}", values).scalars())
            for text, values in list(seen)
            if "LIMIT" in text
        ]
    newest = [each.id for each in found]
    assert newest == sorted(newest, reverse=True) == [each.id for each in recent[old]]
    assert ({each.code for each in found}, len(recent[long])) == ({old}, 8)
    assert len(plans) == 3
    assert all("ix_workflow_run_code" in each and "Sort" not in each for each in plans), plans
