"""Clients of a history: in threads of this process, and in processes of their own that can be frozen and killed.

A process is forked by a *nursery*, which has everything imported already, so that hundreds can be killed in a run.
Its clients write down each call before they make it, over a socket of their own: what they had sent when they died is
known.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the nursery: our directory is not the place to import from
    sys.path[0] = str(Path(__file__).parents[2])

import latchwork
from trials.history.client import Recorder, Workload
from trials.judges.linearizable.calls import Call, call_from_json

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from latchwork.types import Entry

_IDLE_S = 60.0
_START_S = 30.0


class LocalClient:
    """A client in a thread of this process."""

    def __init__(
        self, spec: dict[str, Any], shared: dict[str, deque[Entry]], wrap: Callable[[latchwork.Store], Any]
    ) -> None:
        self.name = spec["name"]
        self._calls: list[Call] = []
        self.store = latchwork.connect(spec["url"], **spec["options"])
        self._recorder = Recorder(wrap(self.store), self.name, spec["number"], self, patience_s=spec["patience_s"])
        self._think_s = spec["think_s"]
        self._shared = shared
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, call: Call) -> None:
        self._calls.append(call)

    def end(self, call: Call) -> None:
        """It is in the list already."""

    def go(self, seed: int) -> None:
        self._stop.clear()
        workload = Workload(self._recorder, random.Random(seed), self._shared, think_s=self._think_s)
        self._thread = threading.Thread(target=_run, args=(self._recorder, workload, self._stop.is_set), name=self.name)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def finish(self) -> tuple[list[Call], list[str]]:
        """Wait until it is idle: its calls since the last time, and what went wrong."""
        self._thread.join(_IDLE_S)
        problems, self._recorder.unexpected = self._recorder.unexpected, []
        if self._thread.is_alive():
            problems = [*problems, f"{self.name} hangs in {self._calls[-1].told()}"]
        calls, self._calls = self._calls, []
        return calls, problems

    def close(self) -> None:
        self._recorder.close()


class RemoteClient:
    """The harness's side of a client in another process."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        self._connection = connection
        self._idle = threading.Event()
        self._calls: dict[int, Call] = {}
        self._problems: list[str] = []
        self._thread = threading.Thread(target=self._listen, name=f"from-{name}", daemon=True)
        self._thread.start()

    def go(self, seed: int) -> None:
        self._idle.clear()
        self._tell({"go": seed})

    def stop(self) -> None:
        self._tell({"stop": True})

    def finish(self) -> tuple[list[Call], list[str]]:
        """Wait until it is idle: its calls since the last time, and what went wrong."""
        if not self._idle.wait(_IDLE_S):
            self._problems.append(f"{self.name} hangs in {list(self._calls.values())[-1].told()}")
        calls, self._calls = list(self._calls.values()), {}
        problems, self._problems = self._problems, []
        return calls, problems

    def died(self, moment: int) -> tuple[list[Call], list[str]]:
        """Its process is gone: what it had under way can land no more."""
        self._thread.join(_IDLE_S)
        self._connection.close()
        for call in self._calls.values():
            call.returned = moment if call.returned is None else call.returned
        self._idle.set()
        return self.finish()

    def close(self) -> None:
        self._tell({"close": True})
        self._thread.join(_IDLE_S)
        self._connection.close()

    def _tell(self, command: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(command).encode() + b"\n")

    def _listen(self) -> None:
        with self._connection.makefile("r") as lines:
            try:
                for line in lines:
                    self._heard(json.loads(line))
            except (OSError, ValueError):  # killed while it was writing
                return

    def _heard(self, told: dict[str, Any]) -> None:
        if "idle" in told:
            self._problems += told["idle"]
            self._idle.set()
        else:
            call = call_from_json(told)
            self._calls[call.number] = call


class Nursery:
    """Forks processes with clients. One thread at a time."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_START_S)
        command = [sys.executable, str(Path(__file__)), str(self._listener.getsockname()[1])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def fork(self, clients: list[dict[str, Any]]) -> tuple[int, list[RemoteClient]]:
        """A process with clients as specified by ``Stage``; its id."""
        pid = self._ask({"fork": clients})
        found = []
        for _ in clients:
            connection, _ = self._listener.accept()
            connection.settimeout(None)
            name = b""
            while not name.endswith(b"\n"):
                name += connection.recv(1)
            found.append(RemoteClient(name.decode().strip(), connection))
        return pid, found

    def kill(self, pid: int) -> int:
        """End a process by kill -9; the moment by which it is gone."""
        os.kill(pid, signal.SIGKILL)
        self._ask({"reap": pid})
        return time.monotonic_ns()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(_IDLE_S)
        self._process.stdout.close()
        self._listener.close()

    def _ask(self, command: dict[str, Any]) -> int:
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _run(recorder: Recorder, workload: Workload, is_over: Callable[[], bool]) -> None:
    while not is_over():
        workload.step()
    recorder.settle()


# In the nursery and its children.


class _Wire:
    """One client's socket, in its own process."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(name.encode() + b"\n")
        self._heard = b""
        self._lock = threading.Lock()

    def begin(self, call: Call) -> None:
        self.tell(_brief(call))

    def end(self, call: Call) -> None:
        self.tell(_brief(call))

    def tell(self, what: dict[str, Any]) -> None:
        with self._lock:
            self._socket.sendall(json.dumps(what).encode() + b"\n")

    def command(self) -> dict[str, Any]:
        """The next one; the harness gone is one, too."""
        while b"\n" not in self._heard:
            chunk = self._socket.recv(1000)
            if not chunk:
                return {"close": True}
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        self._socket.close()

    def has_command(self) -> bool:
        return b"\n" in self._heard or bool(select.select([self._socket], [], [], 0)[0])


def _brief(call: Call) -> dict[str, Any]:
    return {name: value for name, value in asdict(call).items() if value not in ((), None, "")}


def _client(port: int, spec: dict[str, Any]) -> None:
    wire = _Wire(port, spec["name"])
    store = latchwork.connect(spec["url"], **spec["options"])
    recorder = Recorder(store, spec["name"], spec["number"], wire, patience_s=spec["patience_s"])
    while "close" not in (command := wire.command()):
        workload = Workload(recorder, random.Random(command["go"]), think_s=spec["think_s"])
        _run(recorder, workload, wire.has_command)
        wire.command()  # stop
        problems, recorder.unexpected = recorder.unexpected, []
        wire.tell({"idle": problems})
    recorder.close()
    wire.close()


def _child(port: int, specs: list[dict[str, Any]]) -> None:
    threads = [threading.Thread(target=_client, args=(port, spec)) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _nursery(port: int) -> None:
    children = set()
    for line in sys.stdin:
        command = json.loads(line)
        if "reap" in command:
            os.waitpid(command["reap"], 0)
            children.discard(command["reap"])
            print(command["reap"], flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _child(port, command["fork"])
                status = 0
            finally:
                os._exit(status)
        children.add(pid)
        print(pid, flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _nursery(int(sys.argv[1]))
