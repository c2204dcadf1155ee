"""``WorkflowClient``: the same answers and errors over the network and in this process."""

import json
import subprocess
import sys
import threading
import types
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from latchwork.errors import LatchworkError, Unavailable
from latchwork_workflows.app import make_web_app
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.errors import (
    BadRequest,
    DefinitionInvalid,
    KeyReused,
    NotAllowed,
    NotFound,
    WrongState,
)
from latchwork_workflows.model.builder import task, workflow
from latchwork_workflows.services import ServiceContext
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import HttpServer
from workflows.web.seeds import BILLING, GOOD, HALF, NIGHTLY


@pytest.fixture(scope="module")
def runs(seeds):
    return {"half": seeds.run(HALF), "good": seeds.run(GOOD)}


@pytest.fixture(scope="module")
def server(seeds):
    made = HttpServer(make_web_app(seeds.database, logs=seeds.logs))
    made.start()
    yield made.url
    made.close()


@contextmanager
def other_server():
    """A server that knows nothing of workflows."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404 if "gone" in self.path else 200)
            self.end_headers()
            self.wfile.write(b"<p>hello")

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


@pytest.fixture(params=["remote", "in_process"])
def client(request, seeds, server):
    if request.param == "remote":
        made = WorkflowClient(server, seeds.tokens["admin"])
    else:
        made = WorkflowClient.in_process(
            ServiceContext(seeds.database, seeds.accounts, TaskTypes(), seeds.logs), by="ann"
        )
    with made:
        yield made


def log_ref(seeds, attempt):
    where = f"WHERE task = {attempt.task} AND n = {attempt.n}"
    with seeds.database.read() as connection:
        return connection.exec_driver_sql(f"SELECT log_ref FROM attempt {where}").scalar()


@pytest.mark.parametrize("module", ["client", "schemas.workflows", "schemas.runs", "schemas.pools", "schemas.problems"])
def test_clients_and_schemas_load_neither_fastapi_nor_sqlalchemy(module):
    code = (
        f"import sys, latchwork_workflows.{module}; print(*sorted({{each.partition('.')[0] for each in sys.modules}}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pydantic" in loaded
    assert not {"fastapi", "starlette", "sqlalchemy", "uvicorn", "jinja2"} & set(loaded)


def test_a_problem_is_the_exception_that_the_service_raised(client, runs):
    with pytest.raises(NotFound, match=r"^there is no workflow default\.gone$"):
        client.workflows.get("gone")
    with pytest.raises(NotFound, match=r"^there is no run 999$"):
        client.runs.pause(999)
    with pytest.raises(WrongState, match="success"):
        client.runs.pause(runs["good"])
    with pytest.raises(NotAllowed, match="is an internal command of masters"):
        client.runs.send_action(runs["half"], "wake")
    with pytest.raises(BadRequest, match=r"^params\.no: default\.nightly has no parameter 'no'"):
        client.runs.start("nightly", {"no": 1})
    with pytest.raises(BadRequest, match=r"^scope: "):
        client.runs.start("nightly", scope="sideways")
    with pytest.raises(BadRequest, match="cron"):
        client.schedules.preview("every day")
    client.workflows.set_online("nightly", online=False)
    with pytest.raises(WrongState, match="is offline; set it online"):
        client.runs.start("nightly")
    client.workflows.set_online("nightly", online=True)
    key = f"key of {client!r}".replace(" ", "-")
    client.runs.start("nightly", unique_key=key)
    with pytest.raises(KeyReused, match="was used for command"):
        client.runs.start("nightly", {"region": "us"}, unique_key=key)


#: Reads or changes an object that does not exist, and what the error calls it.
MISSING = {
    "workflow default.gone": lambda client: client.workflows.get("gone"),
    "workflow default.nightly has no version 999": lambda client: client.workflows.get("nightly", 999),
    "run 999": lambda client: client.runs.get(999),
    "task 999": lambda client: client.tasks.force_success(999),
    "command 999": lambda client: client.commands.get(999),
    "backfill 999": lambda client: client.backfills.get(999),
    "pool 'gone'": lambda client: client.pools.remove("gone"),
    "alert 999": lambda client: client.alerts.get(999),
    "delivery 999": lambda client: client.alerts.resend(999),
    "channel gone": lambda client: client.channels.remove("gone"),
    "connection gone of all projects": lambda client: client.connections.remove("gone"),
    "environment gone of all projects": lambda client: client.environments.remove("gone"),
    "parameter gone of all projects": lambda client: client.parameters.remove("gone"),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_object_is_not_found_and_named(client, name):
    with pytest.raises(NotFound) as refused:
        MISSING[name](client)
    assert name in str(refused.value)


def test_a_missing_attempt_of_a_task_is_not_found_and_named(client, runs):
    name = f"{client.runs.attempts(runs['good'])[0].task}.9.9"
    with pytest.raises(NotFound, match=f"^there is no attempt {name}$"):
        client.attempts.log(name)


def test_a_missing_object_has_another_error_type_than_a_missing_path(server, seeds):
    def get(path):
        request = urllib.request.Request(
            f"{server}/api/v1/{path}", headers={"Authorization": f"Bearer {seeds.tokens['admin']}"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        return refused.value.code, json.load(refused.value)["type"]

    for path in ("alerts/999", "pools/gone", "backfills/999", "runs/999", "workflows/default/gone"):
        assert get(path) == (404, "tag:latchwork,2026:not-found"), path
    assert get("gone") == (404, "about:blank")


def test_an_invalid_definition_names_every_problem(client):
    wrong = {"name": "flow", "tasks": [{"name": "a", "type": "shell", "params": {}, "after": ["gone"]}]}
    found = client.workflows.validate(wrong)
    assert len(found) == 2
    with pytest.raises(DefinitionInvalid) as refused:
        client.workflows.apply(wrong)
    assert refused.value.problems == found
    with pytest.raises(DefinitionInvalid, match="half of a surrogate pair"):
        client.workflows.apply({**NIGHTLY, "description": "\ud800"})


def test_workflows_runs_and_schedules_are_the_same_documents_in_both_modes(client, server, seeds, runs):
    with WorkflowClient(server, seeds.tokens["admin"]) as other:
        assert client.workflows.list() == other.workflows.list()
        assert client.workflows.get("billing.close", 1) == other.workflows.get("billing.close", 1)
        assert client.schedules.find("nightly", count=3) == other.schedules.find("nightly", count=3)
        assert client.runs.get(runs["half"]) == other.runs.get(runs["half"])
        assert client.runs.explain(runs["half"]) == other.runs.explain(runs["half"])
        assert client.runs.attempts(runs["half"]) == other.runs.attempts(runs["half"])
    assert [each.key for each in client.workflows.list("clo")] == ["billing.close"]
    assert client.schedules.find("billing.close") is None
    assert client.runs.list("nightly", state="success", limit=1)[0].has_ended
    assert client.runs.get(runs["half"]).task_states.keys() == {each["name"] for each in NIGHTLY["tasks"]}


def test_the_list_of_workflows_goes_over_all_pages(client, monkeypatch):
    monkeypatch.setattr("latchwork_workflows.client.workflows._PAGE", 1)
    assert {"billing.close", "default.nightly"} <= {each.key for each in client.workflows.list()}


def test_a_log_is_read_in_parts_as_it_was_written_and_followed_to_its_end(client, seeds, runs):
    attempt = client.runs.attempts(runs["good"])[0]
    whole = b"".join(client.attempts.follow(attempt.id))
    assert whole == seeds.logs.read(log_ref(seeds, attempt), 0, 10_000).data
    first = client.attempts.log(attempt.id, limit=3)
    assert (first.data, first.next) == (whole[:3], 3)
    rest = client.attempts.log(attempt.id, first.next)
    assert (first.data + rest.data, rest.ended) == (whole, True)


def test_a_module_is_deployed_with_its_code(client, seeds, tmp_path, monkeypatch):
    (tmp_path / "deployed.py").write_text("def work():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = types.ModuleType("deployed")
    module.__file__ = str(tmp_path / "deployed.py")

    def work():
        return None

    work.__module__ = "deployed"
    work.__qualname__ = "work"

    @workflow(name="deployed")
    def flow():
        task(work)()

    module.flow = flow
    ((_, version),) = client.workflows.deploy(module)
    (spec,) = client.workflows.get("deployed", version.version).definition.tasks
    assert seeds.logs.get_file(f"bundles/{spec.params['bundle']}")[:2] == b"PK"


def test_nothing_that_a_network_sends_makes_an_administrator_of_it(server):
    for token in ("", "latchwork.identity", "lw_none"):
        with WorkflowClient(server, token) as client, pytest.raises(NotAllowed):
            client.workflows.list()


def test_an_api_that_is_not_there_or_is_another_is_an_error_of_ours(server):
    with WorkflowClient("http://127.0.0.1:9", "x") as client, pytest.raises(Unavailable, match="cannot be reached"):
        client.workflows.list()
    with other_server() as url, WorkflowClient(url, "x") as client:
        with pytest.raises(NotFound, match="answers 404 Not Found"):
            client.workflows.get("gone")
        with pytest.raises(LatchworkError, match="a response that this version does not understand"):
            client.workflows.list()


def test_the_audit_names_the_user_of_a_client_in_this_process(seeds):
    context = ServiceContext(seeds.database, seeds.accounts, TaskTypes(), seeds.logs)
    with WorkflowClient.in_process(context, by="ann of the machine") as client:
        client.workflows.apply({**BILLING, "description": "changed"})
        assert client.workflows.versions("billing.close")[0].author == "ann of the machine"


def test_two_threads_may_use_one_client_and_closing_it_ends_its_loop(seeds):
    closed = []
    context = ServiceContext(seeds.database, seeds.accounts, TaskTypes(), seeds.logs)
    client = WorkflowClient.in_process(context, close=lambda: closed.append(True))
    found = []
    threads = [threading.Thread(target=lambda: found.append(len(client.workflows.list()))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(found) == 8
    assert len(set(found)) == 1
    client.close()
    client.close()
    assert closed == [True]
