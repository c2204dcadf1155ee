"""Commands that end with what they depend on: a child process under a supervisor of its own.

``Child`` starts a command under ``shim``, a small process that outlives a parent which is killed or frozen. The command,
and on Linux whatever forks away from it, is ended by force at the moment until which it was allowed to run, when its
parent is gone, or when it is told. ``Leash`` moves that moment on as long as an ownership lasts: a child that runs
under a session is gone before the session can end, whether or not its parent still moves.

Not promised: that a child which was started by another machine's means (``at``, a container engine, a batch system)
ends. Where there is no ``/proc``, only the command's process group does. Nothing here touches the network.
"""

from __future__ import annotations

import errno as errors
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from latchwork.checks import is_number
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, LatchworkError, WaitTimeout
from latchwork.interrupts import mutex
from latchwork.store.forks import Home

if TYPE_CHECKING:
    from typing_extensions import Self

SHIM = Path(__file__).with_name("shim.py")
DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
#: Where a stream of a child comes from or goes to: a file's path, a descriptor, PIPE, DEVNULL; None is the parent's own.
Stream = int | str | Path | None
#: Why a child has ended: by itself, at the end of its time, told to, with its parent, or its supervisor was killed.
Why = Literal["exited", "deadline", "told", "parent", "unsupervised"]
#: Seconds for which a supervisor that was told to end may take; then its group is ended from here.
_SHIM_S = 10.0
_WHERE = {"user": "change to its user", "folder": "go to its folder", "program": "start its program"}


class CannotStart(LatchworkError, OSError):
    """A command could not be started; nothing of it runs."""


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child has ended, and all that it had started.

    Attributes:
        why: ``exited`` by itself; at its ``deadline``; ``told`` to; with its ``parent``; ``unsupervised`` when its
            supervisor was killed, and how it ended is not known.
        code: its exit code; None when a signal ended it.
        signal: the signal; None when it exited.
        user_s, system_s: processor time of it and of those that it waited for, in seconds.
        max_rss_kib: the most memory that one of them had, in KiB.
        left: processes that it left behind, and that were ended.
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
    """A command under supervision, running once this returns. Safe to share between threads.

    Args:
        argv: the program and its arguments; no shell.
        env: its environment, whole; None takes the parent's.
        folder: where it starts; None where the parent is.
        stdin, stdout, stderr: a path (written from its end on), a descriptor, ``PIPE``, ``DEVNULL``; ``stderr`` may be
            ``STDOUT``. None takes the parent's.
        until: the moment on the boot clock (``Clock.now()``) at which it is ended by force; ``allow`` moves it.
        grace_s: it gets SIGTERM so many seconds before that moment; 0 sends none.
        user: run it as this user, with that user's groups; only where the parent may.
        keep: descriptors that it inherits, with their numbers.
        label: what a list of processes shows of its supervisor.

    Attributes:
        pid: its process id, and that of its group.
        stdin, stdout, stderr: the parent's ends of pipes; None for other streams. They are the caller's to close.
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
        order = _order(given, env, folder, until, grace_s, user, keep)
        self._home = Home(self._what, made="started")
        self._mutex = mutex()
        self._end: ChildEnd | None = None
        self._heard = b""
        self._is_closed = False
        streams = _Streams(stdin, stdout, stderr)
        try:
            self._shim, self._orders, self._reports = _start_shim(order, streams.theirs, keep, label)
        except BaseException:
            streams.close()
            raise
        finally:
            streams.close_theirs()
        self.stdin, self.stdout, self.stderr = streams.ours
        try:
            self.pid = self._hear_start()
        except BaseException:
            streams.close()
            self._settle()
            raise

    def __repr__(self) -> str:
        return f"<Child {self.pid} {self._what} {self._end or 'running'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """A descriptor that is readable once it has ended: for ``select``; ``poll`` then has the end."""
        return self._reports

    def allow(self, until: float) -> None:
        """Let it run until that moment of the boot clock, whether that is later or earlier than before."""
        self._say(f"until {_moment(until)}")

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM to its group, and end it by force so many seconds later. Does not wait."""
        if not is_number(grace_s, 0.0):
            raise ValueError(f"grace_s must be a number of seconds from 0, not {grace_s!r}")
        self._say(f"stop {grace_s!r}")

    def kill(self) -> None:
        """End it by force, and all that it started. Does not wait."""
        self._say("kill")

    def send_signal(self, number: int) -> None:
        """Send a signal to its group."""
        self._say(f"signal {int(number)}")

    def poll(self) -> ChildEnd | None:
        """How it has ended; None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout_s: float | None = None) -> ChildEnd:
        """Wait until it, and all that it had started, has ended.

        Raises:
            WaitTimeout: it runs on.
        """
        end = self._wait(timeout_s)
        if end is None:
            raise WaitTimeout(f"{self._what} (process {self.pid}) still runs after {timeout_s or 0.0:.3g} s")
        return end

    def close(self) -> None:
        """End it by force if it runs, wait until it has ended, and close the pipes. Twice is fine."""
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
                    os.write(self._orders, line.encode() + b"\n")

    def _wait(self, timeout_s: float | None) -> ChildEnd | None:
        self._home.check()
        until = None if timeout_s is None else SYSTEM_CLOCK.now() + timeout_s
        while self._end is None:
            left_s = None if until is None else max(0.0, until - SYSTEM_CLOCK.now())
            if not _is_readable(self._reports, left_s):
                return None
            self._hear()
        return self._end

    def _hear(self) -> None:
        """Take in what the supervisor says; its silence means that it was killed."""
        with self._mutex:
            if self._end is not None:
                return
            part = os.read(self._reports, 4096) if _is_readable(self._reports, 0.0) else None
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
        """The supervisor was killed: the kernel ends the command itself then, and this the rest of its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return ChildEnd("unsupervised", signal=signal.SIGKILL)

    def _hear_start(self) -> int:
        heard = b""
        while not heard.endswith(b"\n"):
            part = os.read(self._reports, 4096)
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
        """Give back the descriptors, once."""
        with self._mutex:
            if self._is_closed:
                return
            self._is_closed = True
        os.close(self._orders)
        os.close(self._reports)
        self._shim.wait()


