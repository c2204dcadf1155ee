"""Slots: each call ends in an outcome in time, whatever its function does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, LatchworkError
from latchwork.tasks import (
    DEFAULT,
    Payloads,
    PickleCodec,
    Slots,
    StoredCall,
    TaskContext,
    TaskProcessDied,
    TaskStopped,
    TaskTimeout,
    UnknownFunction,
    task,
)
from latchwork.tasks.children import DeadlineExtender
from latchwork.types import At, Exists, Fence, SessionAlive
from processes import lives

from . import examples
from .test_children import eventually, pid_in

PATIENCE_S = 45.0
PAYLOADS = Payloads()
BOTH = pytest.mark.parametrize("run_in", ["thread", "process"])


def call(fn, *args):
    one = DEFAULT.resolve(fn)
    return StoredCall(one.name, PAYLOADS.encode_call(one, args, {}))


def start(slots, fn, *args, **about):
    timeout_s = about.pop("timeout_s", None)
    deadline = None if timeout_s is None else SYSTEM_CLOCK.now() + timeout_s
    context = TaskContext(f"task-{fn.__name__}", deadline=deadline, **about)
    return slots.start(call(fn, *args), context), context


def result(slots, fn, *args, **about):
    return start(slots, fn, *args, **about)[0].result(PATIENCE_S).result(PAYLOADS)


def make(count=1, **options):
    return Slots(count, DEFAULT, PAYLOADS, **options)


@BOTH
def test_a_call_runs_and_its_outcome_comes(run_in):
    with make(run_in=run_in) as slots:
        assert result(slots, examples.square, 3) == 9
        assert result(slots, examples.awaits, 5) == 5
        with pytest.raises(KeyError, match="gone"):
            result(slots, examples.fails, "gone")
        assert result(slots, examples.square, 4) == 16


@BOTH
def test_a_task_knows_who_it_is(run_in):
    fence = Fence(7, (At.of("a/b", 3), Exists("c"), SessionAlive("s1")))
    with make(run_in=run_in) as slots:
        found = result(slots, examples.about, attempt=2, fence=fence, node_id="n1")
    assert found == ("task-about", 2, 7, "n1")


def test_a_process_is_kept_for_the_next_call_and_is_another_than_ours():
    with make(run_in="process") as slots:
        first, second = result(slots, examples.pid), result(slots, examples.pid)
    assert first == second != os.getpid()
    eventually(lambda: not lives(first))


def test_a_function_may_say_where_it_runs():
    with make() as slots:
        assert result(slots, examples.own_process) != os.getpid()
        assert result(slots, examples.pid) == os.getpid()


@BOTH
def test_a_task_that_listens_is_stopped_at_its_time(run_in):
    with make(run_in=run_in) as slots:
        if run_in == "process":
            result(slots, examples.square, 1)  # it is there, so that the time is that of the task
        begun = time.monotonic()
        assert result(slots, examples.waits, timeout_s=0.5) is True
        assert time.monotonic() - begun >= 0.5


@BOTH
def test_a_task_that_does_not_listen_has_its_outcome_in_time(run_in):
    with make(run_in=run_in, stop_grace_s=0.3) as slots:
        with pytest.raises(TaskTimeout):
            result(slots, examples.is_deaf, 3.0, timeout_s=0.3)
        if run_in == "thread":
            assert (slots.free_slots, slots.stuck) == (0, ["task-is_deaf"])
        eventually(lambda: slots.free_slots == 1)
        assert slots.stuck == []
        assert result(slots, examples.square, 2) == 4


@BOTH
def test_a_task_that_is_told_to_stop_ends(run_in):
    with make(run_in=run_in, stop_grace_s=0.3) as slots:
        future, context = start(slots, examples.is_deaf, 3.0)
        time.sleep(0.2)
        context.stop()
        with pytest.raises(TaskStopped):
            future.result(PATIENCE_S).result(PAYLOADS)


@BOTH
def test_an_async_task_that_is_told_to_stop_is_cancelled(run_in):
    with make(run_in=run_in, stop_grace_s=20) as slots:
        future, context = start(slots, examples.awaits_for_ever)
        eventually(lambda: slots.free_slots == 0)
        time.sleep(0.3 if run_in == "thread" else 5)
        context.stop()
        assert future.result(PATIENCE_S).failure.loaded_class is TaskStopped


@BOTH
def test_an_async_task_whose_time_is_over_is_cancelled_and_says_so(run_in):
    with make(run_in=run_in, stop_grace_s=20) as slots:
        result(slots, examples.awaits, 1)  # a process is there
        future, _ = start(slots, examples.awaits_for_ever, timeout_s=0.3)
        assert future.result(PATIENCE_S).failure.loaded_class is TaskTimeout


def test_a_task_that_was_stopped_before_it_began_never_runs():
    with make() as slots:
        context = TaskContext("t")
        context.stop()
        ran = []
        future = slots.start(lambda: ran.append(1), context)
        assert "before it began" in future.result(PATIENCE_S).failure.text
        assert ran == []


def test_a_process_that_dies_is_told_and_the_next_call_has_another():
    with make(run_in="process") as slots:
        with pytest.raises(TaskProcessDied, match=r"the process of task task-dies ended with signal SIGKILL"):
            result(slots, examples.dies)
        assert result(slots, examples.square, 2) == 4


def test_what_a_task_leaves_behind_ends_with_its_process(tmp_path):
    path = tmp_path / "pid"
    with make(run_in="process") as slots:
        result(slots, examples.leaves_a_child, str(path))
        left = pid_in(path)
        assert lives(left)
    eventually(lambda: not lives(left))


def test_a_process_ends_before_the_session_of_its_node_can():
    ends_at = [SYSTEM_CLOCK.now() + 300.0]
    with (
        DeadlineExtender(
            lambda: max(0.0, ends_at[0] - SYSTEM_CLOCK.now()), margin_s=0.2, every_s=0.05
        ) as deadline_extender,
        make(run_in="process", deadline_extender=deadline_extender) as slots,
    ):
        pid = result(slots, examples.pid)
        future, _ = start(slots, examples.is_deaf, 300.0)
        ends_at[0] = SYSTEM_CLOCK.now() + 0.5
        with pytest.raises(TaskStopped, match="was killed"):
            future.result(PATIENCE_S).result(PAYLOADS)
        assert not lives(pid)
        ends_at[0] = SYSTEM_CLOCK.now() + 300.0
        assert result(slots, examples.square, 3) == 9


def test_a_function_inside_another_cannot_run_in_a_process_and_that_is_its_failure():
    @task(name="inside")
    def inside() -> None: ...

    with make(run_in="process") as slots, pytest.raises(UnknownFunction, match="a function inside another"):
        result(slots, inside)


def test_a_pickled_call_runs_in_a_process_that_may():
    mine = Payloads(PickleCodec(), allow_pickle=True)
    stored = StoredCall("", mine.encode((lambda n: n + 1, (2,), {}), "a call"))
    with Slots(1, DEFAULT, mine, run_in="process") as slots:
        assert slots.start(stored, TaskContext("t")).result(PATIENCE_S).result(mine) == 3
    with make(run_in="process") as slots:
        assert "not trusted" in slots.start(stored, TaskContext("t")).result(PATIENCE_S).failure.text


def test_a_call_that_cannot_be_made_is_a_failure_and_no_more():
    def broken():
        raise OSError("no store")

    with make() as slots:
        assert slots.start(broken, TaskContext("t")).result(PATIENCE_S).failure.text == "no store"
        assert result(slots, examples.square, 3) == 9


def test_more_calls_than_slots_are_refused():
    with make(stop_grace_s=0.1) as slots:
        start(slots, examples.waits)
        assert slots.free_slots == 0
        with pytest.raises(LatchworkError, match="all 1 slots are in use"):
            start(slots, examples.square, 1)


def test_close_tells_all_to_stop_and_names_those_that_do_not():
    slots = make(2, stop_grace_s=0.2)
    listens, _ = start(slots, examples.waits)
    deaf, _ = start(slots, examples.is_deaf, 2.0)
    eventually(lambda: not slots._waiting)
    assert slots.close(0.5) == ["task-is_deaf"]
    assert listens.result(0).is_success
    assert isinstance(deaf.result(PATIENCE_S).failure.exception(), TaskStopped)
    with pytest.raises(Closed):
        start(slots, examples.square, 1)
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("latchwork-slot")])


@pytest.mark.parametrize("options", [{"count": 0}, {"count": True}, {"run_in": "moon"}, {"stop_grace_s": -1}])
def test_slots_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        make(**options)


MAIN = """
import sys
from latchwork.tasks import DEFAULT, Payloads, Slots, StoredCall, TaskContext, task

