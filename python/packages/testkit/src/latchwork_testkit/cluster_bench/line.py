"""The line between the bench and its processes: starting them, telling them, hearing from them, ending them."""

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
    """A cluster could not be measured; the message says why."""


class BenchRefused(BenchFailed, ValueError):
    """This store cannot be measured."""


class Line:
    """A process's end of the line. Safe to share between threads, but for ``recv`` and ``poll``: one thread only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._mutex = threading.Lock()

    def send(self, message: object) -> None:
        """Tell the bench, unless it is gone."""
        with self._mutex:
            try:
                self._connection.send(message)
            except OSError:
                logging.getLogger(__name__).debug("the bench is gone, it is not told %r", message)

    def recv(self) -> Any:
        """The next order; None when it is to end."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def poll(self, timeout_s: float) -> bool:
        """Whether an order came, or the bench has gone."""
        return self._connection.poll(timeout_s)


class Processes:
    """The processes of one bench. One thread only; leaving the context ends all of them."""

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
        """Start a process that does ``work(line, *args)``."""
        ours, theirs = self._spawn.Pipe()
        process = self._spawn.Process(
            target=_child, args=(work, theirs, *args), name=f"latchwork-bench-{name}", daemon=True
        )
        process.start()
        theirs.close()
        self._processes[name], self._lines[name] = process, ours

    def tell(self, name: str, order: object) -> float:
        """Give an order, and wait until it is done; when that was.

        Raises:
            BenchFailed: it was not done in time, or the process failed.
        """
        self._ready.pop(name, None)
        self._send(name, order)
        self.until(lambda: name in self._ready, f"process {name} to do {order!r}")
        return self._ready[name]

    def ready(self, names: list[str]) -> None:
        """Wait until all of these have told that they are ready."""
        self.until(lambda: all(name in self._ready for name in names), f"{', '.join(names)} to be ready")

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Hear what the processes say until that is true.

        Raises:
            BenchFailed: it did not become true in time, or a process failed.
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

    def _send(self, name: str, order: object) -> None:
        try:
            self._lines[name].send(order)
        except OSError as error:
            if order is not None:
                raise BenchFailed(f"process {name} of the bench has died; LATCHWORK_DEBUG=1 shows its log") from error


def _child(work: Callable[..., None], connection: Connection, *args: object) -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    line = Line(connection)
    try:
        work(line, *args)
    except KeyboardInterrupt:
        pass  # the bench is interrupted too, and ends its processes
    except Exception as error:
        logging.getLogger(__name__).debug("a process of the bench failed", exc_info=True)
        line.send(Failed(f"{type(error).__name__}: {error}"))
