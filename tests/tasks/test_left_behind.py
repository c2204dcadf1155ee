"""What is left of commands whose supervisors were killed, and whose parents could do nothing about it."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

import pytest

from latchwork.tasks.children import PIPE, Child, kill_orphans
from latchwork.tasks.children.lock_files import lock_folder
from patience import eventually
from processes import lives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

PARENT = """
    import sys, time
    from latchwork.tasks.children import Child
    child = Child(["sh", "-c", sys.argv[1]])
    print(child._supervisor.pid, flush=True)
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def own_notes(tmp_path, monkeypatch):
    """Notes that no other test ends anything by."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def a_daemon(mark, then="sleep 300"):
    loop = "while :; do sleep 0.05; done"
    daemon = f"setsid sh -c 'trap \"\" TERM HUP; echo $$ > {mark}; {loop}' >&- 2>&- </dev/null &"
    return f"( {daemon} ); while [ ! -s {mark} ]; do sleep 0.02; done; {then}"


def pid_in(mark):
    return int(eventually(lambda: mark.exists() and mark.read_text().strip(), 45.0, "the daemon"))


@pytest.fixture(params=["dead", "frozen"])
def left(request, tmp_path):
    """The number of a daemon whose supervisor was killed while its parent was frozen, or is dead by now."""
    mark = tmp_path / "daemon"
    code = textwrap.dedent(PARENT)
    with subprocess.Popen([sys.executable, "-c", code, a_daemon(mark)], stdout=subprocess.PIPE) as parent:
        supervisor = int(parent.stdout.readline())
        pid = pid_in(mark)
        parent.send_signal(signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        eventually(lambda: not lives(supervisor), 45.0)
        if request.param == "dead":
            parent.kill()
            parent.wait()
        yield pid
        parent.kill()
    eventually(lambda: not lives(pid), 45.0)


def test_daemon_of_a_supervisor_that_was_killed_ends_before_the_next_command_starts(left):
    assert lives(left)
    with Child(["true"]):
        assert not lives(left)


def test_of_two_that_find_it_at_once_neither_goes_on_before_it_is_gone(left):
    seen = []
    threads = [threading.Thread(target=lambda: seen.append((kill_orphans(), lives(left)))) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [alive for _, alive in seen] == [False, False]
    assert list(lock_folder().iterdir()) == []


def test_what_has_a_living_supervisor_is_left_alone(tmp_path):
    mark = tmp_path / "daemon"
    with Child(["sh", "-c", a_daemon(mark)]) as child:
        pid = pid_in(mark)
        assert kill_orphans() == 0
        assert lives(pid)
        assert lives(child.pid)


def test_what_was_given_the_environment_of_a_command_that_has_ended_is_left_alone(tmp_path):
    """As ``at`` does, or a batch system: it runs a job later, with the environment of who asked for it."""
    with Child(["sh", "-c", "echo $LATCHWORK_CHILD"], stdout=PIPE) as child:
        mark = child.stdout.read().decode().strip()
        assert child.wait(45.0).is_success
    assert list(lock_folder().iterdir()) == []
    with subprocess.Popen(["sleep", "300"], env={**os.environ, "LATCHWORK_CHILD": mark}) as job:
        assert kill_orphans() == 0
        assert lives(job.pid)
        job.kill()


def test_notes_of_what_cannot_start_or_was_ended_are_gone():
    with pytest.raises(OSError, match="could not start"):
        Child(["/nowhere/at/all"])
    with Child(["sleep", "300"]):
        assert len(list(lock_folder().iterdir())) == 1
    assert list(lock_folder().iterdir()) == []


@pytest.mark.parametrize("trouble", ["writable", "file", "nowhere"])
def test_without_a_folder_that_is_ours_alone_commands_run_and_nothing_is_ended(tmp_path, monkeypatch, trouble):
    top = tmp_path / f"latchwork-{os.geteuid()}"
    if trouble == "writable":  # by others
        top.mkdir()
        top.chmod(0o777)
    elif trouble == "file":
        top.write_text("")
    else:
        (tmp_path / "nowhere").write_text("")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with Child(["true"]) as child:
        assert child.wait(45.0).is_success
    assert lock_folder() is None
    assert kill_orphans() == 0
