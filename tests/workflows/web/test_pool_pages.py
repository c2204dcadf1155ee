"""The pages of pools, and what the page of a run says of its cause: read, and changed by forms."""

import re

import pytest
import sqlalchemy as sa

from latchwork_workflows.app import make_web_app
from latchwork_workflows.db import grants, pools
from latchwork_workflows.db.tables import command, event, task
from latchwork_workflows.schemas.grants import Grant
from latchwork_workflows.schemas.pools import PoolSettings
from latchwork_workflows.state import Claimed
from latchwork_workflows.web import Role
from workflows.web.seeds import BAD, BILLING, GOOD, HALF, NIGHTLY, apply, shell, works

GROUPED = {"name": "grouped", "tasks": [shell(f"g{number}", pool="few") for number in range(4)]}
SECRET = {"name": "secret", "project": "billing", "tasks": [shell("hidden", pool="few")]}


class FakeCluster:
    """A store in which these attempts have slots."""

    def __init__(self, taken):
        self.taken = taken

    def notify_master(self, shard):
        pass

    def get_slot_holders(self):
        return self.taken

    def list_workers(self):
        return []


@pytest.fixture(scope="module")
def taken():
    return {}


@pytest.fixture(scope="module")
def site(seeds, taken):
    return make_web_app(seeds.database, logs=seeds.logs, cluster=FakeCluster(taken), hosts=["testserver"])


@pytest.fixture(scope="module")
def held(seeds, taken):
    """Two slots: one has a task of ours, one a task of another project; three tasks wait, and one of the other."""
    for given in (GROUPED, SECRET):
        seeds.codes[given["name"]] = apply(seeds.database, given).code
    run = seeds.run([(1.0, [Claimed("g0", 1)])], name="grouped", given=GROUPED)
    other = seeds.run([(1.0, [Claimed("hidden", 1)])], name="secret", given=SECRET)
    seeds.run([], name="secret", given=SECRET)
    with seeds.database.write() as connection:
        pools.save_pool(connection, PoolSettings(name="few", size=2))
        rows = connection.execute(sa.select(task.c.name, task.c.id, task.c.run_id)).all()
        found = {(row.run_id, row.name): row.id for row in rows}
        pools.save_pool(connection, PoolSettings(name="@billing", size=5, admission="fail"))
    taken["few"] = [f"{found[run, 'g0']}.1", f"{found[other, 'hidden']}.1"]
    taken["=billing"] = [f"{found[other, 'hidden']}.1"]
    return run, found


def told(seeds, kind):
    with seeds.database.read() as connection:
        rows = connection.execute(sa.select(event.c.by, event.c.details).where(event.c.kind == kind)).all()
    return [(row.by, row.details) for row in rows]


def test_a_pool_shows_who_has_its_slots_and_who_waits_and_hides_what_one_may_not_see(browser, held, ask):
    run, found = held
    page = browser("viewer-of-default").get("/pools/few").text
    assert "2 of 2" in page
    assert f'<a href="/tasks/{found[run, "g0"]}">g0</a>' in page
    assert "worker-1" in page
    assert "a task that you cannot access" in page
    assert "hidden" not in re.sub(r'type="hidden"', "", page)
    assert "billing" not in page
    assert 'action="/pools' not in page  # a viewer changes nothing
    document = ask("viewer-of-default").get("/api/v1/pools/few").json()
    assert (document["size"], document["used"], document["waiting"]) == (2, 2, 4)
    assert document["workflows"] == ["default.grouped"]
    assert [each["task"] for each in document["holders"]] == [found[run, "g0"], None]
    other = document["holders"][1]
    assert [other[each] for each in ("task", "run", "name", "workflow", "worker")] == [None, None, "", "", ""]
    assert [each["name"] for each in document["queue"]] == ["g1", "g2", "g3", ""]
    assert [each["name"] for each in ask("admin").get("/api/v1/pools/few?limit=1").json()["queue"]] == ["g1"]
    everything = browser().get("/pools/few").text
    assert "billing.secret" in everything


def test_the_pool_of_a_project_is_not_there_for_others(browser, held, ask):
    page = browser("stranger").get("/pools/@billing").text
    assert "1 of 5" in page
    assert "hidden" in page
    assert browser("viewer-of-default").get("/pools/@billing").status_code == 404
    assert "billing" not in browser("viewer-of-default").get("/pools").text
    document = ask("stranger").get("/api/v1/pools/@billing").json()
    assert (document["size"], document["used"], document["admission"]) == (5, 1, "fail")
    assert [each["name"] for each in document["holders"]] == ["hidden"]


