"""TLS with server and client certificates, on servers that ask for them."""

from __future__ import annotations

import functools
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import latchwork
from latchwork import ConnectFailed

CONNECT_TIMEOUT_S = 6.0
#: Six attempts and three servers start side by side.
PATIENCE_S = 10.0
#: How a server that will not have our certificate shows: by an alert, or, from etcd 3.4, by what gRPC makes of one.
NOT_WANTED = "(?i)alert|bad.certificate|certificate.required|TSI_DATA_CORRUPTED"


@pytest.fixture(scope="module")
def refusals(guarded, certificates, strangers, yesterday):
    """What each connection that must not come about is told. They are tried all at once, since each takes its time."""
    timeout = {"connect_timeout_s": CONNECT_TIMEOUT_S}
    mine = {**certificates.client(), **timeout}
    urls = {
        "no certificate": guarded.url("/app", **timeout),
        "another authority": guarded.url("/app", **{**mine, "tls_ca": strangers.ca}),
        "a stranger": guarded.url("/app", **strangers.client(), **timeout),
        "no tls": f"{guarded.SCHEME}://{guarded.endpoint}/app?connect_timeout_s={CONNECT_TIMEOUT_S}",
    }
    wrong = {"host": {"host": "10.9.8.7"}, "date": {"not_after": yesterday}}
    others = {name: guarded.start_another(certificates.server(name, **how)) for name, how in wrong.items()}

    def refused_by(server):
        with server:
            return refused(server.url("/app", **mine))

    attempts = {name: functools.partial(refused, url) for name, url in urls.items()}
    attempts |= {name: functools.partial(refused_by, server) for name, server in others.items()}
    with ThreadPoolExecutor(len(attempts)) as pool:
        pending = {name: pool.submit(attempt) for name, attempt in attempts.items()}
    return {name: each.result() for name, each in pending.items()}


def refused(url):
    """The error of a connection that must not come about, in time."""
    started = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        latchwork.connect(url).close()
    assert time.monotonic() - started < CONNECT_TIMEOUT_S + PATIENCE_S
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


def test_a_client_without_a_certificate_is_refused(refusals):
    assert re.search(NOT_WANTED, refusals["no certificate"])


def test_a_client_that_trusts_another_authority_refuses_the_server(refusals):
    assert "CERTIFICATE_VERIFY_FAILED" in refusals["another authority"]


def test_a_client_of_another_authority_is_refused(refusals):
    assert re.search(NOT_WANTED, refusals["a stranger"])


def test_a_client_without_tls_is_refused(refusals):
    assert refusals["no tls"]


def test_a_server_whose_certificate_names_another_host_is_refused(refusals):
    assert re.search("(?i)host.?name verification|mismatch", refusals["host"])


def test_a_server_whose_certificate_is_out_of_date_is_refused(refusals):
    assert "certificate has expired" in refusals["date"]
