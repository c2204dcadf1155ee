"""The parent's side of a supervisor: the message that describes a command, the supervisor process, and its streams."""

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
from latchwork.tasks.children.lock_files import MARK, LockFile

SUPERVISOR_PROGRAM = Path(__file__).with_name("supervisor.py")
#: The variables of this process that a supervisor gets: variables for the interpreter, and the mark of the command
#: that this process belongs to. Commands can read the environment of their supervisor, so it gets no others.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", MARK)
#: Number of digits of the length that precedes a message.
_DIGITS = 10
DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
#: A file's path, a descriptor, PIPE, DEVNULL; None is the parent's own.
Stream = int | str | Path | None


def build_command_message(  # noqa: PLR0917 - the parts of one record, in its order
    argv: Sequence[bytes],
    env: Mapping[str, str] | None,
    folder: str | Path | None,
    until: float,
    grace_s: float,
    user: str | None,
    keep: Sequence[int],
) -> list[bytes]:
    """Build the message that describes a command to its supervisor, as a list of fields.

    The fields for the descriptors of the streams and for the lock file are empty; ``SupervisorHandle.start`` fills
    them.

    Args:
        argv: The program and its arguments.
        env: The complete environment; None uses that of this process.
        folder: The working directory; None uses that of this process.
        until: Time on the boot clock at which the command is killed.
        grace_s: Seconds between SIGTERM and the kill; 0 sends no SIGTERM.
        user: Name of the user to run as; None keeps the user.
        keep: Descriptors that the command inherits.
    Raises:
        ValueError: An argument is invalid.
    """
    if not argv or not argv[0]:
        raise ValueError("a command needs a program: give argv with at least one part")
    if not is_number(grace_s, 0.0):
        raise ValueError(f"grace_s must be a number of seconds from 0, not {grace_s!r}")
    variables = os.environ if env is None else env
    pairs = [os.fsencode(f"{name}={value}") for name, value in variables.items()]
    parts = [
        str(os.getpid()).encode(),
        format_deadline(until).encode(),
        repr(float(grace_s)).encode(),
        _absolute_folder(folder),
        _format_user_ids(user).encode(),
        b"",
        b"",
        f"{len(argv)} {len(pairs)}".encode(),
        *argv,
        *pairs,
        *(str(fd).encode() for fd in keep),
    ]
    for part in parts:
        if b"\0" in part:
            raise ValueError(f"no part of a command may contain a zero byte, as {part[:60]!r} does")
    if any("=" in name or not name for name in variables):
        raise ValueError("the name of an environment variable must be text without '='")
    return parts


def format_deadline(until: float) -> str:
    """Format a deadline for the supervisor.

    Args:
        until: Time on the boot clock in seconds.
    Raises:
        ValueError: It is not a number.
    """
    given: object = until
    if isinstance(given, bool) or not isinstance(given, (int, float)) or math.isnan(given):
        raise ValueError(f"until must be a time on the boot clock, in seconds, not {until!r}")
    return repr(max(0.0, float(until)))


