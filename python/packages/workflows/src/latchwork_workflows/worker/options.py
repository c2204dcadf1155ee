"""Options of a worker."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from latchwork.spi import is_number
from latchwork_workflows.logs.keeping import MOST_BYTES
from latchwork_workflows.model.model import NAME_PATTERN

#: An attempt that was taken so often, and never ended, has killed its workers.
MOST_CLAIMS = 5


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker runs tasks.

    Attributes:
        groups: the worker groups whose tasks it takes, the first one first.
        slots: tasks at a time.
        session_ttl_s: seconds after which others have its tasks when it is dead or cut off; None for that of the URL of
            the store, else 30.
        on_disconnect: ``wait`` lets tasks go on while its session surely lasts; ``stop`` ends them once the store was
            out of reach for ``disconnect_grace_s``.
        disconnect_grace_s: seconds.
        stop_grace_s: seconds from SIGTERM to SIGKILL.
        drain_s: seconds that tasks have to end by themselves when the worker is told to end.
        work_dir: folder in which tasks run and bundles are unpacked, made if missing. It must belong to the user of the
            worker, and no other user may be able to change it or a folder above it. None: ``work`` in the home of the
            workflows, ``~/.local/share/latchwork/workflows/work`` by default. Tasks of tenants need a folder that these
            users can enter.
        tenants: users of this machine that tasks may name as their ``tenant``, if the worker runs as root. Root has to
            be named too, once there are others also for tasks without a tenant.
        python: the interpreter of Python tasks.
        most_log_bytes: of the log of one attempt; of what comes after that the end is kept.
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
    most_log_bytes: int = MOST_BYTES

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

    def margins_s(self, ttl_s: float) -> tuple[float, float]:
        """Seconds before its session can end at which a task is told to end, and at which it is ended by force."""
        force_s = min(3.0, ttl_s / 10)
        return force_s + min(self.stop_grace_s, ttl_s / 6), force_s
