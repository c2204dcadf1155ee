"""What the tests here share."""

from __future__ import annotations

import datetime as dt

import pytest
import trustme

from backends_table import BY_NAME, SERVERS
from security.authority import Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(trustme.CA(), tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory):
    """Another authority's."""
    return Certificates(trustme.CA(), tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="session")
def yesterday():
    return dt.datetime.now(dt.UTC) - dt.timedelta(days=1)


@pytest.fixture(scope="module", params=SERVERS)
def guarded(request, certificates):
    """A server that speaks TLS with whom its authority knows."""

    def make(tls):
        return BY_NAME[request.param].launch(tls=tls)

    with make(certificates.server()) as server:
        server.start_another = make
        yield server
