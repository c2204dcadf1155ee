"""The real command line, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    def refused(self, code, *words):
        """Ended with this code and one line on stderr that has all the words; nothing like a traceback anywhere."""
        assert self.code == code, self
        assert "Traceback" not in self.out + self.err, self
        lines = [line for line in self.err.splitlines() if line.lower().startswith("error:")]
        assert len(lines) == 1, self
        for word in words:
            assert word in lines[0], f"{word!r} is not in: {lines[0]}"
        return lines[0]


class Cli:
    """Runs `latchwork` in a directory, without any LATCHWORK_ variable but those given."""

    program = Path(sys.executable).with_name("latchwork")

    def __init__(self, folder):
        self.folder = folder
        self._started = []

    def env(self, **extra):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LATCHWORK_")}
        return {**kept, "COLUMNS": "160", "PYTHONUNBUFFERED": "1", **extra}

    def __call__(self, *args, timeout_s=60, **extra):
        done = subprocess.run(
            [self.program, *args],
            cwd=self.folder,
            env=self.env(**extra),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *args, **extra):
        """Start it and go on; its output goes to one file."""
        log = self.folder / f"started-{len(self._started)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [self.program, *args],
                cwd=self.folder,
                env=self.env(**extra),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        process.log = log
        self._started.append(process)
        return process

    def logs(self):
        return "\n---\n".join(process.log.read_text() for process in self._started)

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    @contextmanager
    def ending_all(self):
        try:
            yield self
        finally:
            for process in self._started:
                if process.poll() is None:
                    process.kill()
                process.wait(10)


@pytest.fixture
def cli(tmp_path):
    with Cli(tmp_path).ending_all() as found:
        yield found


@pytest.fixture
def wait_until(cli):
    """Wait for a condition; when it does not come true, show what the started processes wrote."""

    def wait(condition, what, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}\n{cli.logs()}"
            time.sleep(0.05)
        return found

    return wait
