"""A server that is really full: what it holds can be deleted with a store, and no store is stuck for ever."""

from __future__ import annotations

import os
import time
import uuid

import grpc
import pytest

import latchwork
from latchwork.errors import Conflict, OutcomeUnknown, QuotaExceeded, Unavailable
from latchwork.primitives import Lock
from latchwork.types import Absent, At, Delete, Exists, Put
from latchwork_testkit.etcd_rpc import Stub, pb
from latchwork_testkit.servers import ETCD_VERSIONS, EtcdServer

QUOTA = 3_000_000


@pytest.fixture
def version():
    """Before 3.4.20 and 3.5.7 a server that is over its quota refuses every transaction, whatever is in it."""
    return "3.4"


@pytest.fixture
def small(version):
    """A server with little room."""
    with EtcdServer(version, extra_args=[f"--quota-backend-bytes={QUOTA}"]) as server:
        yield server


@pytest.fixture
def fill(small, raw_client, eventually):
    """Fills the server, so that it takes no put at all."""

    def until_refused():
        raw = raw_client(small)

        def refuses(size):
            try:
                raw.put(b"/ballast/%s" % uuid.uuid4().hex.encode(), b"x" * size)
            except grpc.RpcError as error:
                assert "space exceeded" in error.details()  # noqa: PT017 - anything else is not meant
                return True
            return False

        eventually(lambda: refuses(200_000), 60.0)
        eventually(lambda: refuses(1), 60.0)  # from when the alarm is raised

    return until_refused


@pytest.fixture
def make_room(small, raw_client):
    """What an operator does afterwards."""

    def work_again():
        raw = raw_client(small)
        raw.kv.DeleteRange(pb.DeleteRangeRequest(key=b"/ballast/", range_end=b"/ballast0"), timeout=5)
        raw.compact()
        maintenance = Stub(raw.channel, "Maintenance")
        maintenance.Defragment(pb.DefragmentRequest(), timeout=20)
        for raised in maintenance.Alarm(pb.AlarmRequest(action=pb.AlarmRequest.GET), timeout=5).alarms:
            disarm = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, memberID=raised.memberID, alarm=raised.alarm)
            maintenance.Alarm(disarm, timeout=5)
        raw.put(b"/room", b"again")

    return work_again


def put(backend, key, value=b"v"):
    return backend.commit([], [Put(key, value)]).result(15).entries[0]


def get(backend, key):
    return backend.get(key, stale_ok=False).result(15)


def test_what_a_full_server_holds_can_be_deleted(small, root, opened, fill, make_room):
    old = opened(small.url(root))
    entries = [put(old, f"k{number}") for number in range(4)]
    for at in (0, 100, 200):
        old.commit([], [Put(f"tree/{number}", b"") for number in range(at, at + 60)]).result(15)
    fill()
    new = opened(small.url(root))  # has no guard, and gets none
    for backend, first, second in ((old, 0, 1), (new, 2, 3)):
        with pytest.raises(QuotaExceeded):
            put(backend, "more")
        with pytest.raises(Conflict) as refused:
            backend.commit([Absent(f"k{second}")], [Delete(f"k{first}")]).result(15)
        assert list(refused.value.failed) == [Absent(f"k{second}")]
        told = backend.commit([At(entries[second]), Exists(f"k{second}")], [Delete(f"k{first}"), Delete("no")])
        assert told.result(15).deleted == (f"k{first}",)
        assert told.result(15).token > entries[3].token
        assert get(backend, f"k{first}") is None
        assert backend.commit([], [Delete(f"k{first}")]).result(15).deleted == ()
        with pytest.raises(Conflict):
            backend.commit([At(entries[first])], [Delete(f"k{second}")]).result(15)
    assert new.delete_tree("tree").result(15) == 180
    assert new.delete_tree("").result(15) == 2
    assert old.list("", recursive=True, limit=None, start_after=None).result(15) == []
    make_room()
    for backend in (old, new):
        assert put(backend, "k", b"again").value == b"again"


def hurt_delete(backend, proxy, way, eventually):
    """Hold this way of the connection as a delete without a guard is sent; the function waits for that, and cuts it."""
    send, held = backend._connection.send, []

    def send_and_hold(method, request, timeout_s, **more):
        operations = pb.TxnRequest.FromString(request).success if method == "Txn" else []
        if not held and operations and operations[0].HasField("request_delete_range"):
            held.append(proxy.hold(way, open_only=True))
        return send(method, request, timeout_s, **more)

    def cut():
        eventually(lambda: held, 20.0)
        time.sleep(0.5)
        proxy.cut_clients()

    backend._connection.send = send_and_hold
    return cut


