"""Child processes that end with the process that started them: each command runs under a separate supervisor.

``Child`` starts a command under a small supervisor process (``supervisor.py``), which outlives a parent that is killed
or frozen. The supervisor kills the command, and on Linux every process that forks away from it, at its deadline, when
its parent is gone, or on request. ``DeadlineExtender`` extends that deadline while an ownership lasts, such as a
session. A child that runs under a session is gone before the session can end, even if its parent is frozen.

If the supervisor itself is killed, the processes of the command are found by a variable of their environment,
``LATCHWORK_CHILD``. The parent ends them. If the parent is frozen or dead, the next process of the same user that
starts a command on this machine ends them, see ``lock_files.py``.

Not promised: the end of processes that another service started for the command (``at``, a container engine, a batch
system). Without ``/proc``, only the command's process group is ended. Nothing here touches the network.
"""

from __future__ import annotations

import errno as errors
import math
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.validation import is_number
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, LatchworkError, WaitTimeout
from latchwork.store.forks import ForkGuard
from latchwork.tasks.children.lock_files import MARK, LockFile, kill_marked, kill_orphans
from latchwork.tasks.children.supervisor_handle import (
    Stream,
    Streams,
    SupervisorHandle,
    build_command_message,
    format_deadline,
    is_readable,
)

#: Why a child has ended: by itself, at its deadline, on request, with its parent, or its supervisor was killed.
Why = Literal["exited", "deadline", "requested", "parent", "unsupervised"]
#: Seconds that a supervisor may take to end its command. After that, the parent kills the supervisor.
_SHIM_S = 10.0
_WHERE = {"user": "change to its user", "folder": "go to its folder", "program": "start its program"}


class CannotStart(LatchworkError, OSError):
    """A command could not be started. None of its processes is left."""


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """The result of a child process and everything that it started.

    Attributes:
        why: ``exited`` by itself; ``deadline``: killed at its deadline; ``requested``: stopped on request; ``parent``:
            its parent was gone; ``unsupervised``: its supervisor was killed, so its exit status is unknown.
        code: Exit code; None if a signal ended it.
        signal: Number of the signal that ended it; None if it exited.
        user_s, system_s: Processor time of the command and of the descendants that it waited for, in seconds.
        max_rss_kib: The largest resident memory of one of these processes, in KiB.
        left: Number of processes that it left behind and that were killed.
    """

    why: Why
    code: int | None = None
    signal: int | None = None
    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_kib: int = 0
    left: int = 0

    @property
    def is_success(self) -> bool:
        """Whether the command exited by itself with code 0."""
        return self.why == "exited" and self.code == 0

    def __str__(self) -> str:
        how = f"signal {_signal_name(self.signal)}" if self.signal is not None else f"code {self.code}"
        reasons = {
            "exited": f"ended with {how}",
            "deadline": "was killed: its time was over",
            "requested": f"was told to end, and did with {how}",
            "parent": "was killed: its parent was gone",
            "unsupervised": "was ended from outside together with its supervisor",
        }
        return reasons[self.why]


