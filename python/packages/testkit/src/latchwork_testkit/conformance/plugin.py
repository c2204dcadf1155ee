"""The pytest plugin of the conformance kit: the backend under test, and the table of promises.

``pytest_plugin`` registers it for runs that name the kit or a backend for it.
"""

from __future__ import annotations

import importlib
import threading
import time
import types
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import latchwork

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "latchwork_testkit.conformance"
#: The property of a report that names the area of its promise, since a node ID depends on how the kit was named.
_AREA = "latchwork_conformance_area"
_ANSWERS = ("kept", "skipped", "broken")
_THREAD_GRACE_S = 5.0
_MARKERS = {
    "large": "has arguments of megabytes",
    "slow": "takes more than ten seconds",
    "serial": "measures time",
    "threads": "is about threads",
    "reentrant": "is about calls in the middle of a call",
}


class BackendServer(Protocol):
    """The backend under test. The launchers of ``latchwork_testkit.servers`` are such objects.

    The faults of the network also need ``endpoint``, the ``host:port`` in its URLs. The faults of the server also need
    ``kill()`` and ``start()``.
    """

    def url(self, root: str) -> str:
        """Return a connection URL with this root."""
        ...


class GivenBackend:
    """The backend of a connection URL. Tests use roots of their own."""

    def __init__(self, url: str) -> None:
        self._place, _, self._query = url.partition("?")

    @property
    def endpoint(self) -> str:
        """The first host with its port; empty if the URL has no host."""
        host = self._authority.rpartition("@")[2].partition(",")[0]
        return host if ":" in host else ""

    def url(self, root: str) -> str:
        """Return the URL with this root instead of its own."""
        from latchwork.spi import find_spec

        scheme = self._place.partition("://")[0]
        location = find_spec(scheme).location
        options = [each for each in self._query.split("&") if each and not each.startswith("root=")]
        if location in {"file", "database"}:
            return f"{self._place}?{'&'.join([*options, f'root={root}'])}"
        return f"{scheme}://{self._authority}/{root}" + (f"?{'&'.join(options)}" if options else "")

    @property
    def _authority(self) -> str:
        return self._place.partition("://")[2].partition("/")[0]


def _given() -> types.ModuleType:
    """Return a plugin with the fixture ``conformance_server`` by an option.

    Without an option, a plugin of the backend has the fixture. Two plugins would depend on the order of their
    registration.
    """

    @pytest.fixture(scope="session")
    def conformance_server(pytestconfig: pytest.Config) -> Iterator[BackendServer]:
        url, launcher = pytestconfig.getoption("--backend-url"), pytestconfig.getoption("--backend-server")
        if url:
            yield GivenBackend(url)
            return
        module, _, name = launcher.partition(":")
        with getattr(importlib.import_module(module), name)() as server:
            yield server

    plugin = types.ModuleType("latchwork_conformance_backend")
    plugin.conformance_server = conformance_server  # type: ignore[attr-defined]
    return plugin


@pytest.fixture(scope="session")
def conformance_root(conformance_server: BackendServer) -> Iterator[str]:
    """A root above those of all tests of this process, whose keys are removed at the end."""
    root = f"conformance-{uuid.uuid4().hex[:12]}"
    yield root
    with latchwork.connect(conformance_server.url(root)) as store:
        store.delete_tree("")


@pytest.fixture
def backend_url(conformance_server: BackendServer, conformance_root: str) -> str:
    """The URL of the backend under test, with a root that no other test uses."""
    return conformance_server.url(f"{conformance_root}/{uuid.uuid4().hex[:12]}")


@pytest.fixture
def store(backend_url: str) -> Iterator[latchwork.Store]:
    """An empty store, closed after the test."""
    with latchwork.connect(backend_url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """No thread outlives the test that started it: ``close`` joins all threads of a backend."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _THREAD_GRACE_S
    new = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("latchwork")]
    for thread in new:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = sorted(thread.name for thread in new if thread.is_alive())
    assert not left, f"these threads are still running after close: {', '.join(left)}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note to which level and area of the kit a test belongs."""
    level, area = item.path.parent, item.path.stem.removeprefix("test_").replace("_", " ")
    if level.parent == Path(__file__).parent:
        item.user_properties.append((_AREA, f"{level.name}: {area}"))


class Promises:
    """Counts the promises kept, skipped and broken, and prints the table."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._reasons: Counter[str] = Counter()
        self._broken: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome of a test. An error of its fixtures breaks its promise."""
        area: Any = dict(report.user_properties).get(_AREA)
        if area is None or (report.passed and report.when != "call"):
            return
        if report.failed and report.nodeid not in self._broken:
            self._counts[area]["kept"] -= int(report.when == "teardown")  # its call was counted
            self._counts[area]["broken"] += 1
            promise = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            self._broken[report.nodeid] = f"{area}: {promise}"
        elif report.skipped:
            self._counts[area]["skipped"] += 1
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._reasons[reason.removeprefix("Skipped: ")] += 1
        elif report.passed:
            self._counts[area]["kept"] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table, why promises were skipped, and which ones are broken."""
        if not self._counts:
            return
        write = terminalreporter.write_line
        terminalreporter.section("promises of the backend")
        write(_line("", _ANSWERS))
        for area in sorted(self._counts):
            write(_line(area, [self._counts[area][answer] for answer in _ANSWERS]))
        write(_line("total", [sum(each[answer] for each in self._counts.values()) for answer in _ANSWERS]))
        for reason, count in sorted(self._reasons.items()):
            write(f"skipped {count}: {reason}")
        for promise in sorted(self._broken.values()):
            write(f"broken: {promise}")


def _line(title: str, cells: Any) -> str:
    return f"{title:<45}" + "".join(f"{cell:>9}" for cell in cells)


def register(config: pytest.Config) -> None:
    """Register the plugin with what it needs for this run.

    Raises:
        pytest.UsageError: Both options name a backend.
    """
    url, launcher = config.getoption("--backend-url"), config.getoption("--backend-server")
    if url and launcher:
        raise pytest.UsageError("give --backend-url or --backend-server, not both")
    if url or launcher:
        config.pluginmanager.register(_given(), "latchwork-conformance-backend")
    for marker, about in _MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: {about}")
    config.pluginmanager.register(importlib.import_module(__name__), "latchwork-conformance")
    config.pluginmanager.register(Promises(), "latchwork-conformance-promises")
