"""A disk that is full, or read-only, under all that one machine has: real processes on a file system of their own."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disks import mounted
from latchwork._base.files import explain_write_failure, replace_file
from latchwork_workflows.cli.options import RepeatFilter
from levels import LONG
from patience import eventually

pytestmark = pytest.mark.slow
MAIN = "from latchwork.cli.entry import main; main()"
FLOW = """
name: flow
params: {go: none}
tasks:
- {name: waits, type: shell, params: {script: 'while [ ! -e "$go" ]; do sleep 0.1; done; echo waited'}}
- {name: follows, type: shell, after: [waits], params: {script: 'echo followed'}}
"""
PYTHON = """
from latchwork_workflows import task, workflow

@task
def one() -> int:
    return 1

@workflow
def coded():
    one()
"""


@pytest.fixture
def disk(tmp_path):
    """A file system of 12 MB for the home of workflows."""
    with mounted(tmp_path, 12, "--lazy") as folder:
        yield folder


def fill(folder):
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (65_536, 512):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                pass


@pytest.fixture
def flows(disk, tmp_path):
    """Runs a command to its end on that disk, or starts one."""
    running = []
    env = {**os.environ, "LATCHWORK_WORKFLOWS_HOME": str(disk / "home")}
    (tmp_path / "flow.yaml").write_text(FLOW)
    (tmp_path / "coded.py").write_text(PYTHON)

    def run(*args, is_node=False, given=""):
        words = [sys.executable, "-c", MAIN, "workflows", *map(str, args)]
        if is_node:
            out = (tmp_path / f"out-{len(running)}").open("wb")
            running.append(subprocess.Popen(words, stdout=out, stderr=out, env=env))
            return running[-1], Path(out.name)
        return subprocess.run(words, input=given, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)

    yield run
    for each in running:
        each.kill()
        each.wait()


def refused(told, *words):
    assert told.returncode in {1, 2}, told.stdout + told.stderr
    (line,) = told.stderr.splitlines()
    assert line.startswith("error: ")
    assert "unexpected" not in line
    assert all(each in line for each in words), line


@pytest.mark.timeout(600)  # a dozen commands, each a process of its own
def test_a_disk_that_is_full_under_everything_is_told_by_all_and_what_ran_goes_on(flows, disk, tmp_path):
    server, out = flows("serve", "--port", "0", "--slots", "2", "--session-ttl-s", "5", is_node=True)
    eventually(lambda: "sign-in link" in out.read_text(), 60.0)
    eventually(lambda: "runs up to 2 tasks at a time" in out.read_text(), 60.0)  # nodes told nothing at all
    flows("apply", "flow.yaml")
    number = json.loads(flows("start", "flow", "-p", f"go={tmp_path}/go", "--json").stdout)["run"]
    eventually(lambda: '"running"' in flows("show", number, "--json").stdout, 60.0, every_s=1.0)
    fill(disk)
    full = f"the disk of {disk}/home is full: free space there"
    refused(flows("start", "flow"), full)
    refused(flows("apply", "flow.yaml", "--offline"), full)
    refused(flows("deploy", "coded.py"), "the code bundle cannot be stored now", "No space left on device")
    refused(
        flows("secrets", "set", "KEY", given="hunter2"), f"{disk}/home/secrets/default/KEY", "No space left on device"
    )
    assert flows("secrets", "list").stdout == ""
    assert "default.flow" in flows("list").stdout
    (tmp_path / "go").touch()
    eventually(lambda: "cannot grow" in out.read_text(), 60.0)
    assert server.poll() is None
    (disk / "filler").unlink()
    eventually(lambda: json.loads(flows("show", number, "--json").stdout)["state"] == "success", 90.0, every_s=1.0)
    assert flows("start", "flow", "-p", f"go={tmp_path}/go", "--wait").returncode == 0
    assert flows("doctor").stdout == "no problems found\n"
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    lines = [re.sub(r"^\S+ \S+ ", "", each) for each in out.read_text().splitlines() if "cannot grow" in each]
    assert len(lines) == len(set(lines))


def test_a_disk_that_is_full_or_read_only_when_they_begin_ends_all_with_one_line(flows, disk):
    assert flows("init").returncode == 0
    assert flows("apply", "flow.yaml").returncode == 0
    fill(disk)
    commands = [["start", "flow"], ["serve", "--port", "0"], ["master"], ["worker"]]  # who only reads may be able to
    commands = commands if LONG else commands[:2]
    for each in commands:
        refused(flows(*each), "disk")  # of a store SQLite says sometimes that it is full, and sometimes not
    (disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for each in commands:
        refused(flows(*each), f"the disk of {disk}/home is mounted read-only")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert flows("list").returncode == 0


def test_what_is_wrong_with_a_place_is_said_with_what_to_do(tmp_path):
    assert explain_write_failure(tmp_path / "file") == ""
    assert explain_write_failure(tmp_path / "no" / "file") == f"there is no folder {tmp_path}/no"


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path):
    place = tmp_path / "file"
    replace_file(place, b"before", mode=0o600)
    assert place.stat().st_mode & 0o777 == 0o600
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "folder"))):
        replace_file(tmp_path / "folder", b"other", mode=0o600)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]
    assert place.read_bytes() == b"before"


def test_a_line_that_repeats_itself_is_told_once_a_minute_with_how_often_it_was_not():
    clock = [0.0]
    lets = RepeatFilter(lambda: clock[0])

    def told(text, *args):
        record = logging.LogRecord("latchwork.x", logging.WARNING, "", 0, text, args, None)
        return record.getMessage() if lets.filter(record) else None

    assert told("again in %d s", 1) == "again in 1 s"
    assert [told("again in %d s", 1), told("again in %d s", 2), told("again in %d s", 1)] == [
        None,
        "again in 2 s",
        None,
    ]
    clock[0] = 61.0
    assert told("again in %d s", 1) == "again in 1 s (and 2 times more since then)"
    assert told("again in %d s", 1) is None
