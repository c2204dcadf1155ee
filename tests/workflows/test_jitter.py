"""Workers that die, freeze or lose the store: what they ran has ended before anybody else runs it (behaviour D13).

The scenarios of orphans and of tasks that run twice after a jitter of the coordination service (DolphinScheduler
#16759, #8110): begins and ends of each run stand in a file that the runs themselves write.
"""

import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

import latchwork
from latchwork.primitives import WorkQueue
from latchwork.testing import FaultyStore
from latchwork_workflows.keys import get_workflows_store
from latchwork_workflows.logs import LogMissing
from latchwork_workflows.state import Outcome
from patience import eventually

from . import working
from .working import KEYS, begun_runs, end_process, journal, result, running, shell, worker_process

pytestmark = pytest.mark.threads

TTL_S = 5.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def overlaps(path):
    """Runs that were there while the one before them still was, by their own clocks."""
    runs = [moments for _, moments in sorted(journal(path).items())]
    return [(before[-1], after[0]) for before, after in pairwise(runs) if before[-1][1] >= after[0][1]]


def has_log(logs, ref):
    try:
        return bool(logs.read(ref).data)
    except LogMissing:
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_task_of_a_worker_that_is_killed_or_frozen_runs_again_after_it_has_ended(
    backend_url, store, tmp_path, path, how
):
    if backend_url.startswith("memory"):
        pytest.skip("needs a second process")
    store = get_workflows_store(store)
    logs = working.begun(store, tmp_path)
    first = worker_process(backend_url, tmp_path, "w1", TTL_S)
    try:
        x = shell(store, 1, working.STEADY, values={"journal": str(path)})
        begun_runs(path)
        assert running(store, x).worker == "w1"
        (dead,) = journal(path)
        log = f"7/11/1/1.{dead}.log"
        eventually(lambda: has_log(logs, log), what="the log of the first run")
        second = worker_process(backend_url, tmp_path, "w2", TTL_S)
        try:
            first.send_signal(how)
            began = time.monotonic()
            begun_runs(path, 2)
            took_s = time.monotonic() - began
            Path(f"{path}.go").touch()
            found = result(store, x)
        finally:
            end_process(second)
        assert (found.outcome, found.worker) == (Outcome.SUCCESS, "w2")
        assert overlaps(path) == []
        assert took_s < TTL_S + 20.0
        part = logs.read(log)
        assert (part.data, part.ended) == (f"begun by {dead}\n".encode(), False)
        if how == signal.SIGSTOP:
            first.send_signal(signal.SIGCONT)  # it wakes up, and its end is refused
            time.sleep(1.0)
            assert working.AttemptResult.from_bytes(store.get(KEYS.result_key(0, x)).value).worker == "w2"
            assert len(journal(path)) == 2
    finally:
        end_process(first)


def test_worker_that_waits_lets_its_tasks_go_on_through_a_short_cut(tmp_path, path):
    with latchwork.connect(f"memory://jitter-{tmp_path.name}") as opened:
        store = get_workflows_store(opened)
        working.begun(store, tmp_path)
        faulty = FaultyStore(latchwork.connect(f"memory://jitter-{tmp_path.name}"))
        worker = working.worker(faulty, tmp_path, session_ttl_s=20.0)
        x = shell(store, 1, working.STEADY, values={"journal": str(path)})
        begun_runs(path)
        faulty.cut_off()
        eventually(lambda: worker._work.session.state == "suspect", what="a session in doubt")
        time.sleep(0.5)
        faulty.reconnect()
        Path(f"{path}.go").touch()
        assert result(store, x).outcome is Outcome.SUCCESS
        assert len(journal(path)) == 1
        worker.close()
        faulty.close()


