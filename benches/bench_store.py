"""Measures a store in comparison with the raw client. Both run in turn, and the results are ratios.

    python benches/bench_store.py                                prints a table, writes bench-store.json
    python benches/bench_store.py -k "etcd35 and put" --pairs 40
    python benches/bench_store.py --storage=memory               servers on a tmpfs: where a sync costs nothing

Each row compares two clients on the same real server. A round of the raw client is followed by a round of latchwork,
many times. The ratio of neighboring rounds does not depend much on the load of the machine. ``median`` and ``worst``
are those of the ratios, ``best`` is the ratio of the best rounds. ``cpu`` is the processor time of the raw client
divided by that of latchwork, on which a busy machine has the least influence. There are no goals.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
import uuid
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from raw_etcd import RawEtcd
from raw_sqlite import RawSqlite
from raw_zookeeper import RawZooKeeper
from store_idle import CHANGES, cpu_share, write_elsewhere
from store_sides import CHILDREN, IN_FLIGHT, OPERATIONS, Cost, Ours, Stopwatch
from store_storage import data_dir
from store_table import Table

import latchwork
from latchwork_testkit.servers import EtcdServer, ServerMissing, ZooKeeperServer

SERVERS = {
    "zookeeper": ZooKeeperServer,
    "zookeeper39": partial(ZooKeeperServer, "3.9"),
    "etcd34": partial(EtcdServer, "3.4"),
    "etcd35": partial(EtcdServer, "3.5"),
    "etcd36": partial(EtcdServer, "3.6"),
}
REMOTE = tuple(SERVERS)
ZOOKEEPER = ("zookeeper", "zookeeper39")
SQLITE = ("sqlite-normal", "sqlite-full")
#: Operations in one round, one after the other; about a tenth of a second.
IN_A_ROUND = 200
LATENCIES = 40
IDLE_S = 10.0
#: Raw clients that give more of the guarantee.
FENCED = {"put": REMOTE, "delete": ("etcd34", "etcd35", "etcd36"), "txn": REMOTE}


@pytest.fixture(scope="module")
def servers(storage):
    """Return a function that starts a server of each kind on first use."""
    with contextlib.ExitStack() as stack:
        running = {}

        def get(kind):
            if kind not in running:
                try:
                    folder = stack.enter_context(data_dir(storage))
                    running[kind] = stack.enter_context(SERVERS[kind](data_dir=folder))
                except ServerMissing as error:
                    pytest.skip(str(error))
            return running[kind]

        yield get


@pytest.fixture(scope="module")
def pair(request, servers, tmp_path_factory):
    """Return the raw client and latchwork's store, on the same server and with different roots."""
    kind = request.param
    name = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        if kind in SQLITE:
            folder = tmp_path_factory.mktemp("sqlite")
            sync = kind.partition("-")[2]
            raw = RawSqlite(folder / "raw.db", sync)
            url = f"sqlite:///{folder / 'ours.db'}?root=app&sync={sync}"
        else:
            server = servers(kind)
            raw = (RawZooKeeper if kind in ZOOKEEPER else RawEtcd)(server, f"raw-{name}")
            url = server.url(f"ours-{name}")
        stack.callback(raw.close)
        ours = Ours(stack.enter_context(latchwork.connect(url)))
        yield kind, raw, ours


def compare(benchmark, kind, label, *, raw_round, our_round, rounds, goal, per_s=0):
    """Time both sides in turn. pytest-benchmark keeps the times of latchwork, and the extra info contains both and
    their ratios. With ``per_s`` operations in a round, the ratios are of throughput.
    """
    costs = {"raw": [], "ours": []}
    for once in (raw_round, our_round):
        once()

    def raw():
        costs["raw"].append(raw_round())

    def ours():
        costs["ours"].append(our_round())

    benchmark.pedantic(ours, setup=raw, rounds=rounds)
    times = {side: [cost.seconds for cost in spent] for side, spent in costs.items()}
    pairs = list(zip(times["raw"], times["ours"], strict=True))
    ratios = sorted(a / b if per_s else b / a for a, b in pairs)
    figure = (lambda seconds: per_s / seconds) if per_s else (lambda seconds: seconds * 1000)
    cpu = {side: statistics.median(cost.cpu_s for cost in spent) for side, spent in costs.items()}
    benchmark.extra_info.update(
        kind=kind,
        row=label,
        unit="/s" if per_s else "ms",
        raw=figure(statistics.median(times["raw"])),
        ours=figure(statistics.median(times["ours"])),
        median=statistics.median(ratios),
        best=max(ratios) if per_s else ratios[0],
        least=min(ratios) if per_s else ratios[-1],
        of_best=min(times["raw"]) / min(times["ours"]) if per_s else min(times["ours"]) / min(times["raw"]),
        cpu=cpu["raw"] / cpu["ours"],
        goal=goal,
    )


