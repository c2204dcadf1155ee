"""SASL on a ZooKeeper server that lets nobody in without it."""

from __future__ import annotations

import pytest
from kazoo.exceptions import AuthFailedError
from kazoo.protocol.connection import ConnectionDropped, ConnectionHandler

import latchwork
from latchwork import AuthenticationFailed, InvalidURL, PermissionDenied
from security.accounts import sasl_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sasl_server(tmp_path_factory.mktemp("jaas"), ann="ann-secret", bob="bob-secret") as started:
        yield started


def url(server, account, root="app", **options):
    return server.url(root, sasl="digest-md5", **options).replace("://", f"://{account}@")


def test_a_store_with_sasl_works_and_comes_back_after_a_restart(server):
    with latchwork.connect(url(server, "ann:ann-secret"), session_ttl_s=5.0) as store:
        store.put("k", b"1")
        store.create("mine", b"", session=store.session)
        server.kill()
        server.restart()
        assert store.put("k", b"2").value == b"2"
        assert store.get("mine") is not None


def test_nodes_belong_to_the_account_that_created_them(server):
    with latchwork.connect(url(server, "ann:ann-secret", "hers")) as store:
        store.put("k", b"1")
    with (
        latchwork.connect(url(server, "bob:bob-secret", "hers")) as store,
        pytest.raises(PermissionDenied, match="'k'"),
    ):
        store.get("k")


def test_a_wrong_password_is_refused_when_connecting(server):
    latchwork.connect(url(server, "ann:ann-secret")).close()  # the server has loaded what it needs
    with pytest.raises(AuthenticationFailed, match="refused SASL for 'ann'") as caught:
        latchwork.connect(url(server, "ann:wrong-secret", connect_timeout_s=2))
    assert "wrong-secret" not in str(caught.value)


def test_a_refusal_is_reported_though_a_later_attempt_is_under_way_at_the_deadline(monkeypatch):
    attempts = []

    def connect(handler, *_):
        attempts.append(1)
        if len(attempts) == 1:
            raise AuthFailedError
        handler.client._stopped.wait(20)
        raise ConnectionDropped("cut off")

    monkeypatch.setattr(ConnectionHandler, "_connect", connect)
    with pytest.raises(AuthenticationFailed, match="refused SASL for 'ann'"):
        latchwork.connect("zookeeper://ann:secret@127.0.0.1:1/app?sasl=digest-md5&connect_timeout_s=1")
    assert len(attempts) == 2


@pytest.mark.parametrize("account", ["ann", ""])
def test_sasl_without_a_user_and_a_password_is_refused(server, account):
    bad = url(server, account).replace("://@", "://")
    with pytest.raises(InvalidURL, match="needs a user and a password"):
        latchwork.connect(bad)
