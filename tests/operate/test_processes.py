"""The commands of the units and of the compose file, run as processes on local servers until SIGTERM."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from latchwork_testkit.binaries import find_etcd
from latchwork_testkit.etcd import EtcdServer
from latchwork_testkit.ports import reserve_port
from latchwork_testkit.postgres import PostgresServer, find_postgres
from missing import found_or_skipped
from operate.files import COMPOSE, FOLDER, UNITS, command_of, read_unit
from patience import came_true

LATCHWORK = str(Path(sys.executable).with_name("latchwork"))
WAIT_S = 120.0
APP = """
from latchwork.jobs import FixedDelay, Job
from latchwork.tasks import task

jobs = [Job("report", work_pool=["a", "b"], run=print, schedule=FixedDelay(1.0))]

@task
def square(x: int) -> int:
    return x * x
"""
FLOW = "name: flow\ntasks:\n  - {name: only, type: shell, params: {script: 'true'}}\n"
FLEET = [unit for unit in UNITS if unit.name.startswith("latchwork-workflows-")]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def etcd():
    found_or_skipped(lambda: find_etcd("3.5"))
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="module")
def postgres():
    found_or_skipped(find_postgres)
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture
def run(tmp_path):
    """Run a command of latchwork to its end in the folder of the test."""

    def call(env, *words, given=""):
        done = subprocess.run(
            [LATCHWORK, *words], cwd=tmp_path, env=clean(env), input=given, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


def clean(env):
    return {name: value for name, value in os.environ.items() if not name.startswith("LATCHWORK_")} | env


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def on_free_port(words):
    """The command on a free port of the loopback interface, and the URL that says whether it is ready."""
    reserved = reserve_port()
    reserved.release()
    words = [word.replace("0.0.0.0", "127.0.0.1") for word in words]
    command = re.sub(r"(--probe-port[ =])\d+", rf"\g<1>{reserved.port}", shlex.join(words))
    path = "readyz" if "--probe-port" in command else "healthz"
    if path == "healthz":  # the pages
        command += f" --port={reserved.port}"
    return shlex.split(command), f"http://127.0.0.1:{reserved.port}/{path}"


@contextmanager
def running(commands, folder, env):
    """Start commands, wait until each is ready, and end each as its supervisor does."""
    with ExitStack() as stack:

        def start(words, log):
            process = subprocess.Popen([LATCHWORK, *words], cwd=folder, env=clean(env), stdout=log, stderr=log)
            stack.callback(process.wait, WAIT_S)
            stack.callback(process.kill)
            return process

        def is_ready(number):
            words, url, log, process = started[number]
            if process.poll() is not None:  # started again, as by its supervisor: no master has marked the logs yet
                started[number] = (words, url, log, start(words, log))
            return answers(url)

        started = []
        for number, words in enumerate(commands):
            words, url = on_free_port(words)  # noqa: PLW2901
            log = stack.enter_context((folder / f"{number}.log").open("ab"))
            started.append((words, url, log, start(words, log)))
        for number, (words, *_) in enumerate(started):
            is_up = came_true(partial(is_ready, number), WAIT_S, every_s=0.2)
            assert is_up, f"{words} is not ready:\n" + "\n".join(each.read_text() for each in folder.glob("*.log"))
        yield
        processes = [process for *_, process in started]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(WAIT_S) for process in processes] == [0] * len(processes)


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit not in FLEET], ids=lambda path: path.name)
def test_command_of_a_unit_becomes_ready_and_ends_with_0(unit, etcd, tmp_path):
    (tmp_path / "app.py").write_text(APP)
    env = {
        "LATCHWORK_JOBS": "app:jobs",
        "LATCHWORK_TASKS": "app",
        "LATCHWORK_URL": etcd.url(f"/{unit.stem.strip('@')}"),
    }
    env["LATCHWORK_WORKFLOWS_HOME"] = str(tmp_path / "home")
    with running([command_of(read_unit(unit)["Service"], env)], tmp_path, env):
        pass


def fleet(etcd, postgres, folder, database):
    """The variables of a fleet of workflows with a database of its own."""
    with psycopg.connect(postgres.database_url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    return {
        "LATCHWORK_WORKFLOWS_HOME": str(folder / "home"),
        "LATCHWORK_WORKFLOWS_DATABASE": postgres.database_url(database),
        "LATCHWORK_WORKFLOWS_STORE": etcd.url(f"/{database}"),
        "LATCHWORK_WORKFLOWS_LOGS": str(folder / "logs"),
    }


def runs_a_flow(run, env, folder):
    (folder / "flow.yaml").write_text(FLOW)
    run(env, "workflows", "apply", "flow.yaml")
    return "success" in run(env, "workflows", "start", "flow", "--wait")


def test_commands_of_the_units_of_a_fleet_run_a_workflow_and_end_with_0(etcd, postgres, run, tmp_path):
    env = fleet(etcd, postgres, tmp_path, "units")
    run(env, "workflows", "init")
    with running([command_of(read_unit(unit)["Service"], env) for unit in FLEET], tmp_path, env):
        assert runs_a_flow(run, env, tmp_path)


def test_commands_of_the_compose_file_run_a_workflow_and_end_with_0(etcd, postgres, run, tmp_path):
    services = {name: service for name, service in COMPOSE["services"].items() if "environment" in service}
    assert services.pop("postgres")["environment"]["POSTGRES_DB"] == "flows"
    local = fleet(etcd, postgres, tmp_path, "compose")
    env = services["api"]["environment"]
    assert {**env, "LATCHWORK_WORKFLOWS_HOME": ""}.keys() == local.keys(), "each variable has a local value"
    run(local, *services.pop("init")["command"])
    commands = [
        service["command"]
        for service in services.values()
        for _ in range(service.get("deploy", {"replicas": 1})["replicas"])
    ]
    assert len(commands) == 5
    with running(commands, tmp_path, local):
        (words,) = re.findall(r"exec master latchwork (.*)", (FOLDER / "container" / "compose.yml").read_text())
        run(local, *shlex.split(words), given="correct horse battery\n")
        assert '"has_password": true' in run(local, "workflows", "users", "list", "--json")
        assert runs_a_flow(run, local, tmp_path)
