"""What it costs workers to join a job, and to meet.

    python benches/bench_workers.py [--backends etcd35,zookeeper] [--members 100,400,1000] [--processes 4]
                                    [--rounds 10] [--what barrier,join] [--json FILE]

Barrier: so many members in a few processes, each a thread with its ``Barrier`` on the store of its process, meet again
and again; a round lasts from the first to arrive until the last was let through. Prints figures and judges none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import latchwork
from latchwork.primitives import Barrier
from latchwork_testbed.servers import EtcdServer, ZooKeeperServer

SERVERS = {"etcd35": lambda: EtcdServer(version="3.5"), "zookeeper": ZooKeeperServer}
TTL_S = 30.0


class Child:
    """A process of this file that plays one role; it is told and answers by lines of JSON."""

    def __init__(self, role, **options):
        command = [sys.executable, __file__, "--role", role, "--options", json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark has ended; see above")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait(120)


def answer(**what):
    print(json.dumps(what), flush=True)


def meet(url, first, count, parties, rounds, per_generation):
    """Role: members of a barrier, a thread each; a round for each line that comes."""
    with latchwork.connect(url, session_ttl_s=TTL_S) as store:
        members = [
            Barrier(store, "phase", parties=parties, member_id=f"m{number}", per_generation=per_generation)
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
    """Seconds of each round but the first, and of a processor for each member and round."""
    url, each = f"{server.url()}/{uuid.uuid4().hex[:8]}", members // processes
    children = [
        Child("meet", url=url, first=each * i, count=each, parties=each * processes, rounds=rounds, per_generation=True)
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


ROLES = {"meet": meet}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="etcd35,zookeeper")
    parser.add_argument("--members", default="100,400,1000")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--what", default="barrier")
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
            for members in map(int, chosen.members.split(",")):
                if "barrier" in chosen.what.split(","):
                    took, used = barrier(server, members, chosen.processes, chosen.rounds)
                    figures.append({"what": "barrier", "backend": backend, "members": members, "seconds": took, "used": used})
                    p50, worst = statistics.median(took) * 1000, max(took) * 1000
                    print(f"{backend:10} barrier of {members:5}: p50 {p50:7.0f} ms, longest {worst:7.0f} ms, processor {used * 1000:.2f} ms each")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
