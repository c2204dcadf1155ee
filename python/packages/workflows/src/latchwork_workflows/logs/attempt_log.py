"""The log of an attempt in its worker: buffered, masked and bounded. Writing it never blocks the task.

While the log store fails, part of the output is buffered and the rest is counted. Once it works again, a mark reports
the number of missing bytes. Of logs that exceed the limit, the beginning and the end are kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.spi import counted, reason
from latchwork_workflows.logs.mask import Mask
from latchwork_workflows.logs.store import LogFile, LogStore

_log = logging.getLogger(__name__)

#: The size of the buffer in bytes, while the log store fails.
KEPT_BYTES = 1_000_000
#: The default maximum size of a log, and the number of bytes kept from the end of a larger one.
MAX_BYTES, TAIL_BYTES = 100_000_000, 65_536
#: Seconds between two tries while the log store fails.
AGAIN_S = 1.0
#: The number of last bytes that are kept for messages.
_LAST = 2_000


class LogStoreHealth:
    """Whether writes to a log store succeed. Thread-safe.

    Args:
        on_change: Called on each change, in the thread that noticed it. Must return quickly.
    """

    def __init__(self, on_change: Callable[[], object] = lambda: None) -> None:
        self._mutex = threading.Lock()
        self._on_change = on_change
        self.error = ""

    @property
    def is_ok(self) -> bool:
        """Whether the last write succeeded."""
        return not self.error

    def record(self, error: OSError | None) -> None:
        """Record the error of a write to the log store, or None if the write succeeded."""
        text = "" if error is None else reason(error)
        with self._mutex:
            changed = bool(text) != bool(self.error)
            self.error = text
        if changed:
            if error is None:
                _log.info("the log store is writable again")
            else:
                _log.error("the log store is not writable: %s; no tasks are claimed until it is", text)
            self._on_change()


class AttemptLog:
    """Writes the output of an attempt to the log store. Not thread-safe.

    Args:
        logs: The log store.
        ref: The reference of the log.
        mask: Hides secrets.
        health: Records whether writes succeed.
        most_bytes: The maximum size of the log.
        clock: The clock.
    """

    def __init__(
        self,
        logs: LogStore,
        ref: str,
        *,
        mask: Mask | None = None,
        health: LogStoreHealth | None = None,
        most_bytes: int = MAX_BYTES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.ref = ref
        self.mask = mask or Mask()
        self._logs = logs
        self._health = health or LogStoreHealth()
        self._most_bytes = most_bytes
        self._clock = clock
        self._file: LogFile | None = None
        self._waiting = bytearray()
        self._since: float | None = None
        self._not_before = 0.0
        self._missing = 0
        self._why = ""
        self._taken = 0
        self._tail = bytearray()
        self._beyond = 0
        self._last = b""

    @property
    def last_line(self) -> str:
        """The last non-empty line of output that is still buffered, with secrets masked."""
        lines = [line for line in self._last.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def write(self, data: bytes) -> None:
        """Append output of the task to the log."""
        self._buffer(self.mask.feed(data))

    def note(self, text: str) -> None:
        """Append a line written by the worker itself, such as the reason why it stopped the task."""
        self._add(f"[latchwork] {self.mask.mask_text(text)}\n".encode("utf-8", "backslashreplace"))

    def _buffer(self, data: bytes) -> None:
        if not data:
            return
        self._last = (self._last + data)[-_LAST:]
        room = max(0, self._most_bytes - self._taken)
        if room:
            self._taken += len(data[:room])
            self._add(data[:room])
        if len(data) > room:
            self._beyond += len(data) - room
            self._tail = (self._tail + data[room:])[-TAIL_BYTES:]

    def _add(self, data: bytes) -> None:
        room = max(0, KEPT_BYTES - len(self._waiting)) if self._missing or self._not_before else len(data)
        self._waiting += data[:room]
        self._missing += len(data) - len(data[:room])
        if self._since is None:
            self._since = self._clock.now()
        if len(self._waiting) >= self._logs.chunk_bytes:
            self.flush()

    @property
    def flush_delay_s(self) -> float | None:
        """Return the number of seconds until ``flush`` should be called, or None if nothing is buffered."""
        if self._since is None:
            return None
        return max(0.0, max(self._since + self._logs.every_s, self._not_before) - self._clock.now())

    def flush(self) -> bool:
        """Write the buffered output to the log store. Shortly after a failed write, does nothing.

        Returns:
            Whether the buffer is empty.
        """
        if self._since is None:
            return True
        if self._clock.now() < self._not_before:
            return False
        return self._write_all()

    def _write_all(self) -> bool:
        try:
            if self._file is None:
                self._file = self._logs.create(self.ref)
            while self._waiting:
                took = self._file.append(bytes(self._waiting))
                del self._waiting[:took]
            if self._missing:
                self._add_gap_mark()
        except OSError as error:
            self._not_before = self._clock.now() + AGAIN_S
            self._why = reason(error)
            self._health.record(error)
            return False
        if self._not_before:
            self._not_before = 0.0
        self._health.record(None)
        self._since = None
        return True

    def _add_gap_mark(self) -> None:
        if self._file is not None:
            text = f"\n[latchwork] {counted(self._missing, 'byte')} missing here: {self._why}\n".encode()
            while text:
                text = text[self._file.append(text) :]
            self._missing = 0

    def end(self, last_line: str = "") -> bool:
        """Write the remaining output and mark the log as complete.

        Args:
            last_line: Final line that the worker appends to the log. Empty: none.
        Returns:
            Whether everything was written.
        """
        self._buffer(self.mask.flush())
        if self._beyond > len(self._tail):
            limit = counted(self._most_bytes, "byte")
            left_out = counted(self._beyond - len(self._tail), "byte")
            self._add(f"\n[latchwork] the log has more than {limit}: {left_out} left out, its end follows\n".encode())
        self._add(bytes(self._tail))
        self._tail.clear()
        if last_line:
            self.note(last_line)
        is_whole = self._write_all() if self._since is not None else True
        try:
            if self._file is not None:
                self._file.end()
        except OSError as error:
            self._health.record(error)
            is_whole = False
        if not is_whole:
            _log.warning("log %s is incomplete: %s", self.ref, self._why)
        self.close()
        return is_whole

    def close(self) -> None:
        """Close the log file, whether the log is complete or not. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
