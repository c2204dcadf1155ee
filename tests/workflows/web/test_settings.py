"""The page and the API of connections, environments and parameters: who sees what, and text that is more than text."""

import pytest
from fastapi.testclient import TestClient

from latchwork_workflows.app import make_web_app
from latchwork_workflows.db import settings
from workflows.web.seeds import Seeds
from workflows.web.test_hostile import NASTY, harmless

URL = "postgresql+psycopg://etl@db-of-the-shop/facts"
VALUES = (URL, "value-of-variable", "value-of-parameter", "name-of-secret")


@pytest.fixture
def shop(seeds):
    """One of each, of `default` and of all."""
    with seeds.database.write() as connection:
        for project in ("", "default"):
            given = {"url": URL, "secret": "name-of-secret"}
            settings.save_setting(connection, "connection", project, "shop", given)
            settings.save_setting(
                connection, "environment", project, "prod", {"variables": {"REGION": "value-of-variable"}}
            )
            settings.save_setting(connection, "parameter", project, "bucket", {"value": ["value-of-parameter"]})
    yield
    with seeds.database.write() as connection:
        for project in ("", "default"):
            for kind, name in (("connection", "shop"), ("environment", "prod"), ("parameter", "bucket")):
                settings.delete_setting(connection, kind, project, name)


def told(client):
    paths = ("/settings", "/settings?project=default", *(f"/api/v1/{each}" for each in KINDS))
    return "".join(client.get(path, headers={"Accept": "text/html"}).text for path in paths)


KINDS = ("connections", "environments", "parameters")


@pytest.mark.parametrize("name", ["viewer-of-default", "operator-of-default"])
def test_who_may_not_write_workflows_sees_names_and_no_values(shop, ask, name):
    text = told(ask(name))
    assert "shop" in text
    assert "visible to editors" in text
    assert not [each for each in VALUES if each in text]
    assert {each["shown"] for kind in KINDS for each in ask(name).get(f"/api/v1/{kind}").json()} == {False}


def test_who_sees_no_project_sees_no_name(shop, ask):
    assert [ask("nobody").get(f"/api/v1/{kind}").json() for kind in KINDS] == [[], [], []]


def test_who_is_of_another_project_sees_what_is_of_all_and_nothing_of_this_one(shop, ask):
    for kind in KINDS:
        assert {each["project"] for each in ask("stranger").get(f"/api/v1/{kind}").json()} == {""}
        assert {each["project"] for each in ask("stranger").get(f"/api/v1/{kind}?project=default").json()} == {""}
    definition = {"name": "x", "project": "default", "tasks": [{"name": "a", "type": "connect", "params": {}}]}
    definition["tasks"][0]["params"]["connection"] = "no-such"
    answer = ask("stranger").post("/api/v1/workflows:validate", json={"definition": definition})
    assert answer.json() == {"ok": True, "errors": []}  # whether there is one is not told


def test_a_password_that_is_refused_is_on_no_page_and_in_no_answer(browser, ask):
    client = browser("editor-of-default")
    evil = "postgresql://etl:hunter2@db/x"
    form = {"name": "shop", "project": "default", "url": evil, "secret": "kept", "csrf": client.csrf}
    answer = client.post("/settings/connection", data=form)
    assert answer.status_code == 422
    assert "it has a password" in answer.text
    assert 'value="kept"' in answer.text
    assert "hunter2" not in answer.text
    answer = ask("admin").put("/api/v1/connections/shop", json={"url": evil})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "url")
    assert "hunter2" not in answer.text
    assert "hunter2" not in ask("admin").get("/api/v1/audit").text


def test_a_form_that_is_refused_comes_back_as_it_was_written(browser):
    client = browser("editor-of-default")
    form = {"name": "prod", "project": "default", "variables": "A=1\nnonsense", "csrf": client.csrf}
    answer = client.post("/settings/environment", data=form)
    assert answer.status_code == 422
    assert "line 2 is not a variable; write NAME=value" in answer.text
    assert "A=1\nnonsense" in answer.text


