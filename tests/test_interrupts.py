"""The native frames that an interrupt cannot come between."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from latchwork.errors import ReentrantCall
from latchwork.interrupts import Finally, OncePerThread, condition, mutex, refuse_inside


def test_a_mutex_excludes_other_threads():
    lock, counted = mutex(), []

    def count():
        for _ in range(2_000):
            with lock:
                before = len(counted)
                counted.append(before)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == list(range(8_000))


def test_a_mutex_refuses_the_thread_that_holds_it_and_stays_held():
    lock = mutex()
    with lock:
        with pytest.raises(ReentrantCall, match="signal handler"), lock:
            pass
        with pytest.raises(ReentrantCall):
            lock.acquire(blocking=False)
        assert lock.locked()
    assert not lock.locked()


def test_a_mutex_is_waited_for_no_longer_than_asked():
    lock, held, done = mutex(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(timeout=0.05)
    done.set()
    assert lock.acquire(timeout=10)
    thread.join()
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


@pytest.mark.parametrize("section", [mutex, OncePerThread, lambda: mutex().trying()])
def test_a_call_is_refused_while_its_own_thread_holds_something_and_only_then(section):
    outer = mutex()
    refuse_inside()
    with outer:
        with section():
            with pytest.raises(ReentrantCall):
                refuse_inside()
            with ThreadPoolExecutor(1) as others:
                others.submit(refuse_inside).result()
        with pytest.raises(ReentrantCall):
            refuse_inside()
    refuse_inside()


def test_a_thread_that_waits_for_a_condition_holds_nothing():
    changed, seen = condition(), []

    def wait():
        with changed:
            changed.wait_for(lambda: seen, 10)
            changed.wait(0.01)
        refuse_inside()
        seen.append("free")

    thread = threading.Thread(target=wait)
    thread.start()
    with changed:
        seen.append("told")
        changed.notify_all()
    thread.join()
    assert seen == ["told", "free"]


def test_a_condition_of_a_mutex_is_notified():
    changed, seen = condition(), []

    def tell():
        with changed:
            seen.append("told")
            changed.notify_all()

    thread = threading.Thread(target=tell)
    with changed:
        thread.start()
        assert changed.wait_for(lambda: seen, 10)
    thread.join()


def test_what_ends_a_block_may_fail_and_is_not_begun_again_then():
    calls = []

    def cleanup():
        calls.append(1)
        raise ValueError

    with pytest.raises(ValueError), Finally(cleanup):
        pass
    assert calls == [1]


def test_the_error_of_a_block_is_raised_once_it_is_ended():
    calls = []
    with pytest.raises(KeyError), Finally(lambda: calls.append(1)):
        raise KeyError
    assert calls == [1]


#: What a daemon thread is inside of as the process ends, again and again: native frames, with Python above them.
INSIDE = {
    "Finally": "with Finally(spin): pass",
    "Surely": "surely(spin)()",
    "Mutex": "take()",
    "Driven": "lock.acquire(60.0)",
    "a driven call of a user's function": "once.run(spin)",
}
ENDS = """
import threading, time
import latchwork
from latchwork.interrupts import Finally, mutex, surely
from latchwork.primitives import Lock, Once

store = latchwork.connect("memory://ends")
other = latchwork.connect("memory://ends")
mine, lock, once, held = Lock(other, "l"), Lock(store, "l"), Once(store, "o"), mutex()
mine.acquire()

def spin(*_):
    while True:
        time.sleep(0.0001)

def take():
    while True:
        with held:
            time.sleep(0.001)

def run():
    {inside}

for _ in range(3):
    threading.Thread(target=run, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.parametrize("inside", INSIDE)
def test_a_process_ends_well_whatever_its_daemon_threads_are_inside_of(inside):
    """CPython before 3.14 unwinds their stacks, and our native frames have to let that pass."""
    command = [sys.executable, "-c", ENDS.replace("{inside}", INSIDE[inside])]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
