"""Servers and stores for every test.

One process per kind of server and run, started when the first test wants it; a fresh root per test. A missing server is
a failure, never a skip. Tests that hurt servers start their own, from `latchwork_testkit.servers`. The backends are the
rows of `backends_table.py`; `levels.py` says which tests run on which.
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import latchwork
from backends_table import BY_NAME, SERVERS
from latchwork._base import interrupts
from levels import LONG
from run_servers import SharedServer, shared_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = ["run_plugin"]

# A shell that runs the tests in the background has them ignore SIGINT, and every process they start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

THREAD_GRACE_S = 5.0
_TESTS = str(Path(__file__).parent)
_refuse_inside = interrupts.raise_reentrant_call


def _shared(name: str) -> Callable[..., SharedServer]:
    @pytest.fixture(scope="session", name=name)
    def shared(pytestconfig: pytest.Config) -> SharedServer:
        """A server that the whole run shares; leave it running and unhurt."""
        return shared_server(pytestconfig, name)

    return shared


# Fixtures `zookeeper`, `etcd35`, ...
globals().update({f"_{name}": _shared(name) for name in SERVERS})


@pytest.fixture(autouse=True)
def driver(request: pytest.FixtureRequest) -> Iterator[None]:
    """Through which driver the test is run: by the loop's, what it uses are twins; see `levels` and `through_loop`."""
    if getattr(request, "param", "thread") != "loop":
        yield
        return
    if request.node.get_closest_marker("threads") is not None:
        pytest.skip("about threads, or of a kind that tests/through_loop.py cannot drive")
    if request.path.parent.name == "schedules":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(importlib.import_module("trials.schedules.by_loop"), "is_on", True)
            yield
        return
    through_loop = importlib.import_module("through_loop")  # it imports the twins
    loop_guard = importlib.import_module("loop_guard")

    with pytest.MonkeyPatch.context() as patch:
        plugins = request.config.pluginmanager.get_plugins()
        beside = str(request.path.with_name("conftest.py"))
        modules = [plugin for plugin in plugins if getattr(plugin, "__file__", None) == beside]
        modules += getattr(request.module, "DRIVEN_MODULES", ())
        loop = through_loop.install([request.module, *modules], patch)
        with loop_guard.watching(
            loop.thread, patch, measures=LONG and request.node.get_closest_marker("large") is None
        ):
            yield
    loop.close()


@pytest.fixture(params=BY_NAME)
def backend_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of each backend in turn, with a root that no other test uses.

    Several stores connected to it see each other; with memory, those of this process only.
    """
    name = f"test-{uuid.uuid4().hex}"
    backend = BY_NAME[request.param]
    if backend.url is not None:
        return backend.url(name, tmp_path)
    server: SharedServer = request.getfixturevalue(backend.name)
    return server.url(name)


@pytest.fixture
def store(backend_url: str) -> Iterator[latchwork.Store]:
    """A store on each backend in turn, empty at first, closed after the test."""
    with latchwork.connect(backend_url) as opened:
        yield opened


def _refuse_unless_from_a_test() -> None:
    """What a test puts in the place of a function of ours runs inside a call, and may make calls, as a user's does."""
    if not sys._getframe(2).f_code.co_filename.startswith(_TESTS):
        _refuse_inside()


@pytest.fixture(autouse=True)
def calls_of_tests_inside_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Serve the calls of tests in the middle of a call; not in tests marked ``reentrant``."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("reentrant") is None:
            patch.setattr(interrupts, "raise_reentrant_call", _refuse_unless_from_a_test)
        yield


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Whatever a test opens it closes, and close() joins: no thread of ours outlives the test that started it."""
    before = set(threading.enumerate())
    yield
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("latchwork") and thread not in before]
    deadline = time.monotonic() + THREAD_GRACE_S
    for thread in ours:
        thread._started.wait(THREAD_GRACE_S)  # type: ignore[attr-defined]  # one that closes a dropped store may just be starting
        thread.join(max(0.0, deadline - time.monotonic()))
    left = sorted(thread.name for thread in ours if thread.is_alive())
    assert not left, f"the test left these threads running: {', '.join(left)}"
