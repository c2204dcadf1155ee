"""Connections, environments and parameters: what tasks get of them, and what is refused; on each database."""

import uuid

import pytest
import sqlalchemy as sa

from latchwork_workflows.db import settings
from latchwork_workflows.db.tables import attempt, event, task
from latchwork_workflows.errors import BadRequest, DefinitionInvalid, NotFound, WrongState
from latchwork_workflows.maintenance import Doctor, import_document
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.model.settings.validation import find_url_problem
from latchwork_workflows.model.values import RunContext, compute_values
from latchwork_workflows.services import workflows
from latchwork_workflows.state import Outcome
from latchwork_workflows.worker import Secrets
from latchwork_workflows.worker.preparation import insert_password
from workflows import working
from workflows.hands import client_of, stage_in_memory

from .working import log_of

pytestmark = pytest.mark.threads
PASSWORD = "p@ss/w:rd %41"
HIDDEN = (PASSWORD, "p%40ss%2Fw%3Ard%20%2541", "p%40ss%2Fw%3Ard+%2541", "p%40ss/w%3Ard%20%2541")
EACH = pytest.mark.parametrize("database_url", [pytest.param("sqlite", id="file"), "postgres"], indirect=True)
FILE = pytest.mark.parametrize("database_url", [pytest.param("sqlite", id="file")], indirect=True)


@pytest.fixture
def stage(database_url):
    with stage_in_memory(database_url) as made:
        yield made


@pytest.fixture
def client(stage):
    with client_of(stage.database, stage.store) as client:
        yield client


@pytest.fixture
def logs(stage, tmp_path):
    return working.begun(stage.store, tmp_path)


@pytest.fixture
def worker(stage, logs, tmp_path):
    assert logs
    secrets = Secrets(environ={"LATCHWORK_SECRET_SHOP": PASSWORD}, providers=())
    made = working.worker(stage.store, tmp_path, secrets=secrets)
    yield made
    made.close()


def of(type_, **params):
    options = {key: params.pop(key) for key in ("env", "environment", "after", "retries") if key in params}
    return {"type": type_, "params": params, **options}


def flow(tasks, **fields):
    return {"name": "flow", "tasks": [{"name": name, **each} for name, each in tasks.items()], **fields}


def run(client, stage, tasks, **fields):
    """Apply it, run it to its end; its attempts by task."""
    client.workflows.apply(flow(tasks, **fields))
    with stage.master():
        found = client.runs.start(f"{fields.get('project', 'default')}.flow").wait(60)
    with stage.database.read() as connection:
        chosen = sa.select(task.c.name, task.c.outputs, attempt).join(attempt, attempt.c.task == task.c.id)
        mine = chosen.where(task.c.run_id == found.id).order_by(attempt.c.n)
        return {row.name: row for row in connection.execute(mine)}


# What tasks run on


@EACH
def test_sql_runs_on_the_stored_connection_that_it_names(client, stage, logs, worker, tmp_path):
    client.connections.set("shop", f"sqlite:///{tmp_path}/shop.db")
    make = of("sql", connection="shop", statement=["CREATE TABLE t (a)", "INSERT INTO t VALUES (7)"])
    read = of("sql", connection="${db}", statement="SELECT a FROM t", after=["make"])
    rows = run(client, stage, {"make": make, "read": read}, params={"db": "shop"})
    assert rows["read"].outputs == {"rows": 1, "first": {"a": 7}}, rows["read"].error
    assert (tmp_path / "shop.db").exists()


