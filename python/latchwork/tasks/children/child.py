"""Commands that end with what they depend on: child processes, each under a separate supervisor.

``Child`` starts a command under ``shim``, a small process that outlives a parent which is killed or frozen. The
command, and on Linux every process that forks away from it, is killed at its deadline, when its parent is gone, or on
request. ``DeadlineExtender`` extends that deadline while an ownership lasts: a child that runs under a session is gone
before the session can end, even if its parent is frozen.

If the supervisor itself is killed, the processes of the command are found by a variable of their environment,
``LATCHWORK_CHILD``. The parent ends them. If the parent is frozen or dead, the next process of the same user that
starts a command on this machine ends them (``notes``).

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
from latchwork.tasks.children.notes import MARK, Note, end_left, end_marked
from latchwork.tasks.children.order import Shim, Stream, Streams, is_readable, moment_text, order_of

#: Why a child has ended: by itself, at its deadline, on request, with its parent, or its supervisor was killed.
Why = Literal["exited", "deadline", "told", "parent", "unsupervised"]
#: Seconds that a supervisor may take to end its command. After that, the parent kills the supervisor.
_SHIM_S = 10.0
_WHERE = {"user": "change to its user", "folder": "go to its folder", "program": "start its program"}


class CannotStart(LatchworkError, OSError):
    """A command could not be started. No process of it is left."""


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child, and all that it had started, has ended.

    Attributes:
        why: ``exited`` by itself; ``deadline``: killed at its deadline; ``told``: stopped on request; ``parent``: its
            parent was gone; ``unsupervised``: its supervisor was killed, and its exit status is not known.
        code: its exit code; None when a signal ended it.
        signal: the signal; None when it exited.
        user_s, system_s: processor time of the command and of its descendants that were waited for, in seconds.
        max_rss_kib: the largest resident memory of one of these processes, in KiB.
        left: number of processes that it left behind, and that were ended.
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
        """Whether it exited by itself, with code 0."""
        return self.why == "exited" and self.code == 0

    def __str__(self) -> str:
        how = f"signal {_signal_name(self.signal)}" if self.signal is not None else f"code {self.code}"
        reasons = {
            "exited": f"ended with {how}",
            "deadline": "was ended by force: its time was over",
            "told": f"was told to end, and did with {how}",
            "parent": "was ended by force: its parent was gone",
            "unsupervised": "was ended from outside together with its supervisor",
        }
        return reasons[self.why]


class Child:
    """A supervised command, running once this returns. Safe to share between threads.

    Args:
        argv: the program and its arguments; no shell.
        env: the complete environment, to which one marker variable is added; None takes the parent's.
        folder: the working directory; None takes the parent's.
        stdin, stdout, stderr: a path (output is appended), a descriptor, ``PIPE``, ``DEVNULL``; ``stderr`` may be
            ``STDOUT``. None takes the parent's.
        until: the time on the boot clock (``Clock.now()``) at which it is killed; ``allow`` changes it.
        grace_s: seconds between SIGTERM and ``until``; 0 sends no SIGTERM.
        user: run it as this user, with that user's groups; the parent needs the permission.
        keep: descriptors that it inherits under the same numbers.
        label: the name of its supervisor in a list of processes.

    Attributes:
        pid: its process ID, and that of its process group.
        stdin, stdout, stderr: the parent's ends of pipes; None for other streams. ``close`` closes them.
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
            raise LatchworkError("children under supervision need a POSIX system; run tasks in threads here")
        given = [os.fsencode(each) for each in argv]
        self._what = f"command {os.fsdecode(given[0])!r}" if given else "a command"
        self._mark = os.urandom(16).hex()
        marked = {**(os.environ if env is None else env), MARK: self._mark}
        order = order_of(given, marked, folder, until, grace_s, user, keep)
        self._home = ForkGuard(self._what, made="started")
        self._mutex = mutex()
        self._end: ChildEnd | None = None
        self._heard = b""
        self._is_closed = False
        self._note: Note | None = None
        self._shim = Shim()
        self._start(order, Streams(stdin, stdout, stderr), keep, label)

    def _start(self, order: list[bytes], streams: Streams, keep: Sequence[int], label: str) -> None:
        try:
            end_left()
            self._note = Note(self._mark)
            self._shim.start(order, streams.theirs, keep, label, self._note)
            streams.close_theirs()
            self.stdin, self.stdout, self.stderr = streams.ours
            self.pid = self._hear_start()
        except BaseException:  # the caller has no object to close
            self._give_up(streams)
            raise

    def _give_up(self, streams: Streams) -> None:
        """Clean up after an error or an interrupt: leave neither a process nor a descriptor."""
        streams.close_theirs()
        streams.close()
        self._settle()

    def __repr__(self) -> str:
        return f"<Child {self.pid} {self._what} {self._end or 'running'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return a descriptor for ``select``. It is readable once the child has ended; ``poll`` then returns how."""
        return self._shim.reports

    def allow(self, until: float) -> None:
        """Set the time on the boot clock at which the child is killed, earlier or later than before."""
        self._say(f"until {moment_text(until)}")

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM to its process group, and kill it after ``grace_s`` seconds. Does not wait."""
        if not is_number(grace_s, 0.0):
            raise ValueError(f"grace_s must be a number of seconds from 0, not {grace_s!r}")
        self._say(f"stop {grace_s!r}")

    def kill(self) -> None:
        """Kill it and everything that it started. Does not wait."""
        self._say("kill")

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group."""
        self._say(f"signal {int(number)}")

    def poll(self) -> ChildEnd | None:
        """Return how it has ended; None while it is running."""
        return self._wait(0.0)

    def wait(self, timeout_s: float | None = None) -> ChildEnd:
        """Wait until it, and all that it had started, has ended.

        Raises:
            WaitTimeout: it is still running.
        """
        end = self._wait(timeout_s)
        if end is None:
            raise WaitTimeout(f"{self._what} (process {self.pid}) still runs after {timeout_s or 0.0:.3g} s")
        return end

    def close(self) -> None:
        """Kill it if it is running, wait until it has ended, and close the pipes. Idempotent."""
        if self._home.is_foreign:
            return
        self.kill()
        if self._wait(_SHIM_S) is None:
            self._shim.kill()
            self._wait(None)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._settle()

    def _say(self, line: str) -> None:
        self._home.check()
        with self._mutex:
            if not self._is_closed and self._end is None:
                with suppress(BrokenPipeError, BlockingIOError):  # it has ended; or its supervisor is frozen
                    os.write(self._shim.orders, line.encode() + b"\n")

    def _wait(self, timeout_s: float | None) -> ChildEnd | None:
        self._home.check()
        until = None if timeout_s is None else SYSTEM_CLOCK.now() + timeout_s
        while self._end is None:
            left_s = None if until is None else max(0.0, until - SYSTEM_CLOCK.now())
            if not is_readable(self._shim.reports, left_s):
                return None
            self._hear()
        return self._end

    def _hear(self) -> None:
        """Read reports of the supervisor. The end of the pipe without a report means that the supervisor was killed."""
        with self._mutex:
            if self._end is not None:
                return
            part = os.read(self._shim.reports, 4096) if is_readable(self._shim.reports, 0.0) else None
            if part is None:
                return
            self._heard += part
            if part and not self._heard.endswith(b"\n"):
                return
            words = self._heard.split(b"\n")[-2].split() if b"\n" in self._heard else []
            if words[:1] == [b"ended"]:
                self._end = _end_of(words[1:])
            elif not part:
                self._end = self._without_shim()

    def _without_shim(self) -> ChildEnd:
        """End the rest of the process group after the supervisor was killed. The kernel has killed the command itself.

        Processes that forked away from the command are found by their mark.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        left = end_marked(self._mark)
        if self._note is not None:
            self._note.remove()
        return ChildEnd("unsupervised", signal=signal.SIGKILL, left=left)

    def _hear_start(self) -> int:
        heard = b""
        while not heard.endswith(b"\n"):
            part = os.read(self._shim.reports, 4096)
            if not part:
                raise CannotStart(f"{self._what} could not be started: its supervisor ended")
            heard += part
        first, _, self._heard = heard.partition(b"\n")
        words = first.decode("utf-8", "surrogateescape").split()
        if words[0] == "started":
            return int(words[1])
        number, where = int(words[1]), words[2]
        why = os.strerror(number) if number else "for no reason that the system names"
        name = errors.errorcode.get(number, "")
        raise CannotStart(number, f"{self._what} could not {_WHERE.get(where, where)}: {why} {name}".rstrip())

    def _settle(self) -> None:
        """Close the descriptors, once."""
        with self._mutex:
            self._is_closed = True
            self._shim.close_pipes()
        self._shim.wait()
        if self._note is not None and not self._shim.pid:  # else it is the supervisor's to remove
            self._note.remove()


def _end_of(words: list[bytes]) -> ChildEnd:
    """Parse the end that a supervisor reports."""
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
    """Keeps children running only while an ownership is certain to last. Safe to share between threads.

    One thread extends the deadlines of all its children. If this process is frozen or killed, deadlines are not
    extended, and the children end at the last one.

    Args:
        remaining_s: returns the seconds for which the ownership is certain to last, e.g. ``session.remaining_s``. Does
            no I/O.
        margin_s: children end this many seconds before the ownership: the time that it may take to end one.
        every_s: seconds between extensions.
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
        """The time on the boot clock until which a child may run now."""
        return SYSTEM_CLOCK.now() + self._remaining_s() - self._margin_s

    def add(self, child: Child, deadline: float = math.inf) -> None:
        """Extend the deadline of a child from now on, but never beyond ``deadline``."""
        with self._mutex:
            if self._closed.is_set():
                raise Closed("this deadline extender was closed; make another one")
            self._held[child] = deadline
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="latchwork-leash", daemon=True)
                self._thread.start()
        child.allow(min(self.until, deadline))

    def remove(self, child: Child, *, deadline: float = math.inf) -> None:
        """Stop extending a child, and set its deadline, independent of the ownership."""
        with self._mutex:
            there = self._held.pop(child, None)
        if there is not None:
            child.allow(deadline)

    def close(self) -> None:
        """Stop extending. Children that were not removed end at their current deadline. Idempotent."""
        self._closed.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _keep(self) -> None:
        while not SYSTEM_CLOCK.wait(self._closed, self._every_s):
            with self._mutex:
                held = list(self._held.items())
            until = self.until
            for child, deadline in held:
                with self._mutex:  # one that was removed meanwhile has another deadline
                    if child in self._held:
                        child.allow(min(until, deadline))
