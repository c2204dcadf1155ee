"""Logs in a folder, local or shared.

    Files:  <code>/<run>/<task>/<n>.<claim>.log.part    a log being written
            <code>/<run>/<task>/<n>.<claim>.log         an ended log: renamed, so its contents cannot fake the end

Tasks may be able to write here. So links below the folder are not followed and only plain files are read. Otherwise a
task could make the pages show files that only the server may read.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from latchwork.spi import replace_file
from latchwork_workflows.logs.store import (
    PART_BYTES,
    LogFile,
    LogMissing,
    LogPart,
    LogStore,
    check_file_name,
    check_log_ref,
)

_PART = ".part"
#: The mode of logs and bundles: accessible to the user and the group of the worker only.
_MODE = 0o640
_NO_FILE = "its path is a link, a pipe or the like, which latchwork did not create"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class FileLogs(LogStore):
    """Logs below a folder, which is created by the first write. Safe to share between threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.url = self._folder.as_uri()

    def __repr__(self) -> str:
        return f"<FileLogs {self._folder}>"

    def create(self, ref: str) -> LogFile:
        """Create a log and open it for writing.

        Args:
            ref: The reference of the log.
        """
        path = self._folder / check_log_ref(ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _File(path)

    def read(self, ref: str, offset: int = 0, limit: int = PART_BYTES) -> LogPart:
        """Return a part of a log, at most ``limit`` bytes from an offset."""
        fd, ended = self._open(ref)
        try:
            offset = max(0, offset)
            size = os.fstat(fd).st_size
            data = os.pread(fd, max(0, min(limit, size - offset)), offset)
        finally:
            os.close(fd)
        return LogPart(data, offset + len(data), ended and offset + len(data) >= size)

    def size(self, ref: str) -> int:
        """Return the size of a log in bytes."""
        fd, _ = self._open(ref)
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _open(self, ref: str) -> tuple[int, bool]:
        folder, _, name = check_log_ref(ref).rpartition("/")
        with suppress(FileNotFoundError, NotADirectoryError):
            inside = self._open_folder(folder)
            try:
                for each, ended in ((name, True), (name + _PART, False), (name, True)):  # it may be renamed in between
                    with suppress(FileNotFoundError):
                        return _open_regular_file(each, inside), ended
            finally:
                os.close(inside)
        raise LogMissing(f"log {ref} is not in {self.url}: nothing was written yet, or it was removed")

    def _open_folder(self, folder: str) -> int:
        """Open a folder inside the root folder of the log store.

        Raises:
            OSError: The folder does not exist, or a part of its path is a symbolic link.
        """
        found = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in folder.split("/"):
            above = found
            try:
                found = os.open(part, _FOLDER, dir_fd=above)
            finally:
                os.close(above)
        return found

    def remove(self, code: int, run_id: int) -> None:
        """Delete all logs of a run.

        Args:
            code: ID of the workflow.
            run_id: ID of the run.
        """
        with suppress(FileNotFoundError, NotADirectoryError):  # links are not ours
            inside = self._open_folder(str(int(code)))
            name = str(int(run_id))
            try:
                if stat.S_ISDIR(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
                    shutil.rmtree(f"/proc/self/fd/{inside}/{name}")
                else:
                    os.unlink(name, dir_fd=inside)
            finally:
                os.close(inside)

    def put_file(self, name: str, data: bytes) -> None:
        """Store a file."""
        path = self._folder / check_file_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, mode=_MODE)

    def get_file(self, name: str) -> bytes | None:
        """Return the contents of a stored file, or None if there is none."""
        try:
            return (self._folder / check_file_name(name)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove_file(self, name: str) -> None:
        """Delete a stored file. Idempotent."""
        (self._folder / check_file_name(name)).unlink(missing_ok=True)


class _File(LogFile):
    """A log file in a folder, open for writing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(_unfinished_path(path), flags, _MODE)

    def append(self, data: bytes) -> int:
        """Append bytes and return how many were written, which may be fewer if the disk is full."""
        return os.write(self._fd, data)

    def end(self) -> None:
        """Mark the log as complete by renaming its file."""
        _unfinished_path(self._path).rename(self._path)

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open_regular_file(name: str, inside: int) -> int:
    """Open a regular file for reading. Other kinds are refused, because reading a pipe could block forever.

    Args:
        name: Name of the file in its folder.
        inside: File descriptor of the folder.
    Raises:
        OSError: The file does not exist or is not a regular file.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, or a socket
            raise OSError(error.errno, _NO_FILE) from None
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, _NO_FILE)


def _unfinished_path(path: Path) -> Path:
    return path.with_name(path.name + _PART)
