"""Stores of the embedded backend, without the store layer above them, and processes to hurt."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK, SystemClock
from patience import eventually

PRELUDE = """
import os, signal, sys, time
from latchwork.backends.url import open_backend, parse_url
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import *
from latchwork.types import *
def say(*words):
    print(*words, flush=True)
store = open_backend(parse_url(sys.argv[1]), SYSTEM_CLOCK)
"""


class ShiftedClock(SystemClock):
    """The machine's clock plus what the test added."""

    def __init__(self):
        self.clock_offset_s = 0.0

    def now(self):
        return super().now() + self.clock_offset_s


class Collector:
    """A sink that keeps its events."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)

    def changes(self):
        return [change for event in self.events for change in getattr(event, "changes", ())]

    def changed_keys(self):
        return [change.key for change in self.changes()]

    def seen(self):
        """Every key reported so far, in snapshots too."""
        return [entry.key for event in self.events for entry in getattr(event, "entries", ())] + self.changed_keys()

    def kinds(self):
        return [type(event).__name__ for event in self.events]


@pytest.fixture(name="eventually")
def _eventually():
    return eventually


@pytest.fixture
def collector():
    return Collector


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path / 'store.db'}?root=app"


@pytest.fixture(params=["memory", "sqlite"])
def url(request, sqlite_url):
    return sqlite_url if request.param == "sqlite" else f"memory://{uuid.uuid4().hex}/app"


@pytest.fixture
def opened():
    """Opens backends and closes them at the end."""
    stores = []

    def open_one(url, clock=SYSTEM_CLOCK, **overrides):
        stores.append(open_backend(parse_url(url, overrides), clock))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(url, opened):
    return opened(url)


@pytest.fixture
def clock():
    return ShiftedClock()


@pytest.fixture
def child():
    """Starts Python processes that have opened the store as `store`; kills them at the end."""
    running = []

    def start(body, url, *arguments):
        command = [sys.executable, "-c", PRELUDE + body, url, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
