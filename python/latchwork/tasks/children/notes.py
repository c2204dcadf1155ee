"""Notes of running commands, by which the next start of a command finds processes of killed supervisors. Linux only.

    <temporary folder>/latchwork-<user>/children-<boot>-<process namespace>/<mark>

A note is an empty file. The supervisor locks it while it is running, and removes it once nothing is left of its
command. So a note without a lock belongs to a supervisor that was killed, and processes with its mark may be ended.
Neither a process ID nor an environment is proof without the note: IDs are reused, and a batch system or ``at`` copies
the environment to processes that are not ours.

A folder that other users can write to is not used: they could name processes to be ended. Nothing here touches the
network.
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


class Note:
    """The note of one running command. If no note can be written, all methods do nothing.

    Attributes:
        path: its path; None for none.
        fd: the descriptor that holds its lock, for the supervisor; -1 for none.
    """

    def __init__(self, mark: str) -> None:
        self.path: Path | None = None
        self.fd = -1
        folder = notes_folder()
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
    def order(self) -> bytes:
        """The descriptor and the path, as the supervisor gets them."""
        return b"" if self.path is None else str(self.fd).encode() + b" " + os.fsencode(self.path)

    def close(self) -> None:
        """Close our descriptor, so that only the supervisor holds the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Remove the note: nothing is left of the command, or none was started."""
        self.close()
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()


def end_left() -> int:
    """End processes of this user whose supervisors were killed. Return how many.

    Returns once they are gone, as far as they can be ended.
    """
    folder, count = notes_folder(), 0
    for path in () if folder is None else _unlocked(folder):
        count += end_marked(path.name)
        with suppress(OSError):  # last: if we are killed before, the next process finds it
            path.unlink()
    return count


def _unlocked(folder: Path) -> list[Path]:
    """Return the notes of supervisors that were killed."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if _A_MARK.match(path.name) and not _is_locked(path)]
    return []


def _is_locked(path: Path) -> bool:
    """Return whether its supervisor is running. Shared locks, so concurrent checks do not disturb each other."""
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


def notes_folder() -> Path | None:
    """Return the folder of this user's notes, created if needed; None if other users can write to it."""
    name = _place()
    if not name:
        return None
    top = Path(tempfile.gettempdir()) / f"latchwork-{os.geteuid()}"
    try:
        return secure_folder(secure_folder(top, 0o711) / name)
    except OSError:
        return None


@cache
def _place() -> str:
    """Return a folder name for this boot and process namespace; empty if the system does not report them."""
    try:
        return f"children-{_BOOT.read_text().strip()[:13]}-{_PIDS.stat().st_ino}"
    except OSError:
        return ""


def end_marked(mark: str, within_s: float = 5.0) -> int:
    """Kill all processes with this mark, including processes started meanwhile. Return how many.

    Returns when none is left, or after ``within_s``: a process can hang in the kernel, for example on a dead disk.
    """
    entry = f"{MARK}={mark}".encode()
    until = time.monotonic() + within_s
    ended: set[int] = set()
    while found := set(_stopped(entry)):
        while more := set(_stopped(entry)) - found:  # a stopped process cannot fork
            found |= more
        for pid in found:
            _send(pid, entry, signal.SIGKILL)
        ended |= found
        if time.monotonic() >= until:
            break
        time.sleep(_AGAIN_S)
    return len(ended)


def _stopped(entry: bytes) -> Iterator[int]:
    """Stop all running processes with this entry, and yield their IDs."""
    names = [each.name for each in _PROC.iterdir()] if _PROC.is_dir() else []
    for pid in map(int, filter(str.isdecimal, names)):
        if pid != os.getpid() and _send(pid, entry, signal.SIGSTOP):
            yield pid


def _send(pid: int, entry: bytes, number: signal.Signals) -> bool:
    """Send a signal to a process if its environment has the entry. Return whether it was sent."""
    if entry not in _environment(pid):
        return False
    with suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
        try:
            if entry in _environment(pid):  # still the same process: the descriptor pins it
                signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False


def _environment(pid: int) -> list[bytes]:
    """Return the environment that a process was started with; empty if it has ended or cannot be read."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
