"""What workflows cost: tasks a second, from ready to started, a fan-out, a worker that is killed, and doing nothing.

    python benches/bench_workflows.py [--pairs sqlite,postgres+etcd35] [--what idle,rate,fan,latency,killed]
                                      [--tasks 1000] [--slots 8] [--ttl-s 10] [--json FILE]

Master, worker, database and store share the machine; master and worker are one process, as in `serve`, without pages.
``rate`` is of tasks that do nothing, in instances of 250, from the first start to the last end, with the processor time
of that process for each. ``fan`` is one instance with a task behind which all others come. ``latency`` is from the end
of a task of a chain to the start of the next: with tasks that do nothing, and with shell scripts. ``killed`` is from
the kill of a worker to the next run of its task, beyond the session that it had. ``idle`` is the process for 20 s.
Prints figures with the load of the machine, and judges none.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import sqlalchemy as sa

import latchwork
from latchwork.workflows.client import WorkflowClient
from latchwork.workflows.database import Database
from latchwork.workflows.database.tables import attempt, task
from latchwork.workflows.installation import initialize, join_store
from latchwork.workflows.keys import Keys
from latchwork.workflows.logs import open_logs
from latchwork.workflows.master import Master
from latchwork.workflows.worker import Worker, WorkerOptions
from latchwork_testbed.postgres import PostgresServer
from latchwork_testbed.servers import EtcdServer, ZooKeeperServer

STORES = {"etcd35": lambda: EtcdServer(version="3.5"), "zookeeper": ZooKeeperServer}
PART = 250
CHAIN = 40
IDLE_S = 20.0
WAIT_S = 600.0


class Site:
    """One database and one store, with a master and a worker on them."""

    def __init__(self, stack, pair, chosen):
        self.folder = Path(tempfile.mkdtemp(prefix="latchwork-bench-"))
        self.chosen = chosen
        if pair == "sqlite":
            database_url, self.store_url = f"sqlite:///{self.folder}/flows.db", f"sqlite:///{self.folder}/store.db"
        else:
            kind = pair.partition("+")[2]
            database_url = stack.enter_context(PostgresServer()).database_url()
            self.store_url = stack.enter_context(STORES[kind]()).url("bench")
        self.database = Database(database_url)
        stack.callback(self.database.close)
        initialize(self.database)
        self.store = stack.enter_context(latchwork.connect(self.store_url))
        found = join_store(self.database, self.store, Keys())
        self.logs = open_logs(self.folder / "logs")
        self.logs.mark(found.id)
        stack.enter_context(Master(self.database, self.store))
        self.client = stack.enter_context(WorkflowClient.local(self.database, self.store, logs=self.logs))

    @contextmanager
    def worker(self):
        options = WorkerOptions(slots=self.chosen.slots, work_dir=self.folder / "work")
        with Worker(self.store, logs=self.logs, options=options) as made:
            made.wait_ready(60)
            yield made

    def apply(self, name, tasks):
        self.client.apply({"name": name, "tasks": tasks})

    def run(self, name, count=1):
        """Start it so often, and wait for all; seconds."""
        began = time.monotonic()
        for run in [self.client.start(name) for _ in range(count)]:
            seen = run.wait(WAIT_S)
            assert seen.state.value == "success", seen
        return time.monotonic() - began

    def gaps(self, name):
        """Seconds from the end of each task of a chain to the start of the next."""
        with self.database.read() as connection:
            chosen = sa.select(attempt.c.started_at, attempt.c.ended_at).join(task, attempt.c.task == task.c.id)
            rows = connection.execute(chosen.where(task.c.name.startswith(name)).order_by(attempt.c.started_at)).all()
        return [after.started_at - before.ended_at for before, after in pairwise(rows)]


def noop(name, *after):
    return {"name": name, "type": "noop", "after": list(after)}


def shell(name, script, *after):
    return {"name": name, "type": "shell", "params": {"script": script}, "after": list(after)}


def idle(_site, _chosen):
    """Nothing to do."""
    time.sleep(3.0)
    before = time.process_time()
    time.sleep(IDLE_S)
    core = (time.process_time() - before) / IDLE_S
    yield {"core_percent": core * 100, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def rate(site, chosen):
    """Tasks that do nothing."""
    site.apply("rate", [noop(f"t{n}") for n in range(PART)])
    count = max(1, chosen.tasks // PART)
    before = time.process_time()
    took_s = site.run("rate", count)
    cpu_s = time.process_time() - before
    yield {"per_s": count * PART / took_s, "cpu_ms": cpu_s / (count * PART) * 1000}


def fan(site, chosen):
    """One task, and all others behind it."""
    site.apply("fan", [noop("root"), *(noop(f"t{n}", "root") for n in range(chosen.tasks))])
    yield {"tasks": chosen.tasks, "took_s": site.run("fan")}


def latency(site, _chosen):
    """From the end of a task to the start of the next."""
    for kind, make in (("noop", noop), ("shell", lambda name, *after: shell(name, "true", *after))):
        names = [f"{kind}{n:03d}" for n in range(CHAIN)]
        site.apply(f"chain-{kind}", [make(name, *names[:n][-1:]) for n, name in enumerate(names)])
        site.run(f"chain-{kind}")
        gaps = sorted(site.gaps(kind))
        yield {"of": kind, "p50_ms": statistics.median(gaps) * 1000, "p99_ms": gaps[int(len(gaps) * 0.99)] * 1000}


def killed(site, chosen):
    """A worker process is killed under its task."""
    journal = site.folder / "journal"
    site.apply("killed", [shell("t", f"date +%s.%N >> {journal}; [ $(wc -l < {journal}) -gt 1 ] || sleep 600")])
    process = worker_process(site, chosen)
    run = site.client.start("killed")
    wait_for(journal.exists)
    with site.worker():
        time.sleep(1.0)
        process.send_signal(signal.SIGKILL)
        at = time.time()
        process.wait()
        process.stdout.close()
        run.wait(WAIT_S)
    moments = [float(line) for line in journal.read_text().split()]
    yield {"rerun_s": moments[1] - at, "beyond_ttl_s": moments[1] - at - chosen.ttl_s}


def worker_process(site, chosen):
    command = [sys.executable, __file__, "--role", site.store_url, "--folder", str(site.folder)]
    made = subprocess.Popen([*command, "--ttl-s", str(chosen.ttl_s)], stdout=subprocess.PIPE, text=True)
    assert made.stdout.readline() == "ready\n"
    return made


def work(chosen):
    """A worker, until it is killed."""
    options = WorkerOptions(slots=1, session_ttl_s=chosen.ttl_s, work_dir=chosen.folder / "other-work")
    with latchwork.connect(chosen.role) as store:
        made = Worker(store, logs=open_logs(chosen.folder / "logs"), options=options)
        made.start()
        made.wait_ready(60)
        print("ready", flush=True)
        made.run_forever()


def wait_for(condition):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


WHAT = {"idle": idle, "rate": rate, "fan": fan, "latency": latency, "killed": killed}


def measured(pair, chosen):
    with ExitStack() as stack:
        site = Site(stack, pair, chosen)
        for what in (each for each in WHAT if each in chosen.what):
            with ExitStack() as own:
                if what != "killed":
                    own.enter_context(site.worker())
                for figure in WHAT[what](site, chosen):
                    yield {"what": what, **figure, "load": os.getloadavg()[0]}


def shown(pair, figure):
    """A line for a figure."""
    parts = [f"{name} {value:,.2f}" for name, value in figure.items() if isinstance(value, (int, float))]
    print(f"{pair:20}{figure['what']:9}{figure.get('of', ''):8}" + "   ".join(parts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="sqlite,postgres+etcd35")
    parser.add_argument("--what", default=",".join(WHAT), type=lambda text: set(text.split(",")))
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--ttl-s", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        work(chosen)
        return
    figures = []
    for pair in filter(None, chosen.pairs.split(",")):
        for figure in measured(pair, chosen):
            shown(pair, figure)
            figures.append({"pair": pair, **figure})
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
