"""What the tests here share."""

from __future__ import annotations

import datetime as dt
import os

import pytest
import trustme

from latchwork_testbed.binaries import find_etcd
from latchwork_testbed.servers import ServerMissing
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


#: `make check-faults` has the long form: every server, every kind of token, many more inputs.
LONG = bool(os.environ.get("LATCHWORK_LONG_TESTS"))


def if_etcd36(*forms):
    """Forms of a fixture for etcd 3.6, which no package has: none where it was not built."""
    try:
        find_etcd("3.6")
    except ServerMissing:
        return []
    return list(forms)


def pytest_generate_tests(metafunc):
    """Some fixtures have more parameters in the long form."""
    forms = {
        "guarded": (["etcd35", "zookeeper"], ["etcd34", *if_etcd36("etcd36")]),
        **getattr(metafunc.module, "FORMS", {}),
    }
    for name, (short, more) in forms.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, short + more if LONG else short, indirect=True, scope="module")


@pytest.fixture(scope="module")
def guarded(request, certificates):
    """A server that speaks TLS with whom its authority knows."""
    with SERVERS[request.param](certificates.server()) as server:
        server.start_another = SERVERS[request.param]
        yield server
