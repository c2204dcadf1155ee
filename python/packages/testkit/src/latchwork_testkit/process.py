"""A supervised child process that can be stopped, killed, paused and resumed, and is never orphaned.

Nothing here knows about servers: see `server.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_STOPPED_STATES = "Tt"


class SupervisedProcess:
    """A child process that ends together with this process, however this process ends. Not thread-safe.

    Its standard output and error are appended to `log_path`.

    Args:
        command: The program and its arguments.
        log_path: File for the output.
        environment: Environment variables of the process.
        remove_directory: Directory to remove if this process ends first.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str],
        remove_directory: Path | None = None,
    ) -> None:
        """Start the process. If the program cannot be executed, the exit status is 127 and the log says why."""
        arguments = [str(os.getpid()), str(remove_directory or ""), *command]
        with log_path.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C in a terminal is for the tests, which then stop their servers in order
            )
        self.pid = self._read_pid()

    def _read_pid(self) -> int:
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as pipe:
            line = pipe.readline()
        if not line:
            raise ChildProcessError(f"the supervisor of a server ended with status {self._supervisor.wait()}")
        return int(line)

    @property
    def running(self) -> bool:
        """Whether the process exists, even if it is paused."""
        return self._supervisor.poll() is None

    def wait(self, timeout_s: float) -> int | None:
        """Wait until the process ends, and return its exit status.

        Args:
            timeout_s: Seconds to wait.
        Returns:
            The exit status, 256 - N if signal N ended the process, or None if it is still running.
        """
        try:
            return self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self, timeout_s: float, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to stop the process, and kill it if it has not ended after `timeout_s` seconds."""
        self._signal(number)
        self._signal(signal.SIGCONT)
        if self.wait(timeout_s) is None:
            self.kill()

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended."""
        self._signal(signal.SIGKILL)
        self._supervisor.wait()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP). Its sockets stay open and silent.

        Raises:
            TimeoutError: The process was not frozen after 5 s.
        """
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + 5.0
        while self.running and self._state() not in _STOPPED_STATES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} did not stop within 5 s of SIGSTOP")
            self.wait(0.002)

    def resume(self) -> None:
        """Continue the process after `pause`."""
        self._signal(signal.SIGCONT)

    def _state(self) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return _STOPPED_STATES[0]

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
