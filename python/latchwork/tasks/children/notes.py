"""Notes of commands that run: who starts the next ends what is left where a supervisor was killed. Linux only.

    <temporary folder>/latchwork-<user>/children-<boot>-<process namespace>/<mark>

A note is an empty file, locked by the supervisor as long as that lives, and removed by it once nothing is left of its
command. So a note without a lock is that of a supervisor that was killed, and what has its mark is nobody's: neither
the number of a process nor an environment alone says so, for numbers come back, and a batch system or ``at`` hands the
environment on to what is none of ours.

A folder that is not ours alone is not used, for who can write there could name what is to be ended. Nothing here
touches the network.
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

from latchwork.disks import secure_folder

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")
_A_MARK = re.compile(r"[0-9a-f]{32}\Z")
#: The variable that has the mark.
MARK = "LATCHWORK_CHILD"
_PROC = Path("/proc")
_AGAIN_S = 0.02


class Note:
    """That a command with this mark runs. No note where there can be none: then it is as if this were not there.

    Attributes:
        path: where it is; None for none.
        fd: the descriptor that has its lock, for the supervisor; -1 for none.
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

        new = path.with_suffix(".new")  # no note yet: nobody may find it before it is locked
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
        """What the supervisor is told of it."""
        return b"" if self.path is None else str(self.fd).encode() + b" " + os.fsencode(self.path)

    def close(self) -> None:
        """Leave the lock to the supervisor alone."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Nothing is left of the command, or none was started."""
        self.close()
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()


def end_left() -> int:
    """End what is left of commands of this user whose supervisors were killed; how many processes.

    Returns once they are gone, as far as they can be ended.
    """
    folder, count = notes_folder(), 0
    for path in () if folder is None else _unlocked(folder):
        count += end_marked(path.name)
        with suppress(OSError):  # not before: who comes after us, if we are killed in this, finds it
            path.unlink()
    return count


def _unlocked(folder: Path) -> list[Path]:
    """The notes of supervisors that were killed."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if _A_MARK.match(path.name) and not _is_locked(path)]
    return []


def _is_locked(path: Path) -> bool:
    """Whether its supervisor lives. Two may ask at once: their locks are in nobody's way."""
    import fcntl

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it has ended this moment
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def notes_folder() -> Path | None:
    """The folder of this user's notes, made if need be; None where there is none that is ours alone."""
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
    """Whose processes we see: of this start of this machine, or of a container in it; empty where nothing says so."""
    try:
        return f"children-{_BOOT.read_text().strip()[:13]}-{_PIDS.stat().st_ino}"
    except OSError:
        return ""


def end_marked(mark: str, within_s: float = 5.0) -> int:
    """End all processes with this mark by force, also those that they start meanwhile; how many.

    Returns when none is left, and at the latest after ``within_s``: one may be in the kernel, on a dead disk.
    """
    entry = f"{MARK}={mark}".encode()
    until = time.monotonic() + within_s
    ended: set[int] = set()
    while found := set(_stopped(entry)):
        while more := set(_stopped(entry)) - found:  # what is stopped forks no more
            found |= more
        for pid in found:
            _send(pid, entry, signal.SIGKILL)
        ended |= found
        if time.monotonic() >= until:
            break
        time.sleep(_AGAIN_S)
    return len(ended)


def _stopped(entry: bytes) -> Iterator[int]:
    """The processes with this entry that live, each stopped."""
    names = [each.name for each in _PROC.iterdir()] if _PROC.is_dir() else []
    for pid in map(int, filter(str.isdecimal, names)):
        if pid != os.getpid() and _send(pid, entry, signal.SIGSTOP):
            yield pid


def _send(pid: int, entry: bytes, number: signal.Signals) -> bool:
    """Send a signal to a process if it has the entry; whether it has, and lives."""
    if entry not in _environment(pid):
        return False
    with suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
        try:
            if entry in _environment(pid):  # it is that one still: now it cannot become another
                signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False


def _environment(pid: int) -> list[bytes]:
    """What it was started with; nothing of one that has ended, or is not ours to look at."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
