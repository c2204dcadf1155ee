"""`latchwork workflows api` and `users`: the pages of a fleet, who may sign in, and settings by variables."""

import json
import re
import sys
import urllib.request
from io import StringIO

import pytest
import typer

from latchwork.cli.main import application
from latchwork.errors import LatchworkError
from latchwork_workflows.app import make_web_app, require_password_if_public
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.home import Home
from latchwork_workflows.logs import LogStoreMismatch
from latchwork_workflows.serve import Serve, ServeOptions
from latchwork_workflows.web import Role
from latchwork_workflows.worker import WorkerOptions
from patience import eventually
from workflows.conftest import a_database
from workflows.test_command_line import BAD, EVIL, flows
from workflows.test_serving import start

assert flows  # a fixture: a command in this process
assert start  # a fixture: a command in a process of its own
NODES = ("serve", "api", "master", "worker")
FLOW = {"name": "flow", "tasks": [{"name": "a", "type": "shell", "params": {"script": "echo done"}}]}


@pytest.fixture
def served(tmp_path):
    """A database, and nobody who serves it."""
    home = Home.of(tmp_path / "home", environ={})
    with Serve(home, ServeOptions(has_pages=False, has_master=False)) as serve:
        yield serve


def asked(address, token, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=30) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
def test_pages_alone_start_runs_that_masters_and_workers_elsewhere_do(start, tmp_path):
    home = Home.of(tmp_path / "home", environ={})
    worker = WorkerOptions(slots=1, work_dir=tmp_path / "work")
    with Serve(home, ServeOptions(has_pages=False, worker=worker)):
        start("api", "--port", "0")
        out = tmp_path / "out-0"
        eventually(lambda: "no account has a password yet" in out.read_text(), 60.0)
        address = re.search(r"at (http://\S+)", out.read_text())[1]
        with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
            assert answer.status == 200
        database = Database(home.database)
        accounts = DatabaseAccounts(database)
        accounts.create_account("ann", None, by="test")
        accounts.set_role("ann", "", Role.ADMIN, by="test")
        token = accounts.create_token("ann", "test", by="test")[1]
        database.close()
        asked(f"{address}/api/v1/workflows", token, {"definition": FLOW})
        number = asked(f"{address}/api/v1/workflows/default/flow:start", token, {})["command"]
        rows = f"{address}/api/v1/runs"
        eventually(lambda: [each["state"] for each in asked(rows, token)] == ["success"], 60.0)
        run = asked(f"{address}/api/v1/commands/{number}", token)["run"]
        assert asked(f"{address}/api/v1/runs/{run}", token)["state"] == "success"
        assert [each["slots"] for each in asked(f"{address}/api/v1/workers", token)] == [1]


@pytest.mark.slow
def test_masters_and_workers_that_are_started_one_by_one_run_tasks(flows, start, tmp_path):
    """Nobody but `serve` had begun the logs: the workers of a fleet that never had one took no task."""
    home = tmp_path / "fleet"
    flows("init", "--home", home)
    told = ("--home", str(home))
    for node in ("master", "worker"):
        start(node, *told)
    (tmp_path / "flow.yaml").write_text(json.dumps(FLOW))
    flows("apply", "flow.yaml", *told)
    run = flows("start", "flow", "--wait", "--json", *told).json
    assert run["state"] == "success", (tmp_path / "out-1").read_text()
    assert "done" in flows("logs", run["run"], "a", *told).out


def test_logs_are_begun_by_masters_that_were_told_where_they_are(tmp_path):
    """A folder of the master's machine, which nobody named, is not where workers of other machines write."""
    fleet = {"database": "postgresql+psycopg://flows@db/flows", "store": "etcd://e1:2379/flows"}
    assert not Home.of(tmp_path, **fleet, environ={}).can_read_worker_logs
    assert Home.of(tmp_path, **fleet, logs="s3://bucket/flows", environ={}).can_read_worker_logs
    assert Home.of(tmp_path, **fleet, environ={"LATCHWORK_WORKFLOWS_LOGS": "/mnt/logs"}).can_read_worker_logs
    assert Home.of(tmp_path, environ={}).can_read_worker_logs