def test_why_names_who_has_the_slots_as_far_as_one_may_see_them(browser, held, ask):
    run, found = held
    here = f"/tasks/{found[run, 'g1']}"
    assert "has no worker" in browser().get(here).text
    why = ask("viewer-of-default").get(f"/api/v1/runs/{run}/why").json()
    assert set(why["tasks"]) == {"g0", "g1", "g2", "g3"}
    assert why["cause"] == []  # something of it is at work
    assert 'href="/pools/few"' in browser().get(here).text


def test_pools_are_changed_by_forms_and_stand_in_the_audit(seeds, browser, held):
    client = browser("editor")
    send = {"csrf": client.csrf}
    answer = client.post("/pools", data={**send, "name": " few ", "size": "3", "back": "one"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/pools/few")
    assert client.post("/pools", data={**send, "name": "new", "size": "7"}).headers["location"] == "/pools"
    page = client.get("/pools").text
    assert "/pools/new" in page
    assert told(seeds, "pool set")[-2:] == [
        ("editor", {"name": "few", "size": 3, "admission": "suspend", "is_new": False}),
        ("editor", {"name": "new", "size": 7, "admission": "suspend", "is_new": True}),
    ]
    assert client.post("/pools/new/remove", data=send).status_code == 303
    assert "/pools/new" not in client.get("/pools").text
    limit = {"name": "@default", "size": "12", "admission": "precompute"}
    assert client.post("/pools", data={**send, **limit, "back": "one"}).headers["location"] == "/pools/@default"
    assert "waits until its tasks fit" in client.get("/pools/@default").text
    assert client.post("/pools/@default/remove", data=send).status_code == 303
    assert client.get("/pools/@default").status_code == 404
    assert told(seeds, "pool remove")[-1][0] == "editor"


@pytest.mark.parametrize(
    ("path", "sent", "status", "said"),
    [
        ("/pools", {"name": "few", "size": "0"}, 422, "greater than or equal to 1"),
        ("/pools", {"name": "few", "size": "many"}, 422, "&#39;many&#39; is not a whole number"),
        ("/pools", {"name": "<b>a/b", "size": "1"}, 422, "should match pattern"),
        ("/pools/few/remove", {}, 409, "pool few is named by"),
        ("/pools", {"name": "@", "size": "2"}, 422, "should match pattern"),
        ("/pools", {"name": "@default", "size": "99999"}, 422, "less than or equal to 10000"),
        ("/pools", {"name": "@default", "size": "2", "admission": "x"}, 422, "suspend"),
        ("/pools", {"name": "few", "size": "2", "admission": "fail"}, 422, "only the pool of a project"),
    ],
)
def test_what_is_refused_is_said_on_the_page_with_what_was_written(seeds, browser, held, path, sent, status, said):
    client, before = browser("editor"), len(told(seeds, "pool set"))
    answer = client.post(path, data={"csrf": client.csrf, **sent})
    assert answer.status_code == status
    assert said in answer.text
    assert "Not changed." in answer.text
    assert "<b>a" not in answer.text
    if sent.get("size"):
        assert f'value="{sent["size"]}"' in answer.text
    assert len(told(seeds, "pool set")) == before
    assert client.post(path, data=sent).status_code == 403  # without the proof of a page


def test_a_store_that_is_away_hides_who_has_the_slots_and_not_who_waits(seeds, browser, held):
    page = browser("admin")
    site = page.app
    cluster, site.state.context.cluster = site.state.context.cluster, None
    try:
        text = page.get("/pools/few").text
        assert "The store is unreachable" in text
        assert "g1" in text
        assert "unknown" in page.get("/pools").text
    finally:
        site.state.context.cluster = cluster


def test_a_run_that_failed_says_by_what_at_the_top_and_links_to_it(seeds, browser, ask):
    bad = seeds.run(BAD)
    text = browser().get(f"/runs/{bad}").text
    (cause,) = re.findall(r'class="cause problem">(.*?)</div>', text, re.DOTALL)
    assert "Why it failed" in cause
    assert re.search(r'<a href="/tasks/\d+">extract-orders</a>: It failed after 3 of 3 attempts', cause)
    assert "exit code 1: no space left on device" in cause
    assert "behind &#39;extract-orders&#39;" in text
    good = seeds.run(GOOD)
    assert 'class="cause problem"' not in browser().get(f"/runs/{good}").text
    document = ask("viewer-of-default").get(f"/api/v1/runs/{bad}/why").json()
    assert [each["task"] for each in document["cause"]] == ["extract-orders"]


def asked(seeds, client, path, action):
    answer = client.post(path, data={"csrf": client.csrf, "key": f"{path}{action}", "action": action})
    assert answer.status_code == 303, answer.text[:300]
    with seeds.database.read() as connection:
        return connection.execute(sa.select(*command.c).order_by(command.c.id.desc())).first()


def test_a_run_is_run_again_without_the_cache_or_from_a_task_by_buttons(seeds, browser):
    cached = {"name": "cached", "tasks": [shell("a", cache_s=60), shell("b", ["a"])]}
    seeds.codes["cached"] = apply(seeds.database, cached).code
    run = seeds.run([*works("a"), *works("b")], name="cached", given=cached)
    client = browser("operator-of-default")
    assert 'value="rerun-no-cache"' in client.get(f"/runs/{run}").text
    row = asked(seeds, client, f"/runs/{run}/action", "rerun-no-cache")
    assert (row.type, row.args) == ("rerun", {"no_cache": True})
    plain = seeds.run(BAD)
    page = client.get(f"/runs/{plain}").text
    assert 'value="rerun"' in page
    assert "rerun-no-cache" not in page  # nothing of it is ever cached
    with seeds.database.read() as connection:
        rows = connection.execute(sa.select(task.c.name, task.c.id).where(task.c.run_id == plain)).all()
        ids = {row.name: row.id for row in rows}
    here = f"/tasks/{ids['extract-customers']}"
    assert "Recover the run from here" in client.get(here).text
    row = asked(seeds, client, f"{here}/action", "recover-from")
    assert (row.type, row.args) == ("recover", {"start_from": ["extract-customers"]})
    half = seeds.run(HALF)
    with seeds.database.read() as connection:
        (number,) = connection.execute(
            sa.select(task.c.id).where(task.c.run_id == half, task.c.name == "clean")
        ).first()
    assert "Recover the run from here" not in client.get(f"/tasks/{number}").text  # a run that goes on is not recovered


def test_a_backfill_form_offers_those_that_wait_and_no_cache_where_there_is_one(seeds, browser):
    waits = {"type": "dependent", "params": {"on": {"workflow": "billing.close", "window": "today"}}}
    apply(seeds.database, {"name": "after", "project": "billing", "tasks": [{"name": "ready", **waits}]})
    apply(seeds.database, {**BILLING, "tasks": [shell("sum", cache_s=9), shell("send", ["sum"])]})
    client = browser("stranger")  # administrator of billing
    form = "/workflows/billing/close/backfill"
    text = client.get(form).text
    assert "run direct dependents: billing.after" in text
    assert 'name="no_cache"' in text
    sent = {"csrf": client.csrf, "key": "d1", "first": "2026-01-01", "last": "2026-01-02", "parallel": "1"}
    answer = client.post(form, data={**sent, "dependents": "direct", "no_cache": "yes"})
    assert answer.status_code == 303, answer.text[:900]
    with seeds.database.read() as connection:
        rows = connection.execute(sa.select(command.c.args).order_by(command.c.id.desc()).limit(2)).scalars().all()
    assert [each["no_cache"] for each in rows] == [True, True]
    assert (rows[1]["dependents"], "cause" in rows[0]) == ("direct", True)
    assert client.post(form, data={**sent, "key": "d2", "dependents": "some"}).status_code == 422
    apply(seeds.database, {**NIGHTLY, "name": "outside", "tasks": [{"name": "ready", **waits}], "schedule": None})
    refused = client.post(form, data={**sent, "key": "d3", "dependents": "direct"})
    assert refused.status_code == 403
    for text in (client.get(form).text, refused.text):
        assert "a workflow that waits for this one is in a project that you cannot access" in text
        assert not {"default", "outside"} & set(re.findall(r"\w+", text.partition("<main")[2]))  # nor by its name
    assert "Dependent workflows cannot be included" in client.get(form).text
    seeds.accounts.set_role("stranger", "default", Role.VIEWER, by="test")
    assert "stranger does not have the role operator in project &#39;default&#39;" in client.get(form).text
    seeds.accounts.set_role("stranger", "default", None, by="test")


@pytest.fixture
def granted(seeds):
    """Project ``billing`` may start the workflows of ``default``."""
    with seeds.database.write() as connection:
        grants.save_grant(connection, Grant(project="default", grantee="billing", role="operator"))
    yield
    with seeds.database.write() as connection:
        grants.remove_grant(connection, "default", "billing")


def test_a_ring_of_workflows_names_none_that_its_writer_may_not_see(seeds, ask, granted):
    def starts(name, project, other):
        task = {"name": "it", "type": "sub_process", "params": {"workflow": other}}
        return {"name": name, "project": project, "tasks": [task]}

    apply(seeds.database, starts("middle", "default", "default.inmost"))
    apply(seeds.database, starts("inmost", "default", "billing.ring"))
    answer = ask("stranger").post("/api/v1/workflows", json={"definition": starts("ring", "billing", "default.middle")})
    assert answer.status_code == 422, answer.text
    hidden = "one that you cannot access"
    assert f"billing.ring -> {hidden} -> {hidden} -> billing.ring" in answer.text
    assert "inmost" not in answer.text
