"""The same on PostgreSQL, in short: every page and list once, a command twice, what people write freely."""

import json

import pytest
from fastapi.testclient import TestClient

from latchwork.workflows.site import make_site
from workflows.web.seeds import BAD, GOOD, HALF, Seeds


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_pages_and_commands_on_postgresql(database, tmp_path):
    seeds = Seeds(database, tmp_path / "logs")
    seeds.tokens = seeds.people()
    runs = [seeds.run(story) for story in (GOOD, BAD, HALF)]
    site = make_site(database, logs=seeds.logs, hosts=["testserver"])
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
        "/api/v1/instances",
        "/api/v1/instances?project=default&state=running",
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
        first, again = (client.post(f"/api/v1/instances/{runs[2]}:stop", headers=key).json() for _ in range(2))
        assert (first["is_new"], again["is_new"], first["command"]) == (True, False, again["command"])
        assert client.post(f"/api/v1/instances/{runs[0]}:pause", headers=key).status_code == 409
        for nasty in ("\x00", "\ud800", "%", "'"):
            body = {"definition": {"name": "x", "description": nasty, "tasks": [{"name": "a", "type": "noop"}]}}
            status = client.post("/api/v1/workflows", content=json.dumps(body)).status_code
            assert status in {200, 422}, nasty
    live = site.state.site.live
    assert live._look(["all", f"instance:{runs[0]}"]).keys() == {"all", f"instance:{runs[0]}"}
