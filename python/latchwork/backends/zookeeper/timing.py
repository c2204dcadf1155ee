"""Timeouts for ZooKeeper servers, derived from measured round trips."""

from __future__ import annotations

#: A lost SYN is repeated by the kernel only after 1, 3, 7 s: a new attempt is sooner back.
_TCP_S, _TLS_S = 0.75, 3.0
#: A server that is just starting may swallow a handshake; kazoo would wait a whole session timeout for the answer.
_HANDSHAKE_S = 0.4
#: Parts of the TTL for which a server may be silent: with others to go to, with none, and at most.
_SILENT, _SILENT_ALONE, _SILENT_MOST = 1 / 4, 2 / 5, 3 / 5
_LEAST_SILENCE_S = 0.4
#: Round trips after which a packet that was lost once has been sent again and answered.
_ONE_LOST, _TWO_LOST = 5, 7
#: After so many attempts that took too long the shortest limit is tried again: the server may just have been away.
_ATTEMPTS = 3


class Timing:
    """The timeouts of one store's connections to ZooKeeper. Thread-safe, because its numbers are only estimates.

    Args:
        max_connect_s: The maximum number of seconds for an attempt to connect.
        servers: The number of known servers.
        tls: Whether connections use TLS.

    Attributes:
        phase: The phase of the last attempt to connect, for messages.
    """

    def __init__(self, max_connect_s: float, *, servers: int, tls: bool) -> None:
        self.phase = ""
        self._max_connect_s = max_connect_s
        self._servers = servers
        self._least_s = _TLS_S if tls else _TCP_S
        self._round_trip_s = 0.0
        self._late_connects = self._late_handshakes = 0

    @property
    def connect_s(self) -> float:
        """Return the timeout in seconds for opening a TCP connection, including TLS."""
        least_s = max(self._least_s, _ONE_LOST * self._round_trip_s)
        return min(least_s * (1 << self._late_connects % _ATTEMPTS), max(self._max_connect_s, self._least_s))

    @property
    def handshake_s(self) -> float:
        """Return the timeout in seconds for the answer to a step of the handshake."""
        return max(_HANDSHAKE_S, _ONE_LOST * self._round_trip_s) * (1 << self._late_handshakes)

    def max_silence_s(self, ttl_s: float) -> float:
        """Return how many seconds a server may leave requests unanswered before the client disconnects from it.

        Args:
            ttl_s: The timeout of the ZooKeeper session.
        """
        part = _SILENT if self._servers > 1 else _SILENT_ALONE
        wanted_s = max(ttl_s * part, _TWO_LOST * self._round_trip_s)
        return max(_LEAST_SILENCE_S, min(wanted_s, ttl_s * _SILENT_MOST))

    def record_connected(self, took_s: float) -> None:
        """Record how many seconds it took to open a connection."""
        self._round_trip_s = took_s
        self._late_connects = 0

    def record_late_connect(self) -> None:
        """Record that opening a connection timed out."""
        self._late_connects += 1

    def record_answered(self, took_s: float) -> None:
        """Record how many seconds the answer to a step of the handshake took. A longer timeout is kept while such
        answers need it.
        """
        if self._late_handshakes and took_s < self.handshake_s / 2:
            self._late_handshakes -= 1
        self._round_trip_s = min(self._round_trip_s, took_s)  # a lost packet may have delayed the connection

    def record_late_answer(self) -> None:
        """Record that a step of the handshake timed out."""
        self._late_handshakes = min(self._late_handshakes + 1, 8)
