"""A process of ours: does what it is told, reports what happens, and can be frozen and killed at any moment.

    victim = Remote("trials.contract.client:serve", "v", url, report=facts.add)
    victim.write_on()       # a method of what it serves, with its answer or its error
    victim.kill()           # all that it had reported by then is here

The work is a function, named as module:function. It is called there with a `Wire` and the arguments. It may report at
any time, and have the methods of a thing called from here with `wire.serve`. Whatever is told is pickled.

Processes are forked from a *nursery*, which has imported everything already: hundreds can be killed in a run. They die
with it, frozen ones too, and it dies with the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import os
import pickle
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

if __name__ == "__main__":  # the nursery: our directory is not where imports start
    sys.path[0] = str(Path(__file__).parents[1])

from latchwork import errors

ANSWER_S = 90.0
_CLOSE_S = 15.0
_ENDED = "ended"
_MESSAGE_BYTES = 65_536
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class RemoteFailed(AssertionError):
    """A process of ours raised what is no error of latchwork, gave no answer, or ended."""


class Remote:
    """Our side of a process. Its methods are those of what the process serves. One thread at a time.

    Args:
        work: module:function.
        arguments: of the function.
        report: called with each report, in a thread of its own.
        output: a file for what the process prints; by default it prints where we do.
    """

    def __init__(
        self, work: str, *arguments: Any, report: Callable[[Any], object] = id, output: Path | None = None
    ) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._nursery = _nursery()
            self.pid = self._nursery.fork((work, arguments, output), theirs)
        self._report = report
        self._answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._unheard = 0
        self._is_reaped = False
        self._reader = threading.Thread(target=self._listen, name=f"reports-of-{self.pid}", daemon=True)
        self._reader.start()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self._ask(name, arguments)

    @property
    def is_alive(self) -> bool:
        return self._reader.is_alive()

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def limit_files(self, size: int) -> None:
        """It may not write to a file beyond this many bytes."""
        _, most = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, most))

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended in time."""
        self._reader.join(timeout_s)
        return not self.is_alive

    def kill(self) -> int:
        """End it by kill -9; the moment by which it was gone, in nanoseconds. Twice is fine."""
        if not self._is_reaped:
            os.kill(self.pid, signal.SIGKILL)
            self._nursery.reap(self.pid)
            self._is_reaped = True
        moment = time.monotonic_ns()
        self._reader.join(ANSWER_S)
        self._connection.close()
        return moment

    def close(self) -> None:
        """End it in order, and by force if that takes too long."""
        if not self._is_reaped:
            self.resume()
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
            self.wait(_CLOSE_S)
        self.kill()

    def tell(self, name: str, *arguments: Any) -> None:
        """Have it do something, and do not wait for the answer, which nobody gets."""
        self._unheard += 1
        with contextlib.suppress(OSError):  # it has ended: what it said last tells more
            self._connection.sendall(pickle.dumps((name, arguments)))

    def _ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self.tell(name, *arguments)
        try:
            while self._unheard:
                kind, what = self._answers.get(timeout=ANSWER_S)
                self._unheard = 0 if kind == _ENDED else self._unheard - 1
        except queue.Empty:
            raise RemoteFailed(f"process {self.pid} gave no answer to {name!r} within {ANSWER_S:.0f} s") from None
        if kind == _ENDED:
            self._answers.put((kind, what))  # for whoever asks again
        if kind != "ok":
            raise getattr(errors, kind, RemoteFailed)(what)
        return what

    def _listen(self) -> None:
        try:
            with self._connection.makefile("rb") as said:
                for kind, what in _unpickled(said):
                    if kind == "report":
                        self._report(what)
                    else:
                        self._answers.put((kind, what))
        finally:
            self._answers.put((_ENDED, f"process {self.pid} has ended, or is heard no more"))


def _unpickled(said: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Everything, until the other side is gone: kill -9 may have cut it short."""
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        while True:
            yield pickle.load(said)


class _Nursery:
    """Our side of the process that all others are forked from. Safe to share between threads."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # or the end of a shell above us would wake what is frozen
            )
        self._lock = threading.Lock()
        atexit.register(self._close)

    def fork(self, work: tuple[str, tuple[Any, ...], Path | None], connection: socket.socket) -> int:
        """The id of a new process, which has the connection."""
        return self._ask(work, [connection.fileno()])

    def reap(self, pid: int) -> None:
        """Wait until one that was killed is gone."""
        self._ask(pid, [])

    def _ask(self, what: Any, files: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._connection, [pickle.dumps(what)], files)
            answer = self._connection.recv(_MESSAGE_BYTES)
        if not answer:
            raise RemoteFailed(f"the nursery has ended with status {self._process.wait(_CLOSE_S)}")
        return int(answer)

    def _close(self) -> None:
        self._connection.close()
        self._process.wait(_CLOSE_S)


_nurseries: dict[int, _Nursery] = {}
_nurseries_lock = threading.Lock()


def _nursery() -> _Nursery:
    """That of this process; not that of the one it was forked from."""
    with _nurseries_lock:
        if os.getpid() not in _nurseries:
            _nurseries[os.getpid()] = _Nursery()
        return _nurseries[os.getpid()]


# In the nursery and in its children


class Wire:
    """The side of the process that works. ``report`` is safe to share between threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def report(self, what: Any) -> None:
        self._say("report", what)

    def serve(self, thing: Any) -> None:
        """Call methods of a thing as asked for, one at a time, until the other side wants no more."""
        with self._connection.makefile("rb") as asked:
            for name, arguments in _unpickled(asked):
                try:
                    self._say("ok", getattr(thing, name)(*arguments))
                except errors.LatchworkError as error:
                    self._say(type(error).__name__, str(error))
                except Exception:
                    self._say("RemoteFailed", traceback.format_exc())

    def _say(self, kind: str, what: Any) -> None:
        said = pickle.dumps((kind, what))
        with self._lock:
            self._connection.sendall(said)


def _work(work: str, arguments: tuple[Any, ...], output: Path | None, connection: socket.socket) -> None:
    """All that a forked process does."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() == 1:
        return  # it died before that
    if output is not None:
        with output.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    _function(work)(Wire(connection), *arguments)


@functools.cache
def _function(name: str) -> Callable[..., None]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _fork_on_demand(connection: socket.socket) -> None:
    while True:
        message, files, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 1)
        if not message:
            return  # who started us is gone
        told = pickle.loads(message)
        if isinstance(told, int):
            pid, _ = os.waitpid(told, 0)
        else:
            _function(told[0])
            pid = os.fork()
            if pid == 0:
                connection.close()
                _end_after(functools.partial(_work, *told, socket.socket(fileno=files[0])))
            os.close(files[0])
        connection.send(str(pid).encode())


def _end_after(work: Callable[[], None]) -> None:
    """Do it and leave, without what the nursery would still do at its end."""
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _fork_on_demand(socket.socket(fileno=int(sys.argv[1])))
