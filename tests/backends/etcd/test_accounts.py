"""Passwords, tokens, permissions and TLS, on servers configured so."""

from __future__ import annotations

import pytest

from backends.etcd.authority import Authority
from latchwork.backends.base import Broken
from latchwork.errors import AuthenticationFailed, ConnectFailed, PermissionDenied
from latchwork.types import Put
from latchwork_testkit.etcd_rpc import Stub, pb
from latchwork_testkit.servers import ETCD_VERSIONS, EtcdServer, Tls


@pytest.fixture(scope="module", params=ETCD_VERSIONS)
def guarded(request):
    """A server with RBAC: root, and app which may read and write below /app/ and read below /shown/ and /part/open/."""
    import grpc

    with EtcdServer(request.param) as server:
        channel = grpc.insecure_channel(f"ipv4:{server.endpoint}")
        auth = Stub(channel, "Auth")
        for user in ("root", "app"):
            auth.UserAdd(pb.AuthUserAddRequest(name=user, password=f"{user}-secret"), timeout=5)
            auth.RoleAdd(pb.AuthRoleAddRequest(name=user), timeout=5)
            auth.UserGrantRole(pb.AuthUserGrantRoleRequest(user=user, role=user), timeout=5)
        grants = [
            (pb.Permission.READWRITE, b"/app/", b"/app0"),
            (pb.Permission.READ, b"/shown/", b"/shown0"),
            (pb.Permission.READ, b"/part/open/", b"/part/open0"),
        ]
        for kind, key, end in grants:
            perm = pb.Permission(permType=kind, key=key, range_end=end)
            auth.RoleGrantPermission(pb.AuthRoleGrantPermissionRequest(name="app", perm=perm), timeout=5)
        auth.AuthEnable(pb.AuthEnableRequest(), timeout=5)
        channel.close()
        yield server


def _url(server, root="app", credentials="app:app-secret@", **options):
    return server.url(root, **options).replace("etcd://", f"etcd://{credentials}")


def test_wrong_or_missing_password_is_refused_when_connecting(guarded, opened):
    with pytest.raises(AuthenticationFailed, match="check the user and the password") as refused:
        opened(_url(guarded, credentials="app:wrong-secret@"))
    assert "wrong-secret" not in str(refused.value)
    with pytest.raises(AuthenticationFailed, match="put user:password@"):
        opened(_url(guarded, credentials=""))


def test_password_on_a_server_that_verifies_none_still_connects(server, root, opened):
    assert opened(_url(server, root)).get("k", stale_ok=False).result(5) is None


def test_everything_works_with_rights_on_the_root_alone(guarded, opened, collector):
    backend = opened(_url(guarded))
    seen = collector()
    backend.watch("", seen)
    session = backend.open_session(5, lambda: None).result(5)
    many = [Put(f"d{number}/e/k", b"", session if number == 0 else None) for number in range(100)]
    backend.commit([], many).result(5)
    backend.create_sequential("s/n-", b"", session).result(5)
    session.renew().result(5)
    session.close().result(5)
    seen.wait_until(lambda it: len(it.state) == 99)
    assert backend.delete_tree("").result(5) == 99


def test_key_without_rights_is_denied_by_name_also_in_a_watch(guarded, opened, collector):
    backend = opened(_url(guarded, "shown"))
    assert backend.get("k", stale_ok=False).result(5) is None
    with pytest.raises(PermissionDenied, match="put 'k'"):
        backend.commit([], [Put("k", b"")]).result(5)
    other = opened(_url(guarded, "secret"))
    with pytest.raises(PermissionDenied, match="read 'k'"):
        other.get("k", stale_ok=False).result(5)
    seen = collector()
    other.watch("k", seen)
    seen.wait_until(lambda it: it.events)
    (event,) = seen.events
    assert isinstance(event, Broken)
    assert isinstance(event.error, PermissionDenied)
    assert "'k'" in str(event.error)


def test_one_key_without_rights_spoils_no_other_read_in_flight(guarded, opened):
    backend = opened(_url(guarded, "part"))
    backend._connection.survives_canceled_reads = True  # so that reads are merged
    names = [f"open/{n}" for n in range(150)]
    names[77] = "shut/k"
    futures = [backend.get(name, stale_ok=False) for name in names]
    failed = {name: future.exception(10) for name, future in zip(names, futures, strict=True)}
    denied = failed.pop("shut/k")
    assert isinstance(denied, PermissionDenied)
    assert "read 'shut/k'" in str(denied)
    assert set(failed.values()) == {None}


def test_token_that_the_server_forgot_is_replaced_without_a_failed_call(guarded, opened, collector):
    backend = opened(_url(guarded))
    seen = collector()
    backend.watch("t", seen)
    session = backend.open_session(10, lambda: None).result(5)
    backend.commit([], [Put("t/k", b"1")]).result(5)
    seen.wait_until(lambda it: it.values() == {"t/k": b"1"})
    guarded.kill()
    guarded.restart()  # simple tokens live in memory only
    assert backend.commit([], [Put("t/k", b"2")]).result(5).token
    assert backend.get("t/k", stale_ok=False).result(5).value == b"2"
    session.renew().result(5)
    seen.wait_until(lambda it: it.values() == {"t/k": b"2"})


def test_stale_token_alone_fails_no_call(guarded, opened, collector):
    backend = opened(_url(guarded))
    seen = collector()
    backend.commit([], [Put("u/k", b"1")]).result(5)
    for call in (
        lambda: backend.commit([], [Put("u/k", b"2")]),
        lambda: backend.get("u/k", stale_ok=False),
        lambda: backend.open_session(5, lambda: None),
    ):
        backend._connection.metadata = (("token", "stale.1"),)
        call().result(5)
        assert backend._connection.metadata != (("token", "stale.1"),)
    backend._connection.metadata = (("token", "stale.1"),)
    backend.watch("u", seen)
    seen.wait_until(lambda it: it.values() == {"u/k": b"2"})
    backend.commit([], [Put("u/k", b"3")]).result(5)
    seen.wait_until(lambda it: it.values() == {"u/k": b"3"})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA, a server certificate for 127.0.0.1 and a client certificate, made with openssl."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    for name, use in (("server", "serverAuth,clientAuth"), ("client", "clientAuth")):
        authority.sign(name, "subjectAltName=IP:127.0.0.1", f"extendedKeyUsage={use}")
    return authority.folder


def test_tls_with_client_certificates_connects_and_wrong_tls_says_so(certificates, opened):
    tls = Tls(certificates / "ca.pem", certificates / "server.pem", certificates / "server.key", client_cert_auth=True)
    with EtcdServer("3.5", tls=tls) as server:
        pair = {"tls_cert": certificates / "client.pem", "tls_key": certificates / "client.key"}
        backend = opened(server.url("tls", **pair))
        assert backend.commit([], [Put("k", b"1")]).result(5).entries[0].value == b"1"
        with pytest.raises(ConnectFailed, match=r"TLS|tls"):
            opened(server.url("tls", tls_ca=certificates / "client.pem", connect_timeout_s=1, **pair))
        with pytest.raises(ConnectFailed, match="TLS options"):
            opened(f"etcd://{server.endpoint}/tls?connect_timeout_s=1")
        with pytest.raises(ConnectFailed):
            opened(server.url("tls", connect_timeout_s=1))
        backend.close()