class Child:
    """A command that runs under a supervisor process, started by the constructor. Thread-safe.

    Args:
        argv: The program and its arguments. No shell is used.
        env: The complete environment, to which one marker variable is added; None uses the parent's.
        folder: The working directory; None uses the parent's.
        stdin, stdout, stderr: A path (output is appended), a descriptor, ``PIPE`` or ``DEVNULL``; ``stderr`` may be
            ``STDOUT``. None uses the parent's.
        until: The time on the boot clock (``Clock.now()``) at which it is killed; ``set_deadline`` changes it.
        grace_s: Seconds between SIGTERM and ``until``; 0 sends no SIGTERM.
        user: Name of the user to run as, with that user's groups. The parent needs the permission.
        keep: Descriptors that the command inherits under the same numbers.
        label: Name of the supervisor in process lists.
    Attributes:
        pid: Process ID of the command, and ID of its process group.
        stdin, stdout, stderr: The parent's ends of pipes; None for other streams. ``close`` closes them.
    """

    def __init__(
        self,
        argv: Sequence[str | bytes | Path],
        *,
        env: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        until: float = math.inf,
        grace_s: float = 0.0,
        user: str | None = None,
        keep: Sequence[int] = (),
        label: str = "",
    ) -> None:
        if os.name != "posix":
            raise LatchworkError("supervised child processes need a POSIX system; run tasks in threads here")
        given = [os.fsencode(each) for each in argv]
        self._what = f"command {os.fsdecode(given[0])!r}" if given else "a command"
        self._mark = os.urandom(16).hex()
        marked = {**(os.environ if env is None else env), MARK: self._mark}
        message = build_command_message(given, marked, folder, until, grace_s, user, keep)
        self._fork_guard = ForkGuard(self._what, made="started")
        self._mutex = mutex()
        self._end: ChildEnd | None = None
        self._received = b""
        self._is_closed = False
        self._lock_file: LockFile | None = None
        self._supervisor = SupervisorHandle()
        self._start(message, Streams(stdin, stdout, stderr), keep, label)

    def _start(self, message: list[bytes], streams: Streams, keep: Sequence[int], label: str) -> None:
        try:
            kill_orphans()
            self._lock_file = LockFile(self._mark)
            self._supervisor.start(message, streams.child_fds, keep, label, self._lock_file)
            streams.close_child_fds()
            self.stdin, self.stdout, self.stderr = streams.parent_files
            self.pid = self._read_start_report()
        except BaseException:  # the caller has no object to close
            self._clean_up_failed_start(streams)
            raise

    def _clean_up_failed_start(self, streams: Streams) -> None:
        """Close all descriptors and end all processes after a start that failed or was interrupted."""
        streams.close_child_fds()
        streams.close()
        self._close_descriptors()

    def __repr__(self) -> str:
        return f"<Child {self.pid} {self._what} {self._end or 'running'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return a descriptor for ``select``, which becomes readable when the child has ended. Then call ``poll``."""
        return self._supervisor.reports

    def set_deadline(self, until: float) -> None:
        """Set the time on the boot clock at which the child is killed. It may be earlier or later than before.

        Args:
            until: The time in seconds, as from ``Clock.now()``.
        """
        self._send_order(f"until {format_deadline(until)}")

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask the command to end with SIGTERM to its process group, and kill it later if it is still running. Does not
        wait.

        Args:
            grace_s: Seconds between SIGTERM and the kill.
        """
        if not is_number(grace_s, 0.0):
            raise ValueError(f"grace_s must be a number of seconds from 0, not {grace_s!r}")
        self._send_order(f"stop {grace_s!r}")

    def kill(self) -> None:
        """Kill the command and everything that it started. Does not wait."""
        self._send_order("kill")

    def poll(self) -> ChildEnd | None:
        """Return the result of the child, or None while it is running. Does not wait."""
        return self._wait(0.0)

    def wait(self, timeout_s: float | None = None) -> ChildEnd:
        """Wait until the command and everything that it started has ended, and return the result.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            WaitTimeout: It is still running.
        """
        end = self._wait(timeout_s)
        if end is None:
            raise WaitTimeout(f"{self._what} (process {self.pid}) still runs after {timeout_s or 0.0:.3g} s")
        return end

    def close(self) -> None:
        """Kill the command if it is running, wait until it has ended, and close the pipes. Idempotent."""
        if self._fork_guard.is_foreign:
            return
        self.kill()
        if self._wait(_SHIM_S) is None:
            self._supervisor.kill()
            self._wait(None)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._close_descriptors()

    def _send_order(self, line: str) -> None:
        self._fork_guard.check()
        with self._mutex:
            if not self._is_closed and self._end is None:
                with suppress(BrokenPipeError, BlockingIOError):  # it has ended; or its supervisor is frozen
                    os.write(self._supervisor.commands, line.encode() + b"\n")

    def _wait(self, timeout_s: float | None) -> ChildEnd | None:
        self._fork_guard.check()
        until = None if timeout_s is None else SYSTEM_CLOCK.now() + timeout_s
        while self._end is None:
            left_s = None if until is None else max(0.0, until - SYSTEM_CLOCK.now())
            if not is_readable(self._supervisor.reports, left_s):
                return None
            self._read_reports()
        return self._end

    def _read_reports(self) -> None:
        """Read the reports of the supervisor, and record the end of the child if they contain it.

        If the pipe ends without a report, the supervisor was killed.
        """
        with self._mutex:
            if self._end is not None:
                return
            part = os.read(self._supervisor.reports, 4096) if is_readable(self._supervisor.reports, 0.0) else None
            if part is None:
                return
            self._received += part
            if part and not self._received.endswith(b"\n"):
                return
            words = self._received.split(b"\n")[-2].split() if b"\n" in self._received else []
            if words[:1] == [b"ended"]:
                self._end = _parse_exit_report(words[1:])
            elif not part:
                self._end = self._end_without_supervisor()

    def _end_without_supervisor(self) -> ChildEnd:
        """Kill all processes of the command after its supervisor was killed, and return the result of the child.

        The kernel has already killed the command itself. Processes that forked away from it are found by a variable of
        their environment.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        left = kill_marked(self._mark)
        if self._lock_file is not None:
            self._lock_file.remove()
        return ChildEnd("unsupervised", signal=signal.SIGKILL, left=left)

    def _read_start_report(self) -> int:
        heard = b""
        while not heard.endswith(b"\n"):
            part = os.read(self._supervisor.reports, 4096)
            if not part:
                raise CannotStart(f"{self._what} could not be started: its supervisor ended")
            heard += part
        first, _, self._received = heard.partition(b"\n")
        words = first.decode("utf-8", "surrogateescape").split()
        if words[0] == "started":
            return int(words[1])
        number, where = int(words[1]), words[2]
        why = os.strerror(number) if number else "for an unknown reason"
        name = errors.errorcode.get(number, "")
        raise CannotStart(number, f"{self._what} could not {_WHERE.get(where, where)}: {why} {name}".rstrip())

    def _close_descriptors(self) -> None:
        """Close the pipes to the supervisor, wait for it, and remove its lock file."""
        with self._mutex:
            self._is_closed = True
            self._supervisor.close_pipes()
        self._supervisor.wait()
        if self._lock_file is not None and not self._supervisor.pid:  # else it is the supervisor's to remove
            self._lock_file.remove()


