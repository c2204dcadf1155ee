"""`latchwork lock` and `latchwork elect`: a command that runs while a lock is held, or while it leads."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import Annotated

import typer

from latchwork.cli.options import Url, command, wanted_url
from latchwork.cli.outcome import TERMINATED, ended_by_sigterm, quiet_logs, report
from latchwork.cli.processes.child import NOT_EXECUTABLE, NOT_FOUND, ChildFailed, run_while_ours
from latchwork.errors import LatchworkError
from latchwork.primitives import LeaderLatch, Lock, Work
from latchwork.store import Store, connect

#: The command is told to stop when this part of the TTL is left, and killed at its end.
_MARGIN_PART = 0.25
#: It is killed after this part of that time.
_KILL_PART = 0.8

Name = Annotated[str, typer.Argument(metavar="NAME", help="The key below the root that all who compete give.")]
Command = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments; no shell reads them.")
]
Ttl = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        show_default=False,
        help="Seconds after which others may follow when this process is dead; the server may grant more.  "
        "[unless given: as the URL says]",
    ),
]


@command(
    "latchwork lock backup -- rsync -a /data /backup",
    "latchwork lock backup --wait-s 0 -- /usr/local/bin/backup.sh nightly",
)
def lock(
    name: Name,
    words: Command,
    *,
    ttl_s: Ttl = None,
    wait_s: Annotated[
        float | None,
        typer.Option(
            min=0.0, show_default=False, help="Seconds to wait for the lock; 0 tries once.  [unless given: for ever]"
        ),
    ] = None,
    url: Url = None,
) -> None:
    """Run a command while a lock is held, and end with its exit code.

    The lock is given back when the command ends. It gets SIGTERM when a quarter of the TTL is left because the store is
    out of reach, and SIGKILL before others can have the lock. LATCHWORK_LOCK and LATCHWORK_TOKEN tell it the lock's
    name and fencing token: pass the token on with every write. Exit code 1 when the lock is not had in time, or was
    lost; 126 and 127 when the command cannot be started.
    """
    with ended_by_sigterm(TERMINATED), _store(url, ttl_s) as store, closing(Lock(store, name, label=_label())) as held:
        fence = held.acquire(timeout_s=wait_s)
        with held.guard_work(store.session.ttl_s * _MARGIN_PART) as work:
            code = _run(words, work, {"LATCHWORK_LOCK": name, "LATCHWORK_TOKEN": str(fence.token)}, store.session.ttl_s)
        if work.is_stopped:
            raise LatchworkError(f"the command was stopped, for lock {name!r} was lost; its exit code was {code}")
    raise typer.Exit(code)


@command(
    "latchwork elect scheduler -- /usr/local/bin/scheduler", "latchwork elect scheduler --node-id n1 -- ./serve.sh"
)
def elect(
    name: Name,
    words: Command,
    *,
    node_id: Annotated[
        str | None,
        typer.Option(metavar="ID", show_default=False, help="What others see of it.  [unless given: host and pid]"),
    ] = None,
    ttl_s: Ttl = None,
    url: Url = None,
) -> None:
    """Run a command while this process leads, and end with its exit code: start it wherever it may run.

    One at a time leads, the others wait. When leadership is lost the command is stopped, as by `latchwork lock`, and
    this process waits to lead again; when the command ends by itself, so does this one. LATCHWORK_ELECTION and
    LATCHWORK_TOKEN tell it the name and the fencing token.
    """
    with ended_by_sigterm(TERMINATED), _store(url, ttl_s) as store:
        ttl_s = store.session.ttl_s

        def lead(work: Work) -> int:
            variables = {"LATCHWORK_ELECTION": name, "LATCHWORK_TOKEN": str(work.fence.token)}
            return _run(words, work, variables, ttl_s)

        with LeaderLatch(store, name, node_id=node_id or _label()) as latch:
            code = latch.run(lead, margin_s=ttl_s * _MARGIN_PART)
    raise typer.Exit(code)


def _run(words: list[str], work: Work, env: dict[str, str], ttl_s: float) -> int:
    try:
        return run_while_ours(words, env, work.remaining_s, stop_within_s=ttl_s * _MARGIN_PART * _KILL_PART)
    except ChildFailed as error:
        report(error)
        return NOT_EXECUTABLE if isinstance(error.__cause__, PermissionError) else NOT_FOUND


def _store(url: str | None, ttl_s: float | None) -> Store:
    quiet_logs()
    return connect(wanted_url(url)) if ttl_s is None else connect(wanted_url(url), session_ttl_s=ttl_s)


def _label() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
