"""Measures an executor (throughput, latency, backlogs, killed workers), in comparison with Celery, RQ, Dask,
procrastinate and DBOS.

    python benches/bench_executor.py [--what throughput,latency,baseline,backlog,detached,kills,idle] [--tasks 6000]
                                     [--backends etcd35,zookeeper,sqlite] [--rounds 3] [--runners 1,4]
                                     [--peers PYTHON] [--compare celery,rq,dask] [--queued 100000] [--json FILE]

``baseline`` compares the executor with a minimal one (``baseline_executor.py``) that uses the raw client of each
backend or the store, with 1 and 4 runners by default. ``sqlite?sync=normal`` is a backend with an option of its URL.
All other measurements use four worker processes with eight slots each.

Tasks do nothing, and one process submits them one by one. In each round, a side is started, measured and ended before
the next one starts. The processor time of a task is that of all processes of a side, including its server.
procrastinate and DBOS run on the PostgreSQL servers of ``--backends``. The other libraries run in another interpreter,
``.venv/peers/bin/python`` by default, and are left out without it. Prints figures. The only check is that no task is
lost or completes twice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from executor_ours import TENTHS
from executor_sides import BaselineSide, CelerySide, DaskSide, OnPostgres, Ours, PoolSide, RqSide, ours, processor_s

import latchwork
from latchwork.executor import inspect

PEERS = Path(__file__).parent.parent / ".venv" / "peers" / "bin" / "python"
WHAT = ("throughput", "latency", "baseline", "backlog", "detached", "kills", "idle")
KINDS = ("raw", "store", "ours")
#: Of isolated tasks: how many, and seconds before each.
ISOLATED, APART_S = 30, 0.4
#: Of slow sides fewer tasks are measured.
SHARE = {"RQ, 4 workers": 0.1}


def sides(arguments):
    """Return the functions that create the sides to compare."""
    made = [lambda backend=backend: Ours(backend) for backend in arguments.backends]
    python = str(arguments.peers)
    peers = {
        "celery": [
            lambda: CelerySide(python),
            lambda: CelerySide(python, threads=True),
            lambda: CelerySide(python, syncs=True),
            lambda: CelerySide(python, syncs=True, threads=True),
        ],
        "rq": [lambda: RqSide(python)],
        "dask": [lambda: DaskSide(python)],
        "pool": [lambda: PoolSide(python)],
    }
    for peer in ("procrastinate", "dbos"):
        on = [each for each in arguments.backends if each.startswith("postgresql")]
        peers[peer] = [lambda peer=peer, each=each: OnPostgres(python, peer, each) for each in on]
    if arguments.peers.exists():
        made += [make for peer in arguments.compare.split(",") for make in peers[peer]]
    return made


def throughput(arguments):
    """Measure the tasks per second of all sides, in turn."""
    found = {}
    for _ in range(arguments.rounds):
        for make in sides(arguments):
            with make() as side:
                count = max(100, int(arguments.tasks * SHARE.get(side.name, 1)))
                one = side.measure("throughput", count)
                found.setdefault(side.name, []).append({**one, "per_s": count / one["seconds"]})
                print(f"{side.name}: {count / one['seconds']:,.0f} a second", file=sys.stderr)
                if side.has_batch:
                    all_ = side.measure("batch", count)
                    found.setdefault(f"{side.name}, map", []).append({**all_, "per_s": count / all_["seconds"]})
    print(f"\nno-op tasks, submitted one by one; median of {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"{'':34}{'tasks/s':>10}{'lowest':>10}{'highest':>10}{'cpu ms/task':>13}")
    for name, rounds in found.items():
        rates = sorted(each["per_s"] for each in rounds)
        cpu = statistics.median(each["cpu_ms"] for each in rounds)
        print(f"{name:34}{statistics.median(rates):10,.0f}{rates[0]:10,.0f}{rates[-1]:10,.0f}{cpu:13.2f}")
    print_ratios({name: [each["per_s"] for each in rounds] for name, rounds in found.items()})
    return found


def print_ratios(rates):
    """Print the medians of latchwork's rates in relation to each other library in the same round."""
    mine = [name for name in rates if name.startswith("ours")]
    others = [name for name in rates if name not in mine]
    if not others:
        return
    print(f"{'ratio to':34}" + "".join(f"{name.removeprefix('ours, '):>12}" for name in mine))
    for other in others:
        ratios = [statistics.median(a / b for a, b in zip(rates[name], rates[other], strict=True)) for name in mine]
        print(f"{other:34}" + "".join(f"{ratio:12.2f}" for ratio in ratios))