def measured(benchmark, kind, label, ours, *, unit, goal):
    """Record a figure for which there is no raw client."""
    benchmark.pedantic(lambda: None, rounds=1)
    benchmark.extra_info.update(kind=kind, row=label, unit=unit, ours=ours, goal=goal)


def peers(operation, kind):
    """Return the names of the raw operations, the plain one first."""
    return [operation, f"{operation}+fence"] if kind in FENCED.get(operation, ()) else [operation]


def rows(kinds):
    return [
        pytest.param(kind, operation, peer, id=f"{kind}-{peer}")
        for kind in kinds
        for operation in OPERATIONS
        for peer in peers(operation, kind)
        if not (kind in SQLITE and operation == "stale")
    ]


@pytest.mark.parametrize(("pair", "operation", "peer"), rows((*REMOTE, *SQLITE)), indirect=["pair"], scope="module")
def test_one_by_one(benchmark, pair, operation, peer, rounds):
    kind, raw, ours = pair

    def turn(side, name):
        side.prepare(name, IN_A_ROUND)
        return side.one_by_one(name, IN_A_ROUND)

    goal = "" if "+" in peer else ("0.85" if kind in REMOTE else "0.3")
    compare(
        benchmark,
        kind,
        f"{operation}" + (" (raw: with a guard)" if "+" in peer else ""),
        raw_round=lambda: turn(raw, peer),
        our_round=lambda: turn(ours, operation),
        rounds=rounds,
        goal=goal,
        per_s=IN_A_ROUND,
    )


@pytest.mark.parametrize(("pair", "operation", "peer"), rows(REMOTE), indirect=["pair"], scope="module")
def test_in_flight(benchmark, pair, operation, peer, rounds):
    kind, raw, ours = pair

    def turn(side, name):
        side.prepare(name, IN_FLIGHT)
        return side.in_flight(name, IN_FLIGHT)

    compare(
        benchmark,
        kind,
        f"{operation}, pipelined" + (" (raw: with a guard)" if "+" in peer else ""),
        raw_round=lambda: turn(raw, peer),
        our_round=lambda: turn(ours, operation),
        rounds=rounds,
        goal="" if "+" in peer else "0.80",
        per_s=IN_FLIGHT,
    )


