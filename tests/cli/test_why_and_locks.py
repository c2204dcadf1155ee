"""`latchwork why`, `latchwork locks` and `latchwork status --watch`."""

from __future__ import annotations

import json
import signal

import pytest

import latchwork
from latchwork.jobs import Job, JobManager

URL = "sqlite:///cluster.db?root=why"


@pytest.fixture
def node(cli, wait_until):
    job = Job("report", work_pool=["north", "south"], run=lambda context: context.wait_stop(), initial_delay_s=0.0)
    with JobManager(f"sqlite:///{cli.folder}/cluster.db?root=why", "n1", job) as running:
        wait_until(lambda: running.stats().jobs["report"].active == 1, "it runs")
        yield running


def test_why_explains_an_item_and_locks_are_listed_freed_and_audited(cli, node):
    done = cli("why", "report", "north", "--url", URL)
    assert done.out.startswith("- it is assigned to node n1\n"), done
    assert cli("why", "report", "north", "--json", "--url", URL).json["locked_by"] == "n1"
    cli("why", "rapport", "north", "--url", URL).refused(1, "'rapport' is not known", "report")
    held = cli("locks", "--job", "report", "--json", "--url", URL).json
    assert [(row["item"], row["holder"]) for row in held] == [("north", "n1"), ("south", "n1")]
    cli("locks", "--force-release", "north", "--url", URL).refused(2, "needs --job")
    cli("locks", "--job", "report", "--force-release", "west", "--reason", "x", "--url", URL).refused(1, "is free")
    freed = cli("locks", "--job", "report", "--force-release", "north", "--reason", "it hangs", "--url", URL)
    assert (freed.code, freed.out[:35]) == (0, "report north: freed, it was held by")
    audit = cli("locks", "--audit", "--json", "--url", URL).json
    assert [(row["job"], row["item"], row["reason"]) for row in audit] == [("report", "north", "it hangs")]


def test_status_watch_shows_changes_until_it_is_interrupted(cli, wait_until):
    with latchwork.connect(f"sqlite:///{cli.folder}/cluster.db?root=why"):
        pass
    job = Job("report", work_pool=["north"], run=lambda context: None, initial_delay_s=0.0)
    with JobManager(f"sqlite:///{cli.folder}/cluster.db?root=why", "n1", job):
        watching = cli.start("status", "--watch", "--json", "--interval-s", "0.2", "--url", URL)
        wait_until(lambda: len(watching.log.read_text().splitlines()) >= 2, "two looks")
        assert list(json.loads(watching.log.read_text().splitlines()[0])["nodes"]) == ["n1"]
    wait_until(lambda: watching.log.read_text().splitlines()[-1] == "null", "n1 has left, and with it the cluster")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 130
    text = cli.start("status", "--watch", "--interval-s", "0.2", "--url", URL)
    wait_until(lambda: text.log.read_text().count("no cluster") >= 2, "two looks")
    text.send_signal(signal.SIGINT)
    assert text.wait(20) == 130
