"""TLS with server and client certificates, on servers that ask for them."""

from __future__ import annotations

import re
import time

import pytest

import latchwork
from latchwork import ConnectFailed
from security.authority import SERVERS

CONNECT_TIMEOUT_S = 3.0
#: How a server that will not have our certificate shows: by an alert, or, from etcd 3.4, by what gRPC makes of one.
NOT_WANTED = "(?i)alert|bad.certificate|certificate.required|TSI_DATA_CORRUPTED"


@pytest.fixture(scope="module", params=sorted(SERVERS))
def kind(request):
    return request.param


def refused(url):
    """The error of a connection that must not come about, in time."""
    started = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        latchwork.connect(url).close()
    assert time.monotonic() - started < CONNECT_TIMEOUT_S + 3.0
    return str(caught.value)


def test_everything_goes_through_tls_with_both_certificates(guarded, certificates):
    with latchwork.connect(guarded.url("/app", **certificates.client()), session_ttl_s=5.0) as store:
        assert store.put("k", b"v" * 100_000).value == b"v" * 100_000
        with store.watch("k") as watch:
            store.put("k", b"2")
            while watch.next(10.0)[-1].entry.value != b"2":
                pass
        store.create("mine", b"", session=store.session)
        assert sorted(entry.key for entry in store.list("")) == ["k", "mine"]
        guarded.kill()
        guarded.restart()
        store.put("k", b"3")
        assert store.get("k").value == b"3"


def test_a_client_without_a_certificate_is_refused(guarded):
    assert re.search(NOT_WANTED, refused(guarded.url("/app", connect_timeout_s=CONNECT_TIMEOUT_S)))


def test_a_client_that_trusts_another_authority_refuses_the_server(guarded, certificates, strangers):
    options = {**certificates.client(), "tls_ca": strangers.ca, "connect_timeout_s": CONNECT_TIMEOUT_S}
    assert "CERTIFICATE_VERIFY_FAILED" in refused(guarded.url("/app", **options))


def test_a_client_of_another_authority_is_refused(guarded, strangers):
    options = {**strangers.client(), "connect_timeout_s": CONNECT_TIMEOUT_S}
    assert re.search(NOT_WANTED, refused(guarded.url("/app", **options)))


def test_a_client_without_tls_is_refused(guarded):
    refused(f"{guarded.SCHEME}://{guarded.endpoint}/app?connect_timeout_s={CONNECT_TIMEOUT_S}")


@pytest.mark.parametrize("wrong", ["host", "date"])
def test_a_server_whose_certificate_names_another_host_or_is_out_of_date_is_refused(
    kind, certificates, yesterday, wrong
):
    bad = {"host": "10.9.8.7"} if wrong == "host" else {"not_after": yesterday}
    with SERVERS[kind](certificates.server(**bad)) as server:
        options = {**certificates.client(), "connect_timeout_s": CONNECT_TIMEOUT_S}
        said = {"host": "(?i)host.?name verification|mismatch", "date": "certificate has expired"}[wrong]
        assert re.search(said, refused(server.url("/app", **options)))