@pytest.mark.parametrize("pair", [*REMOTE, *SQLITE[:1]], indirect=True, scope="module")
def test_list_of_10k(benchmark, pair, rounds):
    kind, raw, ours = pair
    for side in (raw, ours):
        side.fill_folder()

    def turn(side):
        watch = Stopwatch()
        found = side.list_folder()
        cost = watch.cost()
        assert len(found) == CHILDREN
        return cost

    compare(
        benchmark,
        kind,
        "list of 10,000 with values",
        raw_round=lambda: turn(raw),
        our_round=lambda: turn(ours),
        rounds=2 if kind in ZOOKEEPER else max(rounds // 2, 2),
        goal={"sqlite-normal": ""}.get(kind, "40" if kind in ZOOKEEPER else "0.8"),
        per_s=CHILDREN,
    )


@pytest.mark.parametrize("pair", REMOTE, indirect=True, scope="module")
def test_put_to_callback(benchmark, pair, rounds):
    """Measure from before a put to the callback with the value, each with its own put."""
    kind, raw, ours = pair
    seen = {"raw": threading.Event(), "ours": threading.Event()}
    raw.fill(["seen"])
    ours.store.put("seen", b"0")
    follow, end = raw.follow("seen", lambda _: seen["raw"].set())
    thread = threading.Thread(target=follow or (lambda: None), name="raw-watch")
    thread.start()
    mirror = ours.store.mirror("seen")
    mirror.on_change(lambda _: seen["ours"].set())
    time.sleep(0.2)

    def turn(which, put):
        delays, watch = [], Stopwatch()
        for n in range(LATENCIES):
            time.sleep(0.002)
            seen[which].clear()
            started = time.perf_counter()
            put("seen", b"%d" % n)
            assert seen[which].wait(10)
            delays.append(time.perf_counter() - started)
        return Cost(statistics.median(delays), watch.cost().cpu_s)

    try:
        compare(
            benchmark,
            kind,
            "put to callback, p50",
            raw_round=lambda: turn("raw", raw.put_value),
            our_round=lambda: turn("ours", ours.store.put),
            rounds=rounds,
            goal="<= 1.3",
        )
    finally:
        mirror.close()
        end()
        thread.join(10)


@pytest.mark.parametrize("kind", [*REMOTE, "sqlite", "memory"])
def test_idle_with_1000_watched_keys_and_100_mirrors(benchmark, kind, servers, tmp_path):
    name = uuid.uuid4().hex
    if kind in REMOTE:
        url = servers(kind).url(name)
    else:
        url = f"memory://{name}" if kind == "memory" else f"sqlite:///{tmp_path / 'idle.db'}"
    with latchwork.connect(url) as store:
        with store.pipeline() as pipeline:
            for n in range(1000):
                pipeline.put(f"m{n % 100:02d}/k{n}", b"x")
        before = threading.active_count()
        mirrors = [store.mirror(f"m{n:02d}", wait=False) for n in range(100)]
        watches = [store.watch(f"m{n % 100:02d}/k{n}") for n in range(1000)]
        for mirror in mirrors:
            mirror.ready(30)
        for watch in watches:
            watch.next(30)
        threads = threading.active_count() - before
        share = cpu_share(IDLE_S)
        for feed in [*mirrors, *watches]:
            feed.close()
    label = f"idle, 1,000 watches of a key, 100 mirrors of 10, {threads} more threads"
    measured(benchmark, kind, label, share, unit="% of a core", goal="< 0.5")


@pytest.mark.parametrize("kind", REMOTE)
def test_idle_with_100_stores(benchmark, kind, servers):
    url = servers(kind).url(uuid.uuid4().hex)
    with contextlib.ExitStack() as stack:
        before = threading.active_count()
        for _ in range(100):
            store = stack.enter_context(latchwork.connect(url))
            store.session.ensure_usable()
            store.mirror("k").ready(30)
        threads = threading.active_count() - before
        share = cpu_share(IDLE_S) / 100
    label = f"idle, each of 100 stores with a session and a mirror, {threads} more threads"
    measured(benchmark, kind, label, share, unit="% of a core", goal="< 0.03")


def test_sqlite_change_of_another_process(benchmark, tmp_path):
    url = f"sqlite:///{tmp_path / 'other.db'}"
    delays, done = [], threading.Event()
    with latchwork.connect(url) as store, store.mirror("stamp") as mirror:

        def changed(batch):
            now = store.clock.now()
            delays.extend(1000 * (now - float(change.entry.value)) for change in batch)
            if len(delays) >= CHANGES:
                done.set()

        mirror.on_change(changed)
        write_elsewhere(url)
        assert done.wait(10)
        idle = cpu_share(IDLE_S)
    delays.sort()
    p99 = delays[int(len(delays) * 0.99)]
    measured(benchmark, "sqlite", f"another process's change, p99; idle {idle:.2f} %", p99, unit="ms", goal="< 50, 1 %")
    benchmark.extra_info.update(p50=statistics.median(delays), idle_percent=idle)


def main():
    arguments = [
        str(Path(__file__)),
        "--benchmark-enable",
        "--benchmark-json=bench-store.json",
        "--benchmark-quiet",
        "-q",
        "--timeout=1800",
    ]
    return pytest.main([*arguments, "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Table()])


if __name__ == "__main__":
    sys.exit(main())
