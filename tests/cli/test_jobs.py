"""`latchwork jobs` and `latchwork settings`, on a real cluster and on none."""

from __future__ import annotations

import time

import pytest

import latchwork
from latchwork.jobs import Cron
from latchwork.jobs.cron_progress import CronProgress, FireTimes, HeldItem, read_item_progress
from latchwork.jobs.stored import cluster_store

URL = "sqlite:///jobs.db"

JOBS = """
from pathlib import Path
from latchwork.jobs import FixedDelay, Job

def run(context):
    with Path("ran.txt").open("a") as out:
        out.write(f"{context.job_id}\\n")

report = Job("report", work_pool=["a"], run=run, schedule=FixedDelay(3600.0), initial_delay_s=3600.0)
"""


@pytest.fixture
def node(cli, wait_until):
    cli.write("jobs.py", JOBS)
    started = cli.start("run", "jobs:report", "--url", URL, "--node-id", "n1")
    wait_until(lambda: "is started" in started.log.read_text(), "the node is started")
    return started


def ran(cli):
    file = cli.folder / "ran.txt"
    return len(file.read_text().split()) if file.exists() else 0


def test_a_schedule_and_a_switch_set_from_the_command_line_reach_a_running_node(cli, node, wait_until):
    assert ran(cli) == 0
    done = cli("jobs", "set", "report", "--fixed-delay-s", "0.05", "--initial-delay-s", "0", "--url", URL)
    assert (done.code, done.out) == (0, "report: schedule=fixed_delay_s:0.05, initial_delay_s=0.0\n")
    wait_until(lambda: ran(cli) >= 3, "it runs at the new pace")
    assert cli("jobs", "disable", "report", "--url", URL).out == "report: disabled\n"
    wait_until(lambda: "job report is now disabled" in node.log.read_text(), "the node knows")
    count = ran(cli)
    listed = cli("jobs", "list", "--json", "--url", URL).json
    assert [(row["job"], row["enabled"], row["because"]) for row in listed["jobs"]] == [("report", False, "its switch")]
    assert ran(cli) <= count + 1
    assert cli("jobs", "enable", "report", "--url", URL).code == 0
    wait_until(lambda: ran(cli) > count + 1, "it runs again")


def test_settings_of_the_cluster_are_set_shown_and_unset(cli):
    cli("tree", "--url", "sqlite:///jobs.db")
    (cli.folder / "jobs.db").touch()
    assert cli("settings", "set", "--debounce-s", "2", "--url", URL).out == "cluster: debounce_s=2.0\n"
    assert cli("jobs", "disable", "--all", "--url", URL).out == "all jobs: disabled\n"
    assert cli("jobs", "default", "off", "--url", URL).code == 0
    shown = cli("settings", "show", "--json", "--url", URL).json
    assert shown == {"cluster": {"all_disabled": True, "default_enabled": False, "debounce_s": 2.0}, "jobs": {}}
    assert cli("settings", "set", "--unset", "debounce-s", "--url", URL).code == 0
    assert cli("jobs", "enable", "--all", "--url", URL).code == 0
    assert cli("jobs", "default", "unset", "--url", URL).code == 0
    assert cli("settings", "show", "--url", URL).out == "cluster: nothing set\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["jobs", "disable"], ["give either job IDs or --all"]),
        (["jobs", "enable", "report", "--all"], ["--all"]),
        (["jobs", "default", "maybe"], ["on, off, unset"]),
        (["jobs", "set", "report"], ["nothing to change"]),
        (["jobs", "set", "report", "--cron", "x"], ["Cron expression 'x'"]),
        (["jobs", "set", "report", "--threads", "2", "--tz", "Mars"], ["--tz can only be used with --cron"]),
        (["jobs", "set", "report", "--misfire", "all"], ["--misfire can only be used with --cron"]),
        (["jobs", "set", "report", "--cron", "* * * * *", "--tz", "Mars"], ["time zone 'Mars' is unknown", "give"]),
        (
            ["jobs", "set", "report", "--cron", "* * * * *", "--tz", "Europe/Belrin"],
            ["similar names are Europe/Berlin"],
        ),
        (["jobs", "set", "report", "--cron", "* * * * *", "--fixed-rate-s", "1"], ["one schedule"]),
        (["jobs", "set", "re/port", "--threads", "1"], ["job id 're/port'"]),
        (["settings", "set", "--unset", "speed"], ["--unset speed"]),
    ],
)
def test_what_cannot_be_set_is_refused_in_one_line(cli, args, words):
    (cli.folder / "jobs.db").touch()
    cli(*args, "--url", URL).refused(2, *words)


def test_progress_that_lies_in_the_future_is_set_back(cli):
    ahead_s = time.time() + 86_400.0
    with latchwork.connect(f"sqlite:///{cli.folder}/jobs.db") as store:
        cluster = cluster_store(store)
        cluster.put("owners/o1", b"{}")
        times = FireTimes(CronProgress(cluster, "report"), {"a": HeldItem(1, "o1")})
        each_minute = Cron("* * * * *")
        times.find_next_step(each_minute, ahead_s - 120.0, 0.0)
        times.record_start(times.find_next_step(each_minute, ahead_s, 0.0))
        done = cli("jobs", "reset-progress", "report", "--url", URL)
        assert done.code == 0, done
        assert done.out.startswith("report: a: was done up to ")
        assert read_item_progress(store, "report", "a").through <= time.time()
        assert cli("jobs", "reset-progress", "report", "--url", URL).out == "report: no progress lies in the future\n"


def test_where_there_is_no_cluster_the_exit_code_is_3(cli):
    cli("jobs", "list", "--url", "sqlite:///none.db").refused(3, "none.db does not exist")
    (cli.folder / "jobs.db").touch()
    cli("jobs", "list", "--url", URL).refused(3, "no cluster and no settings")
