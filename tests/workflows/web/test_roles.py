"""Who may do what: every route of the site, asked by every role. A new route has to have a row here."""

import re

import pytest
from fastapi.routing import APIRoute

from latchwork_workflows.db import alerts, backfills, grants, pools, settings
from latchwork_workflows.db.alerts import create_alert
from latchwork_workflows.schemas.grants import Grant
from latchwork_workflows.schemas.pools import PoolSettings
from workflows.web.seeds import BILLING, GOOD, HALF, NIGHTLY, apply

#: Who asks: nobody at all, an account without roles, an administrator of another project, the roles of `default`, and
#: the administrator of everything.
ASKERS = (
    None,
    "nobody",
    "stranger",
    "viewer-of-default",
    "operator-of-default",
    "editor-of-default",
    "admin-of-default",
    "admin",
)
OPEN = (200,) * 8
#: Anybody who is in.
IN = (401, *(200,) * 7)
#: Anybody with a role in some project.
SOME = (401, 403, *(200,) * 6)
#: A viewer of the project; to others it is not there.
VIEW = (401, 404, 404, *(200,) * 5)


def of(role, good, *, hidden=404):
    """From this role in the project upwards."""
    order = ("viewer", "operator", "editor", "admin")
    refused = order.index(role)
    return (401, hidden, hidden, *(403,) * refused, *(good,) * (4 - refused), good)