def test_worker_that_stops_ends_its_tasks_soon_and_they_run_again_with_no_attempt_used_up(tmp_path, path):
    with latchwork.connect(f"memory://jitter-{tmp_path.name}") as opened:
        store = get_workflows_store(opened)
        working.begun(store, tmp_path)
        faulty = FaultyStore(latchwork.connect(f"memory://jitter-{tmp_path.name}"))
        worker = working.worker(faulty, tmp_path, session_ttl_s=30.0, on_disconnect="stop", disconnect_grace_s=0.2)
        x = shell(store, 1, working.STEADY, values={"journal": str(path)})
        begun_runs(path)
        faulty.cut_off()
        (token,) = journal(path)
        eventually(lambda: journal(path)[token][-1][0] == "term", 50, "the end of the task")
        faulty.reconnect()
        begun_runs(path, 2, timeout_s=90)
        (item,) = WorkQueue(store, KEYS.backlog).items()
        assert item.attempts == 1
        Path(f"{path}.go").touch()
        assert result(store, x).outcome is Outcome.SUCCESS
        assert overlaps(path) == []
        assert len(journal(path)) == 2
        worker.close()
        faulty.close()


def test_worker_without_a_store_ends_its_tasks_before_its_session_can_end(tmp_path, path):
    """DolphinScheduler #8110, #16759: a worker that had lost its session went on, while others ran its tasks again."""
    with latchwork.connect(f"memory://jitter-{tmp_path.name}") as opened:
        store = get_workflows_store(opened)
        working.begun(store, tmp_path)
        faulty = FaultyStore(latchwork.connect(f"memory://jitter-{tmp_path.name}"))
        worker = working.worker(faulty, tmp_path, session_ttl_s=TTL_S, stop_grace_s=60.0)
        x = shell(store, 1, working.DEAF, values={"journal": str(path)})
        begun_runs(path)
        running(store, x)
        faulty.cut_off()
        eventually(lambda: store.get(KEYS.running_key(0, x)) is None, what="the end of the session")
        gone_at = time.time()
        seen = journal(path)
        assert max(moment for run in seen.values() for _, moment in run) < gone_at
        time.sleep(0.3)
        assert journal(path) == seen  # nobody lives on
        other = working.worker(store, tmp_path, name="w2")
        begun_runs(path, 2)
        Path(f"{path}.go").touch()
        assert result(store, x).worker == "w2"
        assert overlaps(path) == []
        faulty.reconnect()
        other.close()
        worker.close()
        faulty.close()


def test_end_of_a_task_that_the_store_learns_late_is_learnt_once(tmp_path):
    with latchwork.connect(f"memory://jitter-{tmp_path.name}") as opened:
        store = get_workflows_store(opened)
        working.begun(store, tmp_path)
        faulty = FaultyStore(latchwork.connect(f"memory://jitter-{tmp_path.name}"))
        worker = working.worker(faulty, tmp_path, session_ttl_s=30.0)
        x = shell(store, 1, f"echo x >> {tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done")
        running(store, x)
        eventually((tmp_path / "ran").exists, what="the run")
        faulty.cut_off()
        (tmp_path / "go").touch()
        time.sleep(0.5)
        assert store.get(KEYS.result_key(0, x)) is None
        faulty.reconnect()
        assert result(store, x).outcome is Outcome.SUCCESS
        assert (tmp_path / "ran").read_text() == "x\n"
        assert WorkQueue(store, KEYS.backlog).items() == []
        worker.close()
        faulty.close()


def test_worker_that_is_told_to_end_lets_its_task_end_by_itself(backend_url, store, tmp_path):
    if backend_url.startswith("memory"):
        pytest.skip("needs a second process")
    working.begun(store, tmp_path)
    process = worker_process(backend_url, tmp_path, "w1", 10.0)
    try:
        x = shell(store, 1, f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done")
        y = shell(store, 2, "true")
        running(store, x)
        result(store, y)
        process.send_signal(signal.SIGTERM)
        time.sleep(2.0)
        shell(store, 3, "true")
        (tmp_path / "go").touch()
        assert result(store, x).outcome is Outcome.SUCCESS
        assert process.wait(60) == 0
        assert store.get(KEYS.result_key(0, "3.1")) is None
    finally:
        end_process(process)
