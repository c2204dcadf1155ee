"""Bad input and trouble: one line that names the thing and the remedy, an exit code, no traceback."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request

import pytest

import latchwork
from latchwork_testkit.servers import EtcdServer

COMMANDS = [("status",), ("tree",), ("demo",), ("run", "jobs:job", "--node-id", "n1")]
JOB = "from latchwork.jobs import Job\njob = Job('report', work_pool=['a'], run=print)\n"


@pytest.fixture(params=COMMANDS, ids=lambda command: command[0])
def command(request, cli):
    cli.write("jobs.py", JOB)
    return request.param


@pytest.fixture(scope="module")
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]  # bound, but nobody listens


def test_an_unknown_scheme_lists_the_known_ones(cli, command):
    cli(*command, "--url", "redis://127.0.0.1").refused(2, "redis", "etcd", "memory", "sqlite", "zk")


def test_a_malformed_host_shows_how_to_write_one(cli, command):
    cli(*command, "--url", "etcd://bad host:1/app").refused(2, "'bad host'", "host:port")


def test_an_unknown_option_lists_the_known_ones(cli, command):
    cli(*command, "--url", "zk://127.0.0.1/app?sesion_ttl_s=3").refused(2, "sesion_ttl_s", "session_ttl_s")


def test_a_key_with_a_slash_too_many_names_it(cli):
    cli("tree", "a//b", "--url", f"sqlite:///{_stored(cli)}").refused(2, "'a//b'", "an empty segment")


def test_a_root_with_a_slash_too_many_names_it(cli, command):
    cli(*command, "--url", "etcd://127.0.0.1/app//x").refused(2, "app//x", "single slashes")


@pytest.mark.parametrize("scheme", ["etcd", "zk"])
def test_an_unreachable_server_is_named_within_the_timeout(cli, scheme, closed_port):
    url = f"{scheme}://127.0.0.1:{closed_port}/app?connect_timeout_s=1"
    for command in (("status",), ("demo",)):
        cli(*command, "--url", url, timeout_s=15).refused(1, f"127.0.0.1:{closed_port}")


def test_a_missing_directory_is_named(cli):
    cli("run", "jobs:job", "--node-id", "n1", "--url", "sqlite:///nowhere/x.db").refused(2, "module 'jobs'")
    cli.write("jobs.py", JOB)
    cli("run", "jobs:job", "--node-id", "n1", "--url", "sqlite:///nowhere/x.db").refused(1, "nowhere", "create it")


def test_no_url_at_all_names_the_variable(cli):
    for command in (("status",), ("tree",)):
        cli(*command).refused(2, "--url", "LATCHWORK_URL")


@pytest.mark.parametrize(("scheme", "library", "extra"), [("zk", "kazoo", "zookeeper"), ("etcd", "grpc", "etcd")])
def test_a_missing_library_names_the_extra_to_install(cli, scheme, library, extra):
    cli.write(f"{library}.py", f"raise ModuleNotFoundError(\"No module named '{library}'\", name='{library}')\n")
    done = cli("demo", "--url", f"{scheme}://127.0.0.1", PYTHONPATH=str(cli.folder))
    done.refused(2, f'pip install "latchwork[{extra}]"')


def test_a_wrong_password_is_refused_and_never_shown(cli):
    with EtcdServer("3.5") as server:
        _enable_authentication(server, "right-secret")
        host = server.endpoint
        wrong = cli("status", LATCHWORK_URL=f"etcd://root:wrong-secret@{host}/app")
        line = wrong.refused(1, "root")
        assert "wrong-secret" not in wrong.out + wrong.err
        assert "password" in line
        assert "warning" not in wrong.err
        right = cli("status", "--url", f"etcd://root:right-secret@{host}/app")
        right.refused(3, "no cluster under /app")
        assert "right-secret" not in right.out + right.err
        assert "LATCHWORK_URL" in right.err
        assert "password_file" in right.err
        cli.write("secret", "right-secret\n")
        filed = cli("tree", "--url", f"etcd://root@{host}/app?password_file=secret")
        assert (filed.code, filed.err) == (0, "")


def test_debugging_adds_the_traceback_and_keeps_the_line(cli):
    for done in (
        cli("status", "--debug", "--url", "redis://x"),
        cli("--debug", "status", "--url", "redis://x"),
        cli("status", "--url", "redis://x", LATCHWORK_DEBUG="1"),
    ):
        assert done.code == 2
        assert "Traceback" in done.err
        assert "error: unknown scheme 'redis'" in done.err


def test_usage_errors_exit_with_2(cli):
    for wrong in (
        ("nope",),
        ("status", "--nope"),
        ("demo", "--kill", "everybody"),
        ("run",),
        ("bench", "assign", "--items", "x"),
    ):
        done = cli(*wrong)
        assert done.code == 2, done
        assert "Traceback" not in done.err


def test_every_help_teaches_with_examples(cli):
    for command in ((), ("demo",), ("run",), ("status",), ("tree",), ("bench", "assign")):
        done = cli(*command, "--help")
        assert done.code == 0
        assert "Examples:" in done.out
        assert f"  latchwork {' '.join(command)}".rstrip() in done.out
    assert "3 no cluster" in " ".join(cli("--help").out.split())


def test_a_reader_that_went_away_is_no_error_worth_a_traceback(cli):
    store = _stored(cli, count=3000)
    script = f"{cli.program} tree --url sqlite:///{store} | head -1"
    done = subprocess.run(
        ["bash", "-c", script], cwd=cli.folder, env=cli.env(), capture_output=True, text=True, timeout=30, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def _stored(cli, count=1):
    with latchwork.connect(f"sqlite:///{cli.folder}/stored.db") as store, store.pipeline() as pipeline:
        for number in range(count):
            pipeline.put(f"key-{number:05}", b"value")
    return cli.folder / "stored.db"


def _enable_authentication(server, password):
    def call(path, **body):
        request = urllib.request.Request(f"http://{server.endpoint}/v3/auth/{path}", data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read()

    call("user/add", name="root", password=password)
    call("role/add", name="root")
    call("user/grant", user="root", role="root")
    call("enable")
