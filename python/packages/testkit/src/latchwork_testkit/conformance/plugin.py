"""The pytest plugin of the conformance kit: fixtures for the backend under test, and the report of the promises.

``pytest_plugin`` registers it for runs that name the kit.
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
_OUTCOMES = ("kept", "skipped", "broken")
_THREAD_TIMEOUT_S = 5.0
_MARKERS = {
    "large": "has arguments of several megabytes",
    "slow": "takes more than ten seconds",
    "serial": "measures time, so nothing else should run",
    "threads": "tests threads",
    "reentrant": "tests calls that are made during another call",
}


class BackendServer(Protocol):
    """The backend under test. The launchers of ``latchwork_testkit.servers`` have this interface.

    Tests of network faults also need ``endpoint``, the ``host:port`` in its URLs. Tests of server faults also need
    ``kill()`` and ``start()``.
    """

    def url(self, root: str) -> str:
        """Return a connection URL with this root."""
        ...


class UrlBackend:
    """A backend that is given by a connection URL. Tests replace the root of the URL with their own."""

    def __init__(self, url: str) -> None:
        self._location, _, self._query = url.partition("?")

    @property
    def endpoint(self) -> str:
        """The first host with its port, or "" if the URL has no host."""
        host = self._authority.rpartition("@")[2].partition(",")[0]
        return host if ":" in host else ""

    def url(self, root: str) -> str:
        """Return the connection URL with another root."""
        from latchwork.spi import find_spec

        scheme = self._location.partition("://")[0]
        location = find_spec(scheme).location
        options = [each for each in self._query.split("&") if each and not each.startswith("root=")]
        if location in {"file", "database"}:
            return f"{self._location}?{'&'.join([*options, f'root={root}'])}"
        return f"{scheme}://{self._authority}/{root}" + (f"?{'&'.join(options)}" if options else "")

    @property
    def _authority(self) -> str:
        return self._location.partition("://")[2].partition("/")[0]


def _backend_plugin() -> types.ModuleType:
    """Return a plugin with the fixture ``conformance_server`` for the backend of the command-line options.

    Without these options, another plugin must define the fixture. If both defined it, the order of their registration
    would decide.
    """

    @pytest.fixture(scope="session")
    def conformance_server(pytestconfig: pytest.Config) -> Iterator[BackendServer]:
        url, launcher = pytestconfig.getoption("--backend-url"), pytestconfig.getoption("--backend-server")
        if url:
            yield UrlBackend(url)
            return
        module, _, name = launcher.partition(":")
        with getattr(importlib.import_module(module), name)() as server:
            yield server

    plugin = types.ModuleType("latchwork_conformance_backend")
    plugin.conformance_server = conformance_server  # type: ignore[attr-defined]
    return plugin


@pytest.fixture(scope="session")
def conformance_root(conformance_server: BackendServer) -> Iterator[str]:
    """The root below which all tests of this process keep their keys. All of them are deleted at the end."""
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
    """An empty store for one test, which is closed after the test."""
    with latchwork.connect(backend_url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test if a thread of latchwork is still running after it: ``close`` must join all threads of a backend."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _THREAD_TIMEOUT_S
    new = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("latchwork")]
    for thread in new:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = sorted(thread.name for thread in new if thread.is_alive())
    assert not left, f"these threads are still running after close: {', '.join(left)}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Store the level and the area of a test of the kit in its properties, for the report."""
    level, area = item.path.parent, item.path.stem.removeprefix("test_").replace("_", " ")
    if level.parent == Path(__file__).parent:
        item.user_properties.append((_AREA, f"{level.name}: {area}"))


class PromiseReport:
    """Counts the promises that were kept, skipped and broken, and prints a table at the end of the run."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._reasons: Counter[str] = Counter()
        self._broken: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome of a test. An error in a fixture counts as a broken promise."""
        area: Any = dict(report.user_properties).get(_AREA)
        if area is None or (report.passed and report.when != "call"):
            return
        if report.failed and report.nodeid not in self._broken:
            self._counts[area]["kept"] -= int(report.when == "teardown")  # its call was counted as kept
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
        """Print how many guarantees the backend keeps, why some were skipped, and which it breaks."""
        if not self._counts:
            return
        write = terminalreporter.write_line
        terminalreporter.section("promises of the backend")
        write(_format_row("", _OUTCOMES))
        for area in sorted(self._counts):
            write(_format_row(area, [self._counts[area][outcome] for outcome in _OUTCOMES]))
        write(_format_row("total", [sum(each[answer] for each in self._counts.values()) for answer in _OUTCOMES]))
        for reason, count in sorted(self._reasons.items()):
            write(f"skipped {count}: {reason}")
        for promise in sorted(self._broken.values()):
            write(f"broken: {promise}")


def _format_row(title: str, cells: Any) -> str:
    return f"{title:<45}" + "".join(f"{cell:>9}" for cell in cells)


def register(config: pytest.Config) -> None:
    """Register the plugins of the conformance kit, and its markers.

    Raises:
        pytest.UsageError: Both options name a backend.
    """
    url, launcher = config.getoption("--backend-url"), config.getoption("--backend-server")
    if url and launcher:
        raise pytest.UsageError("give --backend-url or --backend-server, not both")
    if url or launcher:
        config.pluginmanager.register(_backend_plugin(), "latchwork-conformance-backend")
    for marker, description in _MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: {description}")
    config.pluginmanager.register(importlib.import_module(__name__), "latchwork-conformance")
    config.pluginmanager.register(PromiseReport(), "latchwork-conformance-promises")
