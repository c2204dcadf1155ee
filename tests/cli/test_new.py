"""`latchwork new`: the written projects pass their own tests, and run as their README and deployment files say."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

import latchwork
from latchwork_testkit.postgres import PostgresServer, find_postgres
from missing import found_or_skipped
from patience import eventually
from test_tutorials import Terminal

KINDS = ["jobs", "executor", "workflows"]
WAIT_S = 120.0


def environment(**extra):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LATCHWORK_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **extra}


def written(cli, kind, deploy):
    done = cli("new", "shop", "--kind", kind, "--deploy", deploy)
    assert done.code == 0, done
    assert "README.md" in done.out
    return cli.folder / "shop"


@contextmanager
def running(commands, folder, env):
    """Run commands side by side, and end each as its supervisor would."""
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(each, cwd=folder, env=env)) for each in commands]
        try:
            yield
        finally:
            for each in processes:
                each.send_signal(signal.SIGTERM)
            assert [each.wait(WAIT_S) for each in processes] == [0] * len(processes)


def assert_works(kind, folder, env):
    """The project does its work on the processes that run now."""
    if kind == "jobs":
        with latchwork.connect(env["LATCHWORK_URL"].replace("///shop", f"///{folder}/shop")) as store:
            eventually(lambda: len(store.children("shops")) == 4, WAIT_S)
        return
    commands = ["python submit.py"]
    if kind == "workflows":
        commands = ["latchwork workflows deploy flows.py", "latchwork workflows start nightly --wait"]
    for each in commands:
        done = subprocess.run(shlex.split(each), cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "the: 3 one: 2" in done.stdout or "success" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_passes_its_tests_and_its_first_run_is_as_its_readme_says(cli, kind):
    folder = written(cli, kind, "systemd")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(tests, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    terminals = []
    try:
        for block in re.findall(
            r"^```console\n(.*?)^```", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL
        ):
            terminals.append(Terminal(folder))
            for line in block.splitlines():
                terminals[-1].enter(line.removeprefix("$ "))
    finally:
        for each in terminals:
            each.end()
    assert len(terminals) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_unit_of_a_new_project_runs_it(cli, kind):
    folder = written(cli, kind, "systemd")
    (path,) = folder.glob("*.service")
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.read_string(path.read_text())
    command = unit["Service"]["ExecStart"].replace("/opt/shop/.venv/bin/", "").replace("%i", "n1")
    env = dict(re.findall(r"^(\w+)=(.*)$", (folder / "shop.env").read_text(), re.MULTILINE))
    assert (folder / "shop.env").stat().st_mode & 0o077 == 0
    env = {name: value.replace("/var/lib/shop", str(folder / "home")) for name, value in env.items()}
    if "LATCHWORK_URL" in env:
        assert env["LATCHWORK_URL"].startswith("postgresql://")
        env["LATCHWORK_URL"] = "sqlite:///shop.db"
    if kind == "workflows":
        command += " --port 0"
    with running([shlex.split(command)], folder, environment(**env)):
        eventually(lambda: kind != "workflows" or (folder / "home" / "store.db").exists(), WAIT_S)
        assert_works(kind, folder, environment(**env))


@pytest.fixture(scope="module")
def postgres():
    found_or_skipped(find_postgres)
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_of_the_compose_file_of_a_new_project_run_it_on_postgresql(cli, kind, postgres, tmp_path):
    folder = written(cli, kind, "compose")
    assert (folder / ".env").stat().st_mode & 0o077 == 0
    assert ".env" in (folder / ".gitignore").read_text().split()
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert services.pop("store")["image"].startswith("postgres:")
    commands, env = [], {}
    for each in services.values():
        commands.append([word.replace("$$", "$").replace("0.0.0.0", "127.0.0.1") for word in each["command"]])
        env |= each["environment"]
    address = f"latchwork@{postgres.endpoint}/postgres?root={kind}"
    env = {name: value.replace("latchwork:${STORE_PASSWORD}@store/latchwork", address) for name, value in env.items()}
    if kind == "workflows":
        env["LATCHWORK_WORKFLOWS_DATABASE"] = postgres.database_url()
        env |= {"LATCHWORK_WORKFLOWS_LOGS": str(tmp_path / "logs"), "LATCHWORK_WORKFLOWS_HOME": str(tmp_path / "home")}
        env["LATCHWORK_WORKFLOWS_PAGES_PORT"] = "0"
    assert "STORE_PASSWORD" not in str(env)
    with running(commands, folder, environment(**env)):
        if kind == "workflows":
            eventually((tmp_path / "logs").exists, WAIT_S)
            (words,) = re.findall(r"exec worker (.* --password)", (folder / "compose.yaml").read_text())
            subprocess.run(shlex.split(words), env=environment(**env), input=b"correct horse battery", check=True)
        assert_works(kind, folder, environment(**env))


def test_a_folder_that_exists_and_a_name_that_is_no_unit_are_refused(cli):
    (cli.folder / "shop").mkdir()
    cli("new", "shop").refused(2, "shop exists")
    cli("new", "Shop/..").refused(2, "lowercase letters")
