"""The API: what it writes, what it shows, and what a wrong question is told."""

import json

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from latchwork_workflows.db import backfills
from latchwork_workflows.db.commands import CommandType
from latchwork_workflows.db.commands import send_command as send
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.tables import attempt, command, definition, event, schedule, workflow_run
from latchwork_workflows.state import RunState
from latchwork_workflows.state.backfills import BackfillState
from latchwork_workflows.web import Role
from workflows.web.seeds import BAD, BILLING, GOOD, HALF, NIGHTLY, apply, shell

START = "/api/v1/workflows/default/nightly:start"


@pytest.fixture(scope="module")
def made(seeds):
    return {"good": seeds.run(GOOD), "bad": seeds.run(BAD), "half": seeds.run(HALF)}


def rows(seeds, query):
    with seeds.database.read() as connection:
        return connection.execute(query).all()


def test_a_start_is_a_command_and_no_run(ask, seeds):
    before = len(rows(seeds, sa.select(workflow_run.c.id)))
    given = {"params": {"region": "us"}, "start_from": ["load"], "scope": "only", "priority": "high", "dry": True}
    answer = ask("operator-of-default").post(START, json=given)
    assert answer.status_code == 202
    found = rows(seeds, sa.select(command).where(command.c.id == answer.json()["command"]))[0]
    assert (found.type, found.by, found.done_at, found.run_id) == ("start", "operator-of-default", None, None)
    assert {**found.args, "code": 0} == {**given, "code": 0, "version": 1, "schedule_time": None, "no_cache": False}
    assert len(rows(seeds, sa.select(workflow_run.c.id))) == before


def test_a_repeated_key_starts_nothing_more_also_after_the_run(ask, seeds):
    key = {"Idempotency-Key": "nightly-2026-11-22"}
    first = ask("admin").post(START, headers=key).json()
    with seeds.database.write() as connection:
        connection.execute(sa.update(command).where(command.c.id == first["command"]).values(done_at=1.0, run_id=1))
    again = ask("admin").post(START, headers=key).json()
    assert (first["is_new"], again["is_new"], again["command"], again["run"]) == (True, False, first["command"], 1)
    other = ask("admin").post(START, headers=key, json={"params": {"region": "us"}})
    assert other.status_code == 409
    assert "was used for command" in other.json()["detail"]


def test_a_repeated_stop_is_answered_as_the_first_although_the_run_has_ended_since(ask, seeds):
    run, key = seeds.run(HALF), {"Idempotency-Key": "stop-it"}
    first = ask("admin").post(f"/api/v1/runs/{run}:stop", headers=key)
    with seeds.database.write() as connection:
        connection.execute(
            sa.update(workflow_run).where(workflow_run.c.id == run).values(state="stopped", active=False)
        )
    again = ask("admin").post(f"/api/v1/runs/{run}:stop", headers=key)
    assert (again.status_code, again.json()["command"]) == (202, first.json()["command"])
    assert ask("admin").post(f"/api/v1/runs/{run}:stop").status_code == 409


@pytest.mark.parametrize(
    ("which", "action", "possible"),
    [
        ("good", "pause", ["rerun"]),
        ("good", "recover", ["rerun"]),
        ("bad", "resume", ["recover", "rerun"]),
        ("half", "recover", ["pause", "stop"]),
    ],
)
def test_a_command_that_the_state_does_not_take_is_a_conflict_that_names_what_is_possible(
    ask, made, which, action, possible
):
    answer = ask("admin").post(f"/api/v1/runs/{made[which]}:{action}")
    assert answer.status_code == 409
    assert answer.json()["possible"] == possible
    assert answer.json()["state"] in answer.json()["detail"]


def test_what_is_told_to_be_possible_is_taken(ask, seeds, made):
    for run in made.values():
        for action in ask("admin").get(f"/api/v1/runs/{run}").json()["possible"]:
            assert ask("admin").post(f"/api/v1/runs/{run}:{action}").status_code == 202


