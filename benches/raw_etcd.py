"""A raw etcd client that sends etcd's messages on a separate gRPC channel.

Each operation does as little as possible. It does not find out the outcome if an answer is lost. ``put+fence``,
``delete+fence`` and ``txn+fence`` also compare and overwrite a guard key, with which the outcome of a lost answer can
be decided (docs/design/etcd-writes.md). They are the raw cost of the same guarantee.
"""

from __future__ import annotations

import queue

import grpc
from store_sides import CHILDREN, IN_FLIGHT, KEYS, VALUE, Side

from latchwork_testkit.etcd_rpc import Stub, pb

_C = pb.Compare


class RawEtcd(Side):
    """A client with one channel and one stub."""

    name = "etcd stub"

    def __init__(self, server, root):
        super().__init__()
        self.channel = grpc.insecure_channel(server.endpoint, (("grpc.max_receive_message_length", -1),))
        self.kv = Stub(self.channel, "KV")
        self.root = f"/{root}/"
        self.revisions = {}
        self.guards = {}
        requests = {
            "get": ("Range", lambda n: pb.RangeRequest(key=self.key(f"k{n % KEYS}"))),
            "stale": ("Range", lambda n: pb.RangeRequest(key=self.key(f"k{n % KEYS}"), serializable=True)),
            "put": ("Put", lambda n: pb.PutRequest(key=self.key(f"k{n % KEYS}"), value=VALUE)),
            "put+fence": ("Txn", self._fenced_put),
            "create": ("Txn", self._create),
            "delete": ("DeleteRange", lambda n: pb.DeleteRangeRequest(key=self.key(f"gone{n}"))),
            "delete+fence": ("Txn", self._fenced_delete),
            "txn": ("Txn", self._txn),
            "txn+fence": ("Txn", self._fenced_txn),
        }
        for name, (method, request) in requests.items():
            stub = getattr(self.kv, method)
            self.do[name] = self._doing(name, stub, request)
            self.start[name] = self._starting(stub, request)
        self.fill(f"k{n}" for n in range(KEYS))
        self.fill(f"t{n}{side}" for n in range(IN_FLIGHT) for side in "ab")

    def key(self, name):
        return (self.root + name).encode()

    def prepare(self, operation, count):
        super().prepare(operation, count)
        if operation.endswith("+fence"):
            found = self._subtree("g")
            self.guards = {kv.key: kv.mod_revision for kv in found}
        if operation.startswith("txn"):
            self.revisions = {kv.key: kv.mod_revision for kv in self._subtree("t")}

    def fill(self, names):
        names = list(names)
        for at in range(0, len(names), IN_FLIGHT):
            batch = names[at : at + IN_FLIGHT]
            started = [self.kv.Put.future(pb.PutRequest(key=self.key(name), value=VALUE)) for name in batch]
            for one in started:
                one.result()

    def fill_folder(self):
        self.fill(f"folder/{n:05d}" for n in range(CHILDREN))

    def list_folder(self):
        answer = self.kv.Range(pb.RangeRequest(key=self.key("folder/"), range_end=self.key("folder0")))
        skip = len(self.root)
        return [(kv.key[skip:].decode(), kv.value, kv.mod_revision) for kv in answer.kvs]

    def follow(self, name, notify):
        """Call ``notify`` with each new value. Return a function that ends it."""
        requests = queue.Queue()
        create = pb.WatchCreateRequest(key=self.key(name))
        requests.put(pb.WatchRequest(create_request=create))
        stream = Stub(self.channel, "Watch").Watch(iter(requests.get, None))
        assert next(stream).created

        def run():
            try:
                for answer in stream:
                    for event in answer.events:
                        notify(event.kv.value)
            except grpc.RpcError:
                pass

        return run, stream.cancel

    def put_value(self, name, value):
        self.kv.Put(pb.PutRequest(key=self.key(name), value=value))

    def close(self):
        self.channel.close()

    def _subtree(self, prefix):
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return self.kv.Range(pb.RangeRequest(key=self.key(prefix), range_end=self.key(end), keys_only=True)).kvs

    def _doing(self, name, stub, request):
        if name.startswith("txn") or name.endswith("+fence"):

            def do(n):
                answer = stub(request(n), timeout=10)
                assert answer.succeeded
                revision = answer.header.revision
                if name.endswith("+fence"):
                    self.guards[self._guard(n)] = revision
                if name.startswith("txn"):
                    for side in "ab":
                        self.revisions[self.key(f"t{n % IN_FLIGHT}{side}")] = revision

            return do
        return lambda n: stub(request(n), timeout=10)

    @staticmethod
    def _starting(stub, request):
        send = stub.future
        return lambda n: send(request(n), timeout=10)

    def _guard(self, n):
        return self.key(f"g{n % IN_FLIGHT}")

    def _fence(self, n):
        guard = self._guard(n)
        compare = _C(key=guard, target=_C.MOD, mod_revision=self.guards.get(guard, 0), result=_C.EQUAL)
        return compare, pb.RequestOp(request_put=pb.PutRequest(key=guard, value=b"w"))

    def _fenced_put(self, n):
        compare, write = self._fence(n)
        put = pb.RequestOp(request_put=pb.PutRequest(key=self.key(f"k{n % KEYS}"), value=VALUE))
        return pb.TxnRequest(compare=[compare], success=[write, put])

    def _fenced_delete(self, n):
        compare, write = self._fence(n)
        gone = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=self.key(f"gone{n}")))
        return pb.TxnRequest(compare=[compare], success=[write, gone])

    def _create(self, n):
        key = self.key(f"new{n}")
        compare = _C(key=key, target=_C.CREATE, create_revision=0, result=_C.EQUAL)
        return pb.TxnRequest(compare=[compare], success=[pb.RequestOp(request_put=pb.PutRequest(key=key, value=VALUE))])

    def _two(self, n):
        keys = [self.key(f"t{n % IN_FLIGHT}{side}") for side in "ab"]
        compares = [_C(key=key, target=_C.MOD, mod_revision=self.revisions[key], result=_C.EQUAL) for key in keys]
        return compares, [pb.RequestOp(request_put=pb.PutRequest(key=key, value=VALUE)) for key in keys]

    def _txn(self, n):
        compares, puts = self._two(n)
        return pb.TxnRequest(compare=compares, success=puts)

    def _fenced_txn(self, n):
        compares, puts = self._two(n)
        compare, write = self._fence(n)
        return pb.TxnRequest(compare=[*compares, compare], success=[*puts, write])
