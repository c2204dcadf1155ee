"""Where the streams of a child come from and go to. Nothing here touches the network."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
#: A file's path, a descriptor, PIPE, DEVNULL; None is the parent's own.
Stream = int | str | Path | None


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