@pytest.mark.parametrize("action", ["wake", "failover", "waiting-thread", "timer"])
def test_what_masters_tell_each_other_is_refused(ask, made, seeds, action):
    before = len(rows(seeds, sa.select(command.c.id)))
    answer = ask("admin").post(f"/api/v1/runs/{made['half']}:{action}")
    assert answer.status_code == 403
    assert "masters" in answer.json()["detail"]
    assert len(rows(seeds, sa.select(command.c.id))) == before


def test_a_wrong_start_names_each_field(ask):
    given = {"params": {"dya": "x"}, "start_from": ["laod"]}
    answer = ask("admin").post(START, json=given).json()
    assert [each["path"] for each in answer["errors"]] == ["params.dya", "start_from[0]"]
    assert "day, region" in answer["errors"][0]["message"]
    answer = ask("admin").post(START, json={"scope": "sideways", "prioriti": 1}).json()
    assert {each["path"] for each in answer["errors"]} == {"body.scope", "body.prioriti"}


def test_every_problem_of_a_definition_is_named_by_its_place(ask):
    broken = {**NIGHTLY, "on_failure": "explode", "tasks": [{"name": "a b", "type": "shell", "params": {}}]}
    answer = ask("editor-of-default").post("/api/v1/workflows", json={"definition": broken})
    assert answer.status_code == 422
    assert {each["path"] for each in answer.json()["errors"]} == {"on_failure", "tasks[0].name"}
    answer = ask("viewer-of-default").post("/api/v1/workflows:validate", json={"yaml": "name: x\ntasks: [: ]"})
    assert answer.json()["ok"] is False
    assert answer.json()["errors"][0]["path"].startswith("line 2")


def test_an_editor_who_did_not_see_the_newest_version_overwrites_nothing(ask, seeds):
    given = {**BILLING, "name": "shared"}
    for base, description, status in ((0, "one", 200), (1, "two", 200), (1, "mine", 409), (2, "mine", 200)):
        body = {"definition": {**given, "description": description}, "base": base}
        answer = ask("stranger").post("/api/v1/workflows", json=body)
        assert answer.status_code == status, answer.text
    assert ask("stranger").get("/api/v1/workflows/billing/shared/diff?old=2&new=3").text.splitlines()[-2:]
    assert ask("stranger").get("/api/v1/workflows/billing/shared").json()["definition"]["description"] == "mine"
    assert [each["version"] for each in ask("stranger").get("/api/v1/workflows/billing/shared/versions").json()] == [
        3,
        2,
        1,
    ]


def test_a_workflow_that_is_offline_is_not_started(ask, seeds):
    apply(seeds.database, {**NIGHTLY, "name": "sleeping"}, online=False)
    answer = ask("admin").post("/api/v1/workflows/default/sleeping:start")
    assert (answer.status_code, "offline" in answer.json()["detail"]) == (409, True)


def test_a_schedule_that_is_switched_on_again_owes_nothing_of_the_time_in_between(ask, seeds):
    path = "/api/v1/workflows/default/nightly/schedule"
    mine = schedule.c.code == seeds.codes["nightly"]
    assert ask("admin").put(path, json={"enabled": False}).status_code == 204
    with seeds.database.write() as connection:
        connection.execute(sa.update(schedule).where(mine).values(cursor=5.0))
    assert ask("admin").get("/api/v1/schedules").json()[0]["next_fires"] == []
    assert ask("admin").put(path, json={"enabled": True}).status_code == 204
    assert rows(seeds, sa.select(schedule.c.cursor).where(mine))[0].cursor > 1e9
    assert ask("admin").put("/api/v1/workflows/billing/close/schedule", json={"enabled": True}).status_code == 404


def test_lists_go_by_key_and_miss_nothing(ask, seeds):
    for _ in range(5):
        seeds.run([], name="close", given=BILLING)
    for query in ("", "&project=billing", "&state=running", "&project=billing&workflow=close&state=running"):
        seen, before = [], ""
        while True:
            part = ask("admin").get(f"/api/v1/runs?limit=2{query}{before}").json()
            if not part:
                break
            seen += [each["id"] for each in part]
            before = f"&before={seen[-1]}"
        whole = [each["id"] for each in ask("admin").get(f"/api/v1/runs?limit=500{query}").json()]
        assert seen == whole == sorted(whole, reverse=True)
        assert len(whole) >= 5
    names, after = [], ""
    while part := ask("admin").get(f"/api/v1/workflows?limit=1{after}").json():
        names.append(f"{part[0]['project']}.{part[0]['name']}")
        after = f"&after={names[-1]}"
    assert names == sorted(names)
    assert len(names) >= 2


