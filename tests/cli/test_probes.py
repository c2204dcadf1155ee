"""The probes of workers: plan workers, agents of groups, and masters and workers of workflows."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request

import pytest

from latchwork_testkit.ports import reserve_port

TASKS = """
from latchwork.tasks import task

@task
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def port():
    reserved = reserve_port()
    reserved.release()
    return reserved.port


def asked(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


ROLES = {
    "plans": ("plans", "worker", "--import", "mytasks", "--url", "sqlite:///s.db"),
    "workflows_master": ("workflows", "master", "--home", "flows", "--logs", "logs"),
    "workflows_worker": ("workflows", "worker", "--home", "flows", "--logs", "logs"),
}


@pytest.mark.slow
@pytest.mark.parametrize("system", ROLES)
def test_worker_reports_its_health_and_the_calls_of_its_store(cli, wait_until, port, system):
    (cli.folder / "mytasks.py").write_text(TASKS)
    if system != "plans":
        assert cli("workflows", "init", "--home", "flows").code == 0
    if system == "workflows_worker":  # it waits until a master has begun the logs
        cli.start(*ROLES["workflows_master"])
    started = cli.start(*ROLES[system], "--probe-port", str(port))
    wait_until(lambda: asked(port, "/readyz")[0] == 200, "it is ready", 60.0)
    assert json.loads(asked(port, "/healthz")[1])["ok"]
    metrics = asked(port, "/metrics")[1]
    labels = '{name="default"}' if system == "plans" else ""
    assert f"latchwork_{system}_healthy{labels} 1\n" in metrics
    assert 'latchwork_store_calls_total{call="get",outcome="ok",store="default"}' in metrics
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 0


def test_agent_of_a_group_reports_its_workers_and_their_restarts(cli, wait_until, port):
    script = 'if [ "$LATCHWORK_EPOCH" = 0 ]; then exit 1; fi; exec sleep 600'
    options = ("--url", "sqlite:///s.db", "--probe-port", str(port))
    cli.start("workers", "run", "train", "-n", "1", *options, "--", "sh", "-c", script)
    wait_until(lambda: "latchwork_workers_restarts_total 1\n" in asked(port, "/metrics")[1], "it restarted", 60.0)
    wait_until(lambda: "latchwork_workers_running 1\n" in asked(port, "/metrics")[1], "it runs again", 60.0)
    assert asked(port, "/healthz")[0] == 200