def test_a_delete_that_was_held_up_deletes_once_and_never_again(
    eventually, small, root, opened, proxied, fill, make_room
):
    proxy = proxied(small)
    backend = opened(f"etcd://{proxy.endpoint}/{root}?call_timeout_s=8")
    beside = opened(small.url(root))
    put(backend, "k", b"1")
    fill()
    cut = hurt_delete(backend, proxy, "requests", eventually)
    deleting = backend.commit([], [Delete("k")])
    cut()
    assert deleting.result(15).deleted == ("k",)
    make_room()
    put(beside, "k", b"newer")
    proxy.release()
    time.sleep(1.0)  # by then it would have landed
    assert get(beside, "k").value == b"newer"


def test_a_delete_whose_answer_was_lost_is_unknown_and_final(eventually, small, root, opened, proxied, fill):
    proxy = proxied(small)
    backend = opened(f"etcd://{proxy.endpoint}/{root}?call_timeout_s=8")
    put(backend, "k", b"1")
    fill()
    cut = hurt_delete(backend, proxy, "answers", eventually)
    deleting = backend.commit([], [Delete("k")])
    cut()
    with pytest.raises(OutcomeUnknown, match="can no longer be applied"):
        deleting.result(15)
    assert get(backend, "k") is None


def test_a_delete_that_may_land_yet_is_settled_before_the_next_read(
    eventually, small, root, opened, proxied, fill, make_room
):
    proxy = proxied(small)
    backend = opened(f"etcd://{proxy.endpoint}/{root}?call_timeout_s=3")
    beside = opened(small.url(root))
    put(backend, "k", b"1")
    fill()
    cut = hurt_delete(backend, proxy, "requests", eventually)
    deleting = backend.commit([], [Delete("k")])
    proxy.refuse(new_only=True)
    cut()
    with pytest.raises(OutcomeUnknown, match="may still be applied"):
        deleting.result(15)
    proxy.accept()
    found = read_in_the_end(backend, "k")
    make_room()
    put(beside, "k", b"newer")
    proxy.release()
    time.sleep(1.0)  # by then it would have landed
    assert found is None  # settled by landing
    assert get(beside, "k").value == b"newer"


def read_in_the_end(backend, key):
    """What a store reads once it is connected again."""
    deadline = time.monotonic() + 30.0
    while True:
        try:
            return get(backend, key)
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("version", ETCD_VERSIONS)
def test_reads_go_on_after_a_write_that_a_full_server_leaves_unknown(small, root, opened, proxied, fill, make_room):
    proxy = proxied(small)
    backend = opened(f"etcd://{proxy.endpoint}/{root}?call_timeout_s=2")
    beside = opened(small.url(root))
    put(backend, "k", b"before")
    proxy.hold("requests", open_only=True)
    writing = backend.commit([], [Put("k", b"delayed")])
    time.sleep(0.2)
    proxy.refuse(new_only=True)
    proxy.cut_clients()
    with pytest.raises(OutcomeUnknown, match="may still be applied"):
        writing.result(15)
    fill()
    proxy.accept()
    assert read_in_the_end(backend, "k").value == b"before"
    with pytest.raises(QuotaExceeded):
        put(backend, "k", b"refused")
    make_room()
    proxy.release()  # the delayed write arrives, on a server that has room again
    time.sleep(0.5)
    assert get(beside, "k").value == b"before"
    assert put(backend, "k", b"after").value == b"after"


@pytest.mark.parametrize("version", ["3.5"])
def test_an_old_server_that_refuses_every_transaction_is_no_worse_than_full(small, root, opened, fill):
    backend = opened(small.url(root))
    put(backend, "k")
    fill()
    error = backend.commit([], [Delete("k")]).exception(15)
    assert (get(backend, "k") is None) == (error is None)
    assert error is None or isinstance(error, QuotaExceeded)


def test_a_release_on_a_full_server_says_that_others_wait(caplog):
    with EtcdServer("3.5", extra_args=[f"--quota-backend-bytes={QUOTA}"]) as server:
        with latchwork.connect(server.url("full"), call_timeout_s=5) as store:
            lock = Lock(store, "l")
            lock.acquire()
            with pytest.raises(QuotaExceeded):
                for number in range(100):
                    store.put(f"ballast/{number}", os.urandom(400_000))
            lock.release()
            told = [record for record in caplog.records if "others wait until" in record.getMessage()]
            left = store.list("l")
        assert bool(told) == bool(left)
        assert len(told) <= 1
