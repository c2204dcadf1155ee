"""`latchwork workflows connections`, `environments`, `parameters`: what each prints, and how it ends."""

import pytest

from latchwork_workflows.db import Database, DatabaseAccounts
from latchwork_workflows.home import Home
from latchwork_workflows.serve import Serve, ServeOptions
from latchwork_workflows.web import Role
from latchwork_workflows.worker import WorkerOptions
from workflows.test_command_line import BAD, EVIL, flows

assert flows  # a fixture: a command in this process, on the server below


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    options = ServeOptions(port=0, worker=WorkerOptions(slots=2, work_dir=tmp_path_factory.mktemp("work")))
    with Serve(Home.of(tmp_path_factory.mktemp("home")), options) as serve:
        yield serve


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    """The server's are the module's."""


def test_connections_are_set_listed_tried_and_deleted(flows):
    flows("connections", "set", "a", "postgresql://u:hunter2@db/x").refused(2, "url: it has a password")
    assert "connection shop of all projects created" in flows("connections", "set", "shop", "sqlite://").out
    flows("connections", "set", "gone", "sqlite:////nowhere/x.db", "--secret", "none", "--project", "default")
    assert flows("connections", "list", "--json").json["connections"] == [
        {"project": "", "name": "shop", "url": "sqlite://", "secret": ""},
        {"project": "default", "name": "gone", "url": "sqlite:////nowhere/x.db", "secret": "none"},
    ]
    assert "sqlite:////nowhere/x.db" in flows("connections", "list").out
    good = flows("connections", "test", "shop")
    assert (good.code, "a worker connected" in good.out) == (0, True), good.out + good.err
    bad = flows("connections", "test", "gone", "--project", "default", "--json")
    assert (bad.code, bad.json["ok"], "no secret 'none'" in bad.json["error"]) == (1, False, True)
    flows("connections", "test", "nix").refused(1, "there is no connection nix of all projects")
    assert flows("connections", "rm", "shop", "--json").json["missed_by"] == []
    flows("connections", "rm", "shop").refused(1, "there is no connection shop")


def test_environments_and_parameters_are_set_and_listed(flows):
    flows("environments", "set", "prod", "A=1", "B=x=y", "--project", "billing")
    flows("environments", "set", "prod", "C=2", "--unset", "A", "--project", "billing")
    rows = flows("environments", "list", "--project", "billing", "--json").json["environments"]
    assert rows == [{"project": "billing", "name": "prod", "variables": {"B": "x=y", "C": "2"}}]
    flows("environments", "set", "prod", "nonsense").refused(2, "is not a variable; write NAME=value")
    flows("parameters", "set", "regions", '["eu", 1]')
    assert flows("parameters", "list", "--json").json["parameters"] == [
        {"project": "", "name": "regions", "value": ["eu", 1]}
    ]
    assert "updated" in flows("parameters", "set", "regions", "text").out
    assert (
        flows("parameters", "rm", "regions").code
        == flows("environments", "rm", "prod", "--project", "billing").code
        == 0
    )
    assert "no parameters" in flows("parameters", "list").out


def test_what_is_stored_moves_no_cursor(flows):
    flows("parameters", "set", "evil", EVIL)
    flows("environments", "set", "evil", f"A={EVIL}")
    for kind in ("parameters", "environments"):
        assert not BAD.search(flows(kind, "list").out.replace("\n", ""))
    flows("parameters", "set", EVIL, "x").refused(2, "should match pattern")


def test_an_api_is_asked_by_its_url(flows, served, monkeypatch, tmp_path):
    database = Database(served.home.database)
    accounts = DatabaseAccounts(database)
    accounts.ensure_account("remote", Role.ADMIN)
    token = accounts.create_token("remote", "test", by="test")[1]
    database.close()
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_TOKEN", token)
    to = ("--url", served.url)
    assert "created" in flows("connections", "set", "far", "sqlite://", *to).out
    assert flows("connections", "test", "far", *to, "--json").json["ok"]
    for kind, name, value in (("environments", "far", "A=1"), ("parameters", "far", "1")):
        assert flows(kind, "set", name, value, *to).code == 0
        assert name in {each["name"] for each in flows(kind, "list", *to, "--json").json[kind]}
        assert flows(kind, "rm", name, *to).code == 0
    assert flows("connections", "rm", "far", *to).code == 0
    flows("parameters", "list").refused(2, "no database")