ADMIN = (401, *(403,) * 6, 200)
SETTINGS = ("connection", "environment", "parameter")
#: What each answers: (method, route, what is sent) -> the status for each of ASKERS.
API = {
    "GET /healthz": OPEN,
    "GET /metrics": SOME,
    "GET /api/v1/workers": (401, 403, *(503,) * 6),  # there is no store here
    "GET /api/v1/pools": SOME,
    "GET /api/v1/pools/{pool}": (401, 403, *(404,) * 6),  # there is none of this name
    "PUT /api/v1/pools/{pool}": (401, *(403,) * 6, 200),
    "DELETE /api/v1/pools/{pool}": (401, *(403,) * 6, 404),
    "GET /api/v1/grants": IN,
    "PUT /api/v1/projects/{project}/grants": (401, *(403,) * 7),  # not with a token
    "GET /api/v1/workflows": IN,
    "POST /api/v1/workflows": (401, 403, 403, 403, 403, 200, 200, 200),
    "POST /api/v1/workflows:validate": IN,
    "POST /api/v1/bundles": (401, 403, 201, 403, 403, 201, 201, 201),  # an editor of any project
    "GET /api/v1/workflows/{project}/{name}": VIEW,
    "GET /api/v1/workflows/{project}/{name}/yaml": VIEW,
    "GET /api/v1/workflows/{project}/{name}/versions": VIEW,
    "GET /api/v1/workflows/{project}/{name}/diff": VIEW,
    "PUT /api/v1/workflows/{project}/{name}/online": of("editor", 204),
    "PUT /api/v1/workflows/{project}/{name}/schedule": of("operator", 204),
    "POST /api/v1/workflows/{project}/{name}:start": of("operator", 202),
    "POST /api/v1/workflows/{project}/{name}:backfill": of("operator", 202),
    "GET /api/v1/backfills": IN,
    "GET /api/v1/workflows/{project}/{name}/following-backfills": VIEW,
    "GET /api/v1/backfills/{backfill_id}": VIEW,
    "GET /api/v1/backfills/{backfill_id}/runs": VIEW,
    "POST /api/v1/backfills/{backfill_id}:stop": of("operator", 202),
    "GET /api/v1/alerts": IN,
    "GET /api/v1/alerts/{alert_id}": VIEW,
    "POST /api/v1/deliveries/{delivery_id}:resend": of("editor", 202),
    "GET /api/v1/channels": ADMIN,
    "PUT /api/v1/channels/{name}": (401, *(403,) * 6, 200),
    "DELETE /api/v1/channels/{name}": (401, *(403,) * 6, 204),
    "POST /api/v1/channels/{name}:test": (401, *(403,) * 6, 202),
    "GET /api/v1/lineage": IN,
    "GET /api/v1/schedules": IN,
    "GET /api/v1/schedules:preview": IN,
    "GET /api/v1/task-types": (401, 403, *(200,) * 6),
    "GET /api/v1/commands/{command_id}": VIEW,
    "POST /api/v1/commands/{command_id}:stop": of("operator", 204),
    "GET /api/v1/runs": IN,
    "GET /api/v1/runs/{run_id}": VIEW,
    "GET /api/v1/runs/{run_id}/why": VIEW,
    "GET /api/v1/runs/{run_id}/tasks": VIEW,
    "GET /api/v1/runs/{run_id}/attempts": VIEW,
    "POST /api/v1/runs/{run_id}:{action}": of("operator", 202),
    "GET /api/v1/tasks/{task_id}": VIEW,
    "GET /api/v1/tasks/{task_id}/elements": VIEW,
    "GET /api/v1/runs/{run_id}/children": VIEW,
    "POST /api/v1/tasks/{task_id}:{action}": of("operator", 202),
    "GET /api/v1/attempts/{attempt_id}/log": VIEW,
    "GET /api/v1/attempts/{attempt_id}/log/raw": VIEW,
    "GET /api/v1/attempts/{attempt_id}/log/download": VIEW,
    "GET /api/v1/attempts/{attempt_id}/log/stream": VIEW,
    "GET /api/v1/users": ADMIN,
    # A token changes no accounts, roles and tokens; browsers do, as told below.
    "POST /api/v1/users": (401, *(403,) * 7),
    "PATCH /api/v1/users/{name}": (401, *(403,) * 7),
    "PUT /api/v1/users/{name}/role": (401, *(403,) * 7),
    "GET /api/v1/tokens": IN,
    "POST /api/v1/tokens": (401, *(403,) * 7),
    "DELETE /api/v1/tokens/{token_id}": (401, *(403,) * 7),
    "GET /api/v1/audit": (401, 403, 200, 403, 403, 403, 200, 200),
    "GET /api/v1/events": VIEW,
    **dict.fromkeys((f"GET /api/v1/{kind}s" for kind in SETTINGS), IN),
    # Of the project `default`; those of all projects are below.
    **dict.fromkeys((f"PUT /api/v1/{kind}s/{{name}}" for kind in SETTINGS), (401, 403, 403, 403, 403, 200, 200, 200)),
    **dict.fromkeys(
        (f"DELETE /api/v1/{kind}s/{{name}}" for kind in SETTINGS), (401, 403, 403, 403, 403, 200, 200, 200)
    ),
    "POST /api/v1/connections/{name}:test": (401, 403, 403, 403, 403, 202, 202, 202),
}
PAGES = {
    "GET /": IN,
    "GET /runs": IN,
    "GET /runs/{run_id}": VIEW,
    "GET /tasks/{task_id}": VIEW,
    "GET /attempts/{attempt_id}": VIEW,
    "GET /commands/{command_id}": VIEW,
    "GET /workflows": IN,
    "GET /workflows/{project}/{name}": VIEW,
    "GET /workflows/{project}/{name}/runs": VIEW,
    "GET /workflows/{project}/{name}/versions": VIEW,
    "GET /workflows/{project}/{name}/start": VIEW,
    "GET /workflows/{project}/{name}/edit": VIEW,
    "GET /edit": (401, 403, 200, 403, 403, 200, 200, 200),
    "GET /alerts": IN,
    "GET /backfills": IN,
    "GET /backfills/{backfill_id}": VIEW,
    "GET /workflows/{project}/{name}/backfill": VIEW,
    "GET /workflows/{project}/{name}/backfill/schedule-times": VIEW,
    "GET /lineage": IN,
    "GET /pools": SOME,
    "GET /pools/{name}": SOME,
    "GET /schedules": IN,
    "GET /schedules/preview": IN,
    "GET /settings": IN,
    "GET /workers": SOME,
    "GET /api": IN,
    "GET /account": IN,
    "GET /users": ADMIN,
    "GET /audit": (401, 403, 200, 403, 403, 403, 200, 200),
    "GET /sign-in": OPEN,
}
#: Changes by forms; they stand on what the API does, so the roles are told above, and here that they are the same.
FORMS = {
    "POST /runs/{run_id}/action": of("operator", 303),
    "POST /tasks/{task_id}/action": of("operator", 303),
    "POST /workflows/{project}/{name}/start": of("operator", 303),
    "POST /workflows/{project}/{name}/online": of("editor", 303),
    "POST /workflows/{project}/{name}/schedule": of("operator", 303),
    "POST /workflows/{project}/{name}/backfill": of("operator", 303),
    "POST /backfills/{backfill_id}/stop": of("operator", 303),
    "POST /edit": (401, 403, 403, 403, 403, 303, 303, 303),
    "POST /edit/check": IN,
    "POST /alerts/{delivery_id}/resend": of("editor", 303),
    "POST /channels": (401, *(403,) * 6, 303),
    "POST /channels/{name}/test": (401, *(403,) * 6, 303),
    "POST /channels/{name}/remove": (401, *(403,) * 6, 303),
    "POST /settings/{kind}": (401, 403, 403, 403, 403, 303, 303, 303),
    "POST /settings/{kind}/delete": (401, 403, 403, 403, 403, 303, 303, 303),
    "POST /settings/connection/test": (401, 403, 403, 403, 403, 303, 303, 303),
    "POST /grants": (401, 403, 403, 403, 403, 403, 303, 303),
    "POST /pools": (401, *(403,) * 6, 303),
    "POST /pools/{name}/remove": (401, *(403,) * 6, 303),
    "POST /users": (401, *(403,) * 6, 303),
    "POST /users/{name}/role": (401, 403, 403, 403, 403, 403, 303, 303),
    "POST /users/{name}/enabled": (401, *(403,) * 6, 303),
    "POST /users/{name}/link": ADMIN,
}
#: Of oneself only: signing in and out, one's own tokens and password. Told in test_sign_in.
OWN = {
    "POST /sign-in",
    "POST /sign-out",
    "POST /account/token",
    "POST /account/token/{token_id}/revoke",
    "POST /account/password",
}


