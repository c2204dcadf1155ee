"""What all kinds of sending have in common: how it ended, and that it ends in time. Only this wing uses it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from latchwork_workflows.state.alerts import Answer


class NotSent(Exception):
    """A message that was not accepted, or of which nobody knows.

    Attributes:
        answer: which of these.
    """

    def __init__(self, answer: Answer, why: str) -> None:
        super().__init__(why)
        self.answer = answer


class Deadline:
    """Ends a conversation that takes too long, also one that comes byte by byte, each in time.

    Args:
        timeout_s: seconds for all of it.
    """

    def __init__(self, timeout_s: float) -> None:
        self.is_over = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.name = "latchwork-alert-deadline"
        self._timer.daemon = True

    @contextmanager
    def running(self) -> Iterator[Deadline]:
        """While the time runs."""
        self._timer.start()
        try:
            yield self
        finally:
            self._timer.cancel()
            self._timer.join()

    def watch(self, connection: socket.socket | None) -> None:
        """This is what is cut when the time is over."""
        self._socket = connection
        if self.is_over:
            self._cut()

    def _end(self) -> None:
        self.is_over = True
        self._cut()

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def tls_of(ca_file: str) -> ssl.SSLContext:
    """What a server is known by. Raises OSError, with the file."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # OpenSSL's words do not name it
        raise OSError(f"certificates of {ca_file or 'this machine'} cannot be read: {error}") from error
