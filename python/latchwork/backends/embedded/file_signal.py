"""A signal between processes that is set by each commit to a database file.

After a commit the writer sets the modification time of the file (``signal_commit``). The kernel reports that to every
inotify instance that watches the file. So nothing must be registered or cleaned up: an instance ends with its process.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

from latchwork._base.interrupts import mutex

_IN_ATTRIB = 0x4  # the times of the file were set, or it was deleted
_EVENTS_BYTES = 4096


def signal_commit(path: Path) -> None:
    """Wake the waiting threads of all processes that have this database file open. Needs write permission for the
    file.
    """
    with suppress(OSError):  # moved away or read-only by now: others find the commit with their next poll
        os.utime(path)


class FileSignal:
    """A signal for one waiting thread. It is set by ``set`` and by commits of any process to the file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Watch the file with inotify.

        Raises:
            OSError: The system has no inotify, or the account has used up its inotify instances.
        """
        import ctypes  # slow to import

        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            raise OSError("this system has no inotify")
        self._lock = mutex()
        self._closed = False
        self._own = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._commits = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._commits < 0 or libc.inotify_add_watch(self._commits, os.fsencode(path), _IN_ATTRIB) < 0:
            error = ctypes.get_errno()
            self.close()
            raise OSError(error, os.strerror(error), str(path))
        self._polls = {False: select.poll(), True: select.poll()}
        for poll in self._polls.values():
            poll.register(self._own, select.POLLIN)
        self._polls[True].register(self._commits, select.POLLIN)

    def set(self) -> None:
        """Set the signal in this process. Idempotent."""
        with self._lock:  # a closed descriptor may belong to another file by now
            if not self._closed:
                os.eventfd_write(self._own, 1)

    def clear(self) -> None:
        """Reset the signal, so that later waits block again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._own)
        with suppress(BlockingIOError):
            os.read(self._commits, _EVENTS_BYTES)

    def wait(self, timeout_s: float, *, for_commits: bool) -> bool:
        """Wait until the signal is set. Return False after the timeout.

        Args:
            timeout_s: Seconds to wait.
            for_commits: Whether a commit of any process ends the wait, too. Otherwise only ``set`` does.
        """
        return bool(self._polls[for_commits].poll(timeout_s * 1000))

    def close(self) -> None:
        """Close the file descriptors. No thread may be waiting. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._own)
            if self._commits >= 0:
                os.close(self._commits)