def test_commands_on_a_fleet_take_no_store_and_no_logs_of_this_machine_for_its_own(flows, tmp_path, monkeypatch):
    """They made an empty store, in which no worker lives, and put code where no worker reads."""
    monkeypatch.delenv("LATCHWORK_WORKFLOWS_HOME")
    far = ("--database", f"sqlite:///{tmp_path}/far.db")
    here = tmp_path / "here"
    monkeypatch.setenv("XDG_DATA_HOME", str(here))
    flows("init", *far)
    (tmp_path / "flow.yaml").write_text(json.dumps(FLOW))
    flows("apply", "flow.yaml", *far)
    flows("workers", *far).refused(1, "the API was started without --store")
    assert not list(here.rglob("store.db"))
    (tmp_path / "far_flows.py").write_text("from latchwork_workflows import workflow")
    flows("deploy", "far_flows.py", *far).refused(2, "give --logs, or --no-bundle")
    with Serve(Home.of(here / "latchwork" / "workflows", environ={}), ServeOptions(has_pages=False)):
        flows("workers", *far).refused(1, "the API was started without --store")  # those of this machine are others


def test_pages_alone_refuse_logs_of_nobody(served, tmp_path):
    alone = ServeOptions(port=0, worker=None, has_master=False, makes_database=False)
    given = Home.of(served.home.folder, logs=str(tmp_path / "others"), environ={})
    with pytest.raises(LogStoreMismatch, match="belongs to no workflows; give the URL that the masters have"):
        Serve(given, alone).start()
    assert not (tmp_path / "others").exists()


def test_pages_alone_make_no_database(flows, tmp_path):
    flows("api", "--home", tmp_path / "none").refused(2, "no database")
    (tmp_path / "old.db").touch()
    flows("api", "--port", 0, "--database", f"sqlite:///{tmp_path}/old.db").refused(1, "is empty, or older", "init")
    alone = ServeOptions(port=0, worker=None, has_master=False, makes_database=False)
    with pytest.raises(LatchworkError, match="is empty, or older than this version"):
        Serve(Home.of(tmp_path / "new", environ={}), alone).start()


def test_accounts_are_made_changed_and_listed(flows, monkeypatch):
    assert "no users; create one with" in flows("users", "list").out
    monkeypatch.setattr(sys, "stdin", StringIO("correct horse battery\n"))
    made = flows("users", "set", "ann", "--role", "admin", "--password", "--json").json
    assert made == {"is_new": True, "user": "ann", "enabled": True, "has_password": True, "roles": {"": "admin"}}
    assert (
        "user bob created: operator of billing"
        in flows("users", "set", "bob", "--role", "operator", "--project", "billing").out
    )
    flows("users", "set", "bob", "--role", "viewer")
    assert flows("users", "list", "--json").json["users"][1] == {
        "user": "bob",
        "enabled": True,
        "has_password": False,
        "roles": {"": "viewer", "billing": "operator"},
    }
    assert "viewer of all, operator of billing" in flows("users", "list").out
    flows("users", "set", "bob", "--role", "none", "--project", "billing")
    assert flows("users", "set", "bob", "--off", "--json").json["roles"] == {"": "viewer"}
    flows("users", "link", "bob").refused(2, "user bob is disabled")
    monkeypatch.setattr(sys, "stdin", StringIO("short"))
    flows("users", "set", "ann", "--password").refused(2, "10 to 200 characters")
    flows("users", "set", "carl", "--role", "king").refused(2, "no role 'king'", "viewer, operator, editor, admin")
    flows("users", "set", "a b").refused(2, "is not a valid name")
    flows("users", "link", "carl").refused(1, "no account 'carl'")
    assert [each["user"] for each in flows("users", "list", "--json").json["users"]] == ["ann", "bob"]


def test_a_link_of_a_command_signs_a_browser_in_once(flows, served):
    flows("users", "set", "ann", "--role", "admin")
    link = flows("users", "link", "ann", "--at", "https://flows.example.org/").out.strip()
    assert re.fullmatch(r"https://flows\.example\.org/sign-in\?link=[\w-]{43}", link)
    database = Database(served.home.database)
    accounts = DatabaseAccounts(database)
    assert accounts.sign_in_by_link(link.rpartition("=")[2]) is not None
    assert accounts.sign_in_by_link(link.rpartition("=")[2]) is None
    database.close()
    flows("users", "link", "ann", "--at", "flows").refused(2, "http://")


