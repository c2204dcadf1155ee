"""The threads of a simulation, its thread switches, and its errors."""

from __future__ import annotations

import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import PurePath
from types import FrameType
from typing import Any

from latchwork.errors import LatchworkError
from latchwork.testing._sim.locks import SimLock, real_lock

_MACHINERY = {__file__, threading.__file__, SimLock.acquire.__code__.co_filename}


def hide(file: str) -> None:
    """Leave a source file out of reports of where a thread has stopped.

    Args:
        file: Path of the file.
    """
    _MACHINERY.add(file)


class SimulationError(LatchworkError):
    """The simulated program misbehaved."""


class Deadlock(SimulationError):
    """All threads wait, and none of them with a timeout."""


class TooLong(SimulationError):
    """The run exceeded its limit of thread switches or of virtual time, as an endless loop does."""


class ThreadFailed(SimulationError):
    """A thread ended with an unhandled exception."""


class ThreadsLeft(SimulationError):
    """The test ended while threads that it started were running. Something was not closed."""


class Unwind(BaseException):
    """Raised in a waiting thread when its simulation has ended."""


class Busy(Exception):
    """An observer needs a lock that a thread holds, so that it cannot run now."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A thread switch, for people who read a trace.

    Attributes:
        point: The number of the point at which it happened, the key of ``decisions``.
        at_s: Virtual seconds since the start.
        thread: The thread that runs from here on.
        left: The thread that ran until here, and where it stopped.
    """

    point: int
    at_s: float
    thread: str
    left: str

    def __str__(self) -> str:
        return f"{self.point:6d} {self.at_s:9.3f}s  {self.left} -> {self.thread}"


@dataclass(eq=False, slots=True)
class SimulatedTask:
    """A simulated thread."""

    name: str
    node: str
    gate: Any = field(default_factory=real_lock)
    thread: threading.Thread | None = None
    lock: SimLock | None = None  # the lock that it waits for
    deadline: float | None = None  # until when
    wakes_at: float = 0.0  # frozen until then
    held: int = 0
    pinned: int = 0
    is_outside: bool = False
    is_done: bool = False
    is_killed: bool = False
    unwinds: bool = False
    done: SimLock | None = None
    follows: threading.Thread | None = None  # the thread that ended right before it was resumed

    @property
    def label(self) -> str:
        """The names of the thread and its node."""
        return f"{self.node}/{self.name}" if self.node else self.name

    def can_run(self, now: float) -> bool:
        if self.is_done or self.is_killed or self.wakes_at > now:
            return False
        return self.lock is None or not self.lock.is_locked or (self.deadline is not None and self.deadline <= now)

    def next_at(self) -> float | None:
        """Return the virtual time at which the thread can run if no other thread acts before. None for never."""
        if self.is_done or self.is_killed:
            return None
        if self.lock is None or not self.lock.is_locked:
            return self.wakes_at
        return None if self.deadline is None else max(self.deadline, self.wakes_at)


def thread_failed(task: SimulatedTask, error: BaseException) -> ThreadFailed:
    failed = ThreadFailed(f"thread {task.name} ended with {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


def frame_of(thread: threading.Thread | None) -> FrameType | None:
    ident = thread.ident if thread is not None else None
    return None if ident is None else sys._current_frames().get(ident)  # noqa: SLF001


def stack_of(thread: threading.Thread | None) -> str:
    frame = frame_of(thread)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(it has ended)"


def describe_frame(frame: FrameType | None) -> str:
    """Return the file and line of a stack frame. Frames of the threading machinery are skipped."""
    while frame is not None and frame.f_code.co_filename in _MACHINERY:
        frame = frame.f_back
    if frame is None:
        return "?"
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
