"""`latchwork lock`, `elect`, `show` and `once`, and `run --command`: what a shell has of latchwork."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing

import pytest

import latchwork
from backends_table import ONE_OF_EACH_KIND
from latchwork.jobs import FixedDelay, Job, JobManager, inspect
from latchwork.primitives import Counter, Lock, Once, Queue, Semaphore, WorkQueue


@pytest.fixture(params=ONE_OF_EACH_KIND)
def url(request, cli):
    if request.param == "sqlite":
        return f"sqlite:///{cli.folder}/owned.db?root=owned"
    return request.getfixturevalue(request.param).url(f"owned-{request.node.originalname[:40]}")


@pytest.fixture
def file_url(cli):
    return f"sqlite:///{cli.folder}/owned.db"


# lock and elect


def test_a_command_runs_under_a_lock_and_its_exit_code_is_ours(cli, url):
    done = cli("lock", "backup", "--url", url, "--", "sh", "-c", "echo $LATCHWORK_LOCK $LATCHWORK_TOKEN; exit 7")
    assert done.code == 7
    name, token = done.out.split()
    assert name == "backup"
    assert int(token) > 0
    with latchwork.connect(url) as store:
        assert Lock(store, "backup").holder() is None


def test_a_lock_that_is_held_is_waited_for_or_not(cli, file_url):
    with latchwork.connect(file_url) as store, Lock(store, "backup", label="the other"):
        done = cli("lock", "backup", "--wait-s", "0", "--url", file_url, "--", "echo", "run")
        done.refused(1, "backup", "the other")
        assert done.out == ""
        shown = cli("show", "lock", "backup", "--url", file_url, "--json").json
        assert [each["label"] for each in shown["holders"]] == ["the other"]


def test_a_command_whose_lock_is_lost_is_stopped(cli, file_url, wait_until):
    script = "trap 'echo told; exit 3' TERM; echo begun; while true; do sleep 0.1; done"
    process = cli.start("lock", "backup", "--ttl-s", "3", "--url", file_url, "--", "sh", "-c", script)
    wait_until(lambda: "begun" in process.log.read_text(), "the command runs")
    with closing(sqlite3.connect(cli.folder / "owned.db", isolation_level=None)) as blocked:
        blocked.execute("BEGIN EXCLUSIVE")  # no renewal lands
        assert process.wait(20) == 1
    assert "told" in process.log.read_text()
    assert "lock 'backup' was lost" in process.log.read_text()


def test_a_signal_reaches_the_command_and_the_lock_is_given_back(cli, file_url, wait_until):
    script = "trap 'exit 5' TERM; echo begun; while true; do sleep 0.1; done"
    process = cli.start("lock", "backup", "--ttl-s", "60", "--url", file_url, "--", "sh", "-c", script)
    wait_until(lambda: "begun" in process.log.read_text(), "the command runs")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 5
    with latchwork.connect(file_url) as store:
        assert store.list("backup") == []


def test_a_command_dies_with_the_process_that_holds_the_lock(cli, file_url, wait_until):
    script = f"echo begun; while true; do date > {cli.folder}/alive; sleep 0.1; done"
    process = cli.start("lock", "backup", "--url", file_url, "--", "sh", "-c", script)
    wait_until(lambda: "begun" in process.log.read_text(), "the command runs")
    process.kill()
    process.wait(10)
    alive = cli.folder / "alive"

    def is_quiet():
        before = alive.stat().st_mtime_ns
        time.sleep(0.5)
        return alive.stat().st_mtime_ns == before

    wait_until(is_quiet, "the command is dead")


@pytest.mark.parametrize("command", ["lock", "elect"])
def test_a_command_that_cannot_be_started_is_127_as_in_a_shell(cli, file_url, command):
    cli(command, "x", "--url", file_url, "--", "no-such-program").refused(127, "no-such-program", "cannot be started")


def test_who_is_elected_runs_its_command_and_the_next_takes_over(cli, url, wait_until):
    script = "echo $LATCHWORK_ELECTION leads; while true; do sleep 0.1; done"
    args = ("elect", "sched", "--url", url, "--ttl-s", "60")
    first = cli.start(*args, "--node-id", "n1", "--", "sh", "-c", script)
    wait_until(lambda: "sched leads" in first.log.read_text(), "the first leads")
    second = cli.start(*args, "--node-id", "n2", "--", "sh", "-c", "echo second; exit 4")
    shown = lambda: cli("show", "latch", "sched", "--url", url, "--json").json["candidates"]  # noqa: E731
    wait_until(lambda: [each["node"] for each in shown()] == ["n1", "n2"], "both stand")
    assert "second" not in second.log.read_text()
    first.send_signal(signal.SIGTERM)
    assert second.wait(20) == 4
    assert first.wait(20) == 143


STARTS_MANY = """
import sys, threading
from latchwork.cli.processes import CommandProcess, _store

