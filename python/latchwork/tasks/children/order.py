"""The order that a supervisor gets, its start, and the streams of its child."""

from __future__ import annotations

import math
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from latchwork._base.validation import is_number
from latchwork.errors import LatchworkError
from latchwork.tasks.children.notes import MARK, Note

SHIM = Path(__file__).with_name("shim.py")
#: The variables of this process that a supervisor gets: variables for the interpreter, and the mark of the command
#: that this process belongs to. Commands can read the environment of their supervisor, so it gets no others.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", MARK)
#: Number of digits of the length that precedes an order.
_DIGITS = 10
DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
#: A file's path, a descriptor, PIPE, DEVNULL; None is the parent's own.
Stream = int | str | Path | None


def order_of(  # noqa: PLR0917 - the parts of one record, in its order
    argv: Sequence[bytes],
    env: Mapping[str, str] | None,
    folder: str | Path | None,
    until: float,
    grace_s: float,
    user: str | None,
    keep: Sequence[int],
) -> list[bytes]:
    """Build the parts of an order, without the descriptors of the streams and the note.

    Raises:
        ValueError: an argument is invalid.
    """
    if not argv or not argv[0]:
        raise ValueError("a command needs a program: give argv with at least one part")
    if not is_number(grace_s, 0.0):
        raise ValueError(f"grace_s must be a number of seconds from 0, not {grace_s!r}")
    variables = os.environ if env is None else env
    pairs = [os.fsencode(f"{name}={value}") for name, value in variables.items()]
    parts = [
        str(os.getpid()).encode(),
        moment_text(until).encode(),
        repr(float(grace_s)).encode(),
        _folder_of(folder),
        _ids_of(user).encode(),
        b"",
        b"",
        f"{len(argv)} {len(pairs)}".encode(),
        *argv,
        *pairs,
        *(str(fd).encode() for fd in keep),
    ]
    for part in parts:
        if b"\0" in part:
            raise ValueError(f"no part of a command may hold a zero byte, as {part[:60]!r} does")
    if any("=" in name or not name for name in variables):
        raise ValueError("the name of an environment variable must be text without '='")
    return parts


def moment_text(until: float) -> str:
    """Format a time for the supervisor.

    Raises:
        ValueError: it is not a number.
    """
    given: object = until
    if isinstance(given, bool) or not isinstance(given, (int, float)) or math.isnan(given):
        raise ValueError(f"until must be a time on the boot clock, in seconds, not {until!r}")
    return repr(max(0.0, float(until)))


class Shim:
    """A handle on the supervisor process, before and after its start.

    The supervisor and its command end once ``orders`` is closed.

    Attributes:
        process: the process; None before the start.
        orders: descriptor to write orders to; -1 if closed.
        reports: descriptor to read reports from; -1 if closed.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.orders = self.reports = -1

    @property
    def pid(self) -> int:
        """The process ID; 0 before the start."""
        return 0 if self.process is None else self.process.pid

    def kill(self) -> None:
        """Kill the supervisor; the kernel then kills its command."""
        if self.process is not None:
            self.process.kill()

    def start(self, order: list[bytes], streams: Sequence[int], keep: Sequence[int], label: str, note: Note) -> None:
        """Start the supervisor, and send it its order, with the note of its command."""
        order[5] = " ".join(map(str, streams)).encode()
        order[6] = note.order
        passed = [*streams, *keep, *([note.fd] if note.path is not None else [])]
        body = b"\0".join(order)
        theirs_in, self.orders = os.pipe()
        self.reports, theirs_out = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - runs the command of the caller
                [sys.executable, "-I", "-S", str(SHIM), label or "latchwork"],
                stdin=theirs_in,
                stdout=theirs_out,
                env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                pass_fds=passed,
                start_new_session=True,
                cwd="/",
            )
            _write_all(self.orders, f"{len(body):0{_DIGITS}d}".encode() + body)
            os.set_blocking(self.orders, False)
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
            note.close()

    def close_pipes(self) -> None:
        """Close the pipes, once. Call it from one thread at a time."""
        orders, self.orders = self.orders, -1  # first: a descriptor closed twice may be reused by then
        if orders >= 0:
            os.close(orders)
        reports, self.reports = self.reports, -1
        if reports >= 0:
            os.close(reports)

    def wait(self) -> None:
        """Wait until the supervisor has ended."""
        if self.process is not None:
            self.process.wait()


def _write_all(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:  # it has ended; the reader of its reports notices
        pass


def is_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait until there is data to read. Return False after ``timeout_s``."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0, math.ceil(timeout_s * 1000))))


def _folder_of(folder: str | Path | None) -> bytes:
    """Return the folder as an absolute path: the supervisor runs in ``/``, so that it keeps no folder in use."""
    try:
        return os.fsencode(Path(folder or "").absolute())
    except FileNotFoundError:  # the parent's own folder was removed
        return b""


def _ids_of(user: str | None) -> str:
    """Return the user ID, the group ID and all supplementary groups of a user, as text."""
    if user is None:
        return ""
    import pwd  # not on every system

    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise LatchworkError(f"there is no user {user!r} on this machine") from None
    return " ".join(map(str, (found.pw_uid, found.pw_gid, *os.getgrouplist(user, found.pw_gid))))


class Streams:
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
        if stream == STDOUT and number == 2:
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
        """Close our copies of the descriptors that the child has inherited."""
        while self.theirs:
            os.close(self.theirs.pop())

    def close(self) -> None:
        """Close the parent's ends."""
        for stream in self.ours:
            if stream is not None:
                stream.close()


def _dup_or_null(number: int) -> int:
    try:
        return os.dup(number)
    except OSError:  # this process has closed it
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
