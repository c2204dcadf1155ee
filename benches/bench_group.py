"""Measures how fast members join a group, and how fast other members and watchers are notified.

    python benches/bench_group.py [--backends etcd35,zookeeper] [--members 1000] [--processes 4] [--watchers 10]
                                  [--listen] [--one-by-one 100] [--no-peer] [--baseline 200,1000] [--json FILE]

At once: all members join at the same time, in a few processes with one session each. Watchers in other processes must
be notified of every member once, with view numbers without gaps. With ``--listen``, every member is notified as well.
One by one: members of one process join one after another. The ZooKeeper driver of tooz does the same on the same
server.

``--baseline``: members of one process, each with its own store, join until each has seen all others. They are compared
with a minimal group (``baseline_group.py``) that uses the raw client of etcd or the store. Nothing else is measured
then. Prints figures without goals. The only check is that of the views.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from roles import Child, answer

import latchwork
from latchwork.primitives import Group
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer

SERVERS = {
    "etcd34": lambda: EtcdServer(version="3.4"),
    "etcd35": lambda: EtcdServer(version="3.5"),
    "zookeeper": ZooKeeperServer,
}
TTL_S = 30.0


def joiner(url, group, first, count, *, listen):
    """Join this number of members when the command arrives. Report when all have joined, and the figures."""
    with latchwork.connect(url, session_ttl_s=TTL_S) as store:
        store.session.ensure_usable()
        answer(ready=True)
        sys.stdin.readline()
        cpu, started = time.process_time(), time.monotonic()
        told = []
        members = [Group(store, group, member_id=f"m{number:05}") for number in range(first, first + count)]
        for member in members:
            if listen:
                member.on_view(told.append)
            member.start()
        for member in members:
            member.wait_joined(300.0)
        answer(joined_s=time.monotonic() - started, cpu_s=time.process_time() - cpu)
        sys.stdin.readline()
        answer(cpu_s=time.process_time() - cpu, told=len(told))
        sys.stdin.readline()
        for member in members:
            member.close()


def watcher(url, group, count):
    """Watch the group until it has this number of members. Report the time, the figures and any wrong views."""
    with latchwork.connect(url, session_ttl_s=TTL_S) as store, Group(store, group) as onlooker:
        seen, wrong, done, last = [], [], threading.Event(), []

        def note(change):
            if last and change.view.number != last[-1] + 1:
                wrong.append(f"view {change.view.number} after {last[-1]}")
            last.append(change.view.number)
            seen.extend(member.id for member in change.joined)
            wrong.extend(f"{member.id} left" for member in change.left)
            if len(change.view.members) == count:
                done.set()

        store.session.ensure_usable()
        onlooker.on_view(note)
        time.sleep(1.0)
        answer(ready=True)
        sys.stdin.readline()
        cpu, started = time.process_time(), time.monotonic()
        all_seen = done.wait(300.0)
        took_s = time.monotonic() - started
        if not all_seen or len(seen) != count or len(set(seen)) != count:
            wrong.append(f"{len(seen)} joins of {len(set(seen))} members were notified, {count} wanted")
        answer(seen_s=took_s, cpu_s=time.process_time() - cpu, views=len(last), wrong=wrong[:3])
        sys.stdin.readline()


def at_once(url, options):
    """Let all members join at once. Return the figures of the members and of the watchers."""
    group = f"bench-{uuid.uuid4().hex[:8]}"
    share = options.members // options.processes
    total = share * options.processes
    watchers = [Child(__file__, "watcher", url=url, group=group, count=total) for _ in range(options.watchers)]
    joiners = [
        Child(__file__, "joiner", url=url, group=group, first=number * share, count=share, listen=options.listen)
        for number in range(options.processes)
    ]
    children = [*watchers, *joiners]
    for each in children:
        each.hear()
    for each in children:
        each.say("go")
    joined = [each.hear() for each in joiners]
    seen = [each.hear() for each in watchers]
    for each in joiners:
        each.say("all were seen")
    listened = [each.hear() for each in joiners]
    for each in children:
        each.say("bye")
        each.end()
    told = max(1, total * len(watchers))
    return {
        "members": total,
        "joined_s": max(each["joined_s"] for each in joined),
        "seen_by_all_s": max((each["seen_s"] for each in seen), default=0.0),
        "views": max((each["views"] for each in seen), default=0),
        "cpu_ms_per_join": sum(each["cpu_s"] for each in listened) / total * 1e3,
        "cpu_ms_per_join_and_watcher": sum(each["cpu_s"] for each in seen) / told * 1e3,
        "wrong": [problem for each in seen for problem in each["wrong"]],
    }


def one_by_one(url, count):
    """Let the members of one process join one after another. Return the total seconds and the processor time of a
    join.
    """
    group = f"bench-{uuid.uuid4().hex[:8]}"
    with latchwork.connect(url, session_ttl_s=TTL_S) as store:
        store.session.ensure_usable()
        cpu, started = time.process_time(), time.monotonic()
        members = []
        for number in range(count):
            members.append(Group(store, group, member_id=f"m{number:05}"))
            members[-1].start()
            members[-1].wait_joined(60.0)
        result = {"s": time.monotonic() - started, "cpu_ms_per_join": (time.process_time() - cpu) / count * 1e3}
        for member in members:
            member.close()
    return result


def tooz_one_by_one(endpoint, count):
    """Measure the same with tooz, which needs one coordinator and one connection for each member."""
    from tooz import coordination

    group = uuid.uuid4().hex.encode()
    cpu, started = time.process_time(), time.monotonic()
    coordinators = []
    for number in range(count):
        coordinator = coordination.get_coordinator(f"zookeeper://{endpoint}", f"m{number:05}".encode())
        coordinator.start()
        if not coordinators:
            coordinator.create_group(group).get()
        coordinator.join_group(group, capabilities=b"x").get()
        coordinators.append(coordinator)
    result = {"s": time.monotonic() - started, "cpu_ms_per_join": (time.process_time() - cpu) / count * 1e3}
    for coordinator in coordinators:
        coordinator.stop()
    return result


def baseline(options):
    """Measure, for each side in turn, the seconds until all members have seen all others."""
    for backend in options.backends.split(","):
        for count in map(int, options.baseline.split(",")):
            for _ in range(options.rounds):
                for kind in ("raw", "store", "ours") if backend.startswith("etcd") else ("store", "ours"):
                    with SERVERS[backend]() as server:
                        told = json.dumps({"kind": kind, "url": server.url("bench"), "count": count})
                        command = [sys.executable, str(Path(__file__).parent / "baseline_group.py")]
                        done = subprocess.run(command, input=told, stdout=subprocess.PIPE, text=True, check=False)
                    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"seconds": None}
                    yield {"backend": backend, "what": f"{count} stores", "side": kind, **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="etcd35,zookeeper", help="names, joined by commas")
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4, help="that the members are in")
    parser.add_argument("--watchers", type=int, default=10, help="processes that look on")
    parser.add_argument("--listen", action="store_true", help="every member listens too")
    parser.add_argument("--one-by-one", type=int, default=100, help="members that join one after another; 0 for none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true", help="without tooz")
    parser.add_argument("--baseline", help="members of one process, joined by commas")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        {"joiner": joiner, "watcher": watcher}[options.role](**options.options)
        return
    figures = []
    for figure in baseline(options) if options.baseline else ():
        figures.append(figure)
        show(figure)
    for backend in options.backends.split(",") if not options.baseline else ():
        with SERVERS[backend]() as server:
            for number in range(options.rounds):
                figures.append({"backend": backend, "what": "at once", **at_once(server.url("bench"), options)})
                show(figures[-1])
                if options.one_by_one:
                    ours = one_by_one(server.url("bench"), options.one_by_one)
                    figures.append({"backend": backend, "what": f"{options.one_by_one} one by one", **ours})
                    show(figures[-1])
                    if backend == "zookeeper" and not options.no_peer:
                        theirs = tooz_one_by_one(server.endpoint, options.one_by_one)
                        figures.append({"backend": backend, "what": f"tooz, {options.one_by_one} one by one", **theirs})
                        show(figures[-1])
                print(f"round {number + 1} of {options.rounds} on {backend} done", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if any(each.get("wrong") for each in figures):
        raise SystemExit("some views were wrong")


def show(figure):
    """Print one figure as a line."""
    said = [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in figure.items()]
    print("  ".join(said), flush=True)


if __name__ == "__main__":
    main()
