"""SIGINT at random times: the store stays usable or closes, no ticket outlives its TTL, and the process ends.

`make check WHAT=interrupts` sends 500 to each backend, `make test` a few dozen.
"""

from __future__ import annotations

import json
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import latchwork
from levels import LONG
from patience import eventually

VICTIM = Path(__file__).parent / "victim.py"
ROUNDS = 24
PROCESSES = 20 if LONG else 1
TTL_S = 4.0
#: Seconds within which a process answers a signal, and after which the signal is sent once more: an interrupt in a
#: finalizer is printed and ignored by the interpreter.
ANSWER_S = 60.0
AGAIN_S = 5.0
#: Seconds from "ready" to the signal, at most; a call takes about a millisecond or two.
LATEST_S = (0.001, 0.004, 0.02)


class Process:
    """A victim, whose lines are read by a thread."""

    def __init__(self, url: str, seed: int) -> None:
        command = [sys.executable, str(VICTIM), url, str(ROUNDS), str(seed)]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self.child.stdout or ():
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _read_errors(self) -> None:
        self._errors.extend(self.child.stderr or ())

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return "".join(self._errors)

    def next(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the next line.

        Raises:
            queue.Empty: there was none in time.
        """
        line = self._lines.get(timeout=timeout_s)
        if line is None:
            for reader in self._readers:
                reader.join(10.0)
            raise AssertionError(f"the process ended: {self.errors}")
        return line

    def interrupt(self) -> dict[str, Any]:
        """Send a signal at a random moment, and return what the process says next."""
        time.sleep(random.uniform(0.0, random.choice(LATEST_S)))
        for _ in range(3):
            self.child.send_signal(signal.SIGINT)
            try:
                return self.next(AGAIN_S)
            except queue.Empty:
                pass
        return self.next_or_fail("hangs after an interrupt")

    def next_or_fail(self, trouble: str) -> dict[str, Any]:
        """Return the next line. If there is none in time, fail with the stacks of the process."""
        try:
            return self.next()
        except queue.Empty:
            self.fail(trouble)

    def fail(self, what: str) -> NoReturn:
        """Fail with the stacks of all threads."""
        self.child.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
        self.child.kill()
        for reader in self._readers:
            reader.join(10.0)
        raise AssertionError(f"the process {what}:\n{self.errors}")

    def close(self) -> None:
        """Kill it, if it is still there."""
        self.child.kill()
        self.child.wait()
        for reader in self._readers:
            reader.join(10.0)


def play(url: str, seed: int) -> int:
    """Interrupt each round of one process, then the process; how many signals it was sent."""
    process = Process(url, seed)
    try:
        for _ in range(ROUNDS):
            assert process.next() == {"ready": True}
            assert "kind" in process.interrupt()
        closed = process.next_or_fail("does not close its store")
        assert closed["close_s"] < 20.0
        assert process.next() == {"ready": True}
        time.sleep(random.uniform(0.0, 0.02))
        process.child.send_signal(signal.SIGINT)
        try:
            code = process.child.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            process.fail("does not end")
        assert code == -signal.SIGINT, process.errors
    finally:
        process.close()
    return ROUNDS + 1


def test_interrupts_at_random_times_leave_a_usable_store_and_no_ticket(backend_url: str) -> None:
    url = f"{backend_url}{'&' if '?' in backend_url else '?'}session_ttl_s={TTL_S}&call_timeout_s=5"
    sent = sum(play(url, random.randrange(2**30)) for _ in range(PROCESSES))
    assert sent >= ROUNDS * PROCESSES
    with latchwork.connect(url) as store:
        eventually(lambda: not store.list("end"), TTL_S + 10.0, "the lock of an ended process is free")