def _parse_exit_report(words: list[bytes]) -> ChildEnd:
    """Parse the supervisor's report about how its command has ended: exit code or signal, and resources used."""
    why, status, user_s, system_s, rss, left = (each.decode() for each in words)
    code = os.waitstatus_to_exitcode(int(status))
    return ChildEnd(
        cast("Why", why),
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        user_s=float(user_s),
        system_s=float(system_s),
        max_rss_kib=int(rss),
        left=int(left),
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class DeadlineExtender:
    """Extends the deadlines of child processes while an ownership lasts, such as a session. Thread-safe.

    One thread extends the deadlines of all children. If this process is frozen or killed, the deadlines are no longer
    extended, and the supervisors kill the children.

    Args:
        remaining_s: Returns the seconds for which the ownership is certain to last, for example
            ``session.remaining_s``. Does no I/O.
        margin_s: Seconds before the end of the ownership at which the children end. It must cover the time to end one.
        every_s: Seconds between extensions.
    """

    def __init__(self, remaining_s: Callable[[], float], *, margin_s: float = 0.5, every_s: float = 0.5) -> None:
        for name, value in (("margin_s", margin_s), ("every_s", every_s)):
            if not is_number(value, 0.0):
                raise ValueError(f"{name} must be a number of seconds from 0, not {value!r}")
        self._remaining_s = remaining_s
        self._margin_s = margin_s
        self._every_s = max(0.01, every_s)
        self._mutex = mutex()
        self._held: dict[Child, float] = {}
        self._closed = Signal()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def until(self) -> float:
        """The current deadline of the children, as a time on the boot clock."""
        return SYSTEM_CLOCK.now() + self._remaining_s() - self._margin_s

    def add(self, child: Child, deadline: float = math.inf) -> None:
        """Keep extending the deadline of a child while the ownership lasts.

        Args:
            child: The child process.
            deadline: Time on the boot clock beyond which its deadline is never extended.
        """
        with self._mutex:
            if self._closed.is_set():
                raise Closed("this deadline extender was closed; create another one")
            self._held[child] = deadline
            if self._thread is None:
                self._thread = threading.Thread(target=self._extend_deadlines, name="latchwork-deadlines", daemon=True)
                self._thread.start()
        child.set_deadline(min(self.until, deadline))

    def remove(self, child: Child) -> None:
        """Stop extending the deadline of a child, and remove its deadline."""
        with self._mutex:
            there = self._held.pop(child, None)
        if there is not None:
            child.set_deadline(math.inf)

    def close(self) -> None:
        """Stop extending deadlines. Children that were not removed are killed at their current deadline. Idempotent."""
        self._closed.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _extend_deadlines(self) -> None:
        while not SYSTEM_CLOCK.wait(self._closed, self._every_s):
            with self._mutex:
                held = list(self._held.items())
            until = self.until
            for child, deadline in held:
                with self._mutex:  # one that was removed meanwhile has another deadline
                    if child in self._held:
                        child.set_deadline(min(until, deadline))
