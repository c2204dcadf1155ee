"""Single reads are merged while others are on their way, and each gets its own answer all the same."""

from __future__ import annotations

import threading

import pytest

from latchwork.backends.etcd.layout import EtcdKeys
from latchwork.backends.etcd.reads import _MAX_BATCH, _MAX_REQUESTS, MergedReads
from latchwork.backends.etcd.writing.compiler import TxnCompiler
from latchwork.backends.futures import LightFuture, reject, resolve
from latchwork.errors import Closed, PermissionDenied, Unavailable
from latchwork.types import Put
from latchwork_testkit.etcd_rpc import pb

KEYS = EtcdKeys("r")
CODEC = TxnCompiler(KEYS).codec


class Clock:
    """Ten seconds later at each call."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        self.at += 10.0
        return self.at


class Request(LightFuture):
    """A read that was sent; the test ends it."""

    def __init__(self, method, request, what, decode, deadline):
        super().__init__()
        self.method = method
        self.what = what
        self.deadline = deadline
        message = (pb.TxnRequest if method == "Txn" else pb.RangeRequest).FromString(request)
        ranges = [one.request_range for one in message.success] if method == "Txn" else [message]
        self.keys = [KEYS.decode_key(each.key) for each in ranges]
        self.stale = {each.serializable for each in ranges}
        self._decode = decode

    def answer(self):
        """Every key has its name as its value."""
        kvs = [pb.KeyValue(key=KEYS.encode_key(key), value=key.encode(), mod_revision=5) for key in self.keys]
        ranges = [pb.RangeResponse(kvs=[kv]) for kv in kvs]
        together = pb.TxnResponse(succeeded=True, responses=[pb.ResponseOp(response_range=one) for one in ranges])
        resolve(self, self._decode((together if self.method == "Txn" else ranges[0]).SerializeToString()))


class Link:
    """Keeps what is sent."""

    call_timeout_s = 5.0

    def __init__(self):
        self.clock = Clock()
        self.sent = []

    def read(self, method, request, what, decode, *, deadline=None):
        self.sent.append(Request(method, request, what, decode, deadline))
        return self.sent[-1]


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def reads(link):
    return MergedReads(link, CODEC, stale_ok=False)


@pytest.fixture
def gathered(link, reads):
    """Three reads that wait behind as many as go out at once; those are answered when the test wants."""
    for n in range(_MAX_REQUESTS):
        reads.get(f"first{n}")
    return [reads.get(name) for name in ("a", "b", "c")]


def test_few_reads_go_out_one_by_one_at_once(link, reads):
    futures = [reads.get(f"k{n}") for n in range(_MAX_REQUESTS)]
    assert [request.keys for request in link.sent] == [[f"k{n}"] for n in range(_MAX_REQUESTS)]
    link.sent[3].answer()
    assert futures[3].result(0).value == b"k3"


def test_reads_that_gather_go_out_together_when_one_before_them_has_ended(link, gathered):
    assert len(link.sent) == _MAX_REQUESTS
    link.sent[5].answer()
    (together,) = link.sent[_MAX_REQUESTS:]
    assert (together.method, together.keys, together.stale) == ("Txn", ["a", "b", "c"], {False})
    assert not any(future.done() for future in gathered)
    together.answer()
    assert [future.result(0).value for future in gathered] == [b"a", b"b", b"c"]


def test_reads_that_gather_go_out_also_when_one_before_them_has_failed(link, gathered):
    reject(link.sent[0], Unavailable("no"))
    link.sent[-1].answer()
    assert gathered[2].result(0).key == "c"


def test_as_many_as_fit_wait_for_nobody(link, gathered, reads):
    for n in range(_MAX_BATCH - len(gathered)):
        reads.get(f"k{n}")
    assert [len(request.keys) for request in link.sent[_MAX_REQUESTS:]] == [_MAX_BATCH]


def test_reads_go_out_one_by_one_again_when_all_is_answered(link, gathered, reads):
    while any(not request.done() for request in link.sent):
        next(request for request in link.sent if not request.done()).answer()
    sent = len(link.sent)
    reads.get("later")
    assert [request.keys for request in link.sent[sent:]] == [["later"]]
    assert all(future.done() for future in gathered)


def test_merged_reads_have_the_deadline_of_the_first_of_them(link, gathered):
    del gathered
    link.sent[0].answer()
    assert link.sent[-1].deadline == 10.0 + link.call_timeout_s


def test_refused_together_each_is_asked_for_alone_with_its_own_deadline(link, gathered):
    link.sent[0].answer()
    reject(link.sent[-1], PermissionDenied("one of them"))
    alone = link.sent[-3:]
    assert [(request.method, request.keys, request.deadline) for request in alone] == [
        ("Range", [key], 10.0 * n + link.call_timeout_s) for n, key in enumerate("abc", 1)
    ]
    alone[0].answer()
    reject(alone[1], PermissionDenied("b"))
    alone[2].answer()
    assert gathered[0].result(0).value == b"a"
    assert isinstance(gathered[1].exception(0), PermissionDenied)
    assert gathered[2].result(0).value == b"c"


def test_unanswered_together_each_is_told_with_its_own_key(link, gathered):
    link.sent[0].answer()
    reject(link.sent[-1], Unavailable("no answer"))
    errors = [future.exception(0) for future in gathered]
    assert [type(error) for error in errors] == [Unavailable] * 3
    assert [repr(key) in str(error) for key, error in zip("abc", errors, strict=True)] == [True] * 3
    assert len(link.sent) == _MAX_REQUESTS + 1


def test_closing_ends_what_has_gathered(link, gathered):
    reject(link.sent[0], Closed("closed"))
    reject(link.sent[-1], Closed("closed"))
    assert [type(future.exception(0)) for future in gathered] == [Closed] * 3


def test_stale_reads_are_merged_apart(link):
    stale = MergedReads(link, CODEC, stale_ok=True)
    for n in range(_MAX_REQUESTS + 2):
        stale.get(f"k{n}")
    link.sent[0].answer()
    assert [request.stale for request in link.sent] == [{True}] * (_MAX_REQUESTS + 1)


def calls_of(backend):
    """Methods of the calls that the backend sends from now on."""
    calls = []
    send = backend._connection.send

    def spy(method, request, timeout_s, **how):
        calls.append(method)
        return send(method, request, timeout_s, **how)

    backend._connection.send = spy
    return calls


@pytest.fixture
def bearing(etcd34, root, opened):
    """A backend of a server that bears transactions of reads."""
    backend = opened(etcd34.url(root))
    assert backend._connection.survives_canceled_reads
    return backend


def test_five_hundred_reads_in_flight_are_a_few_requests(etcd34, proxied, root, opened):
    proxy = proxied(etcd34)
    backend = opened(f"etcd://{proxy.endpoint}/{root}")
    names = [f"k{n}" for n in range(100)]
    backend.commit([], [Put(name, name.encode()) for name in names]).result(5)
    sent = calls_of(backend)
    proxy.hold("answers")
    futures = [backend.get(name, stale_ok=False) for name in names * 5]
    proxy.release()
    assert [future.result(5).value.decode() for future in futures] == names * 5
    assert sent.count("Range") == _MAX_REQUESTS
    assert sent.count("Txn") == -(-(len(futures) - _MAX_REQUESTS) // _MAX_BATCH)


def test_old_server_gets_every_read_alone(backend):
    sent = calls_of(backend)
    backend._connection.survives_canceled_reads = False
    for future in [backend.get(f"k{n}", stale_ok=False) for n in range(50)]:
        assert future.result(5) is None
    assert sent == ["Range"] * 50


def test_merged_reads_find_every_write_that_was_answered_before_they_were_asked_for(bearing):
    written = [0]
    bearing.commit([], [Put("k", b"0")]).result(5)
    sent = calls_of(bearing)

    def write():
        for number in range(1, 200):
            bearing.for_blocking_calls.commit([], [Put("k", b"%d" % number)]).result(5)
            written[0] = number

    writer = threading.Thread(target=write)
    writer.start()
    asked = []
    while writer.is_alive():
        asked.extend((written[0], bearing.get("k", stale_ok=False)) for _ in range(50))
        asked[-1][1].result(10)
    writer.join(10)
    assert written[0] == 199
    assert [least for least, future in asked if int(future.result(10).value) < least] == []
    assert sent.count("Txn") > written[0]
