"""`latchwork why`, `latchwork locks` and `latchwork status --watch`."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess

import pytest

import latchwork
from latchwork.jobs import Job, JobManager

URL = "sqlite:///cluster.db?root=why"


@pytest.fixture
def node(cli, wait_until):
    job = Job("report", work_pool=["north", "south"], run=lambda context: context.wait_for_stop(), initial_delay_s=0.0)
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
    assert (freed.code, freed.out[:38]) == (0, "report north: released, it was held by")
    audit = cli("locks", "--audit", "--json", "--url", URL).json
    assert [(row["job"], row["item"], row["reason"]) for row in audit] == [("report", "north", "it hangs")]


def test_status_watch_on_a_terminal_is_one_live_view_that_gives_the_screen_back(cli, wait_until):
    url = f"sqlite:///{cli.folder}/cluster.db?root=why"
    job = Job("report", work_pool=["north"], run=lambda context: None, initial_delay_s=0.0)
    ours, theirs = pty.openpty()
    shown = bytearray()

    def look():
        while select.select([ours], [], [], 0.0)[0]:
            try:
                shown.extend(os.read(ours, 65536))
            except OSError:  # the other end is closed
                return shown
        return shown

    try:
        with JobManager(url, "n1", job):
            watching = subprocess.Popen(
                [cli.program, "status", "--watch", "--interval-s", "0.2", "--url", URL],
                cwd=cli.folder,
                env=cli.env(TERM="xterm", LINES="40"),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
            )
            wait_until(lambda: look().count(b"manager: n1") >= 2, "two looks")
        wait_until(lambda: b"no cluster" in look(), "n1 has left, and with it the cluster")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
        look()
    finally:
        os.close(theirs)
        os.close(ours)
    enter, leave = b"\x1b[?1049h", b"\x1b[?1049l"
    assert (shown.count(enter), shown.count(leave)) == (1, 1)
    assert shown.index(enter) < shown.index(b"manager: n1") < shown.index(b"no cluster") < shown.index(leave)
    assert b"job report: 1 item," in shown
    assert b"Traceback" not in shown


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
