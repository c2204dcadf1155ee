"""User commands as child processes: under a lock, while this process leads, or as a job.

`latchwork lock` and `latchwork elect` run a command while a lock is held, or while this process leads. `latchwork run
--command "backup.sh {item}" --item a --item b --cron "0 3 * * *"` makes a job of a command line. A child is stopped in
time and never left behind.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from latchwork._base.event import Signal
from latchwork.cli.options import Url, command, require_url
from latchwork.cli.outcome import TERMINATED, UsageError, exit_on_sigterm, quiet_logs, report
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import LatchworkError
from latchwork.jobs import Job, JobContext, Schedule, Threads
from latchwork.primitives import GuardedWork, LeaderLatch, Lock
from latchwork.store import Store, connect

_PR_SET_PDEATHSIG = 1
#: Commands are forked while other threads are inside gRPC, whose fork handlers then sometimes abort the child.
_GRPC_HANDLES_FORKS = "GRPC_ENABLE_FORK_SUPPORT"
#: Seconds between two checks whether the command has ended.
_LOOK_S = 1.0
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: The exit codes of a shell for commands that cannot be started.
NOT_FOUND, NOT_EXECUTABLE = 127, 126

#: The command is asked to stop when this part of the TTL is left, and killed at its end.
_MARGIN_PART = 0.25
#: It is killed after this part of that time.
_KILL_PART = 0.8
Name = Annotated[str, typer.Argument(metavar="NAME", help="The key below the root that all competitors use.")]
Command = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments, run without a shell.")
]
Ttl = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        show_default=False,
        help="Seconds after which others take over from a dead process. The server may grant more.  "
        "[default: that of the URL, else 10]",
    ),
]

#: Seconds after which a stopped command is killed; earlier if the lock of its item would expire.
_STOP_S = 10.0
#: Seconds that are left of the locks when it is killed at the latest.
_LAST_S = 0.5
_ONE_ITEM = "main"
_ITEM = "{item}"


class ChildFailed(LatchworkError):
    """A command could not be started, or ended with an exit code other than 0."""


class CommandProcess:
    """A running command. Thread-safe.

    On Linux it ends with the thread that started it, even if that is killed. Its own children do not.

    Args:
        words: The command and its arguments, without a shell.
        env: Additional variables.
        own_group: Start it in a separate process group, to which signals are sent: for commands in the background.
            Otherwise Ctrl-C of a terminal reaches it directly.
    Raises:
        ChildFailed: It cannot be started. The message says why.
    """

    def __init__(self, words: Sequence[str], env: Mapping[str, str], *, own_group: bool) -> None:
        self._own_group = own_group
        parent = os.getpid()
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # before the fork: nothing is loaded in the child

        def die_with_parent() -> None:
            if libc is not None:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:  # it has died between the fork and the call
                    os._exit(1)

        try:
            self._process = subprocess.Popen(  # noqa: S603 - it is the user's own command, and no shell
                list(words),
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL if own_group else None,
                start_new_session=own_group,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it calls one function that is there already
            )
        except OSError as error:
            raise ChildFailed(f"command {words[0]!r} cannot be started: {error.strerror or error}") from error

    def wait(self) -> int:
        """Wait until the command has ended.

        Returns:
            Its exit code, or 128 plus the number of the signal that ended it.
        """
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def stop(self, within_s: float) -> None:
        """Ask the command to end, kill it if it does not end in time, and wait for its end. Thread-safe.

        Args:
            within_s: Seconds after which the command is killed.
        """
        self.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self._process.wait()

    def send_signal(self, signum: int) -> None:
        """Send a signal to the command if it is running.

        Args:
            signum: Number of the signal.
        """
        try:
            if self._process.poll() is not None:  # its number may be another's by now
                return
            if self._own_group:
                os.killpg(self._process.pid, signum)
            else:
                self._process.send_signal(signum)
        except (ProcessLookupError, PermissionError):  # it is ending
            return


@contextmanager
def forward_signals() -> Iterator[Callable[[CommandProcess], None]]:
    """Return a context manager that forwards signals of this process to a child process.

    Ctrl-C in a terminal reaches the child directly. Signals that arrive before the child exists are forwarded later. No
    signal ends this process and leaves the child running.

    Yields:
        A function that sets the child.
    """
    children: list[CommandProcess] = []
    early: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and sys.stdin.isatty():
            return
        if children:
            children[0].send_signal(number)
        else:
            early.append(number)

    def name(child: CommandProcess) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (*_FORWARDED, signal.SIGINT)}
    try:
        yield name
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_until_ownership_ends(
    words: Sequence[str], env: Mapping[str, str], remaining_s: Callable[[], float], *, stop_within_s: float
) -> int:
    """Run a command, and stop it before the ownership that it needs ends, such as the lease of a lock.

    Args:
        words: The command and its arguments.
        env: Additional environment variables.
        remaining_s: Returns the seconds until the command must stop. Renewing the lease increases them, so this is
            called at least once a second.
        stop_within_s: Seconds after which a command that was asked to stop is killed.
    Returns:
        The exit code of the command.
    """
    over = Signal()
    codes: list[int] = []
    ended = Signal()

    def wait() -> None:
        codes.append(child.wait())
        ended.set()

    def watch() -> None:
        while not over.is_set():
            left_s = remaining_s()
            if left_s <= 0.0:
                child.stop(stop_within_s)
                return
            over.wait(min(left_s, _LOOK_S))

    with forward_signals() as hand_on_to:
        child = CommandProcess(words, env, own_group=False)
        hand_on_to(child)
        watcher = threading.Thread(target=watch, name="latchwork-child-watcher", daemon=True)
        watcher.start()
        threading.Thread(target=wait, name="latchwork-child-waiter", daemon=True).start()
        try:
            # Waiting for the process itself would keep a signal that arrives right before the wait until its end.
            SYSTEM_CLOCK.wait(ended)
            return codes[0]
        finally:
            over.set()
            watcher.join()


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
            min=0.0, show_default=False, help="Seconds to wait for the lock; 0 tries once.  [default: forever]"
        ),
    ] = None,
    url: Url = None,
) -> None:
    """Run a command while a lock is held, and exit with its exit code.

    The lock is released when the command ends. The command gets SIGTERM when a quarter of the TTL is left because the
    store is unreachable, and SIGKILL before another process can take the lock. LATCHWORK_LOCK and LATCHWORK_TOKEN are
    the name and the fencing token of the lock: pass the token on with every write. The exit code is 1 if the lock is
    not acquired in time or is lost, and 126 or 127 if the command cannot be started.
    """
    with exit_on_sigterm(TERMINATED), _store(url, ttl_s) as store, closing(Lock(store, name, label=_label())) as held:
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
        typer.Option(metavar="ID", show_default=False, help="The name that others see.  [default: host and PID]"),
    ] = None,
    ttl_s: Ttl = None,
    url: Url = None,
) -> None:
    """Run a command while this process leads, and exit with its exit code.

    Start it on every machine that may run the command: one of them leads, and the others wait. When leadership is lost,
    the command is stopped as by `latchwork lock`, and this process waits to lead again. When the command ends by
    itself, so does this process. LATCHWORK_ELECTION and LATCHWORK_TOKEN are the name and the fencing token.
    """
    with exit_on_sigterm(TERMINATED), _store(url, ttl_s) as store:
        ttl_s = store.session.ttl_s

        def lead(work: GuardedWork) -> int:
            variables = {"LATCHWORK_ELECTION": name, "LATCHWORK_TOKEN": str(work.fence.token)}
            return _run(words, work, variables, ttl_s)

        with LeaderLatch(store, name, node_id=node_id or _label()) as latch:
            code = latch.run(lead, margin_s=ttl_s * _MARGIN_PART)
    raise typer.Exit(code)


def _run(words: list[str], work: GuardedWork, env: dict[str, str], ttl_s: float) -> int:
    try:
        return run_until_ownership_ends(words, env, work.remaining_s, stop_within_s=ttl_s * _MARGIN_PART * _KILL_PART)
    except ChildFailed as error:
        report(error)
        return NOT_EXECUTABLE if isinstance(error.__cause__, PermissionError) else NOT_FOUND


def _store(url: str | None, ttl_s: float | None) -> Store:
    disable_grpc_fork_handlers()
    quiet_logs()
    return connect(require_url(url)) if ttl_s is None else connect(require_url(url), session_ttl_s=ttl_s)


def disable_grpc_fork_handlers() -> None:
    """Disable gRPC's fork handlers if the user has not enabled them. Call this before the first store is opened."""
    os.environ.setdefault(_GRPC_HANDLES_FORKS, "0")


