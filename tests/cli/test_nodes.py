"""`latchwork drain` and `latchwork restart`, on nodes in processes of their own."""

from __future__ import annotations

import signal

import pytest

URL = "sqlite:///nodes.db"
JOBS = """
from latchwork.jobs import Job, Threads

report = Job("report", work_pool=[f"i{n}" for n in range(6)], run=lambda context: context.wait_for_stop(),
             initial_delay_s=0.0, threads=Threads.per_item())
"""


@pytest.fixture
def nodes(cli, wait_until):
    cli.write("jobs.py", JOBS)
    started = {name: start(cli, name) for name in ("n1", "n2")}
    wait_until(lambda: set(assigned(cli).values()) == {"n1", "n2"}, "both have items")
    return started


def start(cli, name):
    return cli.start("run", "jobs:report", "--url", URL, "--node-id", name, "--session-ttl-s", "2", "--lock-ttl-s", "2")


def assigned(cli):
    done = cli("status", "--json", "--url", URL)
    return done.json["jobs"].get("report", {}).get("assigned", {}) if done.code == 0 else {}


def test_a_node_is_drained_and_restarted_from_the_command_line(cli, nodes, wait_until):
    before = assigned(cli)
    done = cli("restart", "n2", "--keep-s", "60", "--url", URL)
    assert (done.code, done.out) == (0, "n2: can be restarted; its items are reserved for 60 s\n"), done
    assert set(assigned(cli).values()) == {"n1"}
    assert cli("status", "--json", "--url", URL).json["nodes"]["n2"]["maintenance"] == "restarting"
    nodes["n2"].send_signal(signal.SIGTERM)
    assert nodes["n2"].wait(20) == 0
    assert "n2 (restarting)" in cli("status", "--url", URL).out
    start(cli, "n2")
    wait_until(lambda: assigned(cli) == before, "every item is back where it was")
    assert cli("drain", "n1", "--url", URL).out == "n1: is drained\n"
    assert set(assigned(cli).values()) == {"n2"}
    assert "ready, drained" in cli("status", "--url", URL).out
    assert cli("drain", "n1", "--undo", "--url", URL).out == "n1: takes items again\n"
    assert cli("restart", "n1", "--cancel", "--url", URL).out == "n1: nothing was announced\n"
    wait_until(lambda: set(assigned(cli).values()) == {"n1", "n2"}, "both have items again")


def test_a_node_that_does_not_live_is_refused_with_those_that_do(cli, nodes):
    cli("drain", "n9", "--url", URL).refused(1, "node 'n9' is not known to this cluster", "n1, n2")
    cli("restart", "n9", "--url", URL).refused(1, "node 'n9' is not known to this cluster", "n1, n2")


def test_without_a_cluster_the_exit_code_is_3(cli):
    cli("drain", "n1", "--url", "sqlite:///none.db").refused(3, "none.db does not exist")
