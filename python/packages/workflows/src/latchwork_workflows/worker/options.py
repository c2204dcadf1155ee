"""Options of a worker."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from latchwork.spi import is_number
from latchwork_workflows.logs.attempt_log import MAX_BYTES
from latchwork_workflows.model.definition import NAME_PATTERN

#: An attempt that was claimed this often and never ended has killed its workers.
MAX_CLAIMS = 5


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker runs tasks.

    Attributes:
        groups: Worker groups whose tasks it claims, in order of preference.
        slots: Maximum number of tasks at a time.
        session_ttl_s: Seconds until other workers get the tasks of a dead or disconnected worker. None: the TTL in the
            URL of the store, or 30.
        on_disconnect: ``wait`` lets tasks continue while the session certainly lasts. ``stop`` ends them once the store
            was out of reach for ``disconnect_grace_s``.
        disconnect_grace_s: Seconds out of reach before ``stop`` ends tasks.
        stop_grace_s: Seconds from SIGTERM to SIGKILL.
        drain_s: Seconds that tasks have to complete when the worker is stopped.
        work_dir: Folder in which tasks run and bundles are unpacked, created if missing. It must belong to the user of
            the worker, and no other user may be able to change it or a folder above it. None: ``work`` in the home of
            the workflows, ``~/.local/share/latchwork/workflows/work`` by default. Tasks of tenants need a folder that
            these users can enter.
        tenants: Users of this machine that tasks may name as their ``tenant``, if the worker runs as root. If there are
            any, root must be listed too, even for tasks without a tenant.
        python: Interpreter for Python tasks.
        most_log_bytes: Maximum size of the log of one attempt. Of the rest, only the end is kept.
    """

    groups: tuple[str, ...] = ("default",)
    slots: int = field(default_factory=lambda: max(2, 2 * (os.cpu_count() or 1)))
    session_ttl_s: float | None = None
    on_disconnect: Literal["wait", "stop"] = "wait"
    disconnect_grace_s: float = 2.0
    stop_grace_s: float = 5.0
    drain_s: float = 30.0
    work_dir: Path | None = None
    tenants: tuple[str, ...] = ()
    python: str = sys.executable
    most_log_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        if not self.groups or not all(re.match(NAME_PATTERN, each) for each in self.groups):
            raise ValueError(f"groups must be names of worker groups, at least one, not {self.groups!r}")
        if type(self.slots) is not int or self.slots < 1:
            raise ValueError(f"slots must be a whole number from 1, not {self.slots!r}")
        if self.on_disconnect not in ("wait", "stop"):
            raise ValueError(f"on_disconnect must be 'wait' or 'stop', not {self.on_disconnect!r}")
        for name in ("session_ttl_s", "most_log_bytes"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or value <= 0):
                raise ValueError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        for name in ("disconnect_grace_s", "stop_grace_s", "drain_s"):
            if not is_number(getattr(self, name), 0.0):
                raise ValueError(f"{name} must be a number of seconds from 0, not {getattr(self, name)!r}")

    def get_margins_s(self, ttl_s: float) -> tuple[float, float]:
        """Return when a disconnected worker stops its tasks and when it kills them, in seconds before the session
        ends.
        """
        force_s = min(3.0, ttl_s / 10)
        return force_s + min(self.stop_grace_s, ttl_s / 6), force_s