class SupervisorHandle:
    """A handle to the supervisor process of one command, before and after its start.

    The supervisor and its command end when ``commands`` is closed.

    Attributes:
        process: The process; None before the start.
        commands: Descriptor to write commands for the supervisor to; -1 if closed.
        reports: Descriptor to read its reports from; -1 if closed.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.commands = self.reports = -1

    @property
    def pid(self) -> int:
        """The process ID of the supervisor; 0 before the start."""
        return 0 if self.process is None else self.process.pid

    def kill(self) -> None:
        """Kill the supervisor. The kernel then kills its command."""
        if self.process is not None:
            self.process.kill()

    def start(
        self, message: list[bytes], streams: Sequence[int], keep: Sequence[int], label: str, lock_file: LockFile
    ) -> None:
        """Start the supervisor process, and send it the description of its command.

        Args:
            message: The description, from ``build_command_message``.
            streams: Descriptors of the standard streams of the command.
            keep: Other descriptors that the command inherits.
            label: Name of the supervisor in process lists.
            lock_file: Lock file that the supervisor holds while it is running.
        """
        message[5] = " ".join(map(str, streams)).encode()
        message[6] = lock_file.message_field
        passed = [*streams, *keep, *([lock_file.fd] if lock_file.path is not None else [])]
        body = b"\0".join(message)
        theirs_in, self.commands = os.pipe()
        self.reports, theirs_out = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - runs the command of the caller
                [sys.executable, "-I", "-S", str(SUPERVISOR_PROGRAM), label or "latchwork"],
                stdin=theirs_in,
                stdout=theirs_out,
                env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                pass_fds=passed,
                start_new_session=True,
                cwd="/",
            )
            _write_all(self.commands, f"{len(body):0{_DIGITS}d}".encode() + body)
            os.set_blocking(self.commands, False)
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
            lock_file.close()

    def close_pipes(self) -> None:
        """Close the pipes to the supervisor. Idempotent. Call it from one thread at a time."""
        commands, self.commands = self.commands, -1  # first: a descriptor closed twice may be reused by then
        if commands >= 0:
            os.close(commands)
        reports, self.reports = self.reports, -1
        if reports >= 0:
            os.close(reports)

    def wait(self) -> None:
        """Wait until the supervisor process has ended."""
        if self.process is not None:
            self.process.wait()


def _write_all(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:  # it has ended; the reader of its reports notices
        pass


def is_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait until data can be read from a descriptor.

    Args:
        fd: The descriptor.
        timeout_s: Seconds to wait; None waits forever.
    Returns:
        Whether data can be read; False after the timeout.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0, math.ceil(timeout_s * 1000))))


def _absolute_folder(folder: str | Path | None) -> bytes:
    """Return a folder as an absolute path. The supervisor runs in ``/``, so that it does not keep another file system
    in use.
    """
    try:
        return os.fsencode(Path(folder or "").absolute())
    except FileNotFoundError:  # the parent's own folder was removed
        return b""


def _format_user_ids(user: str | None) -> str:
    """Return the user ID, the group ID and all supplementary group IDs of a user, as text."""
    if user is None:
        return ""
    import pwd  # not on every system

    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise LatchworkError(f"there is no user {user!r} on this machine") from None
    return " ".join(map(str, (found.pw_uid, found.pw_gid, *os.getgrouplist(user, found.pw_gid))))


class Streams:
    """The standard streams of one child: the descriptors that the child inherits, and this process's ends of pipes."""

    def __init__(self, stdin: Stream, stdout: Stream, stderr: Stream) -> None:
        self.child_fds: list[int] = []
        self.parent_files: list[IO[bytes] | None] = [None, None, None]
        try:
            for number, stream in enumerate((stdin, stdout, stderr)):
                self.child_fds.append(self._open_stream(number, stream))
        except BaseException:
            self.close()
            self.close_child_fds()
            raise

    def _open_stream(self, number: int, stream: Stream) -> int:
        if stream is None:
            return _dup_or_null(number)
        if isinstance(stream, (str, Path)):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            return os.open(stream, flags | os.O_CLOEXEC, 0o600)
        if stream == STDOUT and number == 2:
            return os.dup(self.child_fds[1])
        if stream == DEVNULL:
            return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if stream == PIPE:
            reading, writing = os.pipe()
            child_fds, mine = (reading, writing) if number == 0 else (writing, reading)
            self.parent_files[number] = os.fdopen(mine, "wb" if number == 0 else "rb", buffering=0)
            return child_fds
        if type(stream) is not int or stream < 0:
            raise ValueError(f"a stream must be a path, a descriptor, PIPE or DEVNULL, not {stream!r}")
        return os.dup(stream)

    def close_child_fds(self) -> None:
        """Close this process's copies of the descriptors that the child has inherited."""
        while self.child_fds:
            os.close(self.child_fds.pop())

    def close(self) -> None:
        """Close this process's ends of the pipes to the child."""
        for stream in self.parent_files:
            if stream is not None:
                stream.close()


def _dup_or_null(number: int) -> int:
    try:
        return os.dup(number)
    except OSError:  # this process has closed it
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
