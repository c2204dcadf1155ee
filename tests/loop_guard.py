"""Watches over the thread of an event loop: what waits there, and how long each step keeps it.

A step is judged by the processor time of its thread: wall time says little, as another thread may hold the interpreter
for 5 ms at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sqlite3
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import latchwork
from latchwork._base import interrupts
from levels import DRIVEN

#: Seconds of processor time of the loop's thread: what a step of ours may take at the most.
LONGEST_STEP_S = 0.005
#: A store with planned faults makes its calls where they are made, and so does what a test has put in a method's place.
_EXCUSED = (
    str(Path(latchwork.__file__).parent / "testing/_faulty"),
    *(str(Path(__file__).parent / folder) for folder in DRIVEN),
)


#: Functions in which a thread waits, and their files. What it holds then, others wait for as long.
_WAITING = {
    ("wait", "threading.py"),
    ("wait_for", "threading.py"),
    ("join", "threading.py"),
    ("_wait_for_tstate_lock", "threading.py"),
    ("result", "_base.py"),
    ("select", "selectors.py"),
    ("_blocking", "_channel.py"),
    ("_wait_once", "_common.py"),
}


class FollowedMutex:
    """A mutex that tells a guard when the loop's thread meets it while another thread holds it."""

    def __init__(self, guard):
        self._real = threading.Lock()
        self._guard = guard
        self._holder = None

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *raised):
        self._holder = None
        return self._real.release()

    def acquire(self, *args, **options):
        holder = self._holder
        if holder not in {None, threading.get_ident()} and self._real.locked() and self._guard.is_there():
            self._guard.met(holder, sys._getframe(1), lambda: self._holder == holder and self._real.locked())
        got = self._real.acquire(*args, **options)
        if got:
            self._holder = threading.get_ident()
        return got

    def release(self):
        self._holder = None
        self._real.release()

    def __getattr__(self, name):
        return getattr(self._real, name)


@contextlib.contextmanager
def watching(thread, monkeypatch, *, measures):
    """Demand that nothing of ours waits in a loop's thread, and that no step keeps it for long."""
    guard = Guard(monkeypatch, thread)
    if measures:
        guard.measure(monkeypatch)
        gc.disable()  # whose turn it is to collect is no matter of a step
    try:
        yield
    finally:
        gc.enable()
    assert not guard.found, "these wait in the thread of the loop:\n" + "\n".join(sorted(set(guard.found))[:20])
    assert guard.longest[0] <= LONGEST_STEP_S, f"a step took {guard.longest[0] * 1000:.1f} ms: {guard.longest[1]}"


def _places(frame):
    """The lines of a stack, the innermost first."""
    names = []
    while frame is not None:
        names.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back
    return names


def _waits(*args):
    """Whether a wait with these arguments takes time."""
    return len(args) < 2 or args[1] is None or args[1] > 0


class Guard:
    """Notes each call in the loop's thread that may wait, with who made it, and each step with its time.

    Attributes:
        found: calls of ours that may wait, as text.
        steps: seconds and description of each step.
        contended: how often the loop's thread met a mutex that another one held; see ``follow_mutexes``.
    """

    def __init__(self, monkeypatch, thread=None):
        self.thread = thread or threading.current_thread()
        self.found = []
        self.steps = []
        self.contended = 0
        for owner, name in ((threading.Event, "wait"), (threading.Condition, "wait"), (threading.Thread, "join")):
            monkeypatch.setattr(owner, name, self.guarded(getattr(owner, name), _waits))
        monkeypatch.setattr(time, "sleep", self.guarded(time.sleep, _waits))
        monkeypatch.setattr(Future, "result", self.guarded(Future.result, lambda future, *_: not future.done()))

    def follow_mutexes(self, monkeypatch):
        """Note where the loop's thread meets a mutex of ours whose holder waits for something while it has it.

        That a holder has just lost the interpreter is no fault: it is met as the interpreter is. For mutexes of objects
        that are made from now on.
        """
        monkeypatch.setattr(interrupts, "Mutex", lambda: FollowedMutex(self))

    def met(self, holder, frame, still):
        """A mutex that another thread holds, and still holds where it is seen to be."""
        self.contended += 1
        there = sys._current_frames().get(holder)
        waits = there is not None and (there.f_code.co_name, Path(there.f_code.co_filename).name) in _WAITING
        if waits and still():
            self.note(f"a mutex whose holder waits (at {' < '.join(_places(there)[:12])})", frame)

    def measure(self, monkeypatch):
        """Note the time of each step from now on."""
        run = asyncio.Handle._run

        def measured(handle):
            if threading.current_thread() is not self.thread:
                return run(handle)
            began = time.thread_time()
            run(handle)
            took_s = time.thread_time() - began
            self.steps.append((took_s, repr(handle) if took_s > LONGEST_STEP_S / 2 else ""))
            return None

        monkeypatch.setattr(asyncio.Handle, "_run", measured)

    def guarded(self, call, does_wait):
        def guarded(*args, **options):
            if self.is_there() and does_wait(*args, *options.values()):
                self.note(call.__qualname__, sys._getframe(1))
            return call(*args, **options)

        return guarded

    def is_there(self):
        return threading.current_thread() is self.thread and asyncio._get_running_loop() is not None

    def profile(self, frame, event, arg):
        """For ``sys.setprofile`` in the loop's thread: SQLite, and sockets that block."""
        if event != "c_call":
            return
        owner = getattr(arg, "__self__", None)
        if isinstance(owner, (sqlite3.Connection, sqlite3.Cursor)):
            self.note(f"sqlite3 {arg.__name__}", frame)
        elif (
            isinstance(owner, socket.socket)
            and owner.gettimeout() != 0.0
            and arg.__name__ in {"recv", "send", "sendall"}
        ):
            self.note(f"socket {arg.__name__}", frame)

    def note(self, what, frame):
        before = frame.f_back and frame.f_back.f_back
        if "start" in (frame.f_code.co_name, before and before.f_code.co_name):
            return  # a thread that is started says so before it does anything
        if (frame.f_code.co_name, what) == ("wake", "socket send"):
            return  # one byte to our own thread, with MSG_DONTWAIT
        names = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(_EXCUSED):
                return
            names.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            frame = frame.f_back
        if not names[0].startswith(("selector_events", "base_events")):
            self.found.append(f"{what} at {' < '.join(names[:8])}")

    @property
    def longest(self):
        """The longest step."""
        return max(self.steps, default=(0.0, ""))
