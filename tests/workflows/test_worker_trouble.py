"""Tasks that behave badly, with real processes: they fork away, flood logs, fill disks; and workers that restart."""

import os
import resource
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

import latchwork
from disks import mounted
from latchwork.primitives import WorkQueue
from latchwork.types import Put
from latchwork_workflows.keys import get_workflows_store
from latchwork_workflows.state import Outcome
from patience import eventually

from . import working
from .working import KEYS, end_process, journal, log_of, put, result, shell, worker_process

pytestmark = pytest.mark.threads

#: As a daemon is made: of two forks, in a session of its own, with no stream of its parent's, deaf to all but SIGKILL.
DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for fd in range(3):
        os.close(fd)
    os.chdir("/")
    {strip}
    open({mark!r} + ".new", "w").write(str(os.getpid()))
    os.rename({mark!r} + ".new", {mark!r})
    while True:
        time.sleep(0.05)
else:
    os.wait()
"""


def a_daemon(mark, then="sleep 300", strip=""):
    """A script of which a daemon stays, whose number is in a file."""
    code = DAEMON.format(mark=str(mark), strip=strip).replace('"', '\\"')
    return f'{sys.executable} -c "{code}"; while [ ! -e {mark} ]; do sleep 0.02; done; echo made; {then}'


def pid_in(mark):
    return int(eventually(lambda: mark.exists() and mark.read_text(), 60.0, "the daemon"))


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def store(tmp_path):
    with latchwork.connect(f"sqlite:///{tmp_path}/store.db") as opened:
        yield get_workflows_store(opened)


# Forked away


@pytest.mark.parametrize("end", ["by itself", "its time", "a command", "its worker gives it back"])
def test_daemon_that_a_task_makes_is_gone_before_its_end_is_told(store, logs, worker, tmp_path, end):
    mark = tmp_path / "daemon"
    then = "true" if end == "by itself" else "sleep 300"
    x = shell(store, 1, a_daemon(mark, then), **({"timeout_s": 3.0} if end == "its time" else {}))
    pid = pid_in(mark)
    if end == "a command":
        store.commit([], [Put(KEYS.cancel_key(x), b"")])
    if end == "its worker gives it back":
        worker.close()
        assert is_gone(pid)
        assert [each.attempts for each in WorkQueue(store, KEYS.backlog).items()] == [0]
        return
    found = result(store, x)
    assert is_gone(pid)
    wanted = {"by itself": Outcome.SUCCESS, "its time": Outcome.FAILURE, "a command": Outcome.KILLED}
    assert found.outcome is wanted[end]
    if end == "by itself":
        assert "stopped one process that it left running" in log_of(logs, found)


@pytest.mark.parametrize("killed", ["worker", "supervisor"])
def test_daemon_that_a_task_makes_is_gone_before_the_task_runs_again(tmp_path, store, logs, killed):
    mark = tmp_path / "daemon"
    process = worker_process(f"sqlite:///{tmp_path}/store.db", tmp_path, "w1", 5.0)
    try:
        x = shell(store, 1, a_daemon(mark))
        pid = pid_in(mark)
        (process if killed == "worker" else _supervisor_of(process.pid, x)).kill()
        if killed == "supervisor":
            found = result(store, x)
            assert is_gone(pid)
            assert found.outcome is Outcome.FAILURE
            assert "was ended from outside together with its supervisor" in found.error
        else:
            eventually(lambda: store.get(KEYS.running_key(0, x)) is None, 60.0)
            assert is_gone(pid)
    finally:
        end_process(process)


def test_daemon_of_a_supervisor_killed_under_a_frozen_worker_is_gone_before_the_task_runs_again(tmp_path, store, logs):
    """Nobody of its own is left to end it: the next worker on this machine does."""
    url, mark, again = f"sqlite:///{tmp_path}/store.db", tmp_path / "daemon", tmp_path / "again"
    assert logs
    processes = [worker_process(url, tmp_path, "w1", 5.0)]
    try:
        x = shell(store, 1, f"if [ -e {mark} ]; then touch {again}; exit 0; fi; {a_daemon(mark)}")
        pid = pid_in(mark)
        processes.append(worker_process(url, tmp_path, "w2", 5.0))
        processes[0].send_signal(signal.SIGSTOP)
        _supervisor_of(processes[0].pid, x).kill()
        eventually(again.exists, 60.0)
        assert is_gone(pid)
        assert result(store, x).outcome is Outcome.SUCCESS
    finally:
        for each in processes:
            end_process(each)


def _supervisor_of(pid, x):
    return next(each for each in psutil.Process(pid).children() if f"latchwork-task-{x}" in each.cmdline())


# Floods


FLOOD = "import os\nline = b'x' * 1023 + b'\\n'\nfor _ in range({kib}):\n    os.write(1, line)\nprint('the end')"


def test_memory_of_a_worker_is_flat_whatever_a_task_prints_and_its_log_says_what_is_missing(tmp_path, store, logs):
    process = worker_process(f"sqlite:///{tmp_path}/store.db", tmp_path, "w1", 20.0, most_log_bytes=1_000_000)
    try:
        result(store, _python(store, 1, FLOOD.format(kib=1_000)))
        before = psutil.Process(process.pid).memory_info().rss
        found = result(store, _python(store, 2, FLOOD.format(kib=30_000)), timeout_s=120.0)
        grown = psutil.Process(process.pid).memory_info().rss - before
    finally:
        end_process(process)
    assert found.outcome is Outcome.SUCCESS
    assert grown < 20_000_000
    text = log_of(logs, found)
    assert "the log has more than 1,000,000 bytes: 29,654,472 bytes left out, its end follows" in text
    assert text.endswith("the end\n[latchwork] success, exit code 0\n")
    assert logs.size(found.log_ref) < 1_200_000


def _python(store, task, code):
    return put(store, task, {"script": code, "interpreter": [sys.executable, "-u"]})


def test_line_without_an_end_and_a_task_that_closes_its_output_are_heard(store, logs, worker):
    first = result(store, shell(store, 1, "head -c 3000000 /dev/zero | tr '\\0' z; exit 3"))
    assert (first.outcome, first.exit_code) == (Outcome.FAILURE, 3)
    assert len(first.error) < 5_000
    assert log_of(logs, first).count("z") >= 3_000_000
    second = result(store, shell(store, 2, "echo before; exec >&- 2>&-; sleep 0.3; exit 4"))
    assert (second.exit_code, log_of(logs, second).splitlines()[0]) == (4, "before")


# Disks


def test_worker_whose_files_may_not_grow_tells_what_is_missing_and_ends_its_tasks_well(tmp_path, store, logs):
    """A quota, as ``ulimit -f`` sets one: no signal of it ends the worker, and no task fails for its log."""
    process = worker_process(f"sqlite:///{tmp_path}/store.db", tmp_path, "w1", 20.0)
    try:
        assert result(store, shell(store, 1, "true")).outcome is Outcome.SUCCESS
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (8_000_000, resource.RLIM_INFINITY))  # the store has room
        mark = tmp_path / "printed"
        wait = f"touch {mark}; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
        x = shell(store, 2, f"echo begun; head -c 12000000 /dev/zero | tr '\\0' y; {wait}")
        eventually(mark.exists, 60.0, "the end of the flood")
        assert process.poll() is None
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        time.sleep(1.5)  # until it tries again
        (tmp_path / "go").touch()
        found = result(store, x)
    finally:
        end_process(process)
    text = log_of(logs, found)
    assert found.outcome is Outcome.SUCCESS
    assert text.startswith("begun\nyyyy")
    assert "bytes missing here: OSError: [Errno 27] File too large" in text


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB for what tasks write."""
    with mounted(tmp_path, 2) as folder:
        yield folder


