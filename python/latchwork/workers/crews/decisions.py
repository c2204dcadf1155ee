"""What a crew decides: what a process is told of its job, and what its end means. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from latchwork.checks import is_number
from latchwork.primitives.waiting import check_member, check_whole
from latchwork.tasks.children import ChildEnd
from latchwork.workers.records import WorkerInfo
from latchwork.workers.submitting import check_count

#: The port by which worker 0 is found.
PORT = "master"
#: What the end of a process means: its part is done; it has to be started again; it was ended from here.
Verdict = Literal["done", "failed", "ended"]


@dataclass(frozen=True, slots=True)
class Order:
    """What a crew runs.

    Attributes:
        argv: the program and its arguments; no shell.
        workers: how many the job has, on all hosts.
        per_host: how many of them this crew holds; None for all.
        host: by what this host is known after a restart.
        address: where others reach worker 0 if it is one of ours.
        max_restarts: how often the process of one worker is started again before the job fails.
        grace_s: seconds between SIGTERM and SIGKILL.
        ttl_s: of each worker's session, in seconds; None for that of the URL, else 10.
        join_s: seconds to wait for the end of a namesake, and for a turn, when a worker joins.
        logs: the folder in which each worker's output goes to a file; None for the output of this process.
        run: refuse any other run of the job.
    """

    argv: tuple[str, ...]
    workers: int
    host: str
    address: str
    per_host: int | None = None
    max_restarts: int = 5
    grace_s: float = 5.0
    ttl_s: float | None = None
    join_s: float = 60.0
    logs: Path | None = None
    run: str | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("a crew was given nothing to run; give a program and its arguments")
        check_count(self.workers)
        check_member(self.host, "host")
        if self.per_host is not None and not 1 <= check_whole(self.per_host, "per_host") <= self.workers:
            raise ValueError(f"per_host must be from 1 to the {self.workers} workers of the job, not {self.per_host}")
        if check_whole(self.max_restarts, "max_restarts") < 0:
            raise ValueError(f"max_restarts must be at least 0, not {self.max_restarts}")
        for name in ("grace_s", "join_s"):
            if not is_number(getattr(self, name), 0.0):
                raise ValueError(f"{name} must be a number of seconds from 0, not {getattr(self, name)!r}")

    @property
    def share(self) -> int:
        """How many workers this crew holds."""
        return self.workers if self.per_host is None else self.per_host

    @property
    def is_whole(self) -> bool:
        """Whether it holds all workers of the job."""
        return self.share == self.workers

    @property
    def max_executions(self) -> int:
        """How often a worker may be run again: once for each time that the process of any of them is."""
        return max(1, self.max_restarts * self.workers)

    def key_of(self, slot: int) -> str:
        """Who a worker is, the same after a restart."""
        return f"{self.host}:{slot}"

    def log_of(self, number: int) -> Path | None:
        """Where the output of a worker goes."""
        return None if self.logs is None else self.logs / f"{number}.log"


@dataclass(frozen=True, slots=True)
class SlotState:
    """One of the processes that a crew holds.

    Attributes:
        slot: from 0, on this host.
        state: in a word or two.
        id: of the worker; -1 before it has joined.
        pid: of the process; None while there is none.
        epoch: how often all workers have begun again.
        restarts: how often this worker was started again.
        why: how its last process ended, or what went wrong.
    """

    slot: int
    state: str = "joins"
    id: int = -1
    pid: int | None = None
    epoch: int = 0
    restarts: int = 0
    why: str = ""


def variables(
    info: WorkerInfo, slot: int, order: Order, *, workers: int, run: str, epoch: int, first: WorkerInfo
) -> Mapping[str, str]:
    """What a process is told of its job, besides the environment of its crew.

    Args:
        info: its worker.
        slot: its number on this host.
        order: of the crew.
        workers: how many the job has now.
        run: of the job.
        epoch: how often all workers have begun again.
        first: worker 0, in this epoch.
    """
    return {
        "LATCHWORK_WORKER_ID": str(info.id),
        "LATCHWORK_WORKERS": str(workers),
        "LATCHWORK_RUN": run,
        "LATCHWORK_EPOCH": str(epoch),
        "RANK": str(info.id),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": str(slot),
        "LOCAL_WORLD_SIZE": str(order.share),
        "MASTER_ADDR": first.ip,
        "MASTER_PORT": str(first.ports[PORT]),
    }


def verdict(end: ChildEnd, *, was_stopped: bool) -> Verdict:
    """What the end of a process means.

    A process that was told to stop has not done its part, whatever its exit code says.
    """
    if was_stopped or end.why in {"deadline", "told"}:
        return "ended"
    return "done" if end.is_success else "failed"
