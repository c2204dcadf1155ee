"""Real processes that are killed: a server, and the master that has the shards."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

import latchwork
from latchwork.errors import LatchworkError
from latchwork_workflows import Serve, ServeOptions
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.db.database import Database
from latchwork_workflows.home import Home
from latchwork_workflows.installation import initialize, join_store
from latchwork_workflows.keys import Keys
from patience import eventually
from workflows.hands import Hand, a_workflow

pytestmark = pytest.mark.slow
MAIN = "from latchwork.cli.entry import main; main()"
#: Notes when it begins and ends; waits for a file to end.
SCRIPT = 'echo "begin $$" >> "$notes"; while [ ! -e "$go" ]; do sleep 0.1; done; echo "end $$" >> "$notes"'


@pytest.fixture
def start(tmp_path):
    """Start a command of workflows; killed after the test."""
    running = []

    def run(*args):
        out = (tmp_path / f"out-{len(running)}").open("wb")
        env = {**os.environ, "LATCHWORK_WORKFLOWS_HOME": str(tmp_path / "home")}
        running.append(
            subprocess.Popen([sys.executable, "-c", MAIN, "workflows", *args], stdout=out, stderr=out, env=env)
        )
        return running[-1]

    yield run
    for each in running:
        each.kill()
        each.wait()


def definition(notes, go):
    tasks = {"holds": {"params": {"script": SCRIPT}}, "after": ["holds"]}
    return a_workflow(tasks=tasks, params={"notes": str(notes), "go": str(go)}).definition


def notes_of(path):
    return path.read_text().split("\n")[:-1] if path.exists() else []


def test_a_server_that_was_killed_goes_on_where_it_was_when_it_comes_back(start, tmp_path):
    home = Home.of(tmp_path / "home", environ={})
    notes, go = tmp_path / "notes", tmp_path / "go"
    server = start("serve", "--port", "0", "--session-ttl-s", "5", "--slots", "2")
    eventually(lambda: "sign-in link" in (tmp_path / "out-0").read_text(), 60.0)
    with suppress(PermissionError):  # only root may look
        assert "LATCHWORK_WORKFLOWS_HOME" not in Path(f"/proc/{server.pid}/environ").read_text()
    with WorkflowClient.local(home) as client:
        client.workflows.apply(definition(notes, go))
        number = client.runs.start("flow").id(60)
        eventually(lambda: len(notes_of(notes)) == 1, 30.0)
        eventually(lambda: client.runs.attempts(number), 30.0, "the master has seen that the attempt was claimed")
        server.send_signal(signal.SIGKILL)
        server.wait()
        child = int(notes_of(notes)[0].split()[1])
        eventually(lambda: not is_alive(child), 30.0)  # it does not outlive its worker
        start("serve", "--port", "0", "--session-ttl-s", "5", "--slots", "2")
        eventually(lambda: len(notes_of(notes)) == 2, 90.0)
        go.touch()
        done = client.runs.wait(number, 60)
        assert done.state.value == "success"
        kinds = [(each.name, each.kind, each.outcome) for each in reversed(client.runs.attempts(number))]
    begun = [line.split() for line in notes_of(notes)]
    assert [word for word, _ in begun] == ["begin", "begin", "end"]
    assert kinds == [("holds", "first", "lost"), ("holds", "failover", "success"), ("after", "first", "success")]


def test_a_server_whose_address_is_taken_says_so_before_it_touches_anything(tmp_path):
    """It joined, took tasks of the one that runs already, and ended them when it found that it could not listen."""
    home = Home.of(tmp_path / "home", environ={})
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LatchworkError, match=f"cannot listen on 127.0.0.1:{port}.*choose another --port"):
            Serve(home, ServeOptions(port=port)).start()
    assert not home.folder.exists()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_when_a_master_is_killed_another_resumes_its_runs(start, tmp_path):
    home = Home.of(tmp_path / "home", environ={})
    home.create_folder()
    keys = Keys()
    database = Database(home.database)
    initialize(database, shards=2)
    with closing(database), WorkflowClient.local(home) as client, latchwork.connect(home.store) as store:
        join_store(database, store, keys)
        client.workflows.apply(a_workflow(tasks={"a": [], "b": ["a"]}).definition)
        hand = Hand(store, keys)
        first = start("master", "--node-id", "m1", "--lock-ttl-s", "3")
        runs = [client.runs.start("flow").id(60) for _ in range(4)]
        claims = {}
        eventually(lambda: claims.update(hand.take_all()) or len(claims) == 4, 30.0)
        second = start("master", "--node-id", "m2", "--lock-ttl-s", "3")
        eventually(lambda: "started" in (tmp_path / "out-1").read_text(), 60.0)
        first.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        for claim in claims.values():
            hand.end(claim)
        after = {}
        eventually(lambda: after.update(hand.take_all()) or len(after) == 4, 60.0)
        print(f"dispatched again {time.monotonic() - killed:.1f} s after the kill")
        for claim in after.values():
            hand.end(claim)
        states = {client.runs.wait(each, 60).state.value for each in runs}
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
        assert states == {"success"}
        assert all(len(client.runs.attempts(each)) == 2 for each in runs)
        hand.die()


def test_a_master_that_stood_still_longer_than_its_shards_were_its_own_recovers_by_itself(start, tmp_path):
    """DolphinScheduler #18570: a master that was overloaded lost its registration, and never recovered."""
    home = Home.of(tmp_path / "home", environ={})
    home.create_folder()
    database = Database(home.database)
    initialize(database, shards=2)
    with closing(database), WorkflowClient.local(home) as client, latchwork.connect(home.store) as store:
        join_store(database, store, Keys())
        client.workflows.apply(a_workflow(tasks={"a": [], "b": ["a"]}).definition)
        hand = Hand(store)
        alone = start("master", "--node-id", "m1", "--lock-ttl-s", "2")
        number = client.runs.start("flow").id(60)
        (claim,) = eventually(hand.take_all, 30.0).values()
        alone.send_signal(signal.SIGSTOP)
        time.sleep(6.0)  # its session has ended, and so have the locks of its shards
        hand.end(claim)
        alone.send_signal(signal.SIGCONT)
        (claim,) = eventually(hand.take_all, 60.0).values()
        hand.end(claim)
        assert client.runs.wait(number, 60).state.value == "success"
        assert len(client.runs.attempts(number)) == 2
        assert alone.poll() is None
        hand.die()