def test_what_an_account_is_called_moves_no_cursor(flows, served):
    database = Database(served.home.database)
    DatabaseAccounts(database).create_account(EVIL, None, by="test")
    database.close()
    assert not BAD.search(flows("users", "list").out)


@pytest.mark.parametrize("name", NODES)
def test_each_setting_of_a_node_can_be_a_variable(name):
    group = typer.main.get_command(application()).commands["workflows"]
    own = {"name", "node_id"} if name in {"master", "worker"} else set()  # of one process alone
    for option in group.commands[name].params:
        if option.name not in {"debug", "help", *own}:
            assert option.envvar.startswith("LATCHWORK_WORKFLOWS_"), option.name
            # A service of Kubernetes that is called latchwork-workflows makes one of this name, with an address in it.
            assert option.envvar != "LATCHWORK_WORKFLOWS_PORT"


def test_a_setting_that_is_a_variable_counts_unless_an_option_says_otherwise(flows, monkeypatch):
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_ORDER", "random")
    flows("master").refused(2, "--order is run or submitted, not 'random'")
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_ON_DISCONNECT", "shrug")
    flows("worker").refused(2, "on_disconnect must be 'wait' or 'stop', not 'shrug'")
    flows("worker", "--on-disconnect", "panic").refused(2, "not 'panic'")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "flows.example.org"])
def test_other_machines_are_let_in_only_once_somebody_has_a_password(served, host):
    database = Database(served.home.database)
    accounts, app = DatabaseAccounts(database), make_web_app(database)
    accounts.create_account("ann", None, by="test")
    for local in ("127.0.0.1", "::1", "[::1]", "localhost"):
        require_password_if_public(app, local)
    with pytest.raises(LatchworkError, match=f"--host {re.escape(host)} lets other machines connect.*users set NAME"):
        require_password_if_public(app, host)
    accounts.set_password("ann", "correct horse battery", by="test")
    require_password_if_public(app, host)
    accounts.set_enabled("ann", False, by="test")
    with pytest.raises(LatchworkError, match="no account has a password"):
        require_password_if_public(app, host)
    database.close()


def test_the_store_is_in_the_database_if_that_is_on_postgresql_and_no_other_is_given(tmp_path):
    def store_of(database, **environ):
        return Home.of(tmp_path, database=database, environ=environ).store

    assert store_of("postgresql://flows:a%2Fb@db:5433/flows") == "postgresql://flows:a%2Fb@db:5433/flows?root=workflows"
    with_tls = "postgresql+psycopg://flows@db/flows?sslmode=verify-full&sslrootcert=/ca.pem&application_name=x"
    assert store_of(with_tls) == "postgresql://flows@db/flows?root=workflows&sslmode=verify-full&tls_ca=/ca.pem"
    assert store_of("sqlite:////flows.db") == f"sqlite:///{tmp_path}/store.db"
    assert store_of("postgresql:///flows?host=/run/postgresql") == f"sqlite:///{tmp_path}/store.db"
    elsewhere = {"LATCHWORK_WORKFLOWS_STORE": "etcd://e1:2379/flows"}
    assert store_of("postgresql://flows@db/flows", **elsewhere) == "etcd://e1:2379/flows"


@pytest.mark.slow
def test_a_server_and_a_worker_elsewhere_need_one_postgresql_and_nothing_else(start, tmp_path, postgres):
    with a_database(postgres) as made:
        url = made.replace("postgresql+psycopg://", "postgresql://")
        logs = ("--logs", str(tmp_path / "logs"))
        start("serve", "--port", "0", "--slots", "1", "--group", "here", "--database", url, *logs)
        eventually(lambda: "sign-in" in (tmp_path / "out-0").read_text(), 60.0)
        start("worker", "--group", "default", "--store", f"{url}?root=workflows", *logs)
        home = Home.of(tmp_path / "other", database=url, logs=logs[1], environ={})
        with WorkflowClient.local(home) as client:
            client.workflows.apply(FLOW)
            run = client.runs.start("flow")
            assert run.wait(60).state.value == "success"
            assert len(client.workers.list()) == 2
        assert not list(tmp_path.rglob("*.db"))
