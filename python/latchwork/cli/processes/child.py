"""A command that runs as a child as long as something is ours: told to stop in time, and never left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import LatchworkError

_PR_SET_PDEATHSIG = 1
#: Who waits for the order to stop looks so often whether the command has ended.
_LOOK_S = 1.0
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: What a shell says of a command that cannot be started.
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class ChildFailed(LatchworkError):
    """A command could not be started, or ended with another code than 0."""


class Child:
    """One running command. Safe to share between threads.

    On Linux it dies with the thread that started it, even when that is killed; what it started itself does not.

    Args:
        words: the command and its arguments; no shell reads them.
        env: variables it gets beside ours.
        own_group: it gets a process group of its own, and signals go to all of that: for what runs in the background.
            Without, a terminal's Ctrl-C reaches it by itself.
    Raises:
        ChildFailed: it cannot be started; the message says why.
    """

    def __init__(self, words: Sequence[str], env: Mapping[str, str], *, own_group: bool) -> None:
        self._own_group = own_group
        parent = os.getpid()
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # before the fork: nothing is loaded in the child

        def die_with_parent() -> None:
            if libc is not None:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:  # it has died between the fork and the call
                    os._exit(1)

        try:
            self._process = subprocess.Popen(  # noqa: S603 - it is the user's own command, and no shell
                list(words),
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL if own_group else None,
                start_new_session=own_group,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it calls one function that is there already
            )
        except OSError as error:
            raise ChildFailed(f"command {words[0]!r} cannot be started: {error.strerror or error}") from error

    def wait(self) -> int:
        """Wait for its end: its exit code, or 128 and the number of the signal that ended it, as a shell says it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def stop(self, within_s: float) -> None:
        """Tell it to end, and kill it when it has not in that time. From any thread; returns when it has ended."""
        self.send(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait()

    def send(self, number: int) -> None:
        """Send it a signal; nothing happens when it has ended."""
        try:
            if self._process.poll() is not None:  # its number may be another's by now
                return
            if self._own_group:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
        except (ProcessLookupError, PermissionError):  # it is ending
            return


@contextmanager
def signals_handed_on() -> Iterator[Callable[[Child], None]]:
    """Hand our signals on to a child, once it is named; Ctrl-C of a terminal reaches it by itself.

    Those that come before the child is there are handed on when it is: none ends us and leaves it behind.
    """
    children: list[Child] = []
    early: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and sys.stdin.isatty():
            return
        if children:
            children[0].send(number)
        else:
            early.append(number)

    def name(child: Child) -> None:
        children.append(child)
        for number in early:
            child.send(number)

    before = {number: signal.signal(number, hand_on) for number in (*_FORWARDED, signal.SIGINT)}
    try:
        yield name
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_while_ours(
    words: Sequence[str], env: Mapping[str, str], remaining_s: Callable[[], float], *, stop_within_s: float
) -> int:
    """Run a command in the foreground until it ends, or until it is told to; return its exit code.

    Args:
        words: the command and its arguments.
        env: variables it gets beside ours.
        remaining_s: gives the seconds until it has to stop, unless they become more; asked at least once a second.
        stop_within_s: seconds after which it is killed.
    """
    over = threading.Event()
    codes: list[int] = []
    ended = threading.Event()

    def wait() -> None:
        codes.append(child.wait())
        ended.set()

    def watch() -> None:
        while not over.is_set():
            left_s = remaining_s()
            if left_s <= 0.0:
                child.stop(stop_within_s)
                return
            over.wait(min(left_s, _LOOK_S))

    with signals_handed_on() as hand_on_to:
        child = Child(words, env, own_group=False)
        hand_on_to(child)
        watcher = threading.Thread(target=watch, name="latchwork-child-watcher", daemon=True)
        watcher.start()
        threading.Thread(target=wait, name="latchwork-child-waiter", daemon=True).start()
        try:
            # Waiting for the process itself would keep a signal that arrives right before the wait until its end.
            SYSTEM_CLOCK.wait(ended)
            return codes[0]
        finally:
            over.set()
            watcher.join()