def test_nobody_sees_runs_of_a_project_that_is_not_theirs(ask, seeds):
    seeds.run([])
    seeds.run([], name="close", given=BILLING)
    for path in ("/api/v1/runs?limit=500", "/api/v1/workflows?limit=500"):
        assert {each["project"] for each in ask("viewer-of-default").get(path).json()} == {"default"}
        assert {each["project"] for each in ask("stranger").get(path).json()} == {"billing"}
        assert ask("nobody").get(path).json() == []


def test_a_log_is_read_by_part_and_whole_and_not_in_the_middle_of_a_letter(ask, seeds):
    run = seeds.run([])
    task = ask("admin").get(f"/api/v1/runs/{run}").json()["tasks"][0]
    letters = "é" * 40_000 + "\x1b[2Jend\n"
    log = attempt_with(seeds, run, task, letters.encode())
    text, offset = "", 0
    for _ in range(20):
        part = ask("admin").get(f"/api/v1/attempts/{log}/log?offset={offset}&limit=10001").json()
        text, offset = text + part["text"], part["next"]
        if part["ended"]:
            break
    assert text == letters.replace("\x1b", "\\x1b")
    whole = ask("admin").get(f"/api/v1/attempts/{log}/log/download")
    assert whole.content == letters.encode()
    assert whole.headers["content-disposition"] == f'attachment; filename="attempt-{log}.log"'
    assert whole.headers["content-security-policy"] == "sandbox"
    assert whole.headers["x-content-type-options"] == "nosniff"


def attempt_with(seeds, run, task, data, n=1):
    claim = next(seeds.claims) + 10_000
    ref = f"1/{run}/{task['id']}/{n}.{claim}.log"
    row = {
        "task": task["id"],
        "n": n,
        "claim": claim,
        "kind": "first",
        "worker": "w",
        "started_at": 1.0,
        "log_ref": ref,
    }
    with seeds.database.write() as connection:
        connection.execute(sa.insert(attempt).values(**row))
    file = seeds.logs.create(ref)
    file.append(data)
    file.end()
    file.close()
    return f"{task['id']}.{n}.{claim}"


def test_a_log_that_is_not_there_yet_is_empty_and_one_without_a_store_is_said_so(ask, seeds, site):
    run = seeds.run(HALF)
    task = ask("admin").get(f"/api/v1/runs/{run}").json()["tasks"][0]
    with seeds.database.write() as connection:
        row = {"task": task["id"], "n": 9, "claim": 99_999, "kind": "retry", "worker": "w", "started_at": 1.0}
        connection.execute(sa.insert(attempt).values(**row, log_ref=f"1/{run}/{task['id']}/9.99999.log"))
    path = f"/api/v1/attempts/{task['id']}.9.99999/log"
    assert ask("admin").get(path).json() == {"text": "", "offset": 0, "next": 0, "ended": False}
    logs, site.state.context.logs = site.state.context.logs, None
    try:
        assert ask("admin").get(path).status_code == 503
    finally:
        site.state.context.logs = logs


def test_a_task_says_why_it_is_where_it_is(ask, seeds):
    half, bad = seeds.run(HALF), seeds.run(BAD)
    by_name = {each["name"]: each["id"] for each in ask("admin").get(f"/api/v1/runs/{half}").json()["tasks"]}
    assert "waits for 'load'" in ask("admin").get(f"/api/v1/tasks/{by_name['report']}").json()["why"]
    assert "queued" in ask("admin").get(f"/api/v1/tasks/{by_name['archive']}").json()["why"]
    by_name = {each["name"]: each["id"] for each in ask("admin").get(f"/api/v1/runs/{bad}").json()["tasks"]}
    failed = ask("admin").get(f"/api/v1/tasks/{by_name['extract-orders']}").json()
    assert "3 of 3 attempts" in failed["why"]
    assert [each["n"] for each in failed["attempts"]] == [3, 2, 1]
    assert "'extract-orders', which failed" in ask("admin").get(f"/api/v1/tasks/{by_name['clean']}").json()["why"]


