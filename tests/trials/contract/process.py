"""A client in a process of its own, to be frozen and killed; and the harness's side of it.

``python -m trials.contract.process NAME URL TTL`` takes commands on standard input (write, settle, mirror, close)
and prints facts, changes of calls and answers as JSON, one a line. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trials.contract.client import Client
from trials.record import Call, Record, from_json, to_json

_ANSWER_S = 60.0
_TESTS = Path(__file__).parents[2]


class RemoteClient:
    """As ``Client``. One thread at a time."""

    def __init__(self, name: str, url: str, ttl_s: float, record: Record, sink: Callable[[Any], None]) -> None:
        self.name = name
        self._record, self._sink = record, sink
        self._answers: queue.Queue[Any] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trials.contract.process", name, url, str(ttl_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(_TESTS)},
            start_new_session=True,  # or the end of a shell above us would wake it
        )
        self._reader = threading.Thread(target=self._read, name=f"play-{name}-reader", daemon=True)
        self._reader.start()

    def ready(self) -> None:
        self._answers.get(timeout=_ANSWER_S)

    def write_on(self) -> None:
        self._ask("write")

    def settle(self) -> list[str]:
        return self._ask("settle")

    def mirrored(self) -> dict[str, str]:
        return self._ask("mirror")

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def limit_files(self, size: int) -> None:
        """It may not write to a file beyond this many bytes."""
        _, most = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, most))

    def kill(self) -> None:
        """Kill -9; its record ends there."""
        self._process.kill()
        self._process.wait()
        self._reader.join(_ANSWER_S)
        self._record.gone.add(self.name)

    def close(self) -> None:
        if self._process.poll() is None:
            self.wake()
            with contextlib.suppress(OSError, queue.Empty):
                self._ask("close")
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(_ANSWER_S)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    def _ask(self, what: str) -> Any:
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answers.get(timeout=_ANSWER_S)

    def _read(self) -> None:
        calls: dict[str, Call] = {}
        with contextlib.suppress(ValueError):  # a line cut short by kill -9
            for line in self._process.stdout:
                data = json.loads(line)
                if "answer" in data:
                    self._answers.put(data["answer"])
                    continue
                number = data.pop("number", None)
                fact = from_json(data)
                if number is None:
                    self._sink(fact)
                elif number in calls:
                    vars(calls[number]).update(dataclasses.asdict(fact), keys=fact.keys)
                else:
                    calls[number] = fact
                    self._sink(fact)


def main(name: str, url: str, ttl_s: str) -> None:
    lock = threading.Lock()

    def say(data: dict[str, Any]) -> None:
        with lock:
            sys.stdout.write(json.dumps(data) + "\n")
            sys.stdout.flush()

    def fact(one: Any) -> None:
        say({**to_json(one), "number": id(one)} if isinstance(one, Call) else to_json(one))

    kept: list[Call] = []  # so that no two have the same id

    def sink(one: Any) -> None:
        if isinstance(one, Call):
            kept.append(one)
        fact(one)

    client = Client(name, url, float(ttl_s), sink, fact)
    client.ready()
    say({"answer": None})
    commands: dict[str, Any] = {"write": client.write_on, "settle": client.settle, "mirror": client.mirrored}
    for line in sys.stdin:
        if line.strip() == "close":
            break
        say({"answer": commands[line.strip()]()})
    client.close()
    say({"answer": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