@pytest.fixture
def guarded(postgres):
    """A database of PostgreSQL that lets ``etl`` in by its password alone."""
    name = f"g{uuid.uuid4().hex}"
    admin = sa.create_engine(postgres.database_url(), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        path = connection.exec_driver_sql("SHOW hba_file").scalar()
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the server's
            before = file.read()
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(f"host {name} etl all scram-sha-256\n{before}")
        connection.exec_driver_sql(f"CREATE ROLE etl LOGIN PASSWORD '{PASSWORD.replace('%', '%%')}'")
        connection.exec_driver_sql(f"CREATE DATABASE {name} OWNER etl")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    yield postgres.database_url(name).replace("://latchwork@", "://etl@")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        connection.exec_driver_sql("DROP ROLE etl")
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(before)
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    admin.dispose()


@FILE
def test_sql_procedure_and_script_get_into_postgresql_by_the_secret_of_the_worker(client, stage, logs, worker, guarded):
    client.connections.set("shop", guarded, secret="shop")
    client.connections.set("other", guarded)
    body = "CREATE PROCEDURE twice(IN n INTEGER, OUT m INTEGER) LANGUAGE plpgsql AS 'BEGIN m := 2 * n; END'"
    python = "import os, sqlalchemy as sa; c = sa.create_engine(os.environ['DB']).connect(); "
    python += "print(c.exec_driver_sql('SELECT current_user').scalar())"
    script = f'echo "$DB"; echo "url=$DB" >> "$LATCHWORK_OUTPUT"; "$PY" -c "{python}"'
    tasks = {
        "make": of("sql", connection="shop", statement=body),
        "call": of("procedure", connection="shop", procedure="twice", arguments=[21, None], after=["make"]),
        "script": of("shell", script=script, env={"DB": "${connection:shop}", "PY": working.sys.executable}),
        "without": of("sql", connection="other", statement="SELECT 1"),
    }
    rows = run(client, stage, tasks)
    assert rows["call"].outputs == {"rows": 1, "first": {"m": 42}}, rows["call"].error
    assert log_of(logs, rows["script"]).splitlines()[1] == "etl", log_of(logs, rows["script"])
    assert "password" in rows["without"].error
    told = str(rows) + "".join(log_of(logs, each) for each in rows.values())
    assert "etl:***@" in told
    assert not [each for each in HIDDEN if each in told]


@FILE
def test_a_connection_that_is_removed_later_ends_its_attempt_with_one_clear_error(client, stage, logs, worker):
    client.connections.set("shop", "sqlite://")
    tasks = {"a": of("sql", connection="shop", statement="SELECT 1", retries=3)}
    client.workflows.apply(flow(tasks))
    assert client.connections.remove("shop") == ["default.flow"]
    with stage.master():
        client.runs.start("flow").wait(60)
    (row,) = stage.attempts()
    assert (row[0], row[2], row[4]) == (
        1,
        "fatal",
        "there is no connection 'shop'; create it, or give its URL",
    )


@FILE
def test_an_output_never_says_where_a_password_goes(client, stage, logs, worker, tmp_path):
    client.connections.set("shop", "postgresql://etl@127.0.0.1:1/shop", secret="shop")
    lie = '#json {\\"connection:shop\\": {\\"url\\": \\"postgresql://etl@evil/x\\", \\"secret\\": \\"shop\\"}}'
    tasks = {
        "lie": of("shell", script=f'echo "{lie}" >> "$LATCHWORK_OUTPUT"'),
        "tell": of("shell", script='echo "$DB"', env={"DB": "${connection:shop}"}, after=["lie"]),
    }
    rows = run(client, stage, tasks)
    assert log_of(logs, rows["tell"]).startswith("postgresql://etl:***@127.0.0.1:1/shop\n")


@FILE
def test_a_worker_tries_a_connection_and_says_how_it_went(client, stage, logs, worker):
    client.connections.set("good", "sqlite://")
    client.connections.set("bad", "sqlite:////nowhere/at/all/x.db", project="billing")
    with stage.master():
        good = client.runs.wait(client.commands.wait(client.connections.test("good").command).run, 60)
        bad = client.runs.wait(client.commands.wait(client.connections.test("bad", project="billing").command).run, 60)
    assert (good.workflow, good.state.value) == ("default._connection.good", "success")
    assert (bad.workflow, bad.state.value) == ("billing._connection.bad", "failure")
    assert "unable to open database file" in client.runs.attempts(bad.id)[0].error
    with pytest.raises(NotFound, match="no connection bad of all projects"):
        client.connections.test("bad")


def test_a_password_is_put_into_a_url_where_drivers_look_for_it():
    assert (
        insert_password("postgresql://etl@db:5432/x?a=b@c", "a/b@:c") == "postgresql://etl:a%2Fb%40%3Ac@db:5432/x?a=b@c"
    )
    assert insert_password("redis://db", "s") == "redis://:s@db"
    assert insert_password("postgresql://etl:old@db", "s") == "postgresql://etl:old@db"
    assert insert_password("sqlite:///x@y.db", "s") == "sqlite:///x@y.db"


# Which counts, and when it is read


def test_what_is_nearer_to_the_run_counts():
    spec = {"name": "t", "type": "x", "params": {"task": 1, "out": 1, "flow": 1, "start": 1}, "after": ["up"]}
    body = Definition(
        name="w", params={"flow": 2, "start": 2}, environment="e", tasks=[{"name": "up", "type": "x"}, spec]
    )
    names = ("start", "flow", "out", "task", "env", "shared")
    made = RunContext(
        body,
        1,
        0.0,
        {"start": 3},
        shared=dict.fromkeys(names, "project"),
        environments={"e": dict.fromkeys(names[:-1], "env")},
    )
    found = compute_values(made, body.task("t"), 1, {"up": dict.fromkeys(names[:3], "out")})
    assert [found[name] for name in names] == [3, 2, "out", 1, "env", "project"]
    assert compute_values(made, body.task("up"), 1, {})["task"] == "env"


@EACH
def test_a_task_reads_what_is_stored_when_it_is_put_and_keeps_it(client, stage):
    hand = stage.hand()
    client.parameters.set("bucket", "old")
    client.parameters.set("bucket", "other", project="billing")
    client.environments.set("prod", {"REGION": "all"})
    client.environments.set("prod", {"REGION": "eu", "day": "env"}, project="default")
    client.environments.set("own", {"REGION": "us"})
    tasks = {
        "a": of("shell", script="true", retries=1),
        "b": of("shell", script="true", environment="own", after=["a"]),
    }
    tasks["a"]["retry_interval_s"] = 0
    version = client.workflows.apply(flow(tasks, environment="prod", params={"day": "start", "x": "${bucket}"}))
    with stage.master():
        made = stage.start(version)
        first = hand.wait("a")
        client.parameters.set("bucket", {"a": [1]})
        client.environments.set("prod", {"REGION": "asia"}, project="default")
        spec = hand.spec(first)
        assert (spec.values["bucket"], spec.values["x"], spec.values["day"]) == ("old", "old", "start")
        assert spec.env == {"REGION": "eu"}  # `day` is nearer
        hand.end(first, Outcome.FAILURE)
        second = hand.wait("a")
        assert (hand.spec(second).values["bucket"], hand.spec(second).env) == ({"a": [1]}, {"REGION": "asia"})
        hand.end(second)
        last = hand.wait("b")
        assert hand.spec(last).env == {"REGION": "us"}
        hand.end(last)
        stage.until(made, "success")


@FILE
def test_a_connection_that_only_an_environment_names_reaches_the_task(client, stage):
    hand = stage.hand()
    client.connections.set("shop", "sqlite:///shop.db")
    client.environments.set("prod", {"DB": "${connection:shop}"})
    version = client.workflows.apply(flow({"a": of("shell", script="true")}, environment="prod"))
    with stage.master():
        stage.start(version)
        claim = hand.wait("a")
        assert hand.spec(claim).connections == {"shop": {"url": "sqlite:///shop.db", "secret": ""}}


@FILE
def test_an_environment_that_is_removed_later_ends_the_attempt(client, stage):
    client.environments.set("prod", {"A": "b"})
    version = client.workflows.apply(flow({"a": of("shell", script="true")}, environment="prod"))
    assert client.environments.remove("prod") == ["default.flow"]
    with stage.master():
        made = stage.start(version)
        stage.until(made, "failure")
    assert "there is no environment 'prod'; create it, or name another" in stage.attempts()[0][4]


# What is refused


URLS = {
    "postgresql://u:pw@db/x": "it has a password",
    "postgresql://u:p/w@db/x": "it has a password",
    "postgresql://u:@db/x": "it has a password",
    "postgresql://u@db/x?password=pw": "looks like a password",
    "postgresql://u@db/x?sslpassword=pw": "looks like a password",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dpw": "looks like a password",
    "postgresql://u@db/${x}": "a stored URL cannot contain references",
    "postgresql://u@db/x y": "it contains spaces",
    "postgresql://u@db/x\x1b[2J": "it contains spaces",
    "postgresql://u@db/\u202ex": "it contains spaces",
    "nothing": "does not begin with a kind of database",
    "": "this is required",
    f"sqlite:///{'x' * 1000}": "at most 1,000",
}


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_is_none_or_has_a_password_is_refused_and_not_repeated(url):
    told = find_url_problem(url)
    assert URLS[url] in told
    assert not url or url not in told
    assert "pw" not in told


def test_urls_of_all_kinds_are_taken():
    for url in ("sqlite://", "sqlite:////srv/a.db", "postgresql+psycopg://etl@db:5432/x?sslmode=require"):
        assert find_url_problem(url) == ""


@EACH
def test_what_cannot_be_stored_is_refused_by_its_field(client, stage):
    cases = [
        (lambda: client.connections.set("a/b", "sqlite://"), "'a/b' is not a valid name"),
        (
            lambda: client.connections.set("a", "sqlite://", secret="../x"),
            "secret: this is not a valid name of a secret",
        ),
        (lambda: client.environments.set("e", {"A-B": "x"}), "variables.A-B: 'A-B' is not a valid variable name"),
        (lambda: client.environments.set("e", {"A": "${"}), "variables.A: .*not closed"),
        (lambda: client.environments.set("e", {"LATCHWORK_TOKEN": "x"}), "workers set variables of this name"),
        (lambda: client.environments.set("e", {"A": "x" * 100_001}), "at most 100000"),
        (lambda: client.parameters.set("logical_date", 1), "built in and cannot be replaced"),
        (lambda: client.parameters.set("a", "x" * 10_001), "at most 10,000"),
        (lambda: client.parameters.set("a", "x\0"), "contains a NUL"),
        (lambda: client.parameters.set("a", float("nan")), "not finite"),
        (lambda: client.parameters.set("a; DROP TABLE parameter", 1), "should match pattern"),
    ]
    for ask, told in cases:
        with pytest.raises(BadRequest, match=told):
            ask()
    assert client.connections.list() == client.environments.list() == client.parameters.list() == []
    evil = "'); DROP TABLE parameter; --"
    client.parameters.set("a", evil)
    client.environments.set("e", {"A": evil}, project="p")
    assert [each.value for each in client.parameters.list()] == [evil]


@FILE
def test_a_project_takes_no_more_than_so_many(client, stage):
    with stage.database.write() as connection:
        for number in range(500):
            settings.save_setting(connection, "parameter", "", f"p{number}", {"value": 1})
    client.parameters.set("p1", 2)
    with pytest.raises(WrongState, match="all projects has 500 parameters"):
        client.parameters.set("more", 1)


@EACH
def test_what_is_named_and_not_stored_is_refused_by_its_place(client):
    client.connections.set("shop", "sqlite://", project="billing")
    client.environments.set("test", {"REGION": "eu"})
    client.parameters.set("bucket", 1)
    tasks = {
        "a": of("sql", connection="shop", statement="SELECT 1"),
        "b": of("shell", script="true", environment="nix", env={"X": "${bucket} ${REGION}"}),
        "c": of("shell", script="true", environment="test", env={"X": "${bucket} ${REGION}", "Y": "${connection:no}"}),
    }
    given = flow(tasks, environment="prod")
    with pytest.raises(DefinitionInvalid) as refused:
        client.workflows.apply(given)
    told = [str(each) for each in refused.value.problems]
    assert [each.partition(", ")[0] for each in told] == [
        "tasks[1].env.X: '${REGION}' is not a parameter",
        "environment: there is no environment 'prod' of project default or of all",
        "tasks[0].params.connection: there is no connection 'shop' of project default or of all",
        "tasks[1].environment: there is no environment 'nix' of project default or of all",
        "tasks[2]: there is no connection 'no' of project default or of all",
    ]
    assert client.workflows.validate(given) == refused.value.problems
    assert [
        each.path for each in client.workflows.validate({**given, "project": "billing"}) if "shop" in each.message
    ] == ["tasks[2]"]


@FILE
def test_what_was_removed_between_the_check_and_the_write_is_refused_too(client, stage, monkeypatch):
    client.connections.set("shop", "sqlite://")
    check = workflows.validate_definition

    def checked(*args):
        found = check(*args)
        client.connections.remove("shop")
        return found

    monkeypatch.setattr(workflows, "validate_definition", checked)
    with pytest.raises(DefinitionInvalid, match="no connection 'shop'"):
        client.workflows.apply(flow({"a": of("sql", connection="shop", statement="SELECT 1")}))


@FILE
def test_doctor_names_workflows_that_name_what_is_not_there(client, stage):
    client.connections.set("shop", "sqlite://")
    client.environments.set("prod", {})
    tasks = {
        "a": of("sql", connection="shop", statement="SELECT 1"),
        "b": of("shell", script="true", environment="prod"),
    }
    client.workflows.apply(flow(tasks))
    client.workflows.apply({**flow({"a": of("shell", script="true")}, environment="prod"), "name": "off"}, online=False)
    client.connections.remove("shop")
    client.environments.remove("prod")
    found = Doctor(stage.database, stage.store, wait=lambda _: None).check()
    told = [(each.kind, each.subject, each.can_repair) for each in found if each.kind == "missing setting"]
    assert told == [
        ("missing setting", "default.flow tasks[0].params.connection", False),
        ("missing setting", "default.flow tasks[1].environment", False),
    ]


@FILE
def test_an_import_with_a_password_is_refused_by_its_place_and_not_repeated(client, stage):
    document = {
        "latchwork_workflows": 1,
        "connections": [{"name": "a", "url": "sqlite://"}, {"name": "b", "url": "postgresql://u:hunter2@db/x"}],
        "environments": [{"name": "e", "variables": {"A-B": "c"}}],
        "parameters": [{"name": "a b", "value": 1}, {"project": "../x", "name": "ok", "value": 1}],
    }
    with pytest.raises(DefinitionInvalid) as refused:
        import_document(stage.database, document, by="eve")
    told = [str(each) for each in refused.value.problems]
    assert [each.partition(":")[0] for each in told] == [
        "connections[1].url",
        "environments[0].variables.A-B",
        "parameters[0].name",
        "parameters[1].project",
    ]
    assert "hunter2" not in str(refused.value)
    assert client.connections.list() == []


@EACH
def test_the_audit_says_who_changed_what_and_no_value(client, stage):
    client.connections.set("shop", "postgresql://etl@db-of-shop/x", secret="shop")
    client.connections.set("shop", "postgresql://etl@db-of-shop/y", secret="shop")
    client.environments.set("prod", {"A": "value-a", "B": "value-b"}, project="billing")
    client.environments.set("prod", {"C": "value-c"}, project="billing", keep=True, drop=["A"])
    client.parameters.set("bucket", "value-of-bucket")
    client.parameters.remove("bucket")
    with stage.database.read() as connection:
        rows = connection.execute(sa.select(event).order_by(event.c.id)).all()
    assert [(row.kind, row.project, row.details) for row in rows] == [
        ("connection set", "", {"connection": "shop", "new": True}),
        ("connection set", "", {"connection": "shop", "new": False, "changed": ["url"]}),
        ("environment set", "billing", {"environment": "prod", "new": True, "variables": ["A", "B"]}),
        ("environment set", "billing", {"environment": "prod", "new": False, "variables": ["A", "C"]}),
        ("parameter set", "", {"parameter": "bucket", "new": True}),
        ("parameter delete", "", {"parameter": "bucket"}),
    ]
    assert client.environments.list()[0].variables == {"B": "value-b", "C": "value-c"}


def test_a_workflow_is_tried_on_connections_of_variables(monkeypatch, tmp_path):
    from latchwork_workflows import sql, workflow

    @workflow(environment="production")
    def facts():
        sql("shop.eu", "SELECT 7 AS seven", name="read")

    monkeypatch.setenv("LATCHWORK_CONNECTION_SHOP_EU", f"sqlite:///{tmp_path}/shop.db")
    assert facts.test().check().outputs["read"]["first"] == {"seven": 7}
    monkeypatch.delenv("LATCHWORK_CONNECTION_SHOP_EU")
    assert "there is no connection 'shop.eu'" in facts.test().tasks["read"].error
