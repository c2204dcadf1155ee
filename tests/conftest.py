"""Servers and stores for every test.

One process per kind of server and test run, started when the first test wants it; a fresh root per test. A missing
server is a failure, never a skip. Tests that hurt servers start their own, from `latchwork_testbed.servers`.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest

import latchwork
from latchwork_testbed.servers import EtcdServer, ZooKeeperServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A shell that runs the tests in the background has them ignore SIGINT, and every process they start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

BACKENDS = ("memory", "sqlite", "zookeeper", "etcd34", "etcd35")
THREAD_GRACE_S = 5.0


@pytest.fixture(scope="session")
def etcd34() -> Iterator[EtcdServer]:
    """An etcd 3.4 server shared by the whole run; leave it running and unhurt."""
    with EtcdServer("3.4") as server:
        yield server


@pytest.fixture(scope="session")
def etcd35() -> Iterator[EtcdServer]:
    """An etcd 3.5 server shared by the whole run; leave it running and unhurt."""
    with EtcdServer("3.5") as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper server shared by the whole run; leave it running and unhurt."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(params=BACKENDS)
def backend_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of each backend in turn, with a root that no other test uses.

    Several stores connected to it see each other; with memory, those of this process only.
    """
    kind: str = request.param
    name = f"test-{uuid.uuid4().hex}"
    if kind == "memory":
        return f"memory://{name}/test"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}?root=test"
    server: EtcdServer | ZooKeeperServer = request.getfixturevalue(kind)
    return server.url(name)


@pytest.fixture
def store(backend_url: str) -> Iterator[latchwork.Store]:
    """A store on each backend in turn, empty at first, closed after the test."""
    with latchwork.connect(backend_url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Whatever a test opens it closes, and close() joins: no thread of ours outlives the test that started it."""
    before = set(threading.enumerate())
    yield
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("latchwork") and thread not in before]
    deadline = time.monotonic() + THREAD_GRACE_S
    for thread in ours:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = sorted(thread.name for thread in ours if thread.is_alive())
    assert not left, f"the test left these threads running: {', '.join(left)}"
