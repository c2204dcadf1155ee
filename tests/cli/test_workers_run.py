"""`latchwork workers run`: any program as the workers of a group, with real processes that are killed and frozen."""

from __future__ import annotations

import json
import signal
import sys
from itertools import groupby

import pytest

import latchwork
from latchwork.worker_group import find
from processes import lives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
URL = "sqlite:///workers.db"
#: A worker says who it is and goes on; whoever comes after the first epoch has nothing to do.
WORK = 'echo $$ > "$RANK.$LATCHWORK_EPOCH.tmp"; mv "$RANK.$LATCHWORK_EPOCH.tmp" "$RANK.$LATCHWORK_EPOCH"; '
LONG, LONG_ONCE = f"{WORK} exec sleep 600", f'{WORK} if [ "$LATCHWORK_EPOCH" = 0 ]; then exec sleep 600; fi'


@pytest.fixture
def start(cli):
    def begin(text, *options):
        run = ("workers", "run", "train", "-n", "2", "--url", URL, *options)
        return cli.start(*run, "--", "sh", "-c", text)

    return begin


@pytest.fixture
def store(cli):
    with latchwork.connect(f"sqlite:///{cli.folder}/workers.db") as opened:
        yield opened


@pytest.fixture
def pids(cli, wait_until):
    """The processes of both workers in an epoch, once they run."""

    def get(epoch=0):
        files = [cli.folder / f"{number}.{epoch}" for number in (0, 1)]
        wait_until(lambda: all(file.exists() for file in files), f"both run in epoch {epoch}", 45.0)
        return [int(file.read_text()) for file in files]

    return get


def test_it_ends_as_the_group_does(cli):
    done = cli("workers", "run", "train", "-n", "2", "--url", URL, "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert done.code == 0, done
    assert sorted(done.out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert "train: COMPLETED, run " in done.err
    done = cli("workers", "run", "train", "-n", "1", "--max-restarts", "0", "--url", URL, "--", "false")
    assert done.code == 1
    assert "train: FAILED, run " in done.err
    cli("workers", "run", "train", "-n", "2", "--per-host", "3", "--url", URL, "--", "true").refused(2, "per_host")


def test_each_change_is_told_once_and_the_outcome_as_json(cli):
    text = 'if [ "$LATCHWORK_EPOCH.$RANK" = 0.1 ]; then exit 3; fi; if [ "$LATCHWORK_EPOCH" = 0 ]; then sleep 60; fi'
    run = ("workers", "run", "train", "-n", "2", "--logs", "logs", "--json", "--url", URL)
    done = cli(*run, "--", "sh", "-c", text)
    assert done.code == 0, done
    said = json.loads(done.out)
    assert (said["state"], said["epoch"], said["restarts_here"], said["completed"]) == ("COMPLETED", 1, 1, 2)
    assert [each["state"] for each in said["processes"]] == ["completed", "completed"]
    lines = [line for line in done.err.splitlines() if line.startswith("worker 1")]
    assert sum("ended with code 3" in line for line in lines) == 1
    assert lines[-1] == "worker 1 completed, epoch 1, 1 restart"
    wanted = ["running", "exited", "rejoining", "waiting", "running", "exited", "completed"]
    seen = [line.split()[2].rstrip(",") for line in lines]
    assert [word for word, _ in groupby(each for each in seen if each in wanted)][-7:] == wanted


def test_processes_end_with_a_run_that_is_killed_and_come_back_with_their_ids(start, pids, wait_until, store):
    first = start(LONG, "--ttl-s", "3")
    before = pids()
    run = find(store, "train").run
    first.kill()
    wait_until(lambda: not any(map(lives, before)), "the processes end with the run that was killed")
    second = start(LONG_ONCE, "--ttl-s", "3")
    assert second.wait(60) == 0, second.log.read_text()
    assert f"train: COMPLETED, run {run}" in second.log.read_text()


def test_processes_end_when_their_run_is_frozen_past_the_ttl_and_begin_again_after_it(start, pids, wait_until):
    run = start(LONG_ONCE, "--ttl-s", "3")
    before = pids()
    run.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not any(map(lives, before)), "the processes end while the run is frozen")
    finally:
        run.send_signal(signal.SIGCONT)
    assert run.wait(60) == 0, run.log.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_processes_and_the_group(start, pids, store, number, code):
    run = start(LONG)
    before = pids()
    handle = find(store, "train")
    run.send_signal(number)
    assert run.wait(60) == code, run.log.read_text()
    assert not any(map(lives, before))
    assert handle.status().state == "TERMINATED"
    assert "Traceback" not in run.log.read_text()


def test_a_second_run_of_the_same_host_waits_for_the_first_and_is_refused(start, pids, cli):
    start(LONG)
    pids()
    more = ("--join-s", "0.5", "--url", URL, "--", "true")
    cli("workers", "run", "train", "-n", "2", *more).refused(1, "is running elsewhere")
    cli("workers", "run", "train", "-n", "2", "--host", "other", *more).refused(1, "all 2 ranks", "are taken")
    assert all(map(lives, pids()))
