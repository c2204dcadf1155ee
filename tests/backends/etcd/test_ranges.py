"""Transactions of reads only: old servers end when one is cut off, so they get none, and reads are right without."""

from __future__ import annotations

import time

import grpc
import pytest

from latchwork.backends.server_versions import survives_canceled_reads
from latchwork.errors import Conflict
from latchwork.types import Absent, At, Delete, Exists, Put
from latchwork_testkit.etcd_rpc import Stub, pb
from latchwork_testkit.servers import EtcdServer

CONTROL_S = 30.0


@pytest.fixture
def dangerous(backend):
    """Requests sent that could end an old server: transactions that read, and cannot write."""
    found = []
    send = backend._connection.send

    def spy(method, request, timeout_s, **how):
        if method == "Txn":
            message = pb.TxnRequest.FromString(request) if isinstance(request, bytes) else request
            operations = [*message.success, *message.failure]
            if operations and all(one.WhichOneof("request") == "request_range" for one in operations):
                found.append(message)
        return send(method, request, timeout_s, **how)

    backend._connection.send = spy
    backend._connection.survives_canceled_reads = False
    return found


def test_control_a_server_of_before_the_cure_ends_when_reads_are_cut_off():
    with EtcdServer("3.5") as server, grpc.insecure_channel(f"ipv4:{server.endpoint}") as channel:
        if survives_canceled_reads(Stub(channel, "Maintenance").Status(pb.StatusRequest(), timeout=10).version):
            pytest.skip("this 3.5 server is a newer one")
        kv = Stub(channel, "KV")
        value = b"x" * 500
        for start in range(0, 2000, 100):
            puts = [
                pb.RequestOp(request_put=pb.PutRequest(key=b"k%d" % n, value=value)) for n in range(start, start + 100)
            ]
            kv.Txn(pb.TxnRequest(success=puts), timeout=10)
        reads = pb.TxnRequest(success=[pb.RequestOp(request_range=pb.RangeRequest(key=b"k", range_end=b"l"))])
        deadline = time.monotonic() + CONTROL_S
        turn = 0
        while server.running:
            assert time.monotonic() < deadline, "the server bears it: reads in one request could be used there too"
            turn += 1
            try:
                kv.Txn(reads, timeout=0.001 * (1 + turn % 20))
            except grpc.RpcError:
                continue


def test_backend_asks_the_server_for_its_version(raw, backend):
    version = Stub(raw.channel, "Maintenance").Status(pb.StatusRequest(), timeout=10).version
    assert backend._connection.survives_canceled_reads is survives_canceled_reads(version)


def test_many_gets_are_right_on_an_old_server_and_do_not_endanger_it(backend, dangerous):
    backend.commit([], [Put("a", b"1"), Put("b", b"2")]).result(5)
    found = backend.get_many(["a", "none", "b"]).result(5)
    assert [entry and entry.value for entry in found] == [b"1", None, b"2"]
    assert not dangerous


def test_checks_alone_hold_or_name_what_failed_and_do_not_endanger_an_old_server(backend, dangerous):
    entry = backend.commit([], [Put("a", b"1")]).result(5).entries[0]
    backend.commit([At(entry), Absent("b")], []).result(5)
    with pytest.raises(Conflict) as raised:
        backend.commit([At(entry), Absent("a")], []).result(5)
    assert raised.value.failed == (Absent("a"),)
    assert not dangerous


def test_more_checks_than_the_server_compares_at_once_do_not_endanger_an_old_server(backend, dangerous):
    entry = backend.commit([], [Put("a", b"1")]).result(5).entries[0]
    many = [Absent(f"none-{number}") for number in range(150)]
    backend.commit([At(entry), *many], []).result(5)
    backend.commit([], [Delete("a")]).result(5)
    with pytest.raises(Conflict) as raised:
        backend.commit([At(entry), *many], []).result(5)
    assert raised.value.failed == (At(entry),)
    assert not dangerous


def test_watch_begins_with_the_state_and_does_not_endanger_an_old_server(backend, dangerous, collector):
    seen = collector()
    backend.commit([], [Put("p", b"1"), Put("p/below", b"2"), Put("p-beside", b"3")]).result(5)
    watch = backend.watch("p", seen)
    seen.wait_until(lambda so_far: so_far.values() == {"p": b"1", "p/below": b"2"})
    backend.commit([], [Put("p/below", b"4"), Delete("p")]).result(5)
    seen.wait_until(lambda so_far: so_far.values() == {"p/below": b"4"})
    watch.close()
    assert not dangerous


def test_checks_that_never_failed_together_are_not_named_together(server, root, backend, opened):
    other = opened(server.url(root), call_timeout_s=9)  # on another connection: it is used in a callback
    (a,) = other.commit([], [Put("a", b"1")]).result(5).entries
    send, ranges = backend._connection.send, []

    def send_and_meddle(method, request, timeout_s, **more):
        ranges.extend([method] if method == "Range" else [])
        if len(ranges) == 2:  # the first answer is there; the next read finds another state
            ranges.append("")
            time.sleep(0.2)
            other.commit([], [Put("c", b"1"), Delete("a")]).result(5)
        return send(method, request, timeout_s, **more)

    backend._connection.send = send_and_meddle
    with pytest.raises(Conflict) as refused:
        backend.commit([Exists("c"), At(a)], []).result(5)
    assert list(refused.value.failed) == [Exists("c")]
