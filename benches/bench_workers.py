"""Measures worker groups: how fast workers join, meet at a barrier, and are notified of a lost worker.

    python benches/bench_workers.py [--backends etcd35,zookeeper] [--members 100,400,1000] [--processes N]
                                    [--rounds 10] [--what barrier,join,loss,peers] [--json FILE]

Barrier: the members are threads in a few processes, each with its ``Barrier`` on the store of its process. They meet
repeatedly. A round lasts from the first arrival until the last member has passed. Join: workers that are already
connected join at the same time. Loss: one of four workers is killed, and the others are notified. Peers: the same on
ZooKeeper with kazoo (its Counter for numbers, its DoubleBarrier for meetings) and with tooz (``join_group``, without
numbers), where each member needs its own client. Prints figures without goals. The only check is that of the IDs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from roles import Child, answer

import latchwork
from latchwork.primitives import Barrier
from latchwork.worker_group import EpochEnded, GroupWorker, submit
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer

SERVERS = {"etcd35": lambda: EtcdServer(version="3.5"), "zookeeper": ZooKeeperServer}
TTL_S = 30.0
LOSS_TTL_S = 8.0
#: Maximum members per process, each a thread; and maximum clients of kazoo, each of which is notified of every other.
MOST_THREADS, MOST_OF_PEERS = 50, 100


def meet(url, first, count, parties, rounds):
    """Run members of a barrier, each in a thread, and start a round for each line of input. A role of this program."""
    with latchwork.connect(url, session_ttl_s=TTL_S) as store:
        members = [
            Barrier(store, "phase", parties=parties, member_id=f"m{number}", per_generation=True)
            for number in range(first, first + count)
        ]
        begin, done = threading.Barrier(count + 1), threading.Barrier(count + 1)
        times = [(0.0, 0.0)] * count

        def work(number):
            for _ in range(rounds):
                begin.wait()
                began = time.time()
                members[number].wait(120.0)
                times[number] = (began, time.time())
                done.wait()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        answer(ready=True)
        for _ in range(rounds):
            sys.stdin.readline()
            used = time.process_time()
            begin.wait()
            done.wait()
            used = time.process_time() - used
            answer(began=min(each[0] for each in times), ended=max(each[1] for each in times), used=used)
        for thread in threads:
            thread.join()


def barrier(server, members, processes, rounds):
    """Return the seconds of each round without the first, and the processor seconds per member and round."""
    url, each = f"{server.url()}/{uuid.uuid4().hex[:8]}", members // processes
    children = [
        Child(__file__, "meet", url=url, first=each * i, count=each, parties=each * processes, rounds=rounds)
        for i in range(processes)
    ]
    for child in children:
        child.hear()
    took, used = [], []
    for _ in range(rounds):
        for child in children:
            child.say("go")
        told = [child.hear() for child in children]
        took.append(max(one["ended"] for one in told) - min(one["began"] for one in told))
        used.append(sum(one["used"] for one in told) / members)
    for child in children:
        child.end()
    return took[1:], statistics.median(used)


def join(url, first, count, parties):
    """Run workers, each with an open session, that join when the command arrives. A role of this program."""
    with latchwork.connect(url, session_ttl_s=TTL_S) as store:
        made = [
            GroupWorker(store, "train", workers=parties, key=f"k{number}", session=store.open_session(TTL_S))
            for number in range(first, first + count)
        ]
        ids = [-1] * count
        begin = threading.Barrier(count + 1)

        def work(number):
            begin.wait()
            ids[number] = made[number].join(120.0).rank

        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        answer(ready=True)
        sys.stdin.readline()
        began, used = time.time(), time.process_time()
        begin.wait()
        for thread in threads:
            thread.join()
        answer(began=began, ended=time.time(), ids=ids, used=time.process_time() - used)
        sys.stdin.readline()


def joins(server, members, processes):
    """Return the seconds from when the first worker begins to join until the last one has joined, and the processor
    seconds per worker.
    """
    url, each = f"{server.url()}/{uuid.uuid4().hex[:8]}", members // processes
    with latchwork.connect(url) as store:
        submit(store, "train", each * processes)
    children = [
        Child(__file__, "join", url=url, first=each * i, count=each, parties=each * processes) for i in range(processes)
    ]
    for child in children:
        child.hear()
    for child in children:
        child.say("go")
    told = [child.hear() for child in children]
    ids = sorted(number for one in told for number in one["ids"])
    if ids != list(range(each * processes)):
        raise SystemExit(f"the ids have gaps, or are not unique: {ids}")
    for child in children:
        child.process.kill()  # leaving is not what is measured
        child.process.wait()
    used = sum(one["used"] for one in told) / members
    return max(one["ended"] for one in told) - min(one["began"] for one in told), used


def kazoo_clients(endpoint, count):
    from kazoo.client import KazooClient

    clients = [KazooClient(hosts=endpoint, timeout=TTL_S) for _ in range(count)]
    for client in clients:
        client.start(30.0)
    return clients


def at_once(calls, rounds=1):
    """Run all functions at the same time, each in a thread, for each line of input."""
    begin, done = threading.Barrier(len(calls) + 1), threading.Barrier(len(calls) + 1)
    times = [(0.0, 0.0)] * len(calls)

    def work(number):
        for each in range(rounds):
            begin.wait()
            began = time.time()
            calls[number](each)
            times[number] = (began, time.time())
            done.wait()

    for number in range(len(calls)):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    answer(ready=True)
    for _ in range(rounds):
        sys.stdin.readline()
        begin.wait()
        done.wait()
        answer(began=min(each[0] for each in times), ended=max(each[1] for each in times))


def kazoo_join(endpoint, name, count):
    """Run kazoo clients that each take a number. A role of this program."""

    def take(client):
        counter = client.Counter(f"/{name}/next")
        counter += 1

    at_once([lambda _round, client=client: take(client) for client in kazoo_clients(endpoint, count)])


def kazoo_meet(endpoint, name, count, parties, rounds):
    """Run kazoo clients that enter and leave a barrier together. A role of this program."""

    def meet_once(client, number):
        barrier = client.DoubleBarrier(f"/{name}/{number}", parties)
        barrier.enter()

    clients = kazoo_clients(endpoint, count)
    at_once([lambda number, client=client: meet_once(client, number) for client in clients], rounds)


def tooz_join(endpoint, name, count):
    """Run members that join a group with tooz. A role of this program."""
    from tooz.coordination import GroupAlreadyExist, get_coordinator

    made = [get_coordinator(f"zookeeper://{endpoint}", f"m{uuid.uuid4().hex}".encode()) for _ in range(count)]
    for each in made:
        each.start()
    with suppress(GroupAlreadyExist):
        made[0].create_group(name.encode()).get()
    at_once([lambda _round, each=each: each.join_group(name.encode()).get() for each in made])


def peer(role, server, members, processes, *, times=1, **options):
    """Return the seconds of each round with another library. Of several rounds, the first is left out."""
    name, each = uuid.uuid4().hex[:8], members // processes
    told = {"endpoint": server.endpoint, "name": name, "count": each, **options}
    children = [Child(__file__, role, **told) for _ in range(processes)]
    for child in children:
        child.hear()
    took = []
    for _ in range(times):
        for child in children:
            child.say("go")
        heard = [child.hear() for child in children]
        took.append(max(one["ended"] for one in heard) - min(one["began"] for one in heard))
    for child in children:
        child.process.kill()
        child.process.wait()
    return took[1:] or took


def peers(server, members, processes, rounds):
    """Measure the other libraries on ZooKeeper."""
    if members <= MOST_OF_PEERS:
        took = peer("kazoo_meet", server, members, processes, times=rounds, parties=members, rounds=rounds)
        yield f"kazoo: DoubleBarrier of {members}: p50 {statistics.median(took) * 1000:7.0f} ms"
    yield f"kazoo: {members} Counters at once: {peer('kazoo_join', server, members, processes)[0] * 1000:7.0f} ms"
    try:
        yield f"tooz: {members} join_group at once: {peer('tooz_join', server, members, processes)[0] * 1000:7.0f} ms"
    except SystemExit:
        yield "tooz is not installed; see benches/requirements.txt"


def lose(url, number, parties):
    """Run a worker that meets the others repeatedly, and reports when it is notified of a fault. A role of this
    program.
    """
    with latchwork.connect(url, session_ttl_s=LOSS_TTL_S) as store:
        worker = GroupWorker(store, "train", workers=parties, key=f"k{number}")
        worker.join(60.0)
        while True:
            worker.initialize(60.0)
            answer(epoch=worker.epoch, ttl_s=store.session.ttl_s)
            try:
                worker.barrier("never")
            except EpochEnded:
                answer(told=time.time())


def hear(child, what):
    """Return the answer of a child to this fault. The return of a worker is a fault as well, and may be reported
    first.
    """
    while what not in (said := child.hear()):
        pass
    return said[what]


def losses(server, rounds):
    """Return the seconds from the kill of one of four workers until the last of the others is notified, minus the
    granted TTL.
    """
    url = f"{server.url()}/{uuid.uuid4().hex[:8]}"
    with latchwork.connect(url) as store:
        submit(store, "train", 4, max_restarts=2 * rounds)
    children = [Child(__file__, "lose", url=url, number=number, parties=4) for number in range(4)]
    took = []
    for _ in range(rounds):
        ttl_s = max(hear(child, "ttl_s") for child in children)
        time.sleep(0.5)
        children[3].process.kill()
        killed = time.time()
        told = max(hear(child, "told") for child in children[:3])
        took.append(told - killed - ttl_s)
        children[3] = Child(__file__, "lose", url=url, number=3, parties=4)
    for child in children:
        child.process.kill()
        child.process.wait()
    return took


ROLES = {
    "meet": meet,
    "join": join,
    "lose": lose,
    "kazoo_join": kazoo_join,
    "kazoo_meet": kazoo_meet,
    "tooz_join": tooz_join,
}


def measured(backend, server, chosen):
    """Measure everything that was requested on one server, and print each figure."""
    what = chosen.what.split(",")
    for members in map(int, chosen.members.split(",")):
        processes = chosen.processes or max(4, members // MOST_THREADS)
        if "barrier" in what:
            took, used = barrier(server, members, processes, chosen.rounds)
            p50, worst = statistics.median(took) * 1000, max(took) * 1000
            print(f"{backend:10} barrier of {members:5}: p50 {p50:7.0f} ms, longest {worst:7.0f} ms, ", end="")
            print(f"processor {used * 1000:.2f} ms each")
            yield {"what": "barrier", "backend": backend, "members": members, "seconds": took, "used": used}
        if "join" in what:
            took, used = joins(server, members, processes)
            print(f"{backend:10} {members:5} join at once: {took * 1000:7.0f} ms, processor {used * 1000:.2f} ms each")
            yield {"what": "join", "backend": backend, "members": members, "seconds": took, "used": used}
        if "peers" in what and backend == "zookeeper":
            for line in peers(server, members, processes, chosen.rounds):
                print(f"{backend:10} {line}")
    if "loss" in what:
        took = sorted(losses(server, chosen.rounds))
        late = took[int(len(took) * 0.95)] * 1000
        print(
            f"{backend:10} notified of a loss {statistics.median(took) * 1000:7.0f} ms after its TTL, p95 {late:.0f} ms"
        )
        yield {"what": "loss", "backend": backend, "seconds": took}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="etcd35,zookeeper")
    parser.add_argument("--members", default="100,400,1000")
    parser.add_argument("--processes", type=int, help="default: 4, and one for each 50 members")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--what", default="barrier,join,loss")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--options", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        ROLES[chosen.role](**json.loads(chosen.options))
        return
    figures = []
    for backend in chosen.backends.split(","):
        with SERVERS[backend]() as server:
            figures += measured(backend, server, chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
