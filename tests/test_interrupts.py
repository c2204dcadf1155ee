"""Calls in the middle of a call, and daemon threads at the end of the process."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from latchwork._base.interrupts import call_allowing_reentry, not_reentrant
from latchwork.errors import ReentrantCall
from latchwork.store import steps

pytestmark = pytest.mark.reentrant


@not_reentrant
def enter(call):
    return call()


def test_a_call_inside_a_call_of_the_same_thread_is_refused():
    with pytest.raises(ReentrantCall, match="signal handler"):
        enter(lambda: enter(int))
    assert enter(int) == 0


def test_a_call_of_another_thread_is_served_meanwhile():
    with ThreadPoolExecutor(1) as others:
        assert enter(lambda: others.submit(enter, int).result()) == 0


def test_a_function_of_the_user_that_runs_inside_a_call_may_make_calls():
    assert enter(lambda: call_allowing_reentry(enter, int)) == 0


def test_a_call_is_refused_again_after_a_function_of_the_user():
    def inside():
        call_allowing_reentry(int)
        enter(int)

    with pytest.raises(ReentrantCall):
        enter(inside)


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_call_that_raised_leaves_its_thread_free(raised):
    def fail():
        raise raised

    with pytest.raises(raised):
        enter(fail)
    assert enter(int) == 0


def test_an_interrupt_at_the_begin_of_a_driven_call_leaves_its_thread_free(monkeypatch):
    @steps.blocking
    async def call():
        return 0

    def interrupt(protocol):
        protocol.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(steps, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            call()
    assert call() == 0


#: What a daemon thread is inside of as the process ends.
INSIDE = {
    "a wait for a lock": "lock.acquire(60.0)",
    "a call of a user's function": "once.run(spin)",
}
ENDS = """
import threading, time
import latchwork
from latchwork.primitives import Lock, Once

store = latchwork.connect("memory://ends")
other = latchwork.connect("memory://ends")
mine, lock, once = Lock(other, "l"), Lock(store, "l"), Once(store, "o")
mine.acquire()

def spin(*_):
    while True:
        time.sleep(0.0001)

def run():
    {inside}

for _ in range(3):
    threading.Thread(target=run, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.parametrize("inside", INSIDE)
def test_a_process_ends_well_whatever_its_daemon_threads_are_inside_of(inside):
    command = [sys.executable, "-c", ENDS.replace("{inside}", INSIDE[inside])]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
