"""Where the servers of a benchmark keep their data: on the disk of temporary files, or in memory.

In memory a sync costs nothing, so what the clients themselves cost stands out.
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
    """The folder whose files are in memory.

    Raises:
        pytest.UsageError: there is none with enough room.
    """
    try:
        kinds = {line.split()[1]: line.split()[2] for line in mounts.read_text().splitlines()}
    except OSError:
        kinds = {}
    remedy = f"--storage=memory needs a tmpfs of 2 GB at {folder}, which"
    if kinds.get(str(folder)) != "tmpfs":
        raise pytest.UsageError(f"{remedy} is not there; mount one, or leave the option out")
    if not os.access(folder, os.W_OK):
        raise pytest.UsageError(f"{remedy} you may not write to; run as somebody who may, or leave the option out")
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < _LEAST_FREE_BYTES:
        raise pytest.UsageError(f"{remedy} has less room; free some, or leave the option out")
    return folder


@contextlib.contextmanager
def data_dir(storage):
    """A directory for one server's data, which is removed in the end."""
    parent = in_memory() if storage == "memory" else None
    with tempfile.TemporaryDirectory(prefix="latchwork-bench-", dir=parent) as folder:
        yield Path(folder)
