"""Chooses where the servers of a benchmark keep their data: on the disk of temporary files, or in memory.

In memory a sync costs nothing, so the cost of the clients themselves is visible.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest

STORAGES = ("disk", "memory")
_SHARED_MEMORY = Path("/dev/shm")
#: A server may take so much during a run.
_LEAST_FREE_BYTES = 2_000_000_000


def in_memory(folder=_SHARED_MEMORY, mounts=Path("/proc/self/mounts")):
    """Return the directory whose files are in memory.

    Raises:
        pytest.UsageError: There is no such directory, or it has not enough space.
    """
    try:
        kinds = {line.split()[1]: line.split()[2] for line in mounts.read_text().splitlines()}
    except OSError:
        kinds = {}
    remedy = f"--storage=memory needs a tmpfs of 2 GB at {folder}, which"
    if kinds.get(str(folder)) != "tmpfs":
        raise pytest.UsageError(f"{remedy} is not there; mount one, or leave the option out")
    if not os.access(folder, os.W_OK):
        raise pytest.UsageError(f"{remedy} you may not write to; run as a user who may, or omit the option")
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < _LEAST_FREE_BYTES:
        raise pytest.UsageError(f"{remedy} has too little space; free some, or omit the option")
    return folder


@contextlib.contextmanager
def data_dir(storage):
    """A directory for the data of one server, which is removed at the end."""
    parent = in_memory() if storage == "memory" else None
    with tempfile.TemporaryDirectory(prefix="latchwork-bench-", dir=parent) as folder:
        yield Path(folder)