def test_every_change_is_told_with_who_made_it(ask, seeds):
    run = seeds.run(HALF)
    ask("operator-of-default").post(f"/api/v1/runs/{run}:pause")
    newest = ask("admin-of-default").get("/api/v1/audit?limit=1").json()[0]
    assert (newest["by"], newest["kind"], newest["run_id"], newest["project"]) == (
        "operator-of-default",
        "pause",
        run,
        "default",
    )
    assert {each["project"] for each in ask("stranger").get("/api/v1/audit").json()} <= {"billing"}
    assert all(each["by"] == "stranger" for each in ask("admin").get("/api/v1/audit?by=stranger").json())
    with seeds.database.read() as connection:
        told = json.dumps([tuple(row) for row in connection.execute(sa.select(event.c.details))])
    for secret in seeds.tokens.values():
        assert secret not in told


def test_a_token_may_do_less_than_its_account(ask, seeds, site):
    weak = TestClient(site, headers={"Authorization": f"Bearer {seeds.token('admin', role=Role.VIEWER)}"})
    assert weak.get("/api/v1/workflows/default/nightly").status_code == 200
    assert weak.post(START).status_code == 403
    old = TestClient(site, headers={"Authorization": f"Bearer {seeds.token('admin', lasts_s=-1.0)}"})
    assert old.get("/api/v1/workflows").status_code == 401


def test_a_database_that_is_away_is_said_so_and_says_when_to_come_back(ask, site, monkeypatch):
    def away():
        raise DatabaseUnavailable("database sqlite:///x: disk I/O error")

    monkeypatch.setattr(site.state.context.database, "read", away)
    answer = ask("admin").get("/api/v1/workflows")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert ask("admin").get("/healthz").status_code == 503
    page = ask("admin").get("/workflows", headers={"Accept": "text/html"})
    assert (page.status_code, "disk I/O error" in page.text) == (503, True)


def test_states_that_the_api_takes_are_those_that_there_are(ask):
    for each in RunState:
        assert ask("admin").get(f"/api/v1/runs?state={each.value}").status_code == 200
    assert ask("admin").get("/api/v1/runs?state=gone").status_code == 422


def test_a_large_workflow_is_taken_and_one_that_is_too_large_is_refused(ask):
    tasks = [shell(f"t{number}", [f"t{number - 1}"] if number else []) for number in range(400)]
    given = {"name": "wide", "project": "big", "tasks": tasks}
    assert ask("admin").post("/api/v1/workflows", json={"definition": given}).status_code == 200
    answer = ask("admin").post("/api/v1/workflows", content=b"{" + b" " * 5_100_000)
    assert answer.status_code == 413
    assert answer.json()["status"] == 413


def test_a_repair_which_has_no_project_is_shown_to_administrators_of_all_projects_only(ask, seeds):
    with seeds.database.write() as connection:
        repair = send(connection, CommandType.REPAIR, shard_id=0, by="ann").id
    shown = ask("admin").get(f"/api/v1/commands/{repair}").json()
    assert (shown["type"], shown["by"], shown["done_at"]) == ("repair", "ann", None)
    assert ask("admin-of-default").get(f"/api/v1/commands/{repair}").status_code == 404
    assert ask("admin").get("/api/v1/commands/999999").status_code == 404


BACKFILL = "/api/v1/workflows/default/nightly:backfill"


