"""Hide the settings of latchwork, some of which are secrets, from ``/proc/<pid>/environ``.

The kernel shows the environment with which a process was started, whatever the process changed since, to every process
of the same user. A task could read the secrets of its worker. Linux only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_OURS = b"LATCHWORK_"
_PR_SET_DUMPABLE = 4


def hide_environment() -> None:
    """Overwrite latchwork's variables in the initial environment of this process, so that others cannot read them in
    ``/proc``.

    This process can still read the variables. Call this before other threads exist, because they could read a variable
    while it is overwritten.
    """
    if not any(name.startswith(_OURS) for name in os.environb):
        return
    import ctypes  # takes as long as a short command

    # Says whose child we are: `latchwork.tasks.children.MARK`, without loading that package.
    shown = b"LATCHWORK_CHILD"
    with suppress(OSError, ValueError, AttributeError):
        start, end = _find_environment_bounds()
        area = (ctypes.c_char * (end - start)).from_address(start)
        at = 0
        for entry in area.raw.split(b"\0"):
            name = entry.partition(b"=")[0]
            if name.startswith(_OURS) and name != shown:
                value = os.environb.get(name)
                if value is not None:
                    os.environb[name] = value  # libc now uses a copy
                ctypes.memset(start + at, 0, len(entry))
            at += len(entry) + 1


def disable_process_inspection() -> None:
    """Prevent other processes of the same user from reading the memory and open files of this process."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _find_environment_bounds() -> tuple[int, int]:
    """Find the initial environment of this process in memory. Return its start and end address."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # fields 50 and 51 of proc(5), of which two are before ")"
    if not 0 < start < end:
        raise ValueError("the kernel does not tell")
    return start, end