class Leash:
    """Lets children run as long as an ownership surely lasts, and no longer. Safe to share between threads.

    One thread moves the moments of all its children on. When it cannot, because this process is frozen or killed, the
    children end at the moment that they had.

    Args:
        remaining_s: for how long the ownership surely lasts, in seconds: ``session.remaining_s``. Does no I/O.
        margin_s: children end so long before that: the time that it may take to end one.
        every_s: how often moments are moved on.
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
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def until(self) -> float:
        """The moment until which a child may run as things are; on the boot clock."""
        return SYSTEM_CLOCK.now() + self._remaining_s() - self._margin_s

    def add(self, child: Child, deadline: float = math.inf) -> None:
        """Hold a child from now on; it may not run beyond its own deadline either."""
        with self._mutex:
            if self._closed.is_set():
                raise Closed("this leash was closed; make another one")
            self._held[child] = deadline
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="latchwork-leash", daemon=True)
                self._thread.start()
        child.allow(min(self.until, deadline))

    def remove(self, child: Child, *, deadline: float = math.inf) -> None:
        """Hold it no longer: it may run until that moment, as if there were no ownership."""
        with self._mutex:
            there = self._held.pop(child, None)
        if there is not None:
            child.allow(deadline)

    def close(self) -> None:
        """Move nothing on any more: what is still held ends at its moment. Twice is fine."""
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
                with self._mutex:  # one that was let go meanwhile has another moment
                    if child in self._held:
                        child.allow(min(until, deadline))


class _Streams:
    """The streams of one child: descriptors for it, and the parent's ends of pipes."""

    def __init__(self, stdin: Stream, stdout: Stream, stderr: Stream) -> None:
        self.theirs: list[int] = []
        self.ours: list[IO[bytes] | None] = [None, None, None]
        try:
            for number, stream in enumerate((stdin, stdout, stderr)):
                self.theirs.append(self._opened(number, stream))
        except BaseException:
            self.close()
            self.close_theirs()
            raise

    def _opened(self, number: int, stream: Stream) -> int:
        if stream is None:
            return _dup_or_null(number)
        if isinstance(stream, (str, Path)):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            return os.open(stream, flags | os.O_CLOEXEC, 0o600)
        if stream == STDOUT and number == 2:  # noqa: PLR2004 - stderr
            return os.dup(self.theirs[1])
        if stream == DEVNULL:
            return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if stream == PIPE:
            reading, writing = os.pipe()
            theirs, mine = (reading, writing) if number == 0 else (writing, reading)
            self.ours[number] = os.fdopen(mine, "wb" if number == 0 else "rb", buffering=0)
            return theirs
        if type(stream) is not int or stream < 0:
            raise ValueError(f"a stream must be a path, a descriptor, PIPE or DEVNULL, not {stream!r}")
        return os.dup(stream)

    def close_theirs(self) -> None:
        while self.theirs:
            os.close(self.theirs.pop())

    def close(self) -> None:
        for stream in self.ours:
            if stream is not None:
                stream.close()


def _dup_or_null(number: int) -> int:
    try:
        return os.dup(number)
    except OSError:  # this process has closed it
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
