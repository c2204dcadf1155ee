"""Several clients of one root, and holders in processes of their own that can be killed and frozen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Queue

import pytest

import latchwork
from latchwork.primitives import LockKeeper

HOLDER = Path(__file__).with_name("holder.py")
#: Seconds after which what should happen counts as never happening: much, because machines that run tests are busy.
PATIENCE_S = float(os.environ.get("LATCHWORK_TEST_PATIENCE_S", "45"))


@pytest.fixture
def connect(backend_url):
    """Open another client of the test's root; closed after the test."""
    opened = []

    def open_store(**options):
        opened.append(latchwork.connect(backend_url, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def other(connect):
    """A second client of the same root."""
    return connect()


@pytest.fixture
def in_thread():
    """Run something in a thread; ``join`` gives its result or raises its error. Joined after the test."""
    running = []

    class Running(threading.Thread):
        def __init__(self, fn):
            super().__init__(daemon=True)
            self.fn, self.result, self.error = fn, None, None
            self.start()

        def run(self):
            try:
                self.result = self.fn()
            except BaseException as error:
                self.error = error

        def outcome(self, timeout_s=PATIENCE_S):
            self.join(timeout_s)
            assert not self.is_alive(), "still waiting"
            if self.error is not None:
                raise self.error
            return self.result

    def start(fn):
        running.append(Running(fn))
        return running[-1]

    yield start
    for each in running:
        each.join(PATIENCE_S)


class Holder:
    """A process that holds a lock or leads, tells what happens to it, and can be hurt."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, str(HOLDER), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.said = Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.said.put(json.loads(line))

    def hear(self, timeout_s=PATIENCE_S):
        try:
            return self.said.get(timeout=timeout_s)
        except Empty:
            pytest.fail(f"the holder said nothing for {timeout_s} s (exit status {self.process.poll()})")

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.hear()

    def tell(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def send(self, number):
        os.kill(self.process.pid, number)

    def freeze(self):
        self.send(signal.SIGSTOP)

    def wake(self):
        self.send(signal.SIGCONT)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.reader.join(10)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def holder(backend_url, store):
    """Start a process that holds; killed after the test. Only where several processes can share the data."""
    if not store.capabilities.multi_process:
        pytest.skip("one process only")
    started = []

    def start(kind, name, ttl_s=1.0):
        started.append(Holder(backend_url, kind, name, ttl_s))
        return started[-1]

    yield start
    for each in started:
        each.end()


def eventually(condition, timeout_s=PATIENCE_S, every_s=0.01):
    """Wait until the condition is true; its value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"did not come true within {timeout_s} s"
        time.sleep(every_s)


@pytest.fixture(name="eventually")
def eventually_fixture():
    return eventually


@pytest.fixture
def keepers(connect, request):
    """Make a keeper with a client of its own, by default with the TTL of the test's file; closed after the test."""
    made = []

    def make(label="keeper", *, ttl_s=request.module.TTL_S, store=None):
        keeper = LockKeeper(store or connect(), ttl_s=ttl_s, owner_label=label)
        made.append(keeper)
        keeper.start()
        return keeper

    yield make
    for keeper in made:
        keeper.close()