def latency(arguments):
    """Measure the milliseconds from a call to its result while nothing else runs."""
    found = {}
    for make in sides(arguments):
        with make() as side:
            time.sleep(2)
            one = found[side.name] = side.measure("latency", arguments.calls)
        load = os.getloadavg()[0]
        if len(found) == 1:
            print(f"\nsubmit to result, idle, {arguments.calls} calls")
        times = f"p50 {one['p50_s'] * 1000:7.2f} ms, p99 {one['p99_s'] * 1000:7.2f} ms"
        print(f"{side.name:34} {times}, load {load:.1f}", flush=True)
    return found


def baseline(arguments):
    """Measure the executor and the minimal executors in turn: rates, processor time, round trips, requests and their
    ratios.
    """
    found = {}
    for number in range(arguments.rounds):
        for backend in arguments.backends:
            for runners in arguments.runners:
                for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                    one = measure_baseline(arguments, kind, backend, runners)
                    found.setdefault(f"{backend}, {runners}", {}).setdefault(kind, []).append(one)
                    print(f"{kind}, {backend}, {runners}: {one['per_s']:,.0f} a second", file=sys.stderr)
    for name, kinds in found.items():
        print_baseline(name, kinds)
    return found


def measure_baseline(arguments, kind, backend, runners):
    """Measure one side. The requests of the executor are counted in another run, because counting takes time."""
    with side_of(kind, backend, runners) as side:
        one = side.measure("throughput", arguments.tasks)
        one["per_s"] = arguments.tasks / one["seconds"]
        one |= side.measure("latency", arguments.calls)
        if runners == 1:
            apart = side.measure("latency", ISOLATED, pause_s=APART_S)
            one |= {f"isolated_{name}": seconds for name, seconds in apart.items()}
    if kind == "ours":
        with side_of(kind, backend, 0) as side:
            side.add(runners, counts=True)
            counted = side.measure("throughput", arguments.tasks, counts=True)
            one |= {name: counted[name] for name in ("requests", "keys")}
    one["load"] = os.getloadavg()[0]
    return one


def side_of(kind, backend, runners):
    return Ours(backend, nodes=runners) if kind == "ours" else BaselineSide(kind, backend, runners)


#: Column, its width and decimals, its factor, and the number of rounds of its median.
FLOOR_TABLE = (
    ("tasks/s", 9, 0, 1, "per_s"),
    ("submit us", 11, 0, 1, "submitter_us"),
    ("run us", 8, 0, 1, "runner_us"),
    ("server us", 11, 0, 1, "server_us"),
    ("p50 ms", 8, 2, 1000, "p50_s"),
    ("p99 ms", 8, 2, 1000, "p99_s"),
    ("alone", 7, 2, 1000, "isolated_p50_s"),
    ("worst", 7, 2, 1000, "isolated_worst_s"),
    ("requests", 10, 3, 1, "requests"),
    ("keys", 6, 2, 1, "keys"),
)


def print_baseline(name, kinds):
    """Print the medians of one backend and number of runners, in relation to the minimal executor on the store in the
    same round.
    """
    load = max(each["load"] for each in kinds["ours"])
    print(f"\n{name} runner(s); medians of {len(kinds['ours'])} rounds, load up to {load:.1f}")
    print(
        f"{'':8}{'of store':>9}{'lowest':>8}{'highest':>8}" + "".join(f"{each[0]:>{each[1]}}" for each in FLOOR_TABLE)
    )
    for kind, rounds in kinds.items():
        share = statistics.median(a["per_s"] / b["per_s"] for a, b in zip(rounds, kinds["store"], strict=True))
        rates = sorted(each["per_s"] for each in rounds)
        line = f"{kind:8}{share:9.2f}{rates[0]:8,.0f}{rates[-1]:8,.0f}"
        for _, width, decimals, factor, column in FLOOR_TABLE:
            line += f"{factor * statistics.median(each.get(column, 0) for each in rounds):{width},.{decimals}f}"
        print(line, flush=True)


