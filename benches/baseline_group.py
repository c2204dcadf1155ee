"""A minimal group: members of one process, each with its own session, join until each has seen all others.

    python benches/baseline_group.py < OPTIONS-JSON     prints a line of JSON

A join is one transaction, which creates a key bound to the member's session. One writer stores a view of the changes,
at most every max(20 ms, N * 0.2 ms) for N members, so that there are few views whatever N is. A follower looks at the
number of members in a view and reads nothing else. ``store``: each member has a latchwork store. ``raw``: each member
has a lease, a key and a watch of etcd on one stream, and no thread. Unlike latchwork's group, it has no ranks, no views
without gaps, no leaving, and handles neither a dead writer nor lost answers. ``ours`` is
``latchwork.primitives.Group``.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from baseline_stores import in_background
from executor_ours import answer, used_s

TTL_S = 30
PAUSE_S, PAUSE_PER_MEMBER_S = 0.02, 0.0002
WAIT_S = 200.0
CONNECTING = 16
JOINING = 64


class Writer:
    """Stores views of the members that have joined, a few at a time. ``put`` gets the text of each view."""

    def __init__(self, count, put):
        self.count, self.put, self.views = count, put, 0
        self.lock, self.fresh, self.changed = threading.Lock(), [], threading.Event()
        in_background(self._run)

    def joined(self, names):
        with self.lock:
            self.fresh += names
        self.changed.set()

    def _run(self):
        known = 0
        while known < self.count:
            self.changed.wait()
            self.changed.clear()
            with self.lock:
                fresh, self.fresh = self.fresh, []
            if not fresh:
                continue
            known += len(fresh)
            self.views += 1
            self.put(f"{known:08d}{json.dumps(fresh)}".encode())
            time.sleep(max(PAUSE_S, self.count * PAUSE_PER_MEMBER_S))


class Audience:
    """Counts the followers that have seen a view with all members."""

    def __init__(self, count):
        self.count, self.done, self.full, self.lock = count, threading.Event(), set(), threading.Lock()

    def saw(self, follower, view):
        if int(view[:8]) == self.count:
            with self.lock:
                self.full.add(follower)
                if len(self.full) == self.count:
                    self.done.set()


def store(url, count):
    """Join with a latchwork store for each member, and return the number of views."""
    import latchwork

    audience = Audience(count)
    with ThreadPoolExecutor(CONNECTING) as pool:
        stores = list(pool.map(lambda _: latchwork.connect(url, session_ttl_s=TTL_S), range(count)))
        yield
        writer = Writer(count, lambda view: stores[0].put("g/view", view))
        members = stores[0].watch("g/members")
        members.subscribe(lambda batch: writer.joined([each.key for each in batch if each.entry is not None]))
        watches = []

        def join(number):
            mine = stores[number]
            mine.create(f"g/members/m{number:05}", b"member", session=mine.session)
            watch = mine.watch("g/view")
            watch.subscribe(lambda batch: [audience.saw(number, each.entry.value) for each in batch if each.entry])
            watches.append(watch)

        list(pool.map(join, range(count)))
        audience.done.wait(WAIT_S)
    yield writer.views


def ours(url, count):
    """Join with latchwork's group and a store for each member."""
    import latchwork
    from latchwork.primitives import Group

    with ThreadPoolExecutor(CONNECTING) as pool:
        stores = list(pool.map(lambda _: latchwork.connect(url, session_ttl_s=TTL_S), range(count)))
    yield
    views = []
    groups = [Group(each, "g", member_id=f"m{number:05}") for number, each in enumerate(stores)]
    groups[0].on_view(views.append)
    for group in groups:
        group.start()
    for group in groups:
        group.wait_until(lambda view: len(view.ids) == count, WAIT_S)
    yield len(views)


def raw(url, count):
    """Join with messages of etcd."""
    import grpc

    from latchwork_testkit.etcd_rpc import Stub, pb

    host, _, root = url.partition("://")[2].partition("/")
    channel = grpc.insecure_channel(host)
    kv, lease, watch = Stub(channel, "KV"), Stub(channel, "Lease"), Stub(channel, "Watch")
    requests, audience = queue.SimpleQueue(), Audience(count)
    create = pb.WatchCreateRequest
    members, members_end, view = (f"{root}/g/{name}".encode() for name in ("m/", "m0", "view"))

    def listen():
        is_members = {}
        for found in watch.Watch(iter(requests.get, None)):
            if found.created:
                is_members[found.watch_id] = not is_members  # the first one follows the members
            elif is_members[found.watch_id]:
                writer.joined([event.kv.key.decode() for event in found.events])
            else:
                for event in found.events:
                    audience.saw(found.watch_id, event.kv.value)

    yield
    writer = Writer(count, lambda text: kv.Put(pb.PutRequest(key=view, value=text)))
    requests.put(pb.WatchRequest(create_request=create(key=members, range_end=members_end, start_revision=1)))
    in_background(listen)
    gate = threading.Semaphore(JOINING)

    def join(number):
        def granted(call):
            key = members + f"m{number:05}".encode()
            absent = pb.Compare(key=key, result=pb.Compare.EQUAL, target=pb.Compare.VERSION, version=0)
            put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=b"member", lease=call.result().ID))
            joined = kv.Txn.future(pb.TxnRequest(compare=[absent], success=[put]))
            joined.add_done_callback(lambda _: gate.release())

        gate.acquire()
        lease.LeaseGrant.future(pb.LeaseGrantRequest(TTL=TTL_S)).add_done_callback(granted)
        requests.put(pb.WatchRequest(create_request=create(key=view, start_revision=1)))

    for number in range(count):
        join(number)
    audience.done.wait(WAIT_S)
    yield writer.views


def main(kind, url, count):
    run = {"raw": raw, "store": store, "ours": ours}[kind](url, count)
    next(run)
    used, begun = used_s(), time.perf_counter()
    views = next(run)
    took = time.perf_counter() - begun
    if took >= WAIT_S:
        raise SystemExit("not all were seen")
    answer(seconds=took, cpu_s=used_s() - used, views=views, threads=threading.active_count())


if __name__ == "__main__":
    main(**json.loads(sys.stdin.readline()))
    sys.stdout.flush()
    os._exit(0)