@pytest.mark.parametrize("value", ["text", "17", '"17"', "[1, null]", "a\nb", "true", " x "])
def test_a_value_stays_what_it_is_through_the_form(browser, ask, shop, value):
    client = browser("editor-of-default")
    form = {"name": "bucket", "project": "default", "value": value, "csrf": client.csrf}
    assert client.post("/settings/parameter", data=form).status_code == 303
    before = ask("admin").get("/api/v1/parameters?project=default").json()
    text = client.get("/settings?project=default").text
    area = text.rpartition('<textarea name="value" rows="3" class="mono" spellcheck="false">')[0]
    shown = area.rpartition('<textarea name="value" rows="3" class="mono" spellcheck="false">')[2].partition(
        "</textarea>"
    )[0]
    again = shown.replace("&#34;", '"').replace("&lt;", "<")
    assert client.post("/settings/parameter", data={**form, "value": again}).status_code == 303
    assert ask("admin").get("/api/v1/parameters?project=default").json() == before


def test_a_change_without_the_proof_of_our_page_is_refused(browser, shop):
    client = browser("admin")
    for path in ("/settings/connection", "/settings/connection/delete", "/settings/connection/test"):
        assert client.post(path, data={"name": "shop", "url": "sqlite://"}).status_code == 403
    assert client.put("/api/v1/parameters/a", json={"value": 1}).status_code == 403
    assert client.delete("/api/v1/connections/shop").status_code == 403


def test_what_people_store_runs_nowhere(browser, seeds, evil_rows):
    client = browser()
    for path in ("/settings", "/settings?project=default", f"/settings?project={NASTY[:60]}", "/audit"):
        answer = client.get(path)
        assert answer.status_code == 200
        harmless(answer.text)


@pytest.fixture
def evil_rows(seeds):
    """As no form of ours would store it: an import of another time, or somebody with the database."""
    name = NASTY[:90]
    rows = {"connection": {"url": NASTY, "secret": NASTY[:90]}, "parameter": {"value": {NASTY: NASTY}}}
    rows["environment"] = {"variables": {NASTY: NASTY}}
    with seeds.database.write() as connection:
        for kind, values in rows.items():
            settings.save_setting(connection, kind, "default", name, values)
    yield
    with seeds.database.write() as connection:
        for kind in rows:
            settings.delete_setting(connection, kind, "default", name)


def test_a_try_leads_to_the_run_and_runs_in_the_project_of_the_connection(ask, shop):
    first = ask("editor-of-default").post("/api/v1/connections/shop:test?project=default", json={})
    assert first.status_code == 202
    again = ask("admin").post("/api/v1/connections/shop:test?project=default", json={"within": "billing"})
    assert (again.status_code, "tried in default" in again.json()["detail"]) == (422, True)
    shadowed = ask("admin").post("/api/v1/connections/shop:test", json={"within": "default"})
    assert shadowed.status_code == 409
    task = ask("admin").get("/api/v1/workflows/default/_connection.shop").json()["definition"]["tasks"][0]
    assert task == {**task, "type": "connect", "params": {"connection": "shop"}}


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_the_same_on_postgresql(database, tmp_path):
    seeds = Seeds(database, tmp_path / "logs")
    tokens = seeds.people()
    site = make_web_app(database, logs=seeds.logs, hosts=["testserver"])
    headers = {"Authorization": f"Bearer {tokens['admin']}", "Accept": "text/html"}
    client = TestClient(site, headers=headers, follow_redirects=False)
    for project in ("", "default"):
        where = {"params": {"project": project}}
        bodies = {"connections": {"url": URL}, "environments": {"variables": {"A": "'"}}, "parameters": {"value": "%"}}
        for kind, body in bodies.items():
            answers = [client.put(f"/api/v1/{kind}/one", json=body, **where).json() for _ in range(2)]
            assert answers == [{"is_new": True}, {"is_new": False}]
            assert client.get("/settings", **where).status_code == 200
            assert len(client.get(f"/api/v1/{kind}", **where).json()) == (2 if project else 1)
            assert client.delete(f"/api/v1/{kind}/two", **where).status_code == 404
    assert client.delete("/api/v1/parameters/one", params={"project": "default"}).json() == {"missed_by": []}
