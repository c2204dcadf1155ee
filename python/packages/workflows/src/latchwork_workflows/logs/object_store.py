"""Logs in an object store, through fsspec. Objects cannot grow, so a log consists of many.

Objects:  <code>/<run>/<task>/<n>.<claim>.log/<start:016>    the bytes from this offset
          <code>/<run>/<task>/<n>.<claim>.log/end            empty: the log has ended
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from latchwork_workflows.logs.store import (
    PART_BYTES,
    LogFile,
    LogMissing,
    LogPart,
    LogStore,
    check_file_name,
    check_log_ref,
)

_END = "end"


@contextmanager
def _convert_errors(url: str) -> Iterator[None]:
    """Convert every error of a client library to OSError, which stands for a temporary failure of the log store.

    Args:
        url: The URL of the log store, for the error message.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"log store {url}: {type(error).__name__}: {error}") from error


class SegmentLogs(LogStore):
    """Logs below an fsspec URL. Thread-safe.

    Args:
        fs: The file system. Its listings must not be cached.
        root: The root path.
        url: The URL for display, without passwords.
    """

    every_s = 2.0

    def __init__(self, fs: Any, root: str, url: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        self.url = url

    def __repr__(self) -> str:
        return f"<SegmentLogs {self.url}>"

    def create(self, ref: str) -> LogFile:
        """Return a new log, open for writing.

        Args:
            ref: The reference of the log.
        """
        return _Segments(self, check_log_ref(ref))

    def read(self, ref: str, offset: int = 0, limit: int = PART_BYTES) -> LogPart:
        """Return a part of a log, at most ``limit`` bytes from an offset.

        The part comes from a single object, so reading a whole log part by part fetches each object once.
        """
        starts, sizes, ended = self._segments(ref)
        offset = max(0, offset)
        at = bisect_right(starts, offset) - 1
        total = starts[-1] + sizes[-1] if starts else 0
        if at < 0 or offset >= total:
            return LogPart(b"", max(offset, 0), ended)
        begin = offset - starts[at]
        end = min(sizes[at], begin + limit)
        with _convert_errors(self.url):
            found = self._fs.cat_file(self._segment(ref, starts[at]), start=begin, end=end)
        after = offset + len(found)
        return LogPart(bytes(found), after, ended and after >= total)

    def size(self, ref: str) -> int:
        """Return the size of a log in bytes."""
        starts, sizes, _ = self._segments(ref)
        return starts[-1] + sizes[-1] if starts else 0

    def _segments(self, ref: str) -> tuple[list[int], list[int], bool]:
        folder = f"{self._root}/{check_log_ref(ref)}"
        found: dict[str, Any] = {}
        with suppress(FileNotFoundError), _convert_errors(self.url):
            entries = self._fs.ls(folder, detail=True)
            found = {each["name"].rstrip("/").rpartition("/")[2]: each["size"] for each in entries}
        if not found:
            raise LogMissing(f"log {ref} is not in {self.url}: nothing was written yet, or it was removed")
        names = sorted(name for name in found if name.isdigit())
        return [int(name) for name in names], [int(found[name]) for name in names], _END in found

    def _segment(self, ref: str, start: int) -> str:
        return f"{self._root}/{ref}/{start:016d}"

    def put_segment(self, ref: str, start: int, data: bytes) -> None:
        """Write one object that contains a part of a log.

        Args:
            ref: The reference of the log.
            start: Offset of the part in the log.
            data: The part.
        """
        self._put(self._segment(ref, start), data)

    def put_end_marker(self, ref: str) -> None:
        """Write the empty object that marks a log as complete."""
        self._put(f"{self._root}/{ref}/{_END}", b"")

    def _put(self, path: str, data: bytes) -> None:
        with _convert_errors(self.url):
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data)

    def remove(self, code: int, run_id: int) -> None:
        """Delete all logs of a run.

        Args:
            code: ID of the workflow.
            run_id: ID of the run.
        """
        folder = f"{self._root}/{int(code)}/{int(run_id)}"
        with _convert_errors(self.url):
            if self._fs.exists(folder):
                self._fs.rm(folder, recursive=True)

    def put_file(self, name: str, data: bytes) -> None:
        """Store a file."""
        self._put(f"{self._root}/{check_file_name(name)}", data)

    def get_file(self, name: str) -> bytes | None:
        """Return the contents of a stored file, or None if there is none."""
        path = f"{self._root}/{check_file_name(name)}"
        with suppress(FileNotFoundError), _convert_errors(self.url):
            return bytes(self._fs.cat_file(path))
        return None

    def remove_file(self, name: str) -> None:
        """Delete a stored file. Idempotent."""
        path = f"{self._root}/{check_file_name(name)}"
        with _convert_errors(self.url):
            if self._fs.exists(path):
                self._fs.rm_file(path)


class _Segments(LogFile):
    """A log in an object store, open for writing."""

    def __init__(self, logs: SegmentLogs, ref: str) -> None:
        self._logs = logs
        self._ref = ref
        self._size = 0

    def append(self, data: bytes) -> int:
        """Write the bytes as one object and return their number.

        If the previous write may have failed, its object is written again and also gets these bytes.
        """
        self._logs.put_segment(self._ref, self._size, data)
        self._size += len(data)
        return len(data)

    def end(self) -> None:
        """Mark the log as complete by writing its end object."""
        self._logs.put_end_marker(self._ref)

    def close(self) -> None:
        """Do nothing, because nothing is open."""
