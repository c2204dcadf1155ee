"""The tutorials, walked through as a reader does, in terminals that stay open from one block to the next."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import latchwork
from latchwork import executor
from latchwork.jobs import inspect
from latchwork_testkit.postgres import PostgresServer, find_postgres
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.home import Home
from missing import found_or_skipped
from patience import eventually
from test_docs import BLOCKS, REPOSITORY, environment, run_block

LATCHWORK = str(Path(sys.executable).with_name("latchwork"))
WAIT_S = 120.0
#: What commands of workflows that go on print once they are ready.
SERVING = {"serve": "sign-in?link=", "master": "started", "worker": "runs tasks of", "api": "web UI and API of"}


class Terminal:
    """One terminal: what was exported, and the command that still runs in it."""

    def __init__(self, folder):
        self._folder = folder
        self._environment = {**environment(), "HOME": str(folder)}
        self._running = None

    def enter(self, command, *, fails=False):
        """Type a command; one that serves goes on running, and one that runs already is ended with Ctrl-C."""
        words = [LATCHWORK if word == "latchwork" else word for word in shlex.split(command)]
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self._environment[name] = value
            return
        self.end()
        if words[1] == "workflows" and words[2] in SERVING:
            self._serve(words)
            return
        started = subprocess.Popen(words, cwd=self._folder, env=self._environment)
        if words[1] == "run":
            self._running = started
            self._wait_for(words[words.index("--node-id") + 1], words)
        elif words[1:3] == ["executor", "run"]:
            self._running = started
            with latchwork.connect(self.url(words)) as store:
                key = f"@executor/default/functions/{words[words.index('--node-id') + 1]}"
                eventually(lambda: store.get(key), WAIT_S)
        else:
            assert (started.wait(WAIT_S) != 0) == fails, command

    def end(self):
        """Ctrl-C, if anything runs."""
        running, self._running = self._running, None
        if running is not None:
            running.send_signal(signal.SIGINT)
            assert running.wait(WAIT_S) == 0

    def url(self, words=()):
        """The store of a command: its own, or what was exported. A file is in the folder of the terminal."""
        found = words[words.index("--url") + 1] if "--url" in words else self._environment["LATCHWORK_URL"]
        return re.sub(r"^sqlite:///(?!/)", f"sqlite:///{self._folder}/", found)

    def _serve(self, words):
        port = ["--port", "0"] if words[2] in {"serve", "api"} else []
        said = self._folder / f"{words[2]}.txt"
        with said.open("wb") as stream:
            self._running = subprocess.Popen([*words, *port], cwd=self._folder, env=self._environment, stdout=stream)
        eventually(lambda: SERVING[words[2]] in said.read_text(), WAIT_S)

    def _wait_for(self, node, words):
        with latchwork.connect(self.url(words)) as store, store.mirror("@jobs/alive") as alive:
            alive.wait_until(
                lambda now: f"@jobs/alive/{node}" in now and b"ready" in now[f"@jobs/alive/{node}"].value, WAIT_S
            )


class Reader:
    """Goes through a page from top to bottom, with other ports than it names."""

    def __init__(self, folder, replaced):
        self.folder = folder
        self.terminals = {}
        self._replaced = replaced

    def walk(self, page):
        """Do everything it says."""
        for _ in self.steps(page):
            pass

    def steps(self, page):
        """Do it block by block; each, once it is done."""
        for block in BLOCKS[REPOSITORY / "docs" / page]:
            if block.how == "terminals":
                for number, command in enumerate(block.commands):
                    self.terminal(f"side {number}").enter(command)
            elif block.how.startswith("walk="):
                name, _, ends = block.how.removeprefix("walk=").partition(" ")
                for command in block.commands:
                    self.terminal(name).enter(self.real(command), fails=ends == "fails")
            elif block.language == "console" or block.how.startswith("file="):
                run_block(block, self.folder)
            yield block

    def real(self, command):
        for printed, real in self._replaced.items():
            command = command.replace(printed, real)
        return command

    def terminal(self, name):
        if name not in self.terminals:
            self.terminals[name] = Terminal(self.folder)
        return self.terminals[name]

    def end(self):
        for terminal in self.terminals.values():
            terminal.end()


@pytest.fixture
def reader(etcd35, tmp_path):
    made = Reader(tmp_path, {"127.0.0.1:2379": etcd35.endpoint, "--probe-port 9100": "--probe-port 0"})
    yield made
    made.end()


@pytest.mark.slow
def test_the_crawler_of_the_tutorial_becomes_a_fleet_on_etcd_by_changing_the_url(reader):
    reader.walk("tutorial-crawler.md")
    with latchwork.connect(reader.terminal("third").url()) as store, store.mirror("counts") as counts:
        counts.wait_until(lambda found: {json.loads(e.value)["by"] for e in found.values()} == {"n1", "n2"}, WAIT_S)
        counts.wait_until(lambda found: len(found) == 12, WAIT_S)
        assert inspect(store).nodes.keys() == {"n1", "n2"}
        words = sum(sum(json.loads(entry.value)["words"].values()) for entry in counts.values())
    assert words == sum(len(book.read_text().split()) for book in reader.folder.glob("library/*/*.txt"))


@pytest.mark.slow
def test_the_job_of_the_tutorial_runs_on_etcd_by_changing_the_url(reader):
    reader.walk("tutorial.md")
    with latchwork.connect(reader.terminal("first").url()) as store:
        assert inspect(store).nodes.keys() == {"n1"}


@pytest.mark.slow
def test_the_pool_of_the_tutorial_becomes_a_pool_of_machines_on_etcd(reader):
    for block in reader.steps("tutorial-executor.md"):
        if block.how == "walk=third":
            with latchwork.connect(reader.terminal("third").url()) as store:
                assert {each.id for each in executor.inspect(store).workers} == {"m1", "m2"}


@pytest.mark.slow
@pytest.mark.timeout(600)  # sixteen commands, and sixty tasks, each a process or two
def test_the_cron_table_of_the_tutorial_becomes_a_workflow_with_a_backfill(tmp_path):
    reader = Reader(tmp_path, {})
    try:
        reader.walk("tutorial-workflows.md")
        with WorkflowClient.local(Home.of(tmp_path / "flows", environ={})) as client:
            first = client.runs.attempts(1)
            ended = [(each.name, each.outcome) for each in first]
            assert len(ended) == 5
            assert [outcome for name, outcome in ended if name == "report"] == ["success", "failure"]
            of_week, of_shop = client.backfills.list()
            assert [each.counts for each in (of_week, of_shop)] == [{"success": 1}, {"success": 14}]
    finally:
        reader.end()
    told = (tmp_path / "shop" / "report.txt").read_text().splitlines()
    assert sorted(told)[:2] == [f"{day}: 200 orders of 7 products" for day in ("2025-02-27", "2025-02-28")]
    assert len(told) == 15


@pytest.mark.slow
def test_a_fleet_on_postgresql_runs_a_workflow(tmp_path):
    found_or_skipped(find_postgres)
    with PostgresServer(settings={"fsync": "off"}) as server:
        at = f"latchwork@{server.endpoint}/postgres"
        reader = Reader(tmp_path, {"flows@127.0.0.1/flows": at, "/srv/flows/logs": str(tmp_path / "logs")})
        try:
            reader.walk("how-to/run-a-fleet-of-workflows.md")
            home = Home.of(tmp_path, database=f"postgresql://{at}", environ={})
            with WorkflowClient.local(home) as client:
                assert [run.state.value for run in client.runs.list("hello")] == ["success"]
                assert len(client.workers.list()) == 1
        finally:
            reader.end()
