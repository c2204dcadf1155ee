"""Agents: processes of any program as the workers of a group, held by one process of each host. Real processes."""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import pytest

import latchwork
from latchwork.errors import LatchworkError
from latchwork.tasks.children import ChildEnd
from latchwork.worker_group import GroupWorker, WorkerInfo, WrongRun, find, list_events, submit
from latchwork.worker_group.agent import AgentSpec, LocalAgent, build_process_environment, classify_exit
from patience import came_true
from processes import lives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
PATIENCE_S = 45.0
#: Writes what it was told, one file for each worker and epoch: whole, or not at all.
TELL = "env > $OUT/tmp.$RANK; echo PID=$$ >> $OUT/tmp.$RANK; mv $OUT/tmp.$RANK $OUT/$RANK.$LATCHWORK_EPOCH; "
EPOCH_0 = '[ "$LATCHWORK_EPOCH" = 0 ]'


@pytest.fixture
def sqlite(tmp_path):
    with latchwork.connect(f"sqlite:///{tmp_path}/workers.db") as opened:
        yield opened


@pytest.fixture
def out(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.setenv("OUT", str(folder))
    return folder


def spec(text, workers=2, **options):
    return AgentSpec(("sh", "-c", TELL + text), workers, "h1", "127.0.0.1", **{"grace_s": 2.0, "ttl_s": 5.0, **options})


def told(out, number, epoch=0):
    """What a process was told; None when it has not started."""
    path = out / f"{number}.{epoch}"
    return dict(line.partition("=")[::2] for line in path.read_text().splitlines()) if path.exists() else None


def eventually(is_so):
    found = came_true(is_so, PATIENCE_S, every_s=0.02)
    assert found, "it did not come true"
    return found


def run_whole(store, wanted):
    with LocalAgent(store, "train", wanted) as agent:
        assert agent.wait(PATIENCE_S)
        return agent, agent.wait_for_group(PATIENCE_S)


@contextmanager
def crew_of(store, wanted):
    with LocalAgent(store, "train", wanted) as agent:
        yield agent


# What is decided


def test_a_process_that_was_told_to_stop_has_not_done_its_part_whatever_its_exit_code():
    done, failed = ChildEnd("exited", code=0), ChildEnd("exited", code=1)
    assert classify_exit(done, was_stopped=False) == "done"
    assert classify_exit(done, was_stopped=True) == "stopped"
    assert classify_exit(failed, was_stopped=False) == "failed"
    assert classify_exit(ChildEnd("requested", code=0), was_stopped=False) == "stopped"
    assert classify_exit(ChildEnd("deadline", signal=9), was_stopped=False) == "stopped"
    assert classify_exit(ChildEnd("unsupervised", signal=9), was_stopped=False) == "failed"


def test_a_process_is_told_its_number_on_all_hosts_and_on_its_own():
    first = WorkerInfo(ip="a", ports={"master": 4000}, rank=0, key="a:0")
    mine = WorkerInfo(ip="b", rank=5, key="b:1")
    wanted = AgentSpec(("true",), 8, "b", "b", per_host=4)
    assert build_process_environment(mine, 1, wanted, workers=8, run="r", epoch=3, first=first) == {
        "LATCHWORK_WORKER_ID": "5",
        "LATCHWORK_WORKERS": "8",
        "LATCHWORK_RUN": "r",
        "LATCHWORK_EPOCH": "3",
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "4000",
    }


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"argv": ()}, "needs a program to run"),
        ({"workers": 0}, "from 1 to"),
        ({"per_host": 3}, "per_host must be from 1 to the 2 workers"),
        ({"max_restarts": -1}, "at least 0"),
        ({"grace_s": -1.0}, "grace_s must be"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        AgentSpec(**{"argv": ("true",), "workers": 2, "host": "a", "address": "a", **options})


# With real processes


def test_each_process_is_told_who_it_is_and_where_worker_0_is(sqlite, out):
    agent, status = run_whole(sqlite, spec("exit 0", 3))
    assert (status.state, status.completed) == ("COMPLETED", 3)
    assert [each.state for each in agent.slots] == ["completed"] * 3
    seen = [told(out, number) for number in range(3)]
    assert [(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"]) for each in seen] == [
        ("0", "0", "3"),
        ("1", "1", "3"),
        ("2", "2", "3"),
    ]
    assert {each["LATCHWORK_RUN"] for each in seen} == {status.run}
    (port,) = {each["MASTER_PORT"] for each in seen}
    with socket.socket() as free:
        free.bind(("", int(port)))
    assert find(sqlite, "train") is None


def test_a_process_that_dies_sends_all_to_the_next_epoch_with_the_same_ids(sqlite, out):
    wanted = spec(f'if {EPOCH_0}; then if [ "$RANK" = 1 ]; then exit 3; fi; sleep 600; fi', 3)
    with crew_of(sqlite, wanted) as agent:
        assert agent.wait(PATIENCE_S)
        status = agent.wait_for_group(PATIENCE_S)
        assert (status.state, [each.restarts for each in agent.slots]) == ("COMPLETED", [0, 1, 0])
    for number in range(3):
        before, after = told(out, number, 0) or told(out, number, 1), told(out, number, 1)
        assert (before["LOCAL_RANK"], after["LATCHWORK_EPOCH"]) == (after["LOCAL_RANK"], "1")
        assert not lives(int(before["PID"]))
    assert len({told(out, number, 1)["MASTER_PORT"] for number in range(3)}) == 1


def test_all_that_fail_at_once_on_a_host_count_as_one_restart(sqlite, out):
    with crew_of(sqlite, spec(f"if {EPOCH_0}; then exit 1; fi", 4)) as agent:
        assert agent.wait(PATIENCE_S)
        assert agent.wait_for_group(PATIENCE_S).state == "COMPLETED"
        assert sum(each.restarts for each in agent.slots) == 1


@pytest.fixture
def both_look_first(monkeypatch):
    """Who looks whether the epoch goes on waits for the other one to have looked, for a moment."""
    met = threading.Barrier(2)

    def check(worker, real=GroupWorker.check):
        real(worker)
        with suppress(threading.BrokenBarrierError):
            met.wait(0.5)

    monkeypatch.setattr(GroupWorker, "check", check)


@pytest.mark.parametrize(("lock", "restarts"), [(None, 1), (nullcontext(), 2)], ids=["with its lock", "without"])
def test_of_two_that_fail_at_once_only_the_first_comes_back_by_the_lock_of_the_crew(
    sqlite, out, both_look_first, lock, restarts
):
    text = f"if {EPOCH_0}; then while [ ! -e $OUT/0.0 ] || [ ! -e $OUT/1.0 ]; do sleep 0.02; done; exit 1; fi"
    agent = LocalAgent(sqlite, "train", spec(text))
    agent._failure_lock = lock or agent._failure_lock
    with agent:
        assert agent.wait(PATIENCE_S)
        assert agent.wait_for_group(PATIENCE_S).state == "COMPLETED"
        assert sum(each.restarts for each in agent.slots) == restarts


def test_a_crew_begins_again_after_a_death_on_every_store(store, out):
    text = f'if {EPOCH_0}; then if [ "$RANK" = 1 ]; then exit 3; fi; sleep 600; fi'
    with crew_of(store, spec(text)) as agent:
        assert agent.wait(PATIENCE_S)
        assert agent.wait_for_group(PATIENCE_S).state == "COMPLETED"
        assert [each.restarts for each in agent.slots] == [0, 1]
    assert [told(out, number, 1)["RANK"] for number in (0, 1)] == ["0", "1"]
    assert not any(lives(int(told(out, number, 1)["PID"])) for number in (0, 1))
    assert find(store, "train") is None


def test_a_crew_ends_its_processes_when_the_group_is_terminated_on_every_store(store, out):
    with crew_of(store, spec("sleep 600")) as agent:
        eventually(lambda: told(out, 0) and told(out, 1))
        find(store, "train").terminate("enough")
        assert agent.wait(PATIENCE_S)
        assert not any(lives(int(told(out, number)["PID"])) for number in (0, 1))


def test_a_process_that_dies_too_often_fails_the_group(sqlite, out):
    agent, status = run_whole(sqlite, spec('[ "$RANK" = 0 ] || sleep 600; exit 4', max_restarts=1))
    assert (status.state, status.epoch) == ("FAILED", 0)
    assert "was restarted more than 1 times" in status.why
    assert [each.state for each in agent.slots] == ["out", "out"]
    assert not any(lives(int(each["PID"])) for number in (0, 1) if (each := told(out, number, 1)))


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(sqlite, out):
    stubborn = "trap '' TERM; while :; do sleep 1; done"
    text = f'if {EPOCH_0}; then if [ "$RANK" = 1 ]; then sleep 0.3; exit 3; fi; {stubborn}; fi'
    _, status = run_whole(sqlite, spec(text, grace_s=0.3))
    assert status.state == "COMPLETED"
    assert not lives(int(told(out, 0, 0)["PID"]))


def test_a_program_that_is_not_there_fails_the_group_at_once(sqlite):
    wanted = AgentSpec(("/no/such/program",), 2, "h1", "127.0.0.1")
    agent, status = run_whole(sqlite, wanted)
    assert (status.state, status.restarts) == ("FAILED", 0)
    assert "could not start its program" in status.why
    assert agent.errors


def test_output_goes_to_a_file_of_each_worker_from_its_end_on(sqlite, out, tmp_path):
    logs = tmp_path / "logs" / "deep"
    text = f'echo "epoch $LATCHWORK_EPOCH"; if {EPOCH_0}; then exit 1; fi'
    run_whole(sqlite, spec(text, 1, logs=logs))
    assert (logs / "0.log").read_text() == "epoch 0\nepoch 1\n"


def test_nobody_starts_before_all_hosts_are_there_and_all_know_worker_0(sqlite, out, tmp_path):
    wanted = spec("sleep 600", per_host=1)
    with crew_of(sqlite, replace(wanted, host="a", address="a.example")) as first:
        eventually(lambda: first.slots[0].state == "waiting for all")
        assert not first.wait(0.3)
        assert told(out, 0) is None
        with (
            latchwork.connect(f"sqlite:///{tmp_path}/workers.db") as other,
            crew_of(other, replace(wanted, host="b", address="b.example")),
        ):
            eventually(lambda: told(out, 0) and told(out, 1))
            assert {told(out, number)["MASTER_ADDR"] for number in (0, 1)} == {"a.example"}
            assert {told(out, number)["LOCAL_WORLD_SIZE"] for number in (0, 1)} == {"1"}
        eventually(lambda: first.slots[0].state == "waiting for all")  # the other host has left
        assert not lives(int(told(out, 0)["PID"]))
        with crew_of(sqlite, replace(wanted, host="b", address="b.example")):  # and comes back
            eventually(lambda: told(out, 0, 1) and told(out, 1, 1))


def test_hosts_that_start_together_have_all_ranks_between_them_and_each_local_rank_once(sqlite, out, tmp_path):
    def of_host(name):
        return replace(spec("", 4, per_host=2), host=name, argv=("sh", "-c", f"export ON={name}; {TELL}"))

    with (
        latchwork.connect(f"sqlite:///{tmp_path}/workers.db") as other,
        crew_of(sqlite, of_host("a")) as first,
        crew_of(other, of_host("b")) as second,
    ):
        assert first.wait(PATIENCE_S)
        assert second.wait(PATIENCE_S)
    seen = [told(out, rank) for rank in range(4)]
    assert sorted((each["ON"], each["LOCAL_RANK"]) for each in seen) == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]


def test_a_terminated_group_ends_every_process(sqlite, out):
    with crew_of(sqlite, spec("sleep 600")) as agent:
        eventually(lambda: told(out, 0) and told(out, 1))
        find(sqlite, "train").terminate("enough")
        assert agent.wait(PATIENCE_S)
        assert agent.wait_for_group(PATIENCE_S).state == "TERMINATED"
        assert not any(lives(int(told(out, number)["PID"])) for number in (0, 1))


def test_a_crew_that_is_closed_ends_its_processes_before_it_leaves(sqlite, out):
    with crew_of(sqlite, spec("sleep 600")) as agent:
        eventually(lambda: told(out, 0) and told(out, 1))
        closing = threading.Thread(target=agent.close)
        closing.start()
        agent.close()
        closing.join()
        assert not any(lives(int(told(out, number)["PID"])) for number in (0, 1))
        assert agent.handle.status().running == 0
        assert [each.state for each in agent.slots] == ["left", "left"]


def test_a_group_of_another_size_or_run_is_refused(sqlite):
    handle = submit(sqlite, "train", 3)
    with pytest.raises(LatchworkError, match="runs with 3 workers, not 2"):
        LocalAgent(sqlite, "train", spec("exit 0")).start()
    with pytest.raises(WrongRun, match=f"is in run {handle.run}, not in old"):
        LocalAgent(sqlite, "train", spec("exit 0", 3, run="old")).start()
    handle.terminate()
    with pytest.raises(WrongRun, match="is no longer in run old"):
        LocalAgent(sqlite, "train", spec("exit 0", 3, run="old")).start()
    assert json.dumps(list_events(sqlite, "train")) == "[]"