def _label() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


class CommandFailed(LatchworkError):
    """A command failed for one or more items."""


def create_command_job(
    text: str, *, job_id: str | None, items: Sequence[str], schedule: Schedule | None, threads: int
) -> Job:
    """Create a job that runs a command for each item.

    Args:
        text: The command, split as a shell does; no shell runs it. `{item}` in a word is replaced by the item.
        job_id: ID of the job; None uses the name of the program.
        items: The items. Without any there is one, `main`.
        schedule: The schedule; None uses the default of jobs.
        threads: The number of commands that run at a time on a node; 0 is one per item.
    Raises:
        UsageError: The command is malformed, or contains `{item}` and there are no items.
        InvalidJob: The ID or an item is invalid.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command {text!r} cannot be read: {error}") from None
    if not words:
        raise UsageError('--command is empty; give a command, as --command "backup.sh {item}"')
    if not items and _ITEM in text:
        raise UsageError(f"--command names {_ITEM}, but there are no items; add --item NAME")
    disable_grpc_fork_handlers()
    name = job_id or re.sub(r"[^A-Za-z0-9._-]", "-", Path(words[0]).name)
    return Job(
        name,
        work_pool=list(items) or [_ONE_ITEM],
        run=lambda context: _run_items(words, context),
        schedule=schedule,
        threads=Threads(threads),
    )


def _run_items(words: Sequence[str], context: JobContext) -> None:
    """Run the command for each item of a run, one after the other. A failed item does not stop the others.

    Args:
        words: The command and its arguments.
        context: Context of the run.
    """
    failed = {}
    for item in context.items:
        if context.should_stop:
            break
        try:
            code = _run_item([word.replace(_ITEM, item) for word in words], item, context)
            if code:
                failed[item] = f"exit code {code}"
        except ChildFailed as error:
            failed[item] = str(error)
    if failed:
        reasons = "; ".join(f"{item}: {why}" for item, why in failed.items())
        raise CommandFailed(f"{len(failed)} of {len(context.items)} items failed: {reasons}")


def _run_item(words: Sequence[str], item: str, context: JobContext) -> int:
    env = {"LATCHWORK_JOB": context.job_id, "LATCHWORK_ITEM": item, "LATCHWORK_NODE": context.node_id}
    env["LATCHWORK_TOKEN"] = str(context.fence(item).token)
    if context.fire_time_s is not None:
        env["LATCHWORK_FIRE_TIME_S"] = f"{context.fire_time_s:.0f}"
    child = CommandProcess(words, env, own_group=True)
    forget = context.on_stop(lambda: child.stop(max(0.0, min(_STOP_S, context.remaining_s() - _LAST_S))))
    try:
        return child.wait()
    finally:
        forget()