def routes(site):
    found = set()
    for route in every(site.routes):
        for method in route.methods - {"HEAD"}:
            found.add(f"{method} {re.sub(r':(int|path)}', '}', route.path)}")
    return found


def every(found):
    for route in found:
        if isinstance(route, APIRoute):
            yield route
        yield from every(getattr(getattr(route, "original_router", None), "routes", ()))


def test_every_route_has_a_row(site):
    ours = routes(site)
    assert len(ours) > 50
    assert ours == {*API, *PAGES, *FORMS, *OWN}


@pytest.fixture(scope="module")
def world(seeds):
    """What addresses name: things of the project `default` only."""
    half, good = seeds.run(HALF), seeds.run(GOOD)
    tasks = {}
    with seeds.database.read() as connection:
        rows = connection.exec_driver_sql(f"SELECT name, id FROM task WHERE run_id = {half}").all()
        tasks = dict(rows)
        claim = connection.exec_driver_sql(f"SELECT claim FROM attempt WHERE task = {tasks['clean']}").scalar()
        command = connection.exec_driver_sql("SELECT max(id) FROM command").scalar()
        code = connection.exec_driver_sql("SELECT code FROM definition WHERE project = 'default'").scalar()
    with seeds.database.write() as connection:
        fields = {"shard": 0, "code": code, "version": 1, "created_at": 1.0}
        kinds = {"parallel": 1, "direction": "asc", "stop_on_failure": False}
        backfill = backfills.create_backfill(
            connection, {**fields, **kinds}, [1.0], {**fields, "params": {}, "priority": 2}
        )
        details = {"workflow": "default.nightly"}
        told = create_alert(
            connection, ["ops"], kind="failure", cause="1@1.0", now=1.0, details=details, run=half, code=code
        )
        delivery = connection.exec_driver_sql(f"SELECT id FROM delivery WHERE alert = {told}").scalar()
    return {
        "delivery": delivery,
        "alert": told,
        "backfill": backfill,
        "half": half,
        "good": good,
        "tasks": tasks,
        "attempt": f"{tasks['clean']}.1.{claim}",
        "command": command,
    }


#: The smallest zip: one without files.
A_ZIP = b"PK\x05\x06" + bytes(18)
WEBHOOK = {"url": "http://127.0.0.1:9/"}
VALUES = {
    "connection": {"url": "sqlite:///shop.db"},
    "environment": {"variables": {"A": "b"}},
    "parameter": {"value": [1]},
}
BODIES = {
    **{f"PUT /api/v1/{kind}s/{{name}}": values for kind, values in VALUES.items()},
    "POST /api/v1/connections/{name}:test": {"group": "reports"},
    "PUT /api/v1/channels/{name}": {"kind": "webhook", "options": WEBHOOK},
    "POST /api/v1/workflows": {"definition": NIGHTLY},
    "POST /api/v1/workflows:validate": {"definition": BILLING},
    "POST /api/v1/workflows/{project}/{name}:backfill": {"first": "2025-10-01", "last": "2025-10-02"},
    "PUT /api/v1/workflows/{project}/{name}/online": {"online": True},
    "PUT /api/v1/workflows/{project}/{name}/schedule": {"enabled": True},
    "POST /api/v1/tokens": {"name": "more"},
    "PUT /api/v1/pools/{pool}": {"size": 2},
    "PUT /api/v1/projects/{project}/grants": {"grantee": "billing", "role": "viewer"},
    "PATCH /api/v1/users/{name}": {"enabled": True},
    "PUT /api/v1/users/{name}/role": {"project": "default", "role": "viewer"},
}