def test_a_backfill_is_a_command_that_names_every_moment(ask, seeds):
    given = {"first": "2025-10-25", "last": "2025-10-26", "parallel": 2, "order": "desc", "stop_on_failure": True}
    answer = ask("operator-of-default").post(BACKFILL, json={**given, "params": {"region": "us"}})
    assert answer.status_code == 202
    asked = ask("admin").get(f"/api/v1/commands/{answer.json()['command']}").json()
    assert (asked["type"], asked["backfill"]) == ("backfill", None)
    (row,) = rows(seeds, sa.select(command.c.args).where(command.c.id == asked["id"]))
    assert row.args["schedule_times"] == [1761354000.0, 1761444000.0]  # three o'clock in summer, and in winter
    assert (row.args["parallel"], row.args["order"], row.args["stop_on_failure"]) == (2, "desc", True)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, "dates"),
        ({"first": "2025-10-25"}, "dates"),
        ({"first": "2025-10-25", "last": "2025-10-26", "dates": ["2025-10-25"]}, "dates"),
        ({"first": "2025-10-27", "last": "2025-10-26"}, "last"),
        ({"dates": ["9000-10-27"]}, "dates"),
        ({"dates": ["2025-10-27"], "params": {"no": 1}}, "params.no"),
        ({"dates": ["2025-13-27"]}, "body.dates[0]"),
        ({"dates": ["2025-10-27"], "parallel": 0}, "body.parallel"),
    ],
)
def test_a_backfill_that_cannot_be_is_told_which_field_is_wrong(ask, given, path):
    answer = ask("admin").post(BACKFILL, json=given)
    assert answer.status_code == 422
    assert path in [each["path"] for each in answer.json()["errors"]]


def test_a_backfill_is_listed_shown_and_stopped_once(ask, seeds):
    code = rows(seeds, sa.select(definition.c.code).where(definition.c.name == "nightly"))[0].code
    same = {"shard": 0, "code": code, "version": 1, "created_at": 1.0, "by": "ann"}
    kinds = {"parallel": 3, "direction": "desc", "stop_on_failure": False}
    with seeds.database.write() as connection:
        number = backfills.create_backfill(
            connection, {**same, **kinds}, [86400.0, 0.0], {**same, "params": {}, "priority": 2}
        )
    (first, *_) = ask("viewer-of-default").get("/api/v1/backfills?project=default&workflow=nightly").json()
    assert (first["id"], first["counts"], first["order"]) == (number, {"submitted": 2}, "desc")
    assert ask("viewer-of-default").get(f"/api/v1/backfills/{number}").json() == first
    shown = ask("viewer-of-default").get(f"/api/v1/backfills/{number}/runs?limit=1").json()
    assert [each["schedule_time"] for each in shown] == [0.0]
    shown = ask("viewer-of-default").get(f"/api/v1/backfills/{number}/runs?after=0&state=submitted").json()
    assert [each["schedule_time"] for each in shown] == [86400.0]
    assert ask("viewer-of-default").get(f"/api/v1/backfills/{number}/runs?state=failure").json() == []
    assert number not in [each["id"] for each in ask("stranger").get("/api/v1/backfills").json()]
    key = {"Idempotency-Key": "stop-that-backfill"}
    asked = ask("operator-of-default").post(f"/api/v1/backfills/{number}:stop", headers=key).json()
    with seeds.database.write() as connection:
        backfills.set_backfill_state(connection, number, BackfillState.STOPPED, 2.0)
    again = ask("operator-of-default").post(f"/api/v1/backfills/{number}:stop", headers=key).json()
    assert (again["command"], again["is_new"]) == (asked["command"], False)
    assert ask("operator-of-default").post(f"/api/v1/backfills/{number}:stop").status_code == 409


def test_an_idempotency_key_is_of_its_project_and_another_may_give_the_same(ask):
    key = {"Idempotency-Key": "nightly-2026-12-24"}
    billing = ask("stranger").post("/api/v1/workflows/billing/close:start", headers=key)
    default = ask("operator-of-default").post(START, headers=key)
    assert (billing.status_code, default.status_code) == (202, 202)
    assert default.json()["is_new"]
    assert default.json()["command"] != billing.json()["command"]
    again = ask("stranger").post("/api/v1/workflows/billing/close:start", headers=key).json()
    assert (again["command"], again["is_new"]) == (billing.json()["command"], False)
