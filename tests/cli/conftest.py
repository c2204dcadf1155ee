"""The real command line, each command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from patience import came_true

SERVER = Path(__file__).with_name("command_server.py")
#: Variables that a command reads when it runs, and no interpreter when it starts.
READ_LATE = ("LATCHWORK_", "_LATCHWORK_", "COMP_", "COLUMNS")


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


class CommandServer:
    """A process that has imported all commands, and runs each in a copy of itself. One thread at a time."""

    def __init__(self, program, folder):
        self._out, self._err = folder / "out", folder / "err"
        self._process = subprocess.Popen(
            [sys.executable, SERVER, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, args, cwd, env, timeout_s):
        files = {"out": str(self._out), "err": str(self._err)}
        wanted = {"args": [str(each) for each in args], "cwd": str(cwd), "env": env, **files}
        late = threading.Timer(timeout_s, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps(wanted) + "\n")
            self._process.stdin.flush()
            code = self._process.stdout.readline()
        finally:
            late.cancel()
        if not code:
            raise subprocess.TimeoutExpired(args, timeout_s, self._out.read_bytes(), self._err.read_bytes())
        return Done(int(code), self._out.read_text("utf-8"), self._err.read_text("utf-8"))

    @property
    def running(self):
        return self._process.poll() is None

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


class Cli:
    """Runs `latchwork` in a directory, without any LATCHWORK_ variable but those given.

    A command that is waited for is run by a server of commands, unless it is given variables that count when an
    interpreter starts; one that goes on beside the test has a process of its own from the start.
    """

    program = Path(sys.executable).with_name("latchwork")

    def __init__(self, folder, commands):
        self.folder = folder
        self._commands = commands
        self._started = []

    def env(self, **extra):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LATCHWORK_")}
        return {**kept, "COLUMNS": "160", "PYTHONUNBUFFERED": "1", **extra}

    def __call__(self, *args, timeout_s=120, **extra):
        if all(name.startswith(READ_LATE) for name in extra):
            return self._commands()(args, self.folder, self.env(**extra), timeout_s)
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


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """Gives a server of commands: the same one, until it had to be killed."""
    servers = []

    def get():
        if not servers or not servers[-1].running:
            servers.append(CommandServer(Cli.program, tmp_path_factory.mktemp("commands")))
        return servers[-1]

    yield get
    for server in servers:
        server.close()


@pytest.fixture
def cli(tmp_path, commands):
    with Cli(tmp_path, commands).ending_all() as found:
        yield found


@pytest.fixture
def wait_until(cli):
    """Wait for a condition; when it does not come true, show what the started processes wrote."""

    def wait(condition, what, timeout_s=20.0):
        found = came_true(condition, timeout_s, every_s=0.05)
        assert found, f"after {timeout_s} s still not: {what}\n{cli.logs()}"
        return found

    return wait
