"""Commands under supervision, with real processes: they end with what they depend on, and take all with them."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import ForkedProcess, LatchworkError, WaitTimeout
from latchwork.tasks.children import DEVNULL, PIPE, STDOUT, CannotStart, Child, DeadlineExtender
from processes import lives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
PATIENCE_S = 45.0


def eventually(is_so, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def pid_in(path):
    eventually(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def shell(text, **options):
    return Child(["sh", "-c", text], **options)


def in_(seconds):
    return SYSTEM_CLOCK.now() + seconds


def test_a_command_starts_in_the_folder_of_its_parent_unless_told(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder, expected in ((None, tmp_path), ("below", tmp_path / "below")):
        with Child(["pwd", "-P"], folder=folder, stdout=PIPE) as child:
            assert child.stdout.read().decode().strip() == str(expected.resolve())


def test_a_supervisor_has_no_variables_of_its_parent_that_the_command_could_read(monkeypatch):
    monkeypatch.setenv("LATCHWORK_SECRET_DB", "hunter2")
    with shell("cat /proc/$PPID/environ", env={"PATH": os.environ["PATH"]}, stdout=PIPE) as child:
        shown = child.stdout.read()
    assert b"PATH=" in shown
    assert b"hunter2" not in shown


def test_a_command_runs_with_its_streams_environment_and_folder(tmp_path):
    with shell(
        'cat; echo "$NAME"; pwd; echo oops >&2; exit 3',
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={"NAME": "né=1", "PATH": os.environ["PATH"]},
        folder=tmp_path,
    ) as child:
        child.stdin.write(b"in\n")
        child.stdin.close()
        assert child.stdout.read().decode() == f"in\nné=1\n{tmp_path}\n"
        assert child.stderr.read() == b"oops\n"
        end = child.wait(PATIENCE_S)
    assert (end.why, end.code, end.signal, end.left) == ("exited", 3, None, 0)
    assert not end.is_success
    assert str(end) == "ended with code 3"


def test_streams_go_to_files_from_their_end_on(tmp_path):
    log = tmp_path / "log"
    for word in ("one", "two"):
        with shell(f"echo {word}; echo {word} >&2", stdin=DEVNULL, stdout=log, stderr=STDOUT) as child:
            assert child.wait(PATIENCE_S).is_success
    assert log.read_text() == "one\none\ntwo\ntwo\n"


def test_what_it_inherits_and_nothing_else_is_open_in_it():
    reading, writing = os.pipe()
    with Child(["ls", "/proc/self/fd"], stdout=PIPE, stdin=DEVNULL, stderr=DEVNULL, keep=[writing]) as child:
        shown = {int(fd) for fd in child.stdout.read().split()}
    os.close(reading)
    os.close(writing)
    assert shown == {0, 1, 2, 3, writing}  # 3 is that of the listing itself


def test_signals_are_as_a_program_expects_them():
    with Child(["grep", "SigIgn", "/proc/self/status"], stdout=PIPE) as child:
        ignored = int(child.stdout.read().split()[1], 16)
    lines = Path("/proc/self/status").read_text().splitlines()
    mine = int(next(line for line in lines if line.startswith("SigIgn")).split()[1], 16)
    assert ignored & ~mine == 0


@pytest.mark.parametrize(
    ("argv", "options", "why"),
    [
        (["/no/such/program"], {}, "could not start its program: No such file or directory ENOENT"),
        (["/etc/passwd"], {}, "EACCES"),
        (["true"], {"folder": "/no/such/folder"}, "could not go to its folder"),
    ],
)
def test_a_command_that_cannot_start_says_why(argv, options, why):
    with pytest.raises(CannotStart, match=why):
        Child(argv, **options)


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ([], {}),
        ([""], {}),
        (["a\0b"], {}),
        (["true"], {"env": {"A=B": "1"}}),
        (["true"], {"until": math.nan}),
        (["true"], {"until": "soon"}),
        (["true"], {"grace_s": -1}),
        (["true"], {"stdout": -17}),
    ],
)
def test_what_is_no_command_is_refused_before_anything_starts(argv, options):
    with pytest.raises(ValueError, match=r"must|needs|may"):
        Child(argv, **options)


def test_an_unknown_user_is_refused():
    with pytest.raises(LatchworkError, match="no user 'nobody-by-that-name'"):
        Child(["true"], user="nobody-by-that-name")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another")
def test_a_command_runs_as_its_user_with_no_group_of_ours():
    with shell("id -u; id -G", user="nobody", stdout=PIPE) as child:
        uid, groups = child.stdout.read().decode().splitlines()
    assert uid != "0"
    assert "0" not in groups.split()


# Ends


def test_it_is_ended_at_its_moment_though_it_ignores_sigterm():
    with shell("trap '' TERM HUP INT; while :; do sleep 0.1; done", until=in_(0.3)) as child:
        end = child.wait(PATIENCE_S)
    assert (end.why, end.signal) == ("deadline", signal.SIGKILL)
    assert str(end) == "was killed: its time was over"


def test_its_moment_may_be_moved_on_and_back():
    with Child(["sleep", "300"], until=in_(0.4)) as child:
        child.set_deadline(in_(300))
        with pytest.raises(WaitTimeout, match=r"still runs after 0\.8 s"):
            child.wait(0.8)
        child.set_deadline(math.inf)
        child.set_deadline(in_(0.1))
        assert child.wait(PATIENCE_S).why == "deadline"


def test_it_is_asked_before_its_moment_when_it_has_a_grace(tmp_path):
    with shell(
        f"trap 'echo asked > {tmp_path}/said; exit 5' TERM; while :; do sleep 0.05; done", until=in_(8), grace_s=7.5
    ) as child:
        end = child.wait(PATIENCE_S)
    assert (end.why, end.code) == ("exited", 5)
    assert (tmp_path / "said").exists()


def test_stop_asks_first_and_ends_by_force_later():
    with shell("trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done", stdout=PIPE) as child:
        child.stdout.read(6)
        child.stop(PATIENCE_S)
        end = child.wait(PATIENCE_S)
        assert (end.why, end.code) == ("requested", 4)
    with shell("trap '' TERM; echo ready; while :; do sleep 0.05; done", stdout=PIPE) as child:
        child.stdout.read(6)
        child.stop(0.2)
        end = child.wait(PATIENCE_S)
        assert (end.why, end.signal) == ("requested", signal.SIGKILL)


def test_stop_reaches_one_that_is_stopped():
    with Child(["sleep", "300"]) as child:
        os.killpg(child.pid, signal.SIGSTOP)
        eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
        child.stop(PATIENCE_S)
        assert child.wait(PATIENCE_S).signal == signal.SIGTERM


def test_what_it_leaves_behind_ends_with_it_though_it_has_a_session_of_its_own(tmp_path):
    path = tmp_path / "pid"
    inner = f"trap '' TERM HUP; echo $$ > {path}; sleep 300; true"
    text = f'setsid sh -c "{inner}" & while [ ! -s {path} ]; do sleep 0.02; done'.replace("$$", "\\$\\$")
    with shell(text) as child:
        end = child.wait(PATIENCE_S)
        left = pid_in(path)
        assert (end.why, end.code) == ("exited", 0)
        assert end.left >= 1
        assert not lives(left), "it had ended when the end was told"


def test_a_command_that_forks_without_end_ends_whole():
    code = """
        import os, time
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                time.sleep(300)
            time.sleep(0.01)
    """
    mark = f"forks-{os.getpid()}-{time.monotonic_ns()}"
    with Child([sys.executable, "-S", "-c", textwrap.dedent(code), mark], until=in_(0.7)) as child:
        assert child.wait(PATIENCE_S).why == "deadline"
    assert [p.pid for p in psutil.process_iter() if mark in " ".join(_cmdline(p))] == []


def _cmdline(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_pipe_to_it_ends_with_all_that_held_it_open():
    with shell("sleep 300 & echo started", stdout=PIPE) as child:
        assert child.stdout.read() == b"started\n"
        assert child.wait(PATIENCE_S).is_success


def test_its_use_of_the_machine_is_told():
    with Child([sys.executable, "-I", "-S", "-c", "x = bytearray(50_000_000); sum(range(10**6))"]) as child:
        end = child.wait(PATIENCE_S)
    assert end.max_rss_kib > 40_000
    assert end.user_s + end.system_s > 0.0


# Its parent


PARENT = """
    import os, sys, time
    from latchwork.clock import SYSTEM_CLOCK
    from latchwork.tasks.children import Child, DeadlineExtender
    left_s = float(sys.argv[2])
    deadline_extender = DeadlineExtender(lambda: left_s, margin_s=0.0, every_s=0.05)
    child = Child(["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 0.05; done"])
    deadline_extender.add(child)
    if sys.argv[1] == "forks" and os.fork() == 0:
        time.sleep(300)
    print(child.pid, child._supervisor.pid, flush=True)
    time.sleep(300)