with _store(sys.argv[1], None) as store:
    over = threading.Event()

    def read():
        while not over.is_set():
            store.get("k")

    readers = [threading.Thread(target=read) for _ in range(8)]
    for each in readers:
        each.start()
    codes = [CommandProcess(["true"], {}, own_group=False).wait() for _ in range(200)]
    over.set()
    for each in readers:
        each.join()
print(sorted(set(codes)))
"""


@pytest.mark.slow
def test_a_command_starts_whatever_other_threads_do_inside_of_grpc(cli, etcd35):
    """With gRPC's own handlers of a fork some of them abort."""
    given = [sys.executable, "-c", STARTS_MANY, etcd35.url("owned-forks")]
    done = subprocess.run(given, env=cli.env(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("[0]\n", 0), done.stderr


# show and once


def test_primitives_are_looked_at_and_an_outcome_is_forgotten(cli, url):
    with latchwork.connect(url) as store:
        Counter(store, "visits").add(3)
        Queue(store, "mail").put(b"a")
        WorkQueue(store, "tasks").put("any", "s", "1", b"")
        WorkQueue(store, "tasks").try_take(["any"])[0].move_to_dead_letters("bad\x1b[31m")
        WorkQueue(store, "tasks").put("any", "s", "2", b"")
        Once(store, "migrate").run(lambda _work: b"done\x1b[31m")
    assert cli("show", "counter", "visits", "--url", url).out == "value: 3\n"
    assert cli("show", "queue", "mail", "--url", url, "--json").json["items"] == 1
    backlog = cli("show", "work-queue", "tasks", "--url", url, "--json").json
    assert backlog["partitions"] == [{"partition": "any", "items": 1, "waiting_consumers": 0}]
    assert backlog["dead_letters"][0]["item"] == "any/s/1"
    assert "\x1b" not in cli("show", "work-queue", "tasks", "--url", url).out
    text = cli("show", "once", "migrate", "--url", url).out
    assert "outcome: done\n" in text
    assert "\x1b" not in text
    assert cli("once", "reset", "migrate", "--url", url).out == "migrate: forgotten, its outcome was: done\n"
    assert cli("show", "once", "migrate", "--url", url, "--json").json["outcome"] == "none yet"


@pytest.mark.parametrize(
    "kind",
    [
        "lock",
        "rwlock",
        "persistent-lock",
        "semaphore",
        "latch",
        "election",
        "once",
        "queue",
        "work-queue",
        "counter",
        "group",
    ],
)
def test_a_primitive_that_was_never_used_shows_as_such_and_nothing_is_written(cli, file_url, kind):
    with latchwork.connect(file_url) as store:
        store.put("here", b"")
        done = cli("show", kind, "unused", "--url", file_url)
        assert done.code == 0, done
        json.loads(cli("show", kind, "unused", "--url", file_url, "--json").out)
        assert [entry.key for entry in store.list("", recursive=True)] == ["here"]


def test_the_records_of_an_unused_name_are_removed_and_those_in_use_stay(cli, url):
    with latchwork.connect(url) as store:
        with Semaphore(store, "permits", leases=2):
            cli("forget", "permits", "--url", url).refused(1, "permits")
            assert store.get("permits/leases/size") is not None
        assert cli("forget", "permits", "--url", url).out == "permits: 1 key removed\n"
        assert store.list("permits", recursive=True) == []
        assert cli("forget", "permits", "--url", url).out == "permits: 0 keys removed\n"


def test_an_unknown_kind_and_a_bad_name_are_refused(cli, file_url):
    with latchwork.connect(file_url) as store:
        store.put("here", b"")
    cli("show", "mutex", "x", "--url", file_url).refused(2, "mutex", "persistent-lock")
    cli("show", "lock", "a b", "--url", file_url).refused(2, "a b")
    cli("once", "reset", "a b", "--url", file_url).refused(2, "a b")


# jobs run


def test_jobs_run_runs_a_job_now_and_says_how_it_went(cli, url, wait_until):
    def run(context):
        if "bad" in context.items:
            raise OSError("disk full")

    job = Job("report", work_pool=["bad", "good"], run=run, schedule="@yearly")
    with JobManager(url, "n1", job):
        wait_until(lambda: len(cli("locks", "--url", url, "--json").json) == 2, "the items are locked")
        done = cli("jobs", "run", "report", "good", "--url", url)
        assert done.out == "n1: good: ended well\n", done
        failed = cli("jobs", "run", "report", "--url", url, "--json")
        assert failed.json == [{"node": "n1", "items": 2, "named": ["bad", "good"], "error": "OSError: disk full"}]
        failed.refused(1, "1 of 1 runs of job report failed", "disk full")
        cli("jobs", "run", "report", "nobody", "--url", url).refused(2, "nobody")
        cli("jobs", "disable", "report", "--url", url)
        cli("jobs", "run", "report", "--url", url).refused(2, "disabled")


# run --command


@pytest.mark.slow
def test_a_command_is_run_for_each_item_in_the_whole_cluster(cli, url, wait_until):
    args = (
        "--command",
        "sh -c 'echo {item} $LATCHWORK_ITEM $LATCHWORK_JOB; test {item} != b'",
        "--item",
        "a",
        "--item",
        "b",
    )
    pace = ("--fixed-delay-s", "0.2", "--url", url, "--probe-port", "0", "--outcome-period-s", "1")
    first, second = (cli.start("run", *args, *pace, "--node-id", node, "--job-id", "backup") for node in ("n1", "n2"))
    both = lambda: first.log.read_text() + second.log.read_text()  # noqa: E731
    wait_until(lambda: "a a backup\n" in both() and "b b backup\n" in both(), "both items are run")

    def state():
        with latchwork.connect(url) as store:
            found = inspect(store)
            return (
                found is not None
                and "backup" in found.pools
                and found.job("backup").consecutive_failures
                and found.job("backup")
            )

    found = wait_until(state, "the failure is written down")
    # The first run may still have both.
    assert re.fullmatch("CommandFailed: 1 of [12] items failed: b: exit code 1", found.failing[0].text)
    listed = cli("jobs", "list", "--url", url)
    assert "failing, " in listed.out
    assert re.search("backup: failing: [0-9]+ items?, ", listed.out)
    assert cli("status", "--url", url, "--json").json["jobs"]["backup"]["last_error"]["item"] == "b"
    assert re.search("failing: [0-9]+ items?, ", cli("status", "--url", url).out)
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_command_that_runs_when_its_node_ends_is_told_to_stop(cli, file_url, wait_until):
    command = "sh -c 'trap \"echo told; exit 0\" TERM; echo begun; while true; do sleep 0.1; done'"
    process = cli.start("run", "--command", command, "--cron", "* * * * * *", "--url", file_url, "--node-id", "n1")
    wait_until(lambda: "begun" in process.log.read_text(), "the command runs", 30.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert "told" in process.log.read_text()


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((), "MODULE:ATTRIBUTE or --command"),
        (("jobs:one", "--command", "true"), "either MODULE:ATTRIBUTE or --command"),
        (("jobs:one", "--item", "a"), "can only be used with --command"),
        (("--command", "sh -c '"), "cannot be read"),
        (("--command", " "), "--command is empty"),
        (("--command", "echo {item}"), "add --item"),
        (("--command", "true", "--cron", "soon"), "soon"),
        (("--command", "true", "--cron", "@daily", "--fixed-delay-s", "1"), "one schedule"),
    ],
)
def test_a_command_that_makes_no_job_is_refused(cli, file_url, args, word):
    cli("run", *args, "--url", file_url, "--node-id", "n1").refused(2, word)


# Probes


def test_a_job_that_fails_is_told_by_the_probes_and_makes_a_node_unready_if_asked_to(cli, file_url, wait_until):
    args = ("run", "--command", "false", "--fixed-delay-s", "0.05", "--url", file_url, "--node-id", "n1")
    process = cli.start(*args, "--probe-port", "0", "--unready-after", "2")
    line = wait_until(
        lambda: next((x for x in process.log.read_text().splitlines() if "/healthz" in x), None), "it serves probes"
    )
    at = line.partition("http://")[2].partition("/")[0]

    def answer(path):
        try:
            with urllib.request.urlopen(f"http://{at}{path}", timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    wait_until(lambda: answer("/readyz")[0] == 503 and "fails, " in answer("/readyz")[1], "it is not ready")
    status, body = answer("/healthz")
    assert status == 200
    told = json.loads(body)["jobs"]["false"]
    assert told["consecutive_failures"] >= 2
    assert "exit code 1" in told["last_error"]
    metrics = answer("/metrics")[1]
    assert 'latchwork_failing_items{job="false",node="n1"} 1.0' in metrics
    assert "latchwork_last_failure_timestamp_seconds" in metrics


def test_the_schedule_of_a_job_may_be_a_word_of_crons(cli, file_url):
    with JobManager(file_url, "n1", Job("report", work_pool=["a"], run=print, schedule=FixedDelay(60.0))):
        assert "cron:0 0 * * *" in cli("jobs", "set", "report", "--cron", "@daily", "--url", file_url).out