def backlog(arguments):
    """Queue many tasks before a worker runs, then measure each tenth of the time in which they are processed."""
    found = {}
    for backend in arguments.backends:
        with Ours(backend, nodes=0) as side:
            child = ours("backlog", url=side.url, count=arguments.queued)
            one = child.hear()
            looked = time.perf_counter()
            with latchwork.connect(side.url) as store:
                inspect(store, "bench")
            one["inspect_s"] = time.perf_counter() - looked
            print(
                f"\n{backend}: {arguments.queued:,} tasks queued in {one['stored_s']:.1f} s, "
                f"{one['bytes']:,.0f} bytes of the submitter for each; inspect {one['inspect_s'] * 1000:.0f} ms",
                flush=True,
            )
            side.add(4, counts=True)
            child.say()
            one["tenths"] = drained(child, side, arguments.queued // TENTHS)
            child.end()
            found[backend] = one
    return found


def drained(child, side, count):
    """Return, for each tenth: tasks per second, processor milliseconds per task by process, and the calls of the
    workers.
    """
    print(
        f"{'tenth':>8}{'tasks/s':>9} |{'submitter':>10}{'nodes':>7}{'server':>7} ms |"
        f"{'commits':>8}{'refused':>8}{'lists':>7} a task | load",
        flush=True,
    )
    tenths, before = [], spent(child, side, 0.0)
    while "at_s" in (told := child.hear()):
        now = spent(child, side, told["at_s"])
        one = {name: (now[name] - before[name]) / count for name in now}
        before = now
        one["per_s"] = 1 / one.pop("at_s")
        tenths.append(one)
        times = "".join(f"{one[name] * 1000:{width}.2f}" for name, width in (("submitter", 10), ("nodes", 7)))
        calls = "".join(f"{one[name]:{width}.3f}" for name, width in (("commit", 8), ("refused", 8), ("list", 7)))
        print(
            f"{len(tenths):8}{one['per_s']:9,.0f} |{times}{one['server'] * 1000:7.2f}    |{calls}        | "
            f"{os.getloadavg()[0]:.1f}",
            flush=True,
        )
    return tenths


def spent(child, side, at_s):
    """Return what the processes have used so far."""
    nodes = Counter()
    for each in side.children:
        each.say()
        nodes.update(each.hear())
    return {
        "at_s": at_s,
        "submitter": processor_s(child.pid),
        "nodes": sum(processor_s(each.pid) for each in side.children),
        "server": side.server_s(),
        **{name: nodes[name] for name in ("commit", "refused", "list")},
    }


def detached(arguments):
    """Measure how much memory a process keeps for a task that outlives it."""
    found = {}
    for backend in arguments.backends:
        with Ours(backend, nodes=0) as side:
            child = ours("detached", url=side.url, count=arguments.queued // 10)
            found[backend] = child.hear()
            child.end()
            rate = arguments.queued / 10 / found[backend]["seconds"]
            print(
                f"\n{backend}: {found[backend]['bytes']:,.0f} bytes for each detached task, {rate:,.0f} stored a second"
            )
    return found


def kills(arguments):
    """Measure the seconds from kill -9 of a worker until its task runs on another worker, minus the granted TTL."""
    found = {}
    for backend in arguments.backends:
        late, ends = [], Counter()
        with Ours(backend, nodes=2, ttl_s=arguments.ttl_s) as side, tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            log.touch()
            rounds = max(1, round(arguments.kills / arguments.victims))
            child = ours("kills", url=side.url, log=str(log), rounds=rounds)
            for number in range(rounds):
                ids = [f"v{number}-{each}" for each in range(arguments.victims)]
                victims = []
                for each in ids:
                    victims += side.add(1, node_id=each)
                late += one_round(number, ids, victims, child, log)
            child.end()
            ends = Counter(line.split()[1] for line in log.read_text().splitlines() if line.startswith("end"))
        late.sort()
        found[backend] = late
        p50, p95 = statistics.median(late), late[int(len(late) * 0.95)]
        print(
            f"\n{backend}: {len(late)} workers killed; tasks run elsewhere p50 {p50 * 1000:+.0f} ms, p95 "
            f"{p95 * 1000:+.0f} ms, longest {late[-1] * 1000:+.0f} ms after the granted TTL; "
            f"load {os.getloadavg()[0]:.1f}"
        )
        if len(ends) != len(late) or max(ends.values()) > 1:
            raise SystemExit(f"a task ended twice, or never: {ends}")
    return found


def one_round(number, ids, victims, child, log):
    """Kill these workers one after another. Return how late each of their tasks starts again, after the TTL."""
    child.say(json.dumps(ids))
    child.hear()
    begun = wait_for(log, "begin", [f"r{number}-{each}" for each in ids], 1)
    if any(on != key.partition("-")[2] for key, (on, _) in begun.items()):
        raise SystemExit(f"a task began elsewhere than it was meant for: {begun}")
    killed = {}
    for each, victim in zip(ids, victims, strict=True):
        killed[f"r{number}-{each}"] = (time.time(), victim.ttl_s)
        victim.kill()
        time.sleep(0.1)
    again = wait_for(log, "begin", list(killed), 2)
    child.hear()
    return [again[key][1] - at - ttl_s for key, (at, ttl_s) in killed.items()]


def wait_for(log, what, keys, times):
    """Wait until the log contains each of these keys so many times. Return where and when each was logged last."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        lines = [line.split() for line in log.read_text().splitlines()]
        seen = {key: [(on, float(at)) for kind, k, on, at in lines if kind == what and k == key] for key in keys}
        if all(len(each) >= times for each in seen.values()):
            return {key: each[times - 1] for key, each in seen.items()}
        time.sleep(0.05)
    raise SystemExit(f"not all began within 120 s: {seen}")


def idle(arguments):
    """Measure the writes and the processor time of a worker without tasks, and of a process that is only connected."""
    found = {}
    for backend in arguments.backends:
        with Ours(backend, nodes=1) as side, ExitStack() as stack:
            other = ours("idle", url=side.url)
            stack.callback(other.kill)
            other.hear()
            store = stack.enter_context(latchwork.connect(side.url))
            time.sleep(5)
            pids = {"worker": side.children[0].pid, "connected": other.pid}
            before, written = {name: processor_s(pid) for name, pid in pids.items()}, versions(store)
            time.sleep(arguments.idle_s)
            used = {name: (processor_s(pid) - before[name]) / arguments.idle_s for name, pid in pids.items()}
            one = {**used, "writes": len(versions(store) ^ written)}
        found[backend] = one
        print(
            f"\n{backend}: an idle worker uses {one['worker']:.2%} of a core, a process that is only connected "
            f"{one['connected']:.2%}; {one['writes']} writes in {arguments.idle_s:.0f} s; load {os.getloadavg()[0]:.1f}"
        )
    return found


def versions(store):
    """Return the last version of each key."""
    return {(entry.key, entry.version) for entry in store.list("bench", recursive=True)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default=",".join(WHAT))
    parser.add_argument("--backends", default="etcd35,zookeeper,sqlite")
    parser.add_argument("--peers", type=Path, default=PEERS)
    parser.add_argument("--compare", default="celery,rq,dask,procrastinate,dbos,pool")
    parser.add_argument("--tasks", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runners", default="1,4", help="of the baseline")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--victims", type=int, default=6, help="workers that are killed in one round")
    parser.add_argument("--ttl-s", type=float, default=3.0, help="of the sessions of workers that are killed")
    parser.add_argument("--idle-s", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.backends = [each for each in arguments.backends.split(",") if each]
    arguments.runners = [int(each) for each in arguments.runners.split(",")]
    measures = {each.__name__: each for each in (throughput, latency, baseline, backlog, detached, kills, idle)}
    found = {name: measures[name](arguments) for name in arguments.what.split(",")}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
