"""Task types: databases, requests, jobs of clusters, and types of other packages (behaviour D16)."""

import json
import os
import stat
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import StreamRequestHandler, TCPServer

import pytest
import sqlalchemy as sa

import latchwork
from latchwork.types import Put
from latchwork_workflows.keys import get_workflows_store
from latchwork_workflows.model.builder import shell, workflow
from latchwork_workflows.model.task_functions import http, mapreduce, noop, of_type, procedure, spark, sql
from latchwork_workflows.model.validate import find_problems
from latchwork_workflows.state import Outcome
from latchwork_workflows.types import TaskTypes
from patience import eventually
from workflows import working

from .working import KEYS, log_of, put, result, running

pytestmark = pytest.mark.threads


@pytest.fixture
def store():
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as opened:
        yield get_workflows_store(opened)


def problems(type_, **params):
    task = {"name": "t", "type": type_, "params": params}
    return [str(each) for each in find_problems({"name": "w", "tasks": [task]}, TaskTypes())]


# Databases


def test_sql_binds_values_runs_in_one_transaction_and_tells_what_came(store, logs, worker, tmp_path):
    url = f"sqlite:///{tmp_path}/facts.db"
    evil = "x'); DROP TABLE facts; --"
    statements = [
        "CREATE TABLE facts (day TEXT, amount INTEGER)",
        "INSERT INTO facts VALUES (:day, :n), (:load_day, 2)",
        "SELECT day, amount FROM facts ORDER BY amount",
    ]
    params = {"connection": url, "statement": statements, "parameters": {"n": "${n}"}}
    x = put(store, 1, params, type="sql", values={"day": evil, "n": 1, "load.day": "tue"})
    found = result(store, x)
    assert found.outcome is Outcome.SUCCESS, found.error
    assert found.outputs == {"rows": 2, "first": {"day": evil, "amount": 1}}
    text = log_of(logs, found)
    assert "statement 2 of 3: 2 rows changed" in text
    assert "statement 3 of 3: 2 rows" in text
    assert "tue" in text


def test_sql_that_fails_leaves_nothing_and_says_the_words_of_the_database(store, logs, worker, tmp_path):
    url = f"sqlite:///{tmp_path}/facts.db"
    put(store, 1, {"connection": url, "statement": ["CREATE TABLE t (a)", "nonsense"]}, type="sql")
    put(store, 2, {"connection": url, "statement": "SELECT :nobody"}, type="sql")
    put(store, 3, {"connection": "nosuch://x", "statement": "SELECT 1"}, type="sql")
    assert 'near "nonsense": syntax error' in result(store, "1.1").error
    assert "binds :nobody, but there is no parameter or output of this name" in result(store, "2.1").error
    assert "nosuch" in result(store, "3.1").error


def test_connection_by_name_gets_its_url(store, logs, worker, tmp_path):
    known = {"facts": {"url": f"sqlite:///{tmp_path}/facts.db"}}
    put(store, 1, {"connection": "facts", "statement": "SELECT 7 AS seven"}, type="sql", connections=known)
    put(store, 2, {"connection": "others", "statement": "SELECT 7"}, type="sql", connections=known)
    assert result(store, "1.1").outputs["first"] == {"seven": 7}
    missing = result(store, "2.1")
    assert (missing.outcome, missing.error[:32]) == (Outcome.FATAL, "there is no connection 'others';")


def test_procedure_is_called_with_its_arguments_bound(store, logs, worker, database_url):
    if not database_url.startswith("postgresql"):
        pytest.skip("SQLite has no procedures")
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE PROCEDURE twice(IN n INTEGER, OUT m INTEGER) LANGUAGE plpgsql AS 'BEGIN m := 2 * n; END'"
        )
    engine.dispose()
    params = {"connection": database_url, "procedure": "twice", "arguments": ["${n}", None]}
    found = result(store, put(store, 1, params, type="procedure", values={"n": 21}))
    assert found.outcome is Outcome.SUCCESS, found.error
    assert found.outputs["first"] == {"m": 42}


def test_what_cannot_be_a_statement_or_a_procedure_is_refused_when_it_is_applied():
    assert "write :day instead of ${day}" in problems("sql", connection="sqlite://", statement="SELECT ${day}")[0]
    assert problems("procedure", connection="sqlite://", procedure="a(); DROP TABLE b")
    assert problems("http", url="file:///etc/passwd") == [
        "tasks[0].params.url: value error, a URL begins with http:// or https://, not 'file:///etc/passwd'"
    ]


# Requests