print("imported", file=sys.stderr)

@task
def double(n: int) -> int:
    return 2 * n

if __name__ == "__main__":
    payloads, one = Payloads(), DEFAULT.get("mainly:double")
    with Slots(1, DEFAULT, payloads, run_in="process") as slots:
        call = StoredCall(one.name, payloads.encode_call(one, (4,), {}))
        print(slots.start(call, TaskContext("t")).result(60).result(payloads, int))
"""


def test_a_function_of_the_script_that_is_run_is_found_in_a_process(tmp_path):
    import subprocess

    (tmp_path / "mainly.py").write_text(MAIN)
    done = subprocess.run(
        [sys.executable, "mainly.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr.count("imported")) == ("8\n", 2), done.stderr


def test_a_node_that_is_killed_leaves_no_process(tmp_path):
    import subprocess

    code = f"""
import sys, time
sys.path[:0] = {[str(Path(__file__).parent.parent)]!r}
from tasks.examples import *
from latchwork.tasks import *
payloads = Payloads()
slots = Slots(1, DEFAULT, payloads, run_in="process")
one = DEFAULT.resolve(pid)
call = StoredCall(one.name, payloads.encode_call(one, (), {{}}))
print(slots.start(call, TaskContext("t")).result(60).result(payloads), flush=True)
time.sleep(60)
"""
    node = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(node.stdout.readline())
    assert lives(child)
    node.send_signal(signal.SIGKILL)
    node.wait()
    node.stdout.close()
    eventually(lambda: not lives(child))