def filled(route, world, seeds, name):
    """The address of a route, about things of `default`; actions so that they can be asked again and again."""
    method, path = route.split(" ")
    path = path.replace("/tasks/{task_id}:{action}", f"/tasks/{world['tasks']['archive']}:force-start")
    path = path.replace("{run_id}:{action}", f"{world['half']}:pause").replace("{run_id}", str(world["half"]))
    path = path.replace("{backfill_id}", str(world["backfill"])).replace("{delivery_id}", str(world["delivery"]))
    path = path.replace("{alert_id}", str(world["alert"]))
    if "/channels/{name}" in path:
        with seeds.database.write() as connection:
            alerts.put_channel(connection, "ops", {"kind": "webhook", "options": WEBHOOK, "changed_at": 1.0})
        path = path.replace("/channels/{name}", "/channels/ops")
    path = path.replace("{pool}", "few" if method == "PUT" else "nobody")
    if path.startswith("/pools/"):
        with seeds.database.write() as connection:
            pools.save_pool(connection, PoolSettings(name="plenty", size=2))
        return method, path.replace("{name}", "plenty")
    path = path.replace("{task_id}", str(world["tasks"]["archive"])).replace("{attempt_id}", world["attempt"])
    path = path.replace("/users/{name}", "/users/pupil").replace("{project}/{name}", "default/nightly")
    path = path.replace("/projects/{project}", "/projects/default")
    if "{token_id}" in path:
        other = seeds.accounts.create_token("admin", "x", by="test")[0]
        path = path.replace("{token_id}", str(other))
    if path.endswith("{command_id}:stop"):
        with seeds.database.write() as connection:
            opened = "UPDATE command SET done_at = NULL, error = NULL WHERE id = "
            connection.exec_driver_sql(opened + str(world["started"]))
    if "{command_id}" in path:
        path = path.replace("{command_id}", str(world["started"]))
    found = re.fullmatch(r"/api/v1/(connection|environment|parameter)s/{name}(:test)?", path)
    if found or path.startswith("/settings/"):
        if method != "PUT":
            stored(seeds)
        path = path.replace("{name}", "one").replace("{kind}", "connection")
        return method, path + ("?project=default" if found else "")
    queries = {
        "/diff": "?old=1&new=1",
        "schedules:preview": "?cron=@daily",
        "/v1/events": f"?topic=run:{world['half']}",
    }
    return method, path + next((query for end, query in queries.items() if path.endswith(end)), "")


def stored(seeds):
    """One of each kind in `default`, called `one`."""
    rows = {**VALUES, "connection": {"url": "sqlite:///shop.db", "secret": ""}}
    with seeds.database.write() as connection:
        for kind, values in rows.items():
            settings.save_setting(connection, kind, "default", "one", values)


@pytest.fixture
def started(seeds, world, ask):
    if "started" not in world:
        answer = ask("admin").post("/api/v1/workflows/default/nightly:start")
        world["started"] = answer.json()["command"]
    return world


STREAMS = {"GET /api/v1/events", "GET /api/v1/attempts/{attempt_id}/log/stream"}


@pytest.mark.parametrize("route", sorted(set(API) - STREAMS))
def test_the_api_lets_each_role_do_what_the_table_says(route, seeds, started, ask):
    for name, expected in zip(ASKERS, API[route], strict=True):
        method, path = filled(route, started, seeds, name)
        body = {"name": f"new-{name}"} if route == "POST /api/v1/users" else BODIES.get(route)
        sent = {"content": A_ZIP} if path.endswith("/bundles") else {"json": body} if body else {}
        answer = ask(name).request(method, path, **sent)
        assert answer.status_code == expected, (name, path, answer.text[:300])
        if expected >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == expected
            assert answer.json()["detail"]


