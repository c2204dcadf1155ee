"""Ends processes by a mark in their environment: what is left of a command whose supervisor was killed. Linux only.

A process is looked at and ended by one descriptor of it: its number may be another's by then. One that has wiped its
environment is not found. Nothing here touches the network.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: The variable that has the mark.
MARK = "LATCHWORK_CHILD"
_PROC = Path("/proc")
_AGAIN_S = 0.02


def end_marked(mark: str, within_s: float = 5.0) -> int:
    """End all processes with this mark by force, also those that they start meanwhile; how many.

    Returns when none is left, and at the latest after ``within_s``: one may be in the kernel, on a dead disk.
    """
    entry = f"{MARK}={mark}".encode()
    until = time.monotonic() + within_s
    ended: set[int] = set()
    while found := set(_stopped(entry)):
        while more := set(_stopped(entry)) - found:  # what is stopped forks no more
            found |= more
        for pid in found:
            _send(pid, entry, signal.SIGKILL)
        ended |= found
        if time.monotonic() >= until:
            break
        time.sleep(_AGAIN_S)
    return len(ended)


def _stopped(entry: bytes) -> Iterator[int]:
    """The processes with this entry that live, each stopped."""
    names = [each.name for each in _PROC.iterdir()] if _PROC.is_dir() else []
    for pid in map(int, filter(str.isdecimal, names)):
        if pid != os.getpid() and _send(pid, entry, signal.SIGSTOP):
            yield pid


def _send(pid: int, entry: bytes, number: signal.Signals) -> bool:
    """Send a signal to a process if it has the entry; whether it has, and lives."""
    if entry not in _environment(pid):
        return False
    with suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
        try:
            if entry in _environment(pid):  # it is that one still: now it cannot become another
                signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False


def _environment(pid: int) -> list[bytes]:
    """What it was started with; nothing of one that has ended, or is not ours to look at."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