@pytest.fixture
def site():
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(418 if "teapot" in self.path else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"path": self.path}).encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_http_sends_its_request_with_values_quoted_and_secrets_kept(store, logs, worker, site):
    url, seen = site
    params = {
        "url": url + "/days/${day}?all=1",
        "method": "POST",
        "headers": {"Authorization": "Bearer ${secret:token}"},
        "json_body": {"day": "${day}"},
    }
    found = result(store, put(store, 1, params, type="http", values={"day": "../x?y"}))
    assert found.outcome is Outcome.SUCCESS, found.error
    assert seen == [("/days/..%2Fx%3Fy?all=1", "Bearer t0ps3cret", b'{"day": "../x?y"}')]
    assert found.outputs == {"status": 200, "body": {"path": "/days/..%2Fx%3Fy?all=1"}}
    assert "t0ps3cret" not in log_of(logs, found)


JSON = b"Content-Type: application/json\r\n"
ANSWERS = {
    "a body that ends too early": (b"200 OK\r\nContent-Length: 9\r\n\r\nshort", None),
    "a chunk that ends too early": (b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nshort", None),
    "no head": (b"", None),
    "NaN": (b"200 OK\r\n" + JSON + b"\r\n[NaN]", "[NaN]"),
    "infinity": (b"200 OK\r\n" + JSON + b"\r\n[1e999]", "[1e999]"),
    "half a character": (b"200 OK\r\n" + JSON + b'\r\n["\\ud800"]', '["\\ud800"]'),
    "lists in lists": (b"200 OK\r\n" + JSON + b"\r\n" + b"[" * 900 + b"]" * 900, "[" * 900 + "]" * 900),
    "a long number": (b"200 OK\r\n" + JSON + b"\r\n" + b"9" * 5000, "9" * 5000),
    "text of NULs": (b"200 OK\r\n\r\n" + b"\0" * 10_000, "\0" * 10_000),
    "text in Latin 1": (b"200 OK\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\n\xe9", "\xe9"),
    "text in UTF-16": (b"200 OK\r\nContent-Type: text/plain; charset=utf-16-le\r\n\r\n\xac\x20", "\u20ac"),
    "text in no character set": (b"200 OK\r\nContent-Type: text/plain; charset=hex\r\n\r\n\xc3\xa9", "\xe9"),
    "JSON with a byte order mark": (b"200 OK\r\n" + JSON + b"\r\n\xef\xbb\xbf[1]", [1]),
}


@pytest.fixture
def raw():
    """A server that answers each request by bytes that are set, and keeps the heads that it got."""

    class Handler(StreamRequestHandler):
        def handle(self):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.rfile.readline()
            self.server.heads.append(head.decode("latin-1"))
            self.wfile.write(self.server.answer and b"HTTP/1.1 " + self.server.answer)

    with TCPServer(("127.0.0.1", 0), Handler) as server:
        server.answer, server.heads = b"", []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_a_failure_only_if_its_end_is_missing(store, worker, raw, name):
    raw.answer, body = ANSWERS[name]
    url = f"http://127.0.0.1:{raw.server_address[1]}/"
    found = result(store, put(store, 1, {"url": url, "method": "POST", "body": ""}, type="http"))
    assert found.outcome is (Outcome.FAILURE if body is None else Outcome.SUCCESS), found.error
    assert found.outputs == ({} if body is None else {"status": 200, "body": body})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_to_another_origin_has_none_of_the_headers_of_the_request(store, worker, raw, host):
    class Here(StreamRequestHandler):
        def handle(self):
            while self.rfile.readline() not in {b"\r\n", b""}:
                pass
            self.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: " + self.server.to + b"\r\nContent-Length: 0\r\n\r\n")

    raw.answer = b"200 OK\r\nContent-Length: 0\r\n\r\n"
    headers = {
        "Authorization": "Bearer ${secret:token}",
        "X-Api-Key": "${secret:token}",
        "Cookie": "a=b",
        "Accept": "a/b",
    }
    with TCPServer(("127.0.0.1", 0), Here) as server:
        server.to = f"http://{host}:{raw.server_address[1]}/there".encode()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        found = result(store, put(store, 1, {"url": url, "headers": headers}, type="http"))
        server.shutdown()
        thread.join()
    (head,) = raw.heads
    assert found.outcome is Outcome.SUCCESS, found.error
    assert head.startswith("GET /there ")
    assert "t0ps3cret" not in head
    assert "Cookie" not in head
    assert "Accept: a/b" in head


def test_a_redirect_to_the_same_origin_has_the_headers_of_the_request_and_none_leaves_http(store, worker, raw):
    url = f"http://127.0.0.1:{raw.server_address[1]}/"
    raw.answer = b"302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"
    headers = {"Authorization": "Bearer ${secret:token}"}
    found = result(store, put(store, 1, {"url": url, "headers": headers}, type="http"))
    assert found.outcome is Outcome.FAILURE  # it goes around in a circle
    assert len(raw.heads) > 1
    assert all("t0ps3cret" in each for each in raw.heads)
    raw.answer = b"302 Found\r\nLocation: ftp://127.0.0.1:9/x\r\nContent-Length: 0\r\n\r\n"
    found = result(store, put(store, 2, {"url": url}, type="http"))
    assert found.error == "ended with code 1: status 302 does not count as success"


def test_the_outputs_of_a_statement_that_was_committed_are_no_failure(store, worker, tmp_path):
    wide = ", ".join(f"printf('%.*c', 10000, 'x') AS c{each}" for each in range(8))
    for task, statement, first in ((1, "SELECT 9e999 AS most", {"most": "inf"}), (2, f"SELECT {wide}", {})):
        params = {"connection": f"sqlite:///{tmp_path}/facts.db", "statement": statement}
        found = result(store, put(store, task, params, type="sql"))
        assert found.outcome is Outcome.SUCCESS, found.error
        assert found.outputs == {"rows": 1, "first": first}


def test_http_status_and_content_say_how_it_went(store, logs, worker, site):
    url, _ = site
    put(store, 1, {"url": f"{url}/teapot", "method": "POST"}, type="http")
    put(store, 2, {"url": f"{url}/teapot", "method": "POST", "success": [418]}, type="http")
    put(store, 3, {"url": f"{url}/x", "method": "POST", "contains": "nothing like it"}, type="http")
    put(store, 4, {"url": "http://127.0.0.1:9/x"}, type="http")
    assert result(store, "1.1").error == "ended with code 1: status 418 does not count as success"
    assert result(store, "2.1").outcome is Outcome.SUCCESS
    assert "does not contain 'nothing like it'" in result(store, "3.1").error
    assert "Connection refused" in result(store, "4.1").error


# Clusters


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Programs of a cluster that note how they are called; ``yarn`` lists what the file ``jobs`` has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = f"""#!{sys.executable}
import json, os, sys, time
here = {str(tmp_path)!r}
name = os.path.basename(sys.argv[0])
with open(here + "/calls", "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "yarn" and "-list" in sys.argv and os.path.exists(here + "/jobs"):
    print("application_1700000000000_0007  etl  SPARK  root  default  RUNNING")
if name == "yarn" and "-kill" in sys.argv:
    os.remove(here + "/jobs")
if name in ("spark-submit", "hadoop") and "slow" in sys.argv:
    open(here + "/jobs", "w").close()
    time.sleep(600)
print("submitted")
"""
    for name in ("spark-submit", "hadoop", "yarn"):
        (folder / name).write_text(script)
        (folder / name).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def calls():
        path = tmp_path / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return calls


def test_spark_is_submitted_with_all_that_was_said_and_the_tag_of_its_task(store, logs, worker, cluster):
    params = {
        "application": "etl.jar",
        "main_class": "org.example.Etl",
        "arguments": ["--day", "${day}"],
        "master": "yarn",
        "name": "etl",
        "conf": {"spark.executor.memory": "2g"},
        "jars": ["a.jar", "b.jar"],
        "queue": "night",
    }
    found = result(store, put(store, 5, params, type="spark", values={"day": "2026-11-22"}))
    assert found.outcome is Outcome.SUCCESS, found.error
    assert cluster() == [
        [
            *("spark-submit", "--master", "yarn", "--deploy-mode", "client", "--name", "etl"),
            *("--class", "org.example.Etl", "--queue", "night", "--jars", "a.jar,b.jar"),
            *("--conf", "spark.executor.memory=2g", "--conf", "spark.yarn.submit.waitAppCompletion=true"),
            *("--conf", "spark.yarn.tags=latchwork-5", "etl.jar", "--day", "2026-11-22"),
        ]
    ]


def test_mapreduce_is_submitted_and_what_an_attempt_before_it_left_is_killed_first(
    store, logs, worker, cluster, tmp_path
):
    (tmp_path / "jobs").touch()
    params = {"jar": "job.jar", "main_class": "Main", "arguments": ["in", "out"], "properties": {"a.b": "1"}}
    found = result(store, put(store, 6, params, type="mapreduce"))
    assert found.outcome is Outcome.SUCCESS, found.error
    assert [each[:3] for each in cluster()[:2]] == [["yarn", "application", "-list"], ["yarn", "application", "-kill"]]
    assert "latchwork-6" in cluster()[0]
    assert cluster()[2] == [
        "hadoop",
        "jar",
        "job.jar",
        "Main",
        "-D",
        "a.b=1",
        "-D",
        "mapreduce.job.tags=latchwork-6",
        "in",
        "out",
    ]
    assert "killing application_1700000000000_0007, left by an attempt before this one" in log_of(logs, found)


def test_stop_of_a_cluster_job_kills_what_has_its_tag(store, logs, cluster, tmp_path):
    made = working.worker(store, tmp_path, stop_grace_s=30.0)
    params = {"application": "etl.py", "arguments": ["slow"], "master": "yarn", "deploy_mode": "cluster"}
    x = put(store, 7, params, type="spark")
    running(store, x)
    eventually((tmp_path / "jobs").exists, 30, "the job")
    store.commit([], [Put(KEYS.cancel_key(x), b"")])
    assert result(store, x).outcome is Outcome.KILLED
    assert not (tmp_path / "jobs").exists()
    made.close()


def test_program_that_the_machine_does_not_have_is_named(store, logs, worker):
    params = {"application": "etl.py", "program": "no-such-spark"}
    assert "'no-such-spark' cannot be started" in result(store, put(store, 1, params, type="spark")).error


# Types of other packages


def test_task_type_of_an_installed_package_is_validated_offered_and_run(store, logs, tmp_path, monkeypatch):
    site = tmp_path / "site"
    about = site / "greeting-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[latchwork.workflow_tasks]\ngreet = greeting:Greet\n")
    (site / "greeting.py").write_text(
        "from latchwork_workflows.types import Command, ParamsModel\n"
        "class GreetParams(ParamsModel):\n    whom: str\n"
        "class Greet:\n    name = 'greet'\n    params = GreetParams\n    quoted = frozenset()\n"
        "    def command(self, params, run):\n"
        "        return Command(('sh', '-c', 'cat; echo greeted=\"$WHOM\" >> \"$LATCHWORK_OUTPUT\"'),\n"
        "                       stdin=f'hello {params.whom}'.encode(), env={'WHOM': params.whom})\n"
    )
    monkeypatch.syspath_prepend(str(site))
    assert "greet" in TaskTypes().names
    assert problems("greet", whom=3)[0].startswith("tasks[0].params.whom")
    assert problems("greet", whom="you") == []
    made = working.worker(store, tmp_path)
    found = result(store, put(store, 1, {"whom": "${who}"}, type="greet", values={"who": "Ada"}))
    made.close()
    assert found.outputs == {"greeted": "Ada"}
    assert log_of(logs, found).startswith("hello Ada")


