"""pytest fixtures of latchwork: stores, real servers, a virtual clock, and simulated threads.

Every pytest run loads this module if latchwork-testkit is installed, so it imports nothing else until a fixture is
used. See docs/how-to/test-with-latchwork.md.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

pytest.register_assert_rewrite("latchwork_testkit.conformance")

if TYPE_CHECKING:
    from collections.abc import Iterator

    import latchwork
    from latchwork.testing import Simulation, VirtualClock
    from latchwork_testkit.servers import EtcdServer, ZooKeeperServer

BACKENDS = ("memory", "sqlite", "etcd", "zookeeper")


class RunningServer:
    """A server that is already running, given by its address."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Return a connection URL with this root and these query options."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{self._address}/{root.strip('/')}" + (f"?{query}" if query else "")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the command-line options and the ini settings, which have underscores instead of dashes."""
    group = parser.getgroup("latchwork", "stores and servers of latchwork")
    for name, description, default in (
        ("backend", f"backend of latchwork_store: {', '.join(BACKENDS)}", "memory"),
        ("etcd-version", "minor version of the etcd server that is started: 3.4 or 3.5", "3.5"),
        ("etcd", "use a running etcd instead: etcd://host:port", ""),
        ("zookeeper", "use a running ZooKeeper instead: zk://host:port", ""),
        ("seed", "seed of latchwork_simulation", "0"),
    ):
        group.addoption(f"--latchwork-{name}", metavar="VALUE", help=f"{description} (default: {default or 'none'})")
        parser.addini(f"latchwork_{name.replace('-', '_')}", help=description, default=default)
    kit = parser.getgroup("latchwork-conformance", "the conformance kit: pytest --pyargs latchwork_testkit.conformance")
    kit.addoption("--backend-url", metavar="URL", default="", help="the backend under test, by a connection URL")
    kit.addoption(
        "--backend-server",
        metavar="MODULE:NAME",
        default="",
        help="the backend under test, by a launcher such as latchwork_testkit.servers:EtcdServer",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and set up the conformance kit if it is selected on the command line."""
    config.addinivalue_line(
        "markers",
        "latchwork(backend, **options): the backend of latchwork_store and options of its URL, such as session_ttl_s",
    )
    if any("latchwork_testkit" in argument and "conformance" in argument for argument in config.invocation_params.args):
        from latchwork_testkit.conformance import plugin

        plugin.register(config)


def _option_value(config: pytest.Config, name: str) -> str:
    value = config.getoption(f"--latchwork-{name}")
    return str(value if value is not None else config.getini(f"latchwork_{name.replace('-', '_')}"))


@pytest.fixture(scope="session")
def latchwork_etcd(pytestconfig: pytest.Config) -> Iterator[EtcdServer | RunningServer]:
    """An etcd server for the whole run, started on first use. ``.url(root)`` returns connection URLs.

    The test is skipped if etcd is not installed.
    """
    address = _option_value(pytestconfig, "etcd")
    if address:
        yield RunningServer(address)
        return
    from latchwork_testkit.servers import EtcdServer, ServerMissing

    with ExitStack() as stack:
        try:
            server = stack.enter_context(EtcdServer(_option_value(pytestconfig, "etcd-version")))
        except ServerMissing as error:
            pytest.skip(f"needs a real etcd: {error}")
        yield server


@pytest.fixture(scope="session")
def latchwork_zookeeper(pytestconfig: pytest.Config) -> Iterator[ZooKeeperServer | RunningServer]:
    """A ZooKeeper server for the whole run, started on first use. ``.url(root)`` returns connection URLs.

    The test is skipped if ZooKeeper is not installed.
    """
    address = _option_value(pytestconfig, "zookeeper")
    if address:
        yield RunningServer(address)
        return
    from latchwork_testkit.servers import ServerMissing, ZooKeeperServer

    with ExitStack() as stack:
        try:
            server = stack.enter_context(ZooKeeperServer())
        except ServerMissing as error:
            pytest.skip(f"needs a real ZooKeeper: {error}")
        yield server


@pytest.fixture
def latchwork_backend(request: pytest.FixtureRequest) -> str:
    """The name of the backend: from the indirect parameter, the marker, the command line or the ini file, else
    "memory".
    """
    marker = request.node.get_closest_marker("latchwork")
    selected = (marker.args[0] if marker.args else marker.kwargs.get("backend")) if marker is not None else None
    name = str(getattr(request, "param", None) or selected or _option_value(request.config, "backend"))
    if name not in BACKENDS:
        raise pytest.UsageError(f"latchwork backend {name!r} is unknown; use one of {', '.join(BACKENDS)}")
    return name


@pytest.fixture
def latchwork_url(request: pytest.FixtureRequest, latchwork_backend: str) -> str:
    """A connection URL with a root that no other test uses. Stores that are opened with it share their keys."""
    root = f"test-{uuid.uuid4().hex}"
    if latchwork_backend == "memory":
        return f"memory://{root}"
    if latchwork_backend == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'latchwork.db'}?root={root}"
    server: EtcdServer | ZooKeeperServer | RunningServer = request.getfixturevalue(f"latchwork_{latchwork_backend}")
    return server.url(root)


@pytest.fixture
def latchwork_store(request: pytest.FixtureRequest, latchwork_url: str) -> Iterator[latchwork.Store]:
    """An empty store for one test. After the test its keys are removed and it is closed.

    If the test also uses ``latchwork_virtual_clock`` or ``latchwork_simulation``, the store uses their virtual time.
    That needs the memory backend.
    """
    virtual = _virtual_time(request)
    if virtual and not latchwork_url.startswith("memory:"):
        raise pytest.UsageError(f"{virtual} needs the memory backend: servers and files use real time")
    import latchwork

    clock = request.getfixturevalue(virtual) if virtual == "latchwork_virtual_clock" else None
    marker = request.node.get_closest_marker("latchwork")
    options: dict[str, Any] = {k: v for k, v in marker.kwargs.items() if k != "backend"} if marker is not None else {}
    with latchwork.connect(latchwork_url, clock=clock, **options) as store:
        yield store
        with suppress(latchwork.LatchworkError):
            store.delete_tree("")


def _virtual_time(request: pytest.FixtureRequest) -> str:
    for name in ("latchwork_simulation", "latchwork_virtual_clock"):
        if name in request.fixturenames:
            request.getfixturevalue(name)  # it starts before the store, and ends after it
            return name
    return ""


@pytest.fixture
def latchwork_virtual_clock() -> VirtualClock:
    """A clock that moves only when the test calls ``advance(seconds)``."""
    from latchwork.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def latchwork_simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Simulated threads that run one at a time in virtual time. Their order depends on ``--latchwork-seed``."""
    from latchwork.testing import Simulation

    with Simulation(int(_option_value(request.config, "seed"))) as simulation:
        yield simulation
