"""What the tests here share."""

from __future__ import annotations

import datetime as dt

import pytest
import trustme

from security.authority import SERVERS, Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(trustme.CA(), tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory):
    """Another authority's."""
    return Certificates(trustme.CA(), tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="session")
def yesterday():
    return dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)


@pytest.fixture(scope="module", params=sorted(SERVERS))
def guarded(request, certificates):
    """A server that speaks TLS with whom its authority knows."""
    with SERVERS[request.param](certificates.server()) as server:
        yield server
