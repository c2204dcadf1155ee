"""A proxy between the store and its server, and a server that may be killed."""

from __future__ import annotations

import contextlib

import pytest

import latchwork
from latchwork_testkit.proxy import Proxy

TTL_S = 4.0
CALL_TIMEOUT_S = 3.0


@pytest.fixture
def way(conformance_server):
    """The proxy, through which the store of ``near`` reaches the server."""
    endpoint = getattr(conformance_server, "endpoint", "")
    if not endpoint:
        pytest.skip("no endpoint: the backend has no server of its own")
    with Proxy(endpoint) as proxy:
        yield proxy


@pytest.fixture
def near(conformance_server, backend_url, way):
    """A store that reaches the server through the proxy."""
    url = backend_url.replace(conformance_server.endpoint, way.endpoint)
    with contextlib.closing(latchwork.connect(url, session_ttl_s=TTL_S, call_timeout_s=CALL_TIMEOUT_S)) as opened:
        yield opened
        way.release()
        way.accept()


@pytest.fixture
def server(conformance_server):
    """The server, which the test may kill and start."""
    if not hasattr(conformance_server, "kill"):
        pytest.skip("no kill(): the backend was given by a URL, or has no server of its own")
    yield conformance_server
    if not conformance_server.running:
        conformance_server.start()