"""


class Parent:
    """A process that has a child under supervision."""

    def __init__(self, how="", left_s=300.0):
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PARENT), how, str(left_s)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.child, self.shim = map(int, self.process.stdout.readline().split())

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def parent():
    made = []

    def make(*args):
        made.append(Parent(*args))
        return made[-1]

    yield make
    for each in made:
        each.end()
        eventually(lambda each=each: not lives(each.child) and not lives(each.shim))


def test_a_child_ends_when_its_parent_is_killed(parent):
    one = parent()
    one.process.kill()
    eventually(lambda: not lives(one.child))


def test_a_child_ends_when_its_parent_is_killed_though_a_fork_of_that_keeps_the_pipe_open(parent):
    one = parent("forks")
    one.process.kill()
    eventually(lambda: not lives(one.child))


def test_a_child_of_a_frozen_parent_ends_at_the_moment_that_it_had(parent):
    one = parent("", 1.5)
    time.sleep(2.5)  # much longer than it was allowed at first: the deadline_extender moves the moment on
    assert lives(one.child)
    os.kill(one.process.pid, signal.SIGSTOP)
    frozen = time.monotonic()
    eventually(lambda: not lives(one.child))
    assert 0.5 < time.monotonic() - frozen < 10.0


def test_a_child_ends_when_its_supervisor_is_killed_and_that_is_told():
    with Child(["sleep", "300"]) as child:
        os.kill(child._supervisor.pid, signal.SIGKILL)
        end = child.wait(PATIENCE_S)
        assert end.why == "unsupervised"
        eventually(lambda: not lives(child.pid))


def test_a_daemon_of_a_child_whose_supervisor_is_killed_ends_with_it(tmp_path):
    mark = tmp_path / "daemon"
    daemon = f"setsid sh -c 'trap \"\" TERM HUP; echo $$ > {mark}; while :; do sleep 0.05; done' >&- 2>&- </dev/null &"
    with Child(["sh", "-c", f"( {daemon} ); sleep 300"]) as child, Child(["sleep", "300"]) as other:
        eventually(lambda: mark.exists() and mark.read_text().endswith("\n"))
        pid = int(mark.read_text())
        os.kill(child._supervisor.pid, signal.SIGKILL)
        end = child.wait(PATIENCE_S)
        assert (end.why, end.left >= 1) == ("unsupervised", True)
        eventually(lambda: not lives(pid))
        assert lives(other.pid)


def test_a_child_ends_when_its_supervisor_is_killed_though_its_parent_is_frozen(parent):
    one = parent()
    os.kill(one.process.pid, signal.SIGSTOP)
    os.kill(one.shim, signal.SIGKILL)
    eventually(lambda: not lives(one.child))


def test_a_supervisor_that_is_told_to_end_ends_its_child():
    with Child(["sleep", "300"]) as child:
        os.kill(child._supervisor.pid, signal.SIGTERM)
        assert child.wait(PATIENCE_S).why == "requested"


def test_a_child_ends_when_it_is_closed_and_nothing_is_left_open():
    before = {fd.name for fd in Path("/proc/self/fd").iterdir()}
    child = Child(["sleep", "300"], stdin=PIPE, stdout=PIPE)
    child.close()
    child.close()
    assert {fd.name for fd in Path("/proc/self/fd").iterdir()} == before
    assert not lives(child.pid)
    child.set_deadline(in_(5))  # of what has ended nothing is asked
    child.kill()


def test_ends_of_many_children_can_be_waited_for_together():
    slow, quick = Child(["sleep", "300"]), Child(["sleep", "0.1"])
    ready, _, _ = select.select([slow, quick], [], [], PATIENCE_S)
    assert ready == [quick]
    assert quick.poll().is_success
    assert slow.poll() is None
    slow.close()
    quick.close()


def test_a_child_of_a_fork_cannot_use_it():
    with Child(["sleep", "300"]) as child:
        pid = os.fork()
        if pid == 0:
            try:
                child.close()  # nothing of the parent's
                child.kill()
            except ForkedProcess:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert child.poll() is None


# Leashes


def test_a_deadline_extender_lets_go_and_gives_another_moment():
    left = [0.4]
    with (
        DeadlineExtender(lambda: left[0], margin_s=0.0, every_s=0.05) as deadline_extender,
        Child(["sleep", "300"]) as child,
    ):
        deadline_extender.add(child)
        deadline_extender.remove(child)
        assert child._wait(1.0) is None
        deadline_extender.add(child)
        assert child._wait(1.0) is None
        left[0] = 0.0
        assert child.wait(PATIENCE_S).why == "deadline"


def test_a_childs_own_deadline_counts_below_that_of_the_extender():
    with DeadlineExtender(lambda: 300.0) as deadline_extender, Child(["sleep", "300"]) as child:
        deadline_extender.add(child, in_(0.3))
        assert child.wait(PATIENCE_S).why == "deadline"


@pytest.mark.parametrize("options", [{"margin_s": -1}, {"every_s": "x"}, {"margin_s": math.inf}])
def test_a_deadline_extender_that_cannot_be_is_refused(options):
    with pytest.raises(ValueError, match="must be a number of seconds"):
        DeadlineExtender(lambda: 1.0, **options)
