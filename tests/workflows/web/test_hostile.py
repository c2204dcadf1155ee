"""Text that wants to be more than text: HTML, templates, SQL, terminals, paths, secrets."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.db.tables import attempt, event, workflow_run
from workflows.web.seeds import apply
from workflows.web.test_api import attempt_with

SCRIPT = "<script>alert(1)</script>"
#: Each stands where people write freely; none may come out as it went in.
NASTY = f"{SCRIPT}\"'><img src=x onerror=alert(2)>{{{{7*7}}}}{{% raw %}}\x1b[2J\u202eabc"
EVIL = {
    "name": "evil",
    "description": NASTY,
    "params": {"day": NASTY},
    "tasks": [{"name": "a", "type": "shell", "params": {"script": NASTY}, "description": NASTY, "env": {"X": NASTY}}],
}


@pytest.fixture(scope="module")
def evil(seeds):
    code = apply(seeds.database, EVIL).code
    seeds.codes["evil"] = code
    run = seeds.run([], name="evil", given=EVIL, by=NASTY)
    with seeds.database.write() as connection:
        connection.execute(sa.update(workflow_run).where(workflow_run.c.id == run).values(params={NASTY: NASTY}))
        task = connection.exec_driver_sql(f"SELECT id FROM task WHERE run_id = {run}").scalar()
        row = {"kind": NASTY[:40], "by": NASTY, "task": NASTY[:100], "details": {NASTY: NASTY}, "project": "default"}
        connection.execute(sa.insert(event).values(at=1.0, run_id=run, **row))
    log = attempt_with(seeds, run, {"id": task}, NASTY.encode() + b"\xff\xfe\x00 end\n")
    with seeds.database.write() as connection:
        connection.execute(
            sa.update(attempt).where(attempt.c.task == task).values(error=NASTY, worker=NASTY, host=NASTY)
        )
    return {"run": run, "task": task, "log": log}


def harmless(text):
    assert SCRIPT not in text
    assert "<img src=x" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert ">49<" not in text


def test_no_page_runs_what_people_write(browser, evil):
    client = browser()
    paths = ["/", "/runs", f"/runs/{evil['run']}", f"/tasks/{evil['task']}", f"/attempts/{evil['log']}", "/audit"]
    paths += [
        "/workflows",
        *(f"/workflows/default/evil{part}" for part in ("", "/runs", "/versions", "/start", "/edit")),
    ]
    paths += [f"/workflows?q={SCRIPT}", f"/audit?by={SCRIPT}", f"/schedules?cron={SCRIPT}&tz={SCRIPT}"]
    paths += [f"/runs?state={SCRIPT}&project={SCRIPT}", f"/sign-in?next=/{SCRIPT}&link={SCRIPT}"]
    for path in paths:
        answer = client.get(path)
        assert answer.status_code in ({200, 422} if SCRIPT in path else {200}), (path, answer.text[:300])
        harmless(answer.text)
    checked = client.post("/edit/check", data={"yaml": f"name: {SCRIPT}\n{SCRIPT}: 1", "csrf": client.csrf})
    harmless(checked.text)
    assert "problem" in checked.text
    harmless(client.get(f"/{SCRIPT}").text)


def test_a_log_on_a_page_moves_no_cursor_and_the_api_says_the_same(browser, ask, evil):
    text = ask("admin").get(f"/api/v1/attempts/{evil['log']}/log").json()["text"]
    assert "\\x1b[2J" in text
    assert "\\xff\\xfe" in text
    assert "\x00" not in text
    assert text.endswith(" end\n")


@pytest.mark.parametrize("text", ["' OR 1=1 --", "%", "_", "\\", "x'; DROP TABLE workflow_run; --", "\x00", "😀" * 20])
def test_sql_in_a_search_is_text(ask, seeds, text):
    client = ask("viewer-of-default")
    for path in ("/api/v1/workflows?contains=", "/api/v1/audit?by=", "/workflows?q=", "/runs?project="):
        asked = ask("admin") if "audit" in path else client
        answer = asked.get(
            path.split("=")[0], params={path.split("?")[1].rstrip("="): text}, headers={"Accept": "text/html"}
        )
        assert answer.status_code == 200, answer.text[:300]
        if "contains" in path:
            assert answer.json() == [] or text == "\x00"
    assert client.get("/api/v1/workflows").json()


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%00",
        "/api/v1/attempts/../../etc/passwd/log",
        "/api/v1/attempts/1.1.1%2f..%2f/log",
        "/api/v1/attempts/..%2f..%2f/log",
        "/attempts/1.1.1.log",
        "/workflows/..%2f..%2f/x",
        "/workflows/default/%2e%2e%2fnightly",
    ],
)
def test_no_path_leads_out(ask, path):
    answer = ask("admin").get(path)
    assert answer.status_code in {404, 422}, (path, answer.status_code)
    assert b"root:" not in answer.content
    assert b"FastAPI" not in answer.content


def test_a_log_reference_that_leads_out_is_not_followed(ask, seeds, evil, tmp_path):
    with seeds.database.write() as connection:
        connection.execute(
            sa.insert(attempt).values(
                task=evil["task"], n=7, claim=7, kind="retry", worker="w", started_at=1.0, log_ref="../../../etc/passwd"
            )
        )
    answer = ask("admin").get(f"/api/v1/attempts/{evil['task']}.7.7/log")
    assert "root:" not in answer.text
    assert ask("admin").get(f"/api/v1/attempts/{evil['task']}.7.7/log/download").content == b""


@pytest.mark.parametrize("number", [0, -1, 2**63, 2**64, 10**30, "x", "1e3", "٣"])
def test_numbers_that_no_database_has_are_refused_and_not_tried(ask, number):
    for path in ("/api/v1/runs/{}", "/api/v1/tasks/{}", "/api/v1/commands/{}", "/runs/{}", "/tasks/{}"):
        assert ask("admin").get(path.format(number)).status_code in {404, 422}, path
    assert ask("admin").get(f"/api/v1/runs?before={number}").status_code == 422


def test_no_secret_is_in_any_answer(ask, browser, seeds):
    client = browser()
    seeds.accounts.create_account("carla", "a very secret password", by="test")
    told = "".join(
        client.get(path).text
        for path in ("/account", "/users", "/audit", "/api/v1/users", "/api/v1/tokens", "/api/v1/audit")
    )
    for secret in (*seeds.tokens.values(), "a very secret password", "scrypt$", client.cookies["latchwork"]):
        assert secret not in told
