"""Stores on a client of python-etcd3: its channel and its token are used, and both stay the user's."""

from __future__ import annotations

import threading
import types

import pytest

import latchwork
from latchwork import aio
from latchwork.errors import AuthenticationFailed, Closed, InvalidURL, TransactionTooLarge
from latchwork.primitives import Lock
from latchwork_testkit.etcd_rpc import Stub, import_etcd3, pb
from latchwork_testkit.servers import EtcdServer
from patience import eventually

UNLIMITED = [("grpc.max_receive_message_length", -1)]
LARGE = bytes(999_000)


@pytest.fixture
def made(server):
    """Makes clients of the server, which are closed after the test."""
    clients = []

    def make(**options):
        host, _, port = server.endpoint.rpartition(":")
        clients.append(import_etcd3().client(host, int(port), **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_a_store_on_a_client_shares_its_keys_with_a_store_on_a_url(made, server, root):
    with latchwork.connect(client=made(), root=root) as store, latchwork.connect(server.url(root)) as other:
        with Lock(store, "lock") as fence, store.watch("config") as watch:
            watch.next(10)
            other.put("config/a", b"1")
            assert [change.entry.value for change in watch.next(10)] == [b"1"]
            store.commit([fence], [latchwork.Put("config/b", b"2")])
        assert other.get("config/b").value == b"2"
        store.put("mine", b"", session=store.session)
    with latchwork.connect(server.url(root)) as other:
        assert other.get("mine") is None


def test_its_messages_name_the_server_of_the_client(made, server, root):
    with latchwork.connect(client=made(), root=root) as store:
        assert store.url == f"etcd://{server.endpoint}/{root}"


def test_a_client_of_a_fork_names_its_server_by_its_endpoint(made, server, root):
    original = made()
    endpoint = types.SimpleNamespace(netloc=server.endpoint)
    fork = types.SimpleNamespace(channel=original.channel, metadata=None, endpoint_in_use=endpoint)
    with latchwork.connect(client=fork, root=root) as store:
        assert store.put("k", b"v").value == b"v"


def test_the_client_stays_open_when_the_store_is_closed(made, root):
    client = made()
    for _ in range(2):
        with latchwork.connect(client=client, root=root) as store:
            store.put("k", b"v")
    assert client.get(f"/{root}/k")[0] == b"v"


def test_a_closed_store_sends_nothing_on_the_open_channel(made, root):
    with latchwork.connect(client=made(), root=root) as store:
        backend = store._core.backend
    with pytest.raises(Closed, match="store was closed"):
        backend.get("k", stale_ok=False).result(5)
    with pytest.raises(Closed, match="store was closed"):
        backend._connection.send("Range", pb.RangeRequest(key=b"k"), 5)


def test_a_store_whose_client_was_closed_says_so_and_closes(made, root):
    client = made()
    with latchwork.connect(client=client, root=root, call_timeout_s=3) as store, store.watch("k") as watch:
        watch.next(10)
        client.close()
        with pytest.raises(Closed, match="etcd3 client of this store was closed"):
            store.put("k", b"v")
        with pytest.raises(Closed, match="etcd3 client of this store was closed"):
            while True:
                watch.next(10)
        with pytest.raises(Closed, match="etcd3 client of this store was closed"), store.watch("k") as late:
            late.next(10)


@pytest.mark.asyncio
async def test_an_event_loop_connects_on_a_client(made, root):
    async with aio.connect(client=made(), root=root) as store:
        assert (await store.put("k", b"v")).value == b"v"


def test_an_answer_beyond_the_limit_of_the_channel_names_the_option_of_the_client(made, root):
    with latchwork.connect(client=made(grpc_options=UNLIMITED), root=root) as store:
        for number in range(5):
            store.put(f"large/{number}", LARGE)
        assert len(store.list("large")) == 5
        with latchwork.connect(client=made(), root=root) as limited:
            with pytest.raises(TransactionTooLarge, match="max_receive_message_length"):
                limited.list("large")
            store.delete_tree("large")
            assert limited.list("large") == []


def test_a_watch_with_events_beyond_the_limit_of_the_channel_ends_with_that_error(made, root):
    limit = [("grpc.max_receive_message_length", 2**16)]
    with latchwork.connect(client=made(grpc_options=limit), root=root) as store, store.watch("large") as watch:
        watch.next(10)
        store.put("large/k", LARGE)
        with pytest.raises(TransactionTooLarge, match="max_receive_message_length"):
            while True:
                watch.next(10)


def test_a_url_and_a_client_are_not_given_together(made, server, root):
    with pytest.raises(InvalidURL, match="not both"):
        latchwork.connect(server.url(root), client=made())


def test_tls_options_are_refused_with_a_client(made, root, tmp_path):
    (tmp_path / "ca.pem").write_text("none")
    with pytest.raises(InvalidURL, match="open channel of a client"):
        latchwork.connect(client=made(), root=root, tls_ca=str(tmp_path / "ca.pem"))


@pytest.mark.parametrize("client", [object(), "etcd://h1", types.SimpleNamespace(channel=None)])
def test_what_is_no_client_is_refused(client):
    with pytest.raises(TypeError, match=r"etcd3\.client\(\)"):
        latchwork.connect(client=client)


@pytest.fixture(scope="module")
def guarded():
    """A server that wants an account."""
    with EtcdServer("3.5") as server:
        host, _, port = server.endpoint.rpartition(":")
        with import_etcd3().client(host, int(port)) as client:
            auth = Stub(client.channel, "Auth")
            auth.UserAdd(pb.AuthUserAddRequest(name="root", password="secret"), timeout=5)
            auth.RoleAdd(pb.AuthRoleAddRequest(name="root"), timeout=5)
            auth.UserGrantRole(pb.AuthUserGrantRoleRequest(user="root", role="root"), timeout=5)
            auth.AuthEnable(pb.AuthEnableRequest(), timeout=5)
        yield server


@pytest.fixture
def logged_in(guarded):
    host, _, port = guarded.endpoint.rpartition(":")
    with import_etcd3().client(host, int(port), user="root", password="secret") as client:
        yield client


def test_the_token_of_the_client_is_used(logged_in, root):
    with latchwork.connect(client=logged_in, root=root) as store:
        assert store.put("k", b"v").value == b"v"


def test_a_token_of_the_client_that_the_server_forgot_is_named(guarded, logged_in, root):
    with latchwork.connect(client=logged_in, root=root) as store:
        guarded.restart()  # simple tokens live in memory only
        with pytest.raises(AuthenticationFailed, match="give user and password"):
            store.put("k", b"v")


def test_user_and_password_renew_a_token_that_the_server_forgot(guarded, logged_in, root):
    with latchwork.connect(client=logged_in, root=root, user="root", password="secret") as store:
        guarded.restart()
        assert store.put("k", b"v").value == b"v"


def test_no_thread_of_a_store_outlives_it_on_a_client(made, root):
    before = names_of_our_threads()
    with latchwork.connect(client=made(), root=root) as store, store.watch("k") as watch:
        watch.next(10)
    eventually(lambda: names_of_our_threads() <= before)


def names_of_our_threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("latchwork")}
