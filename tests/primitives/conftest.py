"""Several clients of one root, and holders in processes of their own that can be killed and frozen."""

from __future__ import annotations

import os
import threading
from queue import Empty, Queue

import pytest

import latchwork
import patience
from latchwork.primitives import LockKeeper, WorkQueue
from trials.remote import Remote

#: Seconds after which what should happen counts as never happening: much, because machines that run tests are busy.
PATIENCE_S = float(os.environ.get("LATCHWORK_TEST_PATIENCE_S", "45"))


def list_arrivals(store, name="phase"):
    """The stored arrivals at a barrier."""
    return [entry for entry in store.list(name) if "/arrived-" in entry.key]


def list_arrived(store, name="phase"):
    """The stored arrivals that are not older than the newest opening."""
    entries = store.list(name)
    opened = [entry.token for entry in entries if entry.key.endswith("/opening")]
    return [entry for entry in entries if opened and "/arrived-" in entry.key and entry.token >= opened[0]]


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
def backlog(connect):
    """Make a backlog with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(name="work", *, store=None, **options):
        one = WorkQueue(store or connect(session_ttl_s=10.0), name, **options)
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


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
    """A process that holds a lock or leads, says what happens to it, and can be hurt."""

    def __init__(self, *arguments):
        self._said = Queue()
        self.process = Remote("primitives.holder:serve", *arguments, report=self._said.put)
        self.tell, self.freeze, self.wake = self.process.tell, self.process.pause, self.process.resume

    def hear(self, timeout_s=PATIENCE_S):
        try:
            return self._said.get(timeout=timeout_s)
        except Empty:
            pytest.fail(
                f"the holder said nothing for {timeout_s} s (it is {'' if self.process.is_alive else 'not '}alive)"
            )

    def ask(self, what):
        self.tell(what)
        return self.hear()

    def send(self, number):
        os.kill(self.process.pid, number)


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
        each.process.kill()


def eventually(condition, timeout_s=PATIENCE_S, every_s=0.01):
    return patience.eventually(condition, timeout_s, every_s=every_s)


@pytest.fixture(name="eventually")
def eventually_fixture():
    return eventually


@pytest.fixture
def keepers(connect, request):
    """Make a keeper with a client of its own, by default with the TTL of the test's file; closed after the test."""
    made = []

    def make(label="keeper", *, ttl_s=request.module.TTL_S, store=None, **options):
        keeper = LockKeeper(store or connect(), ttl_s=ttl_s, owner_label=label, **options)
        made.append(keeper)
        keeper.start()
        return keeper

    yield make
    for keeper in made:
        keeper.close()
