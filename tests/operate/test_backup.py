"""The commands of docs/operate/runbooks/backup.md, typed while a fleet is running: the restored fleet continues."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import latchwork
from latchwork.primitives import Queue
from latchwork_testkit.binaries import find_etcd
from latchwork_testkit.postgres import PostgresServer, find_postgres
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.home import Home
from missing import found_or_skipped
from patience import eventually
from test_docs import BLOCKS, REPOSITORY
from test_tutorials import WAIT_S, Terminal

PAGE = REPOSITORY / "docs" / "operate" / "runbooks" / "backup.md"
FLOW = """
name: flow
tasks:
  - {name: first, type: shell, params: {script: 'echo first >> FOLDER/ran'}}
  - {name: gate, type: shell, after: [first], params: {script: 'until [ -e FOLDER/open ]; do sleep 0.1; done'}}
  - {name: last, type: shell, after: [gate], params: {script: 'echo last >> FOLDER/ran'}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Fleet:
    """An installation whose backups and restores are typed from the page.

    Args:
        folder: The folder of the terminals and of the files.
        settings: What each terminal exports.
        replaced: What the page prints, and what is typed instead.
        parts: The commands that go on: `serve`, or `master` and `worker`.
    """

    def __init__(self, folder, settings, replaced, parts):
        self.folder = folder
        self._settings = settings
        self._replaced = replaced
        self._parts = {part: self._terminal() for part in parts}
        self._shell = self._terminal()
        self.home = Home.of(folder, environ=settings)

    def _terminal(self):
        made = Terminal(self.folder)
        for name, value in self._settings.items():
            made.enter(f"export {name}={value}")
        return made

    def start(self):
        for part, terminal in self._parts.items():
            terminal.enter(f"latchwork workflows {part}")

    def stop(self):
        for terminal in reversed(self._parts.values()):
            terminal.end()

    def enter(self, command):
        self._shell.enter(command)

    def succeeds(self, command):
        try:
            self.enter(command)
        except AssertionError:
            return False
        return True

    def follow(self, name):
        """Type the commands of the page in a block of this name."""
        (block,) = [each for each in BLOCKS[PAGE] if each.how == f"walk={name}"]
        for command in block.commands:
            typed = command
            for printed, real in self._replaced.items():
                typed = typed.replace(printed, real)
            self.enter(typed)

    def start_run(self):
        with WorkflowClient.local(self.home) as client:
            return client.runs.start("flow").id(WAIT_S)

    def wait_for(self, run, state):
        with WorkflowClient.local(self.home) as client:
            eventually(lambda: client.runs.get(run).state.value == state, WAIT_S)

    def list_runs(self):
        with WorkflowClient.local(self.home) as client:
            return {each.id for each in client.runs.list("flow")}

    def ran(self):
        return (self.folder / "ran").read_text().split()


def open_sqlite(folder, _stack):
    home = folder / "home"
    home.mkdir(mode=0o700)
    return Fleet(home, {"LATCHWORK_WORKFLOWS_HOME": str(home)}, {}, ["serve"]), f"sqlite:///{home}/store.db", None


def open_postgresql(folder, stack, replaced=(), store=""):
    found_or_skipped(find_postgres)
    server = stack.enter_context(PostgresServer(settings={"fsync": "off"}))
    host, _, port = server.endpoint.partition(":")
    url = f"postgresql://flows@{server.endpoint}/flows"
    settings = {
        "PGHOST": host,
        "PGPORT": port,
        "PGUSER": "latchwork",
        "LATCHWORK_WORKFLOWS_DATABASE": url,
        "LATCHWORK_WORKFLOWS_STORE": store or f"{url}?root=workflows",
        "LATCHWORK_WORKFLOWS_LOGS": str(folder / "logs"),
    }
    fleet = Fleet(
        folder, settings, {"flows@127.0.0.1/flows": url.partition("//")[2], **dict(replaced)}, ["master", "worker"]
    )
    fleet.enter("createuser flows")
    fleet.enter("createdb --owner flows flows")
    fleet.enter("latchwork workflows init")
    return fleet, f"{url}?root=app", None


def open_etcd(folder, stack):
    found_or_skipped(lambda: find_etcd("3.5"))
    server = stack.enter_context(EtcdServer())
    programs = find_etcd("3.5").parent
    replaced = {
        "etcdctl": str(programs / "etcdctl"),
        "etcdutl": str(programs / "etcdutl"),
        "127.0.0.1:2379": server.endpoint,
        "/var/lib/etcd": str(server.data_dir / "etcd"),
        "e1=http://127.0.0.1:2380": f"{server._name}={server._peer_url}",
        "--name e1": f"--name {server._name}",
        "http://127.0.0.1:2380": server._peer_url,
    }
    fleet, _, _ = open_postgresql(folder, stack, replaced=replaced, store=server.url("workflows"))
    return fleet, server.url("app"), server


def open_zookeeper(folder, stack):
    server = stack.enter_context(ZooKeeperServer())
    replaced = {"/var/lib/zookeeper": str(server.data_dir / "zookeeper")}
    fleet, _, _ = open_postgresql(folder, stack, replaced=replaced, store=server.url("workflows"))
    return fleet, server.url("app"), server


INSTALLATIONS = {
    "sqlite": (open_sqlite, ["sqlite"]),
    "postgresql": (open_postgresql, ["postgresql"]),
    "etcd35": (open_etcd, ["etcd", "postgresql"]),
    "zookeeper": (open_zookeeper, ["zookeeper", "postgresql"]),
}


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_a_restored_fleet_continues_the_runs_of_the_backup(name, tmp_path):
    open_installation, kinds = INSTALLATIONS[name]
    with ExitStack() as stack:
        fleet, url, server = open_installation(tmp_path, stack)
        stack.callback(fleet.stop)
        fleet.start()
        (fleet.folder / "flow.yaml").write_text(FLOW.replace("FOLDER", str(fleet.folder)))
        fleet.enter("latchwork workflows apply flow.yaml")
        with latchwork.connect(url) as store:
            store.put("setting", b"kept")
            Queue(store, "q").put(b"kept")
        kept = fleet.start_run()
        eventually(lambda: (fleet.folder / "ran").exists() and fleet.ran() == ["first"], WAIT_S)
        for kind in kinds:
            fleet.follow(f"{kind}-backup")
        lost = fleet.start_run()
        (fleet.folder / "open").touch()
        for run in (kept, lost):
            fleet.wait_for(run, "success")
        with latchwork.connect(url) as store:
            store.put("setting", b"lost")
            Queue(store, "q").take(timeout_s=WAIT_S).ack()
        fleet.stop()

        (fleet.folder / "open").unlink()
        (fleet.folder / "ran").unlink()
        if server is not None:
            server.stop()
        for kind in kinds:
            fleet.follow(f"{kind}-restore")
        if server is not None:
            server.start()
        with latchwork.connect(url) as store:
            assert store.get("setting").value == b"kept"
            assert Queue(store, "q").take(timeout_s=WAIT_S).value == b"kept"
        if name != "postgresql":
            eventually(lambda: fleet.succeeds("latchwork workflows adopt-store --yes"), WAIT_S, every_s=1.0)
        fleet.start()
        fleet.enter("latchwork workflows doctor")
        assert fleet.list_runs() == {kept}
        (fleet.folder / "open").touch()
        fleet.wait_for(kept, "success")
        assert fleet.ran() == ["last"]
        fleet.wait_for(fleet.start_run(), "success")
