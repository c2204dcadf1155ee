"""Lock files of running commands. They let the next start of a command find processes whose supervisor was killed.

    <temporary folder>/latchwork-<user>/children-<boot>-<process namespace>/<mark>

The file is empty. The supervisor locks it while it is running, and removes it once nothing is left of its command. So a
file without a lock belongs to a supervisor that was killed, and processes with its mark in their environment may be
killed. Neither a process ID nor an environment variable is proof without the file: IDs are reused, and a batch system
or ``at`` copies the environment to processes that are not ours.

A folder that other users can write to is not used, because they could name processes to be killed.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from latchwork._base.files import secure_folder

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")
_A_MARK = re.compile(r"[0-9a-f]{32}\Z")
#: The environment variable that holds the mark.
MARK = "LATCHWORK_CHILD"
_PROC = Path("/proc")
_AGAIN_S = 0.02
#: Seconds for which processes are killed again: one can hang in the kernel, for example on a dead disk.
_KILL_S = 5.0


class LockFile:
    """The lock file of one running command. If no file can be written, all methods do nothing.

    Attributes:
        path: Path of the file; None if there is none.
        fd: Descriptor that holds the lock, for the supervisor; -1 if there is none.
    """

    def __init__(self, mark: str) -> None:
        self.path: Path | None = None
        self.fd = -1
        folder = lock_folder()
        if folder is not None:
            with suppress(OSError):
                self._write(folder / mark)

    def _write(self, path: Path) -> None:
        import fcntl  # not on every system

        new = path.with_suffix(".new")  # not a valid name of a note: must not be found before it is locked
        self.fd = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(path)
        except OSError:
            self.close()
            new.unlink()
            raise
        self.path = path

    @property
    def message_field(self) -> bytes:
        """The descriptor and the path of the file, encoded for the supervisor. Empty without a file."""
        return b"" if self.path is None else str(self.fd).encode() + b" " + os.fsencode(self.path)

    def close(self) -> None:
        """Close the descriptor of this process, so that only the supervisor holds the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Delete the file, because no process of the command is left."""
        self.close()
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()


def kill_orphans() -> int:
    """Kill this user's processes whose supervisors were killed, and wait until they have ended.

    Returns:
        The number of killed processes. Processes that hang in the kernel may still exist.
    """
    folder, count = lock_folder(), 0
    for path in () if folder is None else _find_unlocked(folder):
        count += kill_marked(path.name)
        with suppress(OSError):  # last: if we are killed before, the next process finds it
            path.unlink()
    return count


def _find_unlocked(folder: Path) -> list[Path]:
    """Return the lock files in a folder whose supervisors were killed."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if _A_MARK.match(path.name) and not _is_locked(path)]
    return []


def _is_locked(path: Path) -> bool:
    """Return whether the supervisor that owns a lock file is still running.

    The check takes a shared lock for a moment, so that several checks can run at once.

    Args:
        path: Path of the lock file.
    """
    import fcntl

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it has just ended
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def lock_folder() -> Path | None:
    """Return the folder of this user's lock files, and create it if needed. Return None if other users can write
    to it.
    """
    name = _boot_folder_name()
    if not name:
        return None
    top = Path(tempfile.gettempdir()) / f"latchwork-{os.geteuid()}"
    try:
        return secure_folder(secure_folder(top, 0o711) / name)
    except OSError:
        return None


@cache
def _boot_folder_name() -> str:
    """Return a folder name that is unique to this boot of the machine and this process namespace. Return "" if they are
    unknown.
    """
    try:
        return f"children-{_BOOT.read_text().strip()[:13]}-{_PIDS.stat().st_ino}"
    except OSError:
        return ""


def kill_marked(mark: str) -> int:
    """Kill all processes whose environment contains a mark. Processes that they start in the meantime are killed, too.

    Args:
        mark: Value of the environment variable ``LATCHWORK_CHILD``.
    Returns:
        The number of killed processes.
    """
    entry = f"{MARK}={mark}".encode()
    until = time.monotonic() + _KILL_S
    ended: set[int] = set()
    while found := set(_stop_marked(entry)):
        while more := set(_stop_marked(entry)) - found:  # a stopped process cannot fork
            found |= more
        for pid in found:
            _send(pid, entry, signal.SIGKILL)
        ended |= found
        if time.monotonic() >= until:
            break
        time.sleep(_AGAIN_S)
    return len(ended)


def _stop_marked(entry: bytes) -> Iterator[int]:
    """Suspend all processes whose environment contains an entry with SIGSTOP, and yield their IDs."""
    names = [each.name for each in _PROC.iterdir()] if _PROC.is_dir() else []
    for pid in map(int, filter(str.isdecimal, names)):
        if pid != os.getpid() and _send(pid, entry, signal.SIGSTOP):
            yield pid


def _send(pid: int, entry: bytes, number: signal.Signals) -> bool:
    """Send a signal to a process if its environment contains an entry. Return whether the signal was sent."""
    if entry not in _read_environment(pid):
        return False
    with suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
        try:
            if entry in _read_environment(pid):  # still the same process: the descriptor pins it
                signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False


def _read_environment(pid: int) -> list[bytes]:
    """Return the environment with which a process was started. Return an empty list if the process has ended or cannot
    be read.
    """
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
