"""The processes of the bench: starts and ends them, sends commands, and receives their messages."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Self

from latchwork.errors import LatchworkError
from latchwork_testkit.cluster_bench.model import Failed, Ready

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_END_S = 10.0


class BenchFailed(LatchworkError):
    """A cluster could not be measured. The message says why."""


class BenchRefused(BenchFailed, ValueError):
    """This store cannot be measured."""


class BenchConnection:
    """A process's connection to the bench. Thread-safe, except `recv` and `poll`, which one thread may use."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mutex = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message to the bench, unless the bench has ended."""
        with self._mutex:
            try:
                self._connection.send(message)
            except OSError:
                logging.getLogger(__name__).debug("the bench is gone, it is not told %r", message)

    def recv(self) -> Any:
        """Return the next command; None when the process must end."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def poll(self, timeout_s: float) -> bool:
        """Return whether a command arrived or the bench has ended."""
        return self._connection.poll(timeout_s)


class Processes:
    """The processes of one bench. Not thread-safe. Leaving the context ends all of them.

    Args:
        hear: Called with the name of a process and each message from it.
        timeout_s: Maximum seconds for each wait.
    """

    def __init__(self, hear: Callable[[str, object], None], timeout_s: float) -> None:
        self._hear = hear
        self._timeout_s = timeout_s
        self._spawn = multiprocessing.get_context("spawn")
        self._processes: dict[str, Any] = {}
        self._lines: dict[str, Connection] = {}
        self._ready: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._lines:
            self._send(name, None)
        for process in self._processes.values():
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()
        for line in self._lines.values():
            line.close()

    def start(self, name: str, work: Callable[..., None], *args: object) -> None:
        """Start a process that runs ``work(connection, *args)``."""
        ours, theirs = self._spawn.Pipe()
        process = self._spawn.Process(
            target=_child, args=(work, theirs, *args), name=f"latchwork-bench-{name}", daemon=True
        )
        process.start()
        theirs.close()
        self._processes[name], self._lines[name] = process, ours

    def command(self, name: str, command: object) -> float:
        """Send a command, wait until it is done, and return the time at which it was.

        Raises:
            BenchFailed: It was not done in time, or the process failed.
        """
        self._ready.pop(name, None)
        self._send(name, command)
        self.wait_until(lambda: name in self._ready, f"process {name} to do {command!r}")
        return self._ready[name]

    def wait_ready(self, names: list[str]) -> None:
        """Wait until all of these processes are ready."""
        self.wait_until(lambda: all(name in self._ready for name in names), f"{', '.join(names)} to be ready")

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        """Receive messages until a condition is true.

        Raises:
            BenchFailed: It did not become true in time, or a process failed.
        """
        deadline = time.monotonic() + self._timeout_s
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise BenchFailed(
                    f"waited {self._timeout_s:g} s for {what}; try fewer workers or items, or --timeout-s"
                )
            for line in wait(list(self._lines.values()), left):
                self._take(next(name for name, each in self._lines.items() if each is line))

    def _take(self, name: str) -> None:
        try:
            message = self._lines[name].recv()
        except (EOFError, OSError) as error:
            raise BenchFailed(f"process {name} of the bench has died; LATCHWORK_DEBUG=1 shows its log") from error
        if isinstance(message, Failed):
            raise BenchFailed(f"process {name} of the bench failed: {message.reason}")
        if isinstance(message, Ready):
            self._ready[name] = message.at
        self._hear(name, message)

    def _send(self, name: str, command: object) -> None:
        try:
            self._lines[name].send(command)
        except OSError as error:
            if command is not None:
                raise BenchFailed(f"process {name} of the bench has died; LATCHWORK_DEBUG=1 shows its log") from error


def _child(work: Callable[..., None], connection: Connection, *args: object) -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    line = BenchConnection(connection)
    try:
        work(line, *args)
    except KeyboardInterrupt:
        pass  # the bench is interrupted too, and ends its processes
    except Exception as error:
        logging.getLogger(__name__).debug("a process of the bench failed", exc_info=True)
        line.send(Failed(f"{type(error).__name__}: {error}"))
