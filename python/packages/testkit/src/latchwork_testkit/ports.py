"""Reserves ports for test servers, so that no two launchers on a machine choose the same one.

A reservation is an advisory lock on a file per port. It is held as long as the server object exists, and the kernel
drops it when the process ends. The ports are below the range from which Linux takes the local ends of outgoing
connections, so a stopped server can use its port again. Another program may still take a port; then launchers try
others.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1"
_FIRST, _LAST = 20_000, 31_999


class PortReservation:
    """A port of 127.0.0.1 that no other launcher uses until it is released. Thread-safe."""

    def __init__(self, port: int, lock_fd: int) -> None:
        self.port = port
        self._lock_fd: int | None = lock_fd

    def release(self) -> None:
        """Let other launchers use the port again. Idempotent."""
        lock_fd, self._lock_fd = self._lock_fd, None
        if lock_fd is not None:
            os.close(lock_fd)

    def __repr__(self) -> str:
        return f"PortReservation({self.port})"


def reserve_port() -> PortReservation:
    """Reserve a free port of 127.0.0.1 for a server.

    Only other launchers respect the reservation. Another program may take the port before the server uses it.

    Raises:
        OSError: No port of the range is free.
    """
    for port in _candidates():
        lock_fd = _try_lock(port)
        if lock_fd is None:
            continue
        if _can_bind(port):
            return PortReservation(port, lock_fd)
        os.close(lock_fd)
    raise OSError(f"no free port between {_FIRST} and {_LAST} on {HOST}; stop some of the servers that run there")


def _candidates() -> Iterator[int]:
    count = _LAST - _FIRST + 1
    start = random.randrange(count)
    return (_FIRST + (start + step) % count for step in range(count))


def _try_lock(port: int) -> int | None:
    lock_fd = os.open(_lock_directory() / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock_fd)
        return None
    return lock_fd


def _lock_directory() -> Path:
    directory = Path(tempfile.gettempdir()) / f"latchwork-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
