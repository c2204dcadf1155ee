"""Shared by all kinds of channels: the error type, deadlines and TLS. Internal to this package."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from latchwork_workflows.state.alerts import SendResult


class NotSent(Exception):
    """A message was not accepted, or its result is unknown.

    Attributes:
        answer: The result.
    """

    def __init__(self, answer: SendResult, why: str) -> None:
        super().__init__(why)
        self.answer = answer


class SocketDeadline:
    """Ends a conversation that takes too long, even if each single read is in time.

    Args:
        timeout_s: Seconds for the whole conversation.
    """

    def __init__(self, timeout_s: float) -> None:
        self.is_over = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.name = "latchwork-alert-deadline"
        self._timer.daemon = True

    @contextmanager
    def enforce(self) -> Iterator[SocketDeadline]:
        """Return a context manager that shuts the socket down if its block takes longer than the deadline."""
        self._timer.start()
        try:
            yield self
        finally:
            self._timer.cancel()
            self._timer.join()

    def set_socket(self, connection: socket.socket | None) -> None:
        """Set the socket that is shut down at the deadline."""
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


def load_client_tls_context(ca_file: str) -> ssl.SSLContext:
    """Return a TLS context that verifies servers.

    Args:
        ca_file: File with the certificates to trust. Empty: those of the machine.
    Raises:
        OSError: The file cannot be read. The message names the file.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # the message of OpenSSL does not name it
        raise OSError(f"certificates of {ca_file or 'this machine'} cannot be read: {error}") from error
