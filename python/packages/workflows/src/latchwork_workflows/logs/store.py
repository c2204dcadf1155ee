"""The interface of log stores.

A log is written by one worker under one claim, and read by offset while it grows. It contains the bytes written by the
task, except secrets. Display code must sanitize it with ``clean_text``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

from latchwork.errors import LatchworkError
from latchwork.spi import printable
from latchwork_workflows.errors import NotFound

#: The default maximum size of a part.
PART_BYTES = 65_536
_REF = re.compile(r"\d{1,19}/\d{1,19}/\d{1,19}/\d{1,9}\.\d{1,19}\.(?:log|rows)", re.ASCII)
_FILE = re.compile(r"[a-z]{1,20}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


class LogMissing(NotFound):
    """The log does not exist: its attempt has written nothing yet, or retention has deleted it."""


class LogStoreMismatch(LatchworkError):
    """A log store that belongs to another installation, or to none yet."""


class LogPart(NamedTuple):
    """A part of a log.

    Attributes:
        data: The bytes. Empty if there are no more for now.
        next: The offset of the next part.
        ended: Whether nothing follows ``next``. Never set for the log of a worker that died. Its attempt is then lost.
    """

    data: bytes
    next: int
    ended: bool


class LogFile(ABC):
    """A log that is being written. Not thread-safe."""

    @abstractmethod
    def append(self, data: bytes) -> int:
        """Append bytes to the log, and return how many were written. Readers can see them at once.

        Raises:
            OSError: No bytes were written.
        """

    @abstractmethod
    def end(self) -> None:
        """Mark the log as ended. Raises OSError."""

    @abstractmethod
    def close(self) -> None:
        """Close the file. Idempotent."""


class LogStore(ABC):
    """Logs by reference, and other files. Thread-safe.

    Attributes:
        url: The URL, without passwords.
        every_s: The maximum number of seconds that a writer buffers.
        chunk_bytes: The maximum number of bytes that a writer buffers.
    """

    url: str
    every_s: float = 0.5
    chunk_bytes: int = 65_536

    @abstractmethod
    def create(self, ref: str) -> LogFile:
        """Open a new log for writing. Raises OSError."""

    @abstractmethod
    def read(self, ref: str, offset: int = 0, limit: int = PART_BYTES) -> LogPart:
        """Return a part of a log, of at most ``limit`` bytes. Empty at the current end of the log.

        Raises:
            LogMissing: There is no such log.
            OSError: The log cannot be read now.
        """

    @abstractmethod
    def size(self, ref: str) -> int:
        """Return the current size of a log in bytes. Raises like ``read``."""

    @abstractmethod
    def remove(self, code: int, run_id: int) -> None:
        """Delete all logs of a run, if any. Raises OSError."""

    @abstractmethod
    def put_file(self, name: str, data: bytes) -> None:
        """Store a file, such as ``bundles/<sha256>``. Atomically replaces a file of this name. Raises OSError."""

    @abstractmethod
    def get_file(self, name: str) -> bytes | None:
        """Return the contents of a file, or None. Raises OSError."""

    @abstractmethod
    def remove_file(self, name: str) -> None:
        """Delete a file, if it exists. Raises OSError."""

    def tail(self, ref: str, limit: int = PART_BYTES) -> LogPart:
        """Return the last bytes of a log.

        Args:
            ref: The reference of the log.
            limit: Maximum number of bytes.
        Raises:
            LogMissing: The log does not exist.
        """
        return self.read(ref, max(0, self.size(ref) - limit), limit)

    def follow(self, ref: str, wait: Callable[[float], object], offset: int = 0) -> Iterator[LogPart]:
        """Yield the parts of a log until it is complete. Yields an empty part whenever there is nothing new.

        Args:
            ref: The reference of the log, which need not exist yet.
            wait: Called with the seconds to wait after an empty part. The iteration ends if it returns True.
            offset: The first offset.
        """
        while True:
            try:
                part = self.read(ref, offset)
            except LogMissing:
                part = LogPart(b"", offset, ended=False)
            yield part
            offset = part.next
            if part.ended or (not part.data and wait(self.every_s)):
                return

    def set_owner(self, owner: str) -> None:
        """Record the installation to which these logs belong.

        Args:
            owner: The ID of the installation, which its database and its store also contain.
        Raises:
            LogStoreMismatch: The logs belong to another installation.
            OSError: The log store cannot be written.
        """
        if self._owner() is None:
            self.put_file("about/owner", owner.encode())
        self.check_owner(owner)

    def check_owner(self, owner: str) -> None:
        """Check that these logs belong to this installation. A wrong URL or a folder of another host fails this check.

        Args:
            owner: The ID of the installation.
        Raises:
            LogStoreMismatch: The logs belong to another installation, or to none.
        """
        found = self._owner()
        if found is None:
            raise LogStoreMismatch(
                f"log store {self.url} belongs to no workflows; give the URL that the masters have, which were "
                "started with --logs. A folder of another host does not work: mount it, or use an object store"
            )
        if found != owner:
            raise LogStoreMismatch(f"log store {self.url} belongs to workflows {printable(found)}, not to {owner}")

    def _owner(self) -> str | None:
        found = self.get_file("about/owner")
        return None if found is None else found.decode("ascii", "replace").strip()

    def check_writable(self) -> None:
        """Check that the log store can be written. Raises OSError."""
        self.put_file("about/probe", b"x" * 4096)


def check_log_ref(ref: str) -> str:
    """Return the reference of a log if it is well-formed.

    Raises:
        LogMissing: It is not, for example because it is an arbitrary path.
    """
    if _REF.fullmatch(ref) is None:
        raise LogMissing(f"{printable(ref[:100])!r} is not a log reference")
    return ref


def check_file_name(name: str) -> str:
    """Return the name of a stored file if it is well-formed.

    Raises:
        ValueError: It is not.
    """
    if _FILE.fullmatch(name) is None:
        raise ValueError(f"{printable(name[:100])!r} is not a file name of a log store")
    return name


def clean_text(data: bytes) -> str:
    """Convert a part of a log to text that is safe to display. Line breaks are kept and control characters are
    escaped.
    """
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))
