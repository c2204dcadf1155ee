"""Where logs are: what a log store does, whatever it is made of.

A log is written by one worker under one claim, from its start to its end, and read by offset while it grows. It is
bytes as the task wrote them, but for secrets: whoever shows them makes them harmless (``clean_text``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

from latchwork.errors import LatchworkError
from latchwork.spi import printable

#: What a reader gets at once, unless it asks for less.
PART_BYTES = 65_536
_REF = re.compile(r"\d{1,19}/\d{1,19}/\d{1,19}/\d{1,9}\.\d{1,19}\.(?:log|rows)", re.ASCII)
_FILE = re.compile(r"[a-z]{1,20}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


class LogMissing(LatchworkError, LookupError):
    """There is no such log, or none yet: its attempt has written nothing, or retention has removed it."""


class LogStoreMismatch(LatchworkError):
    """A log store that belongs to other workflows, or to none yet."""


class LogPart(NamedTuple):
    """A part of a log.

    Attributes:
        data: its bytes; empty when there is nothing more for now.
        next: where to go on.
        ended: nothing will come after ``next``. The log of a worker that died never says so: its attempt does.
    """

    data: bytes
    next: int
    ended: bool


class LogFile(ABC):
    """A log that is being written. One thread only."""

    @abstractmethod
    def append(self, data: bytes) -> int:
        """Add bytes that readers see from now on; how many were taken, all but in trouble.

        Raises:
            OSError: none was taken.
        """

    @abstractmethod
    def end(self) -> None:
        """Tell readers that nothing more comes. Raises OSError."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it. Twice is fine."""


class LogStore(ABC):
    """Logs by their references, and some files besides. Safe to share between threads.

    Attributes:
        url: how it was opened, without passwords.
        every_s: seconds for which a writer gathers at most.
        chunk_bytes: bytes that a writer gathers at most.
    """

    url: str
    every_s: float = 0.5
    chunk_bytes: int = 65_536

    @abstractmethod
    def create(self, ref: str) -> LogFile:
        """Begin a log. Raises OSError."""

    @abstractmethod
    def read(self, ref: str, offset: int = 0, limit: int = PART_BYTES) -> LogPart:
        """A part of a log, of at most so many bytes; an empty one behind its end.

        Raises:
            LogMissing: there is none.
            OSError: it cannot be read now.
        """

    @abstractmethod
    def size(self, ref: str) -> int:
        """How many bytes it has by now. Raises as ``read``."""

    @abstractmethod
    def remove(self, code: int, instance: int) -> None:
        """Delete all logs of an instance; nothing if it has none. Raises OSError."""

    @abstractmethod
    def put_file(self, name: str, data: bytes) -> None:
        """Keep a file, such as ``bundles/<sha256>``; another one of this name is replaced at once. Raises OSError."""

    @abstractmethod
    def get_file(self, name: str) -> bytes | None:
        """A file; None if there is none. Raises OSError."""

    @abstractmethod
    def remove_file(self, name: str) -> None:
        """Delete a file, if it is there. Raises OSError."""

    def tail(self, ref: str, most: int = PART_BYTES) -> LogPart:
        """The last bytes of a log. Raises as ``read``."""
        return self.read(ref, max(0, self.size(ref) - most), most)

    def follow(self, ref: str, wait: Callable[[float], object], offset: int = 0) -> Iterator[LogPart]:
        """Parts of a log as they come, until it has ended; while nothing comes, empty ones.

        Args:
            ref: the log, which need not be there yet.
            wait: called with seconds after an empty part: waits so long. True ends it.
            offset: where to begin.
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

    def mark(self, owner: str) -> None:
        """Note whose logs these are: the id that database and store share.

        Raises:
            LogStoreMismatch: others have them.
            OSError: it cannot be written.
        """
        if self._owner() is None:
            self.put_file("about/owner", owner.encode())
        self.check(owner)

    def check(self, owner: str) -> None:
        """Refuse logs that are not those of this owner: another host's folder of the same name, or a wrong URL.

        Raises:
            LogStoreMismatch: they are not.
        """
        found = self._owner()
        if found is None:
            raise LogStoreMismatch(
                f"log store {self.url} belongs to no workflows; give the URL that the masters have, which were "
                "started with --logs. A folder of another host is none: mount it, or use an object store"
            )
        if found != owner:
            raise LogStoreMismatch(f"log store {self.url} belongs to workflows {printable(found)}, not to {owner}")

    def _owner(self) -> str | None:
        found = self.get_file("about/owner")
        return None if found is None else found.decode("ascii", "replace").strip()

    def probe(self) -> None:
        """Try whether something can be written. Raises OSError."""
        self.put_file("about/probe", b"x" * 4096)


def check_ref(ref: str) -> str:
    """The reference itself, or ``LogMissing``: no path of anybody's choice."""
    if _REF.fullmatch(ref) is None:
        raise LogMissing(f"{printable(ref[:100])!r} is no reference of a log")
    return ref


def check_file(name: str) -> str:
    """The name of a file itself, or ``ValueError``."""
    if _FILE.fullmatch(name) is None:
        raise ValueError(f"{printable(name[:100])!r} is no name of a file of a log store")
    return name


def clean_text(data: bytes) -> str:
    """A part of a log for a screen: whole lines kept, what is no text or moves a cursor made harmless."""
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))