def test_types_are_tasks_of_workflows_in_python():
    @workflow(params={"day": "2026-11-22"})
    def facts(day):
        loaded = sql("sqlite://", ["SELECT :day", "SELECT :extra"], parameters={"extra": day}, password="${secret:x}")
        told = http("http://host/${day}", method="POST", json_body={"rows": loaded["rows"]}, retries=2)
        called = procedure("sqlite://", "warehouse.refresh", [loaded["rows"], "literal ${x}"], after=[told])
        jobs = [spark("etl.py", params={"conf": {"a": "b"}}), mapreduce("job.jar", params={"main_class": "Main"})]
        noop(name="done", after=[called, *jobs])

    by_name = {each.name: each for each in facts.definition.tasks}
    assert by_name["http"].params["json_body"] == {"rows": "${sql.rows}"}
    assert (by_name["http"].after, by_name["http"].retries) == (("sql",), 2)
    assert by_name["procedure"].params["arguments"] == ["${sql.rows}", "literal $${x}"]
    assert by_name["sql"].params["parameters"] == {"extra": "${day}"}
    assert by_name["done"].after == ("procedure", "spark", "mapreduce")


def test_mail_of_rows_interpreters_and_types_of_packages_can_be_said_in_python():
    """`mail` of `sql`, `interpreter` of `shell`, and types of other packages were for YAML alone."""

    @workflow
    def told():
        sql("sqlite://", "SELECT 1", rows=5, mail={"channel": "ops", "to": ["boss@example.org"]})
        shell("print(1)", interpreter=["python3", "-u"])
        http("http://host", silent_s=3, timeout_s=60)
        of_type("noop", name="a", retries=1)

    by_name = {each.name: each for each in told.definition.tasks}
    assert by_name["sql"].params["mail"] == {"channel": "ops", "to": ["boss@example.org"]}
    assert by_name["sql"].params["rows"] == 5
    assert by_name["shell"].params["interpreter"] == ["python3", "-u"]
    assert (by_name["http"].params["timeout_s"], by_name["http"].timeout_s) == (3, 60)
    assert (by_name["a"].type, by_name["a"].retries) == ("noop", 1)
