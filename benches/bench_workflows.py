"""Measures workflows: tasks per second, the latency from ready to started, a fan-out, killed processes, and idle
processes.

    python benches/bench_workflows.py [--pairs sqlite,postgres+etcd35] [--what idle,rate,masters,work,fan,...]
                                      [--tasks 1000] [--slots 8] [--ttl-s 10] [--peers] [--json FILE]

Master, worker, database and store share the machine. Master and worker are one process, as in `serve`, without pages.

``idle``       the idle process for 20 s
``rate``       tasks that do nothing, in runs of 250, from the first start to the last end; the worker is a separate
               process, so that the processor time of this process is the master's
``masters``    the same with one master and with four; each master and the worker is a separate process
``memory``     the memory of a master process, after each tenth of ten times as many tasks
``work``       shell scripts that do nothing, each a process under its supervisor; master and worker as in ``rate``
``fan``        one run with a task on which all other tasks depend
``latency``    from the end of a task of a chain to the start of the next: tasks that do nothing, and shell scripts
``load``       the same while chains of ten tasks are started at a quarter of the measured rate
``worker``     from the kill of a worker to the next attempt of its task, and the longest time beyond its session
``master``     from the kill of one of two masters to the next start of a task in each of its runs, and the last of them

``--times`` says how often a process is killed.

``--peers`` lets Airflow, Prefect and Luigi do the same (scripts/install_workflow_peers). Prints figures and the load of
the machine, without goals.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from itertools import chain as chained
from itertools import pairwise
from pathlib import Path

import psutil
import sqlalchemy as sa

import latchwork
from latchwork_testkit.postgres import PostgresServer
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.db import Database
from latchwork_workflows.db.tables import attempt, shard, task
from latchwork_workflows.home import Home, build_store_url
from latchwork_workflows.installation import initialize, join_store
from latchwork_workflows.keys import Keys
from latchwork_workflows.logs import open_logs
from latchwork_workflows.master import Master
from latchwork_workflows.worker import Worker, WorkerOptions

STORES = {"etcd35": lambda: EtcdServer(version="3.5"), "zookeeper": ZooKeeperServer}
PART = 250
CHAIN = 40
IDLE_S = 20.0
WAIT_S = 600.0
LOAD_S = 20.0
#: Tasks a second that are asked of a pair.
ASKED = {"sqlite": 150}
ASKED_OF_FLEET = 300
PEERS = Path(__file__).resolve().parent.parent / ".venv" / "workflow-peers"


class Site:
    """A database and a store, with a master and a worker."""

    def __init__(self, stack, pair, chosen):
        self.folder = Path(tempfile.mkdtemp(prefix="latchwork-bench-"))
        self.chosen = chosen
        self.asked = ASKED.get(pair, ASKED_OF_FLEET)
        if pair == "sqlite":
            self.database_url = f"sqlite:///{self.folder}/flows.db"
            self.store_url = f"sqlite:///{self.folder}/store.db"
        elif pair == "postgres":
            self.database_url = stack.enter_context(PostgresServer()).database_url()
            self.store_url = build_store_url(self.database_url)
        else:
            kind = pair.partition("+")[2]
            self.database_url = stack.enter_context(PostgresServer()).database_url()
            self.store_url = stack.enter_context(STORES[kind]()).url("bench")
        self.database = Database(self.database_url)
        stack.callback(self.database.close)
        initialize(self.database)
        self.store = stack.enter_context(latchwork.connect(self.store_url))
        found = join_store(self.database, self.store, Keys())
        self.logs = open_logs(self.folder / "logs")
        self.logs.set_owner(found.id)
        self.client = stack.enter_context(
            WorkflowClient.local(
                Home.of(self.folder, database=self.database_url, store=self.store_url, logs=str(self.folder / "logs"))
            )
        )

    def master(self):
        return Master(self.database, self.store)

    @contextmanager
    def worker(self):
        options = WorkerOptions(slots=self.chosen.slots, work_dir=self.folder / "work")
        with Worker(self.store, logs=self.logs, options=options) as made:
            made.wait_ready(60)
            yield made

    @contextmanager
    def process(self, role, **more):
        """Start a worker or a master as a separate process, which is killed at the end."""
        command = [sys.executable, __file__, "--role", role, "--folder", str(self.folder)]
        given = {"store": self.store_url, "database": self.database_url, "slots": self.chosen.slots}
        given |= {"ttl-s": self.chosen.ttl_s, **more}
        command += [part for name, value in given.items() for part in (f"--{name}", str(value))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as made:
            assert made.stdout.readline() == "ready\n"
            try:
                yield psutil.Process(made.pid)
            finally:
                made.kill()

    def apply(self, name, tasks):
        self.client.workflows.apply({"name": name, "tasks": tasks})

    def run(self, name, count=1):
        """Start a workflow this many times and wait for all runs. Return the seconds."""
        began = time.monotonic()
        for run in [self.client.runs.start(name) for _ in range(count)]:
            seen = run.wait(WAIT_S)
            assert seen.state.value == "success", seen
        return time.monotonic() - began

    def gaps(self, run_ids):
        """Return the seconds from the end of each task of these chains to the start of the next one."""
        with self.database.read() as connection:
            chosen = sa.select(task.c.run_id, attempt.c.started_at, attempt.c.ended_at)
            chosen = chosen.join(task, attempt.c.task == task.c.id).where(task.c.run_id.in_(run_ids))
            rows = connection.execute(chosen.order_by(task.c.run_id, attempt.c.started_at)).all()
        return [b.started_at - a.ended_at for a, b in pairwise(rows) if a.run_id == b.run_id]

    def owners(self):
        """Return the masters that own shards."""
        with self.database.read() as connection:
            return set(connection.execute(sa.select(shard.c.owner)).scalars())

    def started(self, run_ids, since):
        """Return, by run, when the next task started after a point in time."""
        with self.database.read() as connection:
            chosen = sa.select(task.c.run_id, sa.func.min(attempt.c.started_at))
            chosen = chosen.join(task, attempt.c.task == task.c.id).group_by(task.c.run_id)
            mine = sa.and_(task.c.run_id.in_(run_ids), attempt.c.started_at > since)
            return {row[0]: row[1] for row in connection.execute(chosen.where(mine))}


def noop(name, *after):
    return {"name": name, "type": "noop", "after": list(after)}


def shell(name, script, *after):
    return {"name": name, "type": "shell", "params": {"script": script}, "after": list(after)}


def chain(count, make=None, prefix="t"):
    """Return tasks that each depend on the one before."""
    names = [f"{prefix}{n:03d}" for n in range(count)]
    return [(make or noop)(name, *names[:n][-1:]) for n, name in enumerate(names)]


def sleeper(name, *after):
    return shell(name, "sleep 0.5", *after)


@contextmanager
def both(site):
    """Run master and worker in this process, as ``serve`` does."""
    with site.master(), site.worker():
        yield


def idle(site, _chosen):
    """Measure the idle process."""
    with both(site):
        time.sleep(3.0)
        before = time.process_time()
        time.sleep(IDLE_S)
        core = (time.process_time() - before) / IDLE_S
    yield {"core_percent": core * 100, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def rate(site, chosen):
    """Measure tasks that do nothing."""
    with site.master(), site.process("worker") as worker:
        site.apply("rate", [noop(f"t{n}") for n in range(PART)])
        site.run("rate")
        count = max(1, chosen.tasks // PART)
        before, others = time.process_time(), used(worker)
        took_s = site.run("rate", count)
        cpu_s, others = time.process_time() - before, used(worker) - others
    each = 1000 / (count * PART)
    yield {"per_s": count * PART / took_s, "master_cpu_ms": cpu_s * each, "worker_cpu_ms": others * each}


def masters(site, chosen):
    """Measure one master and then four, each a separate process, with the same worker."""
    site.apply("rate", [noop(f"t{n}") for n in range(PART)])
    with site.process("worker"):
        for many in (1, 4):
            former = site.owners()
            with ExitStack() as stack:
                made = [stack.enter_context(site.process("master")) for _ in range(many)]
                # The new masters own all shards, and killed masters own none.
                wait_for(lambda: len(site.owners() - former) == many and not site.owners() & former)  # noqa: B023
                site.run("rate", 3 * many)  # each of them has made its statements once
                count = max(8, chosen.tasks // PART)
                before = sum(map(used, made))
                took_s = site.run("rate", count)
                cpu_s = sum(map(used, made)) - before
            yield {"of": str(many), "per_s": count * PART / took_s, "cpu_ms": cpu_s / (count * PART) * 1000}


def work(site, chosen):
    """Measure shell scripts that do nothing."""
    with site.master(), site.process("worker"):
        site.apply("work", [shell(f"t{n}", "true") for n in range(PART)])
        count = max(1, chosen.tasks // PART)
        site.run("work")
        yield {"of": "shell", "per_s": count * PART / site.run("work", count)}


def memory(site, chosen):
    """Measure the memory of a master with a growing history."""
    with site.process("master") as master, site.process("worker"):
        site.apply("rate", [noop(f"t{n}") for n in range(PART)])
        count = max(1, chosen.tasks // PART)
        for number in range(1, 11):
            site.run("rate", count)
            yield {"tasks": number * count * PART, "rss_mb": master.memory_info().rss / 2**20}


def used(process):
    return sum(process.cpu_times()[:2])


def fan(site, chosen):
    """Measure a run in which all other tasks depend on one task."""
    site.apply("fan", [noop("root"), *(noop(f"t{n}", "root") for n in range(chosen.tasks))])
    with both(site):
        yield {"tasks": chosen.tasks, "took_s": site.run("fan")}


def latency(site, _chosen):
    """Measure from the end of a task to the start of the next one."""
    with both(site):
        for kind, make in (("noop", noop), ("shell", lambda name, *after: shell(name, "true", *after))):
            site.apply(f"chain-{kind}", chain(CHAIN, make))
            run = site.client.runs.start(f"chain-{kind}")
            run.wait(WAIT_S)
            yield {"of": kind, **percentiles(site.gaps([run.id()]))}


def load(site, _chosen):
    """Measure the latency while tasks run at a quarter of the measured rate."""
    site.apply("load", chain(10))
    per_s = site.asked / 4
    with site.master(), site.process("worker"):
        runs, began = [], time.monotonic()
        while time.monotonic() < began + LOAD_S:
            runs.append(site.client.runs.start("load"))
            time.sleep(max(0.0, began + len(runs) * 10 / per_s - time.monotonic()))
        for run in runs:
            run.wait(WAIT_S)
        took_s = time.monotonic() - began
    yield {"per_s": len(runs) * 10 / took_s, **percentiles(site.gaps([run.id() for run in runs]))}


def percentiles(gaps):
    gaps = sorted(gaps)
    return {"p50_ms": statistics.median(gaps) * 1000, "p99_ms": gaps[int(len(gaps) * 0.99)] * 1000}


def worker(site, chosen):
    """Kill a worker process that is running a task."""
    reruns = []
    for time_ in range(chosen.times):
        name, journal = f"killed{time_}", site.folder / f"journal{time_}"
        site.apply(name, [shell("t", f"date +%s.%N >> {journal}; [ $(wc -l < {journal}) -gt 1 ] || sleep 600")])
        with site.master(), site.process("worker", slots=1) as process:
            run = site.client.runs.start(name)
            wait_for(journal.exists)
            with site.worker():
                time.sleep(1.0)
                process.kill()
                at = time.time()
                run.wait(WAIT_S)
        moments = [float(line) for line in journal.read_text().split()]
        reruns.append(moments[1] - at)
    yield {**spread("rerun", reruns), "beyond_ttl_s": max(reruns) - chosen.ttl_s}


def master(site, chosen):
    """Kill one of two master processes while chains run in all shards."""
    site.apply("sleeps", chain(600, sleeper))
    found = [master_is_killed(site) for _ in range(chosen.times)]
    late = sum(gap > 4.0 for gaps in found for gap in gaps)
    yield {**spread("dispatch", [gaps[-1] for gaps in found]), "runs": sum(map(len, found)), "late": late}


def master_is_killed(site):
    """Return, for each run, the seconds until the next start of a task."""
    with ExitStack() as stack:
        made = [stack.enter_context(site.process("master")) for _ in range(2)]
        stack.enter_context(site.process("worker", slots=12))
        time.sleep(6.0)  # shards are shared out
        ids = [site.client.runs.start("sleeps").id() for _ in range(12)]
        wait_for(lambda: len(site.started(ids, 0.0)) == len(ids))
        time.sleep(2.0)
        at = time.time()
        made[0].kill()
        # Tasks that a worker already had start at once. The next task of each run needs a decision of a master.
        wait_for(lambda: len(site.started(ids, at + 2.0)) == len(ids))
        gaps = sorted(started_at - at for started_at in site.started(ids, at + 2.0).values())
        for each in ids:
            site.client.runs.stop(each)
        for each in ids:
            site.client.runs.wait(each, WAIT_S)
        return gaps


def spread(what, seconds):
    """Return the median, the 95th percentile and the maximum as text."""
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, math.ceil(len(ordered) * 0.95) - 1)]
    figures = {"p50": statistics.median(ordered), "p95": p95, "max": ordered[-1]}
    return {"times": len(ordered), **{f"{what}_{name}_s": value for name, value in figures.items()}}


def be_worker(chosen):
    """Run a worker until it is killed. A role of this program."""
    more = {"session_ttl_s": chosen.ttl_s} if chosen.slots == 1 else {}
    options = WorkerOptions(slots=chosen.slots, work_dir=chosen.folder / f"work-{os.getpid()}", **more)
    with latchwork.connect(chosen.store) as store:
        made = Worker(store, logs=open_logs(chosen.folder / "logs"), options=options)
        made.start()
        made.wait_ready(60)
        print("ready", flush=True)
        made.run_forever()


def be_master(chosen):
    """Run a master until it is killed. A role of this program."""
    database = Database(chosen.database)
    with latchwork.connect(chosen.store) as store, Master(database, store):
        print("ready", flush=True)
        time.sleep(3600.0)


def peers(chosen):
    """Measure the same work with other libraries, one after another. Libraries that are not installed are left out."""
    for name in ("airflow", "prefect", "luigi"):
        python = PEERS / name / "bin" / "python"
        if not python.exists():
            print(f"{name}: not here; see scripts/install_workflow_peers", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix=f"latchwork-bench-{name}-") as folder:
            script = Path(__file__).with_name("workflow_peers.py")
            command = [str(python), str(script), name, "--folder", f"{folder}/home", "--tasks", str(chosen.tasks)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout:
                    yield {"pair": name, **json.loads(line)}


def wait_for(condition):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


WHAT = {each.__name__: each for each in (idle, rate, masters, memory, work, fan, latency, load, worker, master)}
ROLES = {"worker": be_worker, "master": be_master}


def measured(pair, chosen):
    for what in (each for each in WHAT if each in chosen.what):
        with ExitStack() as stack:
            site = Site(stack, pair, chosen)
            for figure in WHAT[what](site, chosen):
                yield {"pair": pair, "what": what, **figure, "load": os.getloadavg()[0]}


def shown(figure):
    """Return a figure as a line of text."""
    parts = [f"{name} {value:,.2f}" for name, value in figure.items() if isinstance(value, (int, float))]
    print(f"{figure['pair']:20}{figure['what']:9}{figure.get('of', ''):8}" + "   ".join(parts), flush=True)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="sqlite,postgres+etcd35")
    parser.add_argument("--what", default=",".join(WHAT), type=lambda text: set(text.split(",")))
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--ttl-s", type=float, default=10.0)
    parser.add_argument("--times", type=int, default=1, help="how often a process is killed (default: 1)")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    for name in ("store", "database"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    chosen = options()
    if chosen.role:
        ROLES[chosen.role](chosen)
        return
    figures = []
    of_pairs = [measured(pair, chosen) for pair in filter(None, chosen.pairs.split(","))]
    for figure in chained(*of_pairs, peers(chosen) if chosen.peers else ()):
        shown(figure)
        figures.append(figure)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