def test_full_disk_where_tasks_run_fails_the_task_with_the_reason_and_no_other(store, logs, small_disk, tmp_path):
    made = working.worker(store, tmp_path, work_dir=small_disk / "work")
    filled = result(store, shell(store, 1, 'head -c 9000000 /dev/zero > here; echo a=1 >> "$LATCHWORK_OUTPUT"'))
    assert filled.outcome is Outcome.FAILURE
    assert "No space left on device" in log_of(logs, filled)
    found = result(store, shell(store, 2, "echo fine > here; cat here"))  # the folder of the first is gone
    assert (found.outcome, log_of(logs, found).splitlines()[0]) == (Outcome.SUCCESS, "fine")
    (small_disk / "filler").write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))
    third = result(store, shell(store, 3, "true", values={"a": "b"}))
    assert third.outcome is Outcome.FAILURE
    assert "No space left on device" in third.error
    made.close()


# Restarts


def test_rolling_restart_of_several_workers_under_long_tasks_uses_up_no_attempt(tmp_path, store, logs):
    """Six tasks on three workers, which are restarted under them one after the other."""
    url = f"sqlite:///{tmp_path}/store.db"
    processes = {name: worker_process(url, tmp_path, name, 20.0, drain_s=0.2) for name in ("w1", "w2", "w3")}
    script = working.STEADY.replace("sleep 0.02", "sleep 0.2")  # each look is two processes
    paths = {shell(store, n, script, values={"journal": f"{tmp_path}/j{n}"}): tmp_path / f"j{n}" for n in range(1, 7)}
    try:
        eventually(lambda: all(journal(each) for each in paths.values()), 60.0)
        for name in ("w1", "w2", "w3"):
            processes[name].send_signal(signal.SIGTERM)
            assert processes[name].wait(60) == 0
            end_process(processes[name])
            processes[name] = worker_process(url, tmp_path, name, 20.0, drain_s=0.2)
        items = WorkQueue(store, KEYS.backlog).items()
        assert [each.attempts for each in items] == [each.attempts for each in items if each.attempts <= 1]
        for path in paths.values():
            Path(f"{path}.go").touch()
        found = {x: result(store, x) for x in paths}
    finally:
        for process in processes.values():
            end_process(process)
    assert {each.outcome for each in found.values()} == {Outcome.SUCCESS}
    assert max(len(journal(path)) for path in paths.values()) > 1  # some were handed over
    for path in paths.values():
        runs = [moments for _, moments in sorted(journal(path).items())]
        assert all(before[-1][1] < after[0][1] for before, after in pairwise(runs))
    assert WorkQueue(store, KEYS.backlog).items() == []


def test_folders_of_attempts_are_gone_with_them_whatever_they_did(store, logs, tmp_path):
    work = Path(tempfile.mkdtemp(dir=tmp_path))
    made = working.worker(store, tmp_path, work_dir=work)
    scripts = ["mkdir -p a/b; chmod 000 a", "ln -s / all; touch x", "cd ..; true", "kill -9 $$"]
    for n, script in enumerate(scripts, 1):
        result(store, shell(store, n, script))
    eventually(lambda: not list((work / "attempts" / "w1").iterdir()))
    assert Path("/etc/passwd").exists()
    made.close()
