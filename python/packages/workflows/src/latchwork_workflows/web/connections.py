"""Limits that keep slow and half-open connections from using up a server.

The head and the body of a request each have a deadline. The number of connections stays below the file limit of the
process. When it is reached, a new connection replaces the one that has waited longest without a complete request. If
there is none, the new one is refused.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: The other half of the files of a process is reserved for databases, stores and logs.
_MAX_CONNECTIONS = 2_000


def get_default_max_connections() -> int:
    """Return the default limit of client connections: half of the process's limit of open files, at most 2,000."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(8, min(_MAX_CONNECTIONS, files // 2))


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits for the connections of clients.

    Attributes:
        max_connections: The maximum number of open connections. Default half of the limit of open files, at most 2,000.
        head_timeout_s: Seconds in which the head of a request must arrive.
        body_timeout_s: Seconds in which its body must arrive.
        unread_timeout_s: Seconds that a client may leave sent data unread or be unreachable. Linux only.
    """

    max_connections: int = field(default_factory=get_default_max_connections)
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    unread_timeout_s: float = 30.0

    def prepare(self, listener: socket.socket) -> None:
        """Set the socket options that accepted connections inherit from the listening socket."""
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self.unread_timeout_s * 1000))


class ConnectionFactory:
    """Creates the connections of one server, which share the limits. Used in the server's event loop.

    Args:
        limits: The limits.
        tls: The TLS context, for HTTPS. None: plain HTTP.
    """

    def __init__(self, limits: ConnectionLimits, tls: ssl.SSLContext | None = None) -> None:
        self.limits = limits
        self.tls = tls
        self._open = 0
        self._incomplete: dict[LimitedConnection, None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> LimitedConnection:
        """Return the protocol for a connection, as uvicorn requires."""
        return LimitedConnection(self, *args, **kwargs)

    def admit(self) -> bool:
        """Count a new connection, if the limit permits it.

        At the limit, the connection that has waited longest for a complete request is closed to make room.

        Returns:
            False if the limit is reached and no connection could be closed.
        """
        if self._open >= self.limits.max_connections:
            oldest = next(iter(self._incomplete), None)
            if oldest is None:
                return False
            oldest.drop()
        self._open += 1
        return True

    def release(self) -> None:
        """Stop counting a connection that has ended."""
        self._open -= 1

    def set_incomplete(self, connection: LimitedConnection, is_incomplete: bool) -> None:
        """Record whether a connection waits for the rest of a request. At the limit, the one that waits longest is
        closed first.
        """
        if is_incomplete:
            self._incomplete.setdefault(connection)
        else:
            self._incomplete.pop(connection, None)


class LimitedConnection(H11Protocol):
    """A connection that is closed if a request takes too long to arrive.

    It is counted before the TLS handshake, and its first deadline includes the handshake.
    """

    def __init__(self, owner: ConnectionFactory, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owner = owner
        self._is_counted = False
        self._awaited: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None  # a reference, so that it is not garbage collected
        self._has_begun = False
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count a new connection, or close it if the limit is reached."""
        self.transport = transport
        self._is_counted = self._owner.admit()
        if not self._is_counted:
            transport.abort()
            return
        self._arm_read_timeout()
        if self._owner.tls is None:
            self._begin(transport)
        else:
            self._handshake = self.loop.create_task(self._encrypt(transport, self._owner.tls))

    async def _encrypt(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            encrypted = await self.loop.start_tls(plain, self, context, server_side=True)
        except OSError:  # no TLS, or closed before its end
            self.drop()
            return
        if encrypted is None:
            self._release()
        else:
            self._begin(encrypted)
            if self._early:
                self.data_received(b"".join(self._early))

    def _begin(self, transport: asyncio.Transport) -> None:
        self._has_begun = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Process received bytes of a request."""
        if not self._has_begun:
            self._early.append(data)  # decrypted before the end of the handshake was noticed
            return
        super().data_received(data)
        if self._is_counted:
            self._arm_read_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting a connection that has ended."""
        self._release()
        if self._has_begun:  # otherwise it was refused, or its handshake failed
            super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection immediately and discard unsent data."""
        self._release()
        self.transport.abort()

    def _arm_read_timeout(self) -> None:
        """Start the timeout for the next data of the client: a request, or more of its body.

        A timeout that is running for the same kind of data continues.
        """
        state = self.conn.their_state
        awaited = state if state in (h11.IDLE, h11.SEND_BODY) else None
        if awaited is self._awaited:
            return
        self._cancel()
        self._awaited = awaited
        if awaited is not None:
            limits = self._owner.limits
            delay_s = limits.head_timeout_s if awaited is h11.IDLE else limits.body_timeout_s
            self._deadline = self.loop.call_later(delay_s, self.drop)
        self._owner.set_incomplete(self, awaited is not None)

    def _release(self) -> None:
        self._cancel()
        if self._is_counted:
            self._is_counted = False
            self._owner.set_incomplete(self, False)
            self._owner.release()

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
