"""Processes of trials do what they are told, report until they die, and outlive nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from latchwork.errors import Conflict
from patience import eventually
from trials.remote import Remote, RemoteFailed

THIS = "trials.test_remote"
PATIENCE_S = 45.0


class Thing:
    def __init__(self, wire):
        self._wire = wire

    def report_until(self, count):
        for number in range(count):
            self._wire.report(number)
        return count

    def refuse(self):
        raise Conflict("it is so")

    def fail(self):
        raise ZeroDivisionError("no such thing")


def serve(wire):
    wire.serve(Thing(wire))


def serve_nothing(wire):
    wire.report(os.getpid())
    threading.Event().wait()


@pytest.fixture
def remote():
    with contextlib.closing(Remote(f"{THIS}:serve")) as started:
        yield started


def gone(pid):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_an_answer_comes_after_all_that_was_reported_before_it():
    reports = []
    with contextlib.closing(Remote(f"{THIS}:serve", report=reports.append)) as remote:
        assert remote.report_until(1000) == 1000
        assert reports == list(range(1000))


def test_an_answer_that_nobody_waits_for_is_not_taken_for_the_next_one(remote):
    remote.tell("report_until", 3)
    assert remote.report_until(5) == 5


def test_errors_of_latchwork_come_back_as_they_are_and_others_with_their_trace(remote):
    with pytest.raises(Conflict, match="it is so"):
        remote.refuse()
    with pytest.raises(RemoteFailed, match="ZeroDivisionError: no such thing"):
        remote.fail()
    assert remote.report_until(1) == 1


def test_a_killed_process_is_gone_and_all_that_it_had_reported_is_here():
    reports = []
    remote = Remote(f"{THIS}:serve", report=reports.append)
    remote.report_until(100)
    assert remote.kill() <= time.monotonic_ns()
    assert (reports, remote.is_alive, gone(remote.pid)) == (list(range(100)), False, True)
    for _ in range(2):
        with pytest.raises(RemoteFailed, match="has ended"):
            remote.report_until(1)


def test_a_frozen_process_closes_in_order_all_the_same(remote):
    remote.pause()
    remote.close()
    assert gone(remote.pid)


def test_processes_die_with_the_one_that_started_them_frozen_ones_too():
    code = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from trials.remote import Remote\n"
        "pids = []\n"
        f"remotes = [Remote('{THIS}:serve_nothing', report=pids.append) for _ in range(2)]\n"
        "while len(pids) < 2:\n"
        "    time.sleep(0.01)\n"
        "remotes[0].pause()\n"
        "print(*pids, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        os.kill(parent.pid, signal.SIGKILL)
    assert len(pids) == 2
    eventually(lambda: all(map(gone, pids)), PATIENCE_S, "the end of all processes")