@pytest.mark.parametrize("kind", SETTINGS)
def test_what_is_of_all_projects_is_changed_by_administrators_of_everything(kind, ask):
    path = f"/api/v1/{kind}s/of_all"
    for name in (*ASKERS[1:], "editor"):
        may = name == "admin"
        assert ask(name).put(path, json=VALUES[kind]).status_code == (200 if may else 403), name
        assert ask(name).delete(path).status_code == (200 if may else 403), name


@pytest.mark.parametrize("route", sorted(STREAMS))
def test_streams_are_refused_to_those_who_may_not_see(route, seeds, started, ask):
    for name, expected in zip(ASKERS, API[route], strict=True):
        if expected == 200:
            continue  # an endless one: read in test_live
        method, path = filled(route, started, seeds, name)
        assert ask(name).request(method, path).status_code == expected, name


@pytest.mark.parametrize("route", sorted(PAGES))
def test_pages_show_each_role_what_the_table_says(route, seeds, started, ask):
    for name, expected in zip(ASKERS, PAGES[route], strict=True):
        method, path = filled(route, started, seeds, name)
        answer = ask(name).request(method, path, headers={"Accept": "text/html"})
        if expected == 401:
            assert answer.status_code == 303, (name, path)
            assert answer.headers["location"].startswith("/sign-in?next=")
        else:
            assert answer.status_code == expected, (name, path, answer.text[:300])
            assert answer.headers["content-type"].startswith("text/html")


FIELDS = {
    "POST /channels": {"name": "made", "kind": "webhook", "options": "url: http://127.0.0.1:9/"},
    "POST /settings/{kind}": {"name": "two", "project": "default", "url": "sqlite:///shop.db"},
    "POST /settings/{kind}/delete": {"name": "one", "project": "default"},
    "POST /settings/connection/test": {"name": "one", "project": "default"},
    "POST /grants": {"project": "default", "grantee": "billing", "role": "viewer"},
    "POST /pools": {"name": "@made", "size": "3", "admission": "fail"},
    "POST /runs/{run_id}/action": {"action": "pause"},
    "POST /tasks/{task_id}/action": {"action": "force-start"},
    "POST /workflows/{project}/{name}/online": {"online": "yes"},
    "POST /workflows/{project}/{name}/schedule": {"enabled": "yes"},
    "POST /workflows/{project}/{name}/backfill": {"first": "2025-10-01", "last": "2025-10-02"},
    "POST /users/{name}/role": {"project": "default", "role": "viewer"},
    "POST /users/{name}/enabled": {"enabled": "yes"},
    "POST /edit": {
        "do": "apply",
        "online": "yes",
        "yaml": "name: made\ntasks:\n- {name: a, type: shell, params: {script: x}}",
    },
}


@pytest.mark.parametrize("route", sorted(FORMS))
def test_forms_let_each_role_do_what_the_table_says(route, seeds, started, browser, ask):
    for name, expected in zip(ASKERS, FORMS[route], strict=True):
        client = browser(name) if name else ask()
        fields = {"csrf": getattr(client, "csrf", ""), "key": f"{route}-{name}", **FIELDS.get(route, {})}
        if route == "POST /users":
            fields["name"] = f"made-{name}"
        method, path = filled(route, started, seeds, name)
        answer = client.request(method, path, data=fields)
        assert answer.status_code == expected, (name, path, answer.text[:600])


def test_a_backfill_that_leads_to_a_project_where_somebody_is_no_operator_is_refused_whole(seeds, world, ask):
    waits = {"type": "dependent", "name": "ready", "params": {"on": {"workflow": "default.nightly"}}}
    apply(seeds.database, {"name": "after", "project": "billing", "tasks": [waits]})
    dates = {"first": "2025-10-01", "last": "2025-10-02", "dependents": "direct"}
    path = "/api/v1/workflows/default/nightly:backfill"
    with seeds.database.write() as connection:
        grants.save_grant(connection, Grant(project="default", grantee="billing", role="viewer"))
    asked = "SELECT count(*) FROM command WHERE type = 'backfill'"

    def count():
        with seeds.database.read() as connection:
            return connection.exec_driver_sql(asked).scalar()

    before = count()
    for name in ("operator-of-default", "admin-of-default"):
        answer = ask(name).post(path, json=dates)
        assert (answer.status_code, count()) == (403, before), name
        assert "is in a project that you cannot access" in answer.json()["detail"]
        assert "billing" not in answer.text
    assert ask("admin").post(path, json=dates).status_code == 202
    assert count() == before + 2
