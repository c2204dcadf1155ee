"""Fixtures: a proxy between a store and its server, and a server that tests may kill."""

from __future__ import annotations

import contextlib

import pytest

import latchwork
from latchwork_testkit.proxy import Proxy

TTL_S = 4.0
CALL_TIMEOUT_S = 3.0


@pytest.fixture
def proxy(conformance_server):
    """A proxy in front of the server. The store ``proxied_store`` connects through it."""
    endpoint = getattr(conformance_server, "endpoint", "")
    if not endpoint:
        pytest.skip("no endpoint: the backend has no separate server")
    with Proxy(endpoint) as opened:
        yield opened


@pytest.fixture
def proxied_store(conformance_server, backend_url, proxy):
    """A store that connects to the server through ``proxy``."""
    url = backend_url.replace(conformance_server.endpoint, proxy.endpoint)
    with contextlib.closing(latchwork.connect(url, session_ttl_s=TTL_S, call_timeout_s=CALL_TIMEOUT_S)) as opened:
        yield opened
        proxy.release()
        proxy.accept()


@pytest.fixture
def server(conformance_server):
    """The server of the backend, which a test may kill and start again."""
    if not hasattr(conformance_server, "kill"):
        pytest.skip("no kill(): the backend was given by a URL, or has no separate server")
    yield conformance_server
    if not conformance_server.running:
        conformance_server.start()
