"""Starts and ends the processes of the cluster bench, sends them commands, and receives their messages."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Self

from latchwork.errors import LatchworkError
from latchwork_testkit.cluster_bench.model import ProcessFailure, Ready

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_JOIN_TIMEOUT_S = 10.0


class BenchFailed(LatchworkError):
    """The cluster could not be measured. The message says why."""


class BenchRefused(BenchFailed, ValueError):
    """The store cannot be used for this bench, because several processes cannot share it."""


class BenchConnection:
    """The connection from a process to the bench. Thread-safe, except that only one thread may call `recv` and
    `poll`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mutex = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message to the process that runs the benchmark. Does nothing if that process has ended."""
        with self._mutex:
            try:
                self._connection.send(message)
            except OSError:
                logging.getLogger(__name__).debug("could not send %r: the bench has ended", message)

    def recv(self) -> Any:
        """Wait for the next command and return it, or None if the process must end."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def poll(self, timeout_s: float) -> bool:
        """Wait for a message, and return whether there is one.

        Args:
            timeout_s: Seconds to wait.
        """
        return self._connection.poll(timeout_s)


class Processes:
    """The child processes of one bench. Not thread-safe. As a context manager, it ends all of them at the end.

    Args:
        on_message: Called with the name of a process and each message that it sent.
        timeout_s: Maximum seconds of each wait.
    """

    def __init__(self, on_message: Callable[[str, object], None], timeout_s: float) -> None:
        self._on_message = on_message
        self._timeout_s = timeout_s
        self._spawn = multiprocessing.get_context("spawn")
        self._processes: dict[str, Any] = {}
        self._connections: dict[str, Connection] = {}
        self._ready: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._connections:
            self._send(name, None)
        for process in self._processes.values():
            process.join(_JOIN_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        for connection in self._connections.values():
            connection.close()

    def start(self, name: str, function: Callable[..., None], *args: object) -> None:
        """Start a child process that calls ``function(connection, *args)``.

        Args:
            name: Name of the process for `run_command` and for messages.
            function: A function that can be pickled. Its first argument is a `BenchConnection`.
            args: Further arguments of the function.
        """
        ours, theirs = self._spawn.Pipe()
        process = self._spawn.Process(
            target=_run_child, args=(function, theirs, *args), name=f"latchwork-bench-{name}", daemon=True
        )
        process.start()
        theirs.close()
        self._processes[name], self._connections[name] = process, ours

    def run_command(self, name: str, command: object) -> float:
        """Send a command to a process and wait until the process has executed it.

        Args:
            name: Name of the process.
            command: The command, which the process understands.
        Returns:
            The time at which the process was done, on the monotonic clock.
        Raises:
            BenchFailed: The wait timed out, or the process failed.
        """
        self._ready.pop(name, None)
        self._send(name, command)
        self.wait_until(lambda: name in self._ready, f"process {name} to do {command!r}")
        return self._ready[name]

    def wait_ready(self, names: list[str]) -> None:
        """Wait until each of these processes has sent `Ready`.

        Raises:
            BenchFailed: The wait timed out, or a process failed.
        """
        self.wait_until(lambda: all(name in self._ready for name in names), f"{', '.join(names)} to be ready")

    def wait_until(self, condition: Callable[[], bool], description: str) -> None:
        """Receive messages from all processes until a condition is true.

        Args:
            condition: Called after each message.
            description: Describes the condition, for the error message.
        Raises:
            BenchFailed: The wait timed out, or a process failed.
        """
        deadline = time.monotonic() + self._timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise BenchFailed(
                    f"waited {self._timeout_s:g} s for {description}; try fewer workers or items, or --timeout-s"
                )
            for connection in wait(list(self._connections.values()), left):
                self._receive_from(next(name for name, each in self._connections.items() if each is connection))

    def _receive_from(self, name: str) -> None:
        try:
            message = self._connections[name].recv()
        except (EOFError, OSError) as error:
            raise BenchFailed(f"process {name} of the bench has died; LATCHWORK_DEBUG=1 shows its log") from error
        if isinstance(message, ProcessFailure):
            raise BenchFailed(f"process {name} of the bench failed: {message.reason}")
        if isinstance(message, Ready):
            self._ready[name] = message.at
        self._on_message(name, message)

    def _send(self, name: str, command: object) -> None:
        try:
            self._connections[name].send(command)
        except OSError as error:
            if command is not None:
                raise BenchFailed(f"process {name} of the bench has died; LATCHWORK_DEBUG=1 shows its log") from error


def _run_child(function: Callable[..., None], pipe: Connection, *args: object) -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    connection = BenchConnection(pipe)
    try:
        function(connection, *args)
    except KeyboardInterrupt:
        pass  # the bench receives the same interrupt and ends its processes
    except Exception as error:
        logging.getLogger(__name__).debug("a process of the bench failed", exc_info=True)
        connection.send(ProcessFailure(f"{type(error).__name__}: {error}"))
