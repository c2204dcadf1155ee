"""The sides that ``bench_executor.py`` compares: servers, workers and submitters as processes, with their processor
time.

A side is started for a measurement and ended after it, so that nothing else runs meanwhile. Its processor time is that
of all its processes, including the server.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from latchwork_testkit.servers import EtcdServer, PostgresServer, ZooKeeperServer

HERE = Path(__file__).parent
SERVERS = {
    "etcd34": lambda: EtcdServer(version="3.4"),
    "etcd35": lambda: EtcdServer(version="3.5"),
    "zookeeper": ZooKeeperServer,
    "postgresql": PostgresServer,
    "postgresql-off": lambda: PostgresServer(settings={"synchronous_commit": "off"}),
}
TICKS = os.sysconf("SC_CLK_TCK")
NODES, SLOTS = 4, 8


def processor_s(pid):
    """Return the processor seconds of a process and of the children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def below(pid):
    """Return a process and all of its descendants."""
    found = [pid]
    for each in found:
        for thread in Path(f"/proc/{each}/task").glob("*/children") if Path(f"/proc/{each}").exists() else ():
            found += map(int, thread.read_text().split())
    return found


class Child:
    """A process that answers with lines of JSON."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.pid = self.process.pid

    def say(self, line=""):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self):
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"a process of the benchmark has ended: {' '.join(self.process.args)[:200]}")

    def end(self, timeout_s=60):
        """Let the process end by itself, and return its last answer."""
        said, _ = self.process.communicate(timeout=timeout_s)
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return lines[-1] if lines else {}

    def kill(self):
        self.process.kill()
        self.process.wait()


class Side:
    """One of the sides to compare. As a context manager, it starts and ends its processes."""

    name = ""
    has_batch = False

    def __init__(self):
        self.stack = ExitStack()
        self.pids = []

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start(self):
        raise NotImplementedError

    def submitter(self, what, count):
        raise NotImplementedError

    def used_s(self):
        return sum(processor_s(each) for pid in self.pids for each in below(pid))

    def measure(self, what, count):
        """Return the figures of a submitter, with the processor time per task of all processes together."""
        before = self.used_s()
        found = self.submitter(what, count)
        if "used_s" in found:
            found["cpu_ms"] = (self.used_s() - before + found["used_s"]) / count * 1000
        return found

    def run(self, command, **env):
        """Start a process that runs until the end of the side."""
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **env}
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        self.pids.append(process.pid)
        return process

    def folder(self):
        return self.stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-executor-"))


def ours(role, **options):
    """Start a process of latchwork."""
    return Child([sys.executable, str(HERE / "executor_ours.py"), role, json.dumps(options)])


class Ours(Side):
    """latchwork on one backend. ``sqlite`` may have options of its URL, as in ``sqlite?sync=normal``."""

    kind = "ours"

    def __init__(self, backend, nodes=NODES, slots=SLOTS, ttl_s=10.0):
        super().__init__()
        self.name, self.backend, self.nodes = f"{self.kind}, {backend}", backend, nodes
        self.slots, self.ttl_s = slots, ttl_s
        self.children = []
        self.server = None

    def start(self):
        scheme, _, options = self.backend.partition("?")
        if scheme == "sqlite":
            self.url = f"sqlite:///{self.folder()}/bench.db" + (f"?{options}" if options else "")
        else:
            self.server = self.stack.enter_context(SERVERS[self.backend]())
            self.pids.append(self.server.pid)
            self.url = self.server.url(uuid.uuid4().hex[:8])
        self.add(self.nodes)

    def server_s(self):
        """Return the processor seconds of the server, or 0 without one."""
        return 0.0 if self.server is None else sum(processor_s(each) for each in below(self.server.pid))

    def child(self, role, **options):
        return ours(role, url=self.url, **options)

    def node_options(self, number):  # noqa: ARG002 - all are alike
        return {"slots": self.slots, "ttl_s": self.ttl_s}

    def add(self, count, **options):
        """Start this many more workers, and wait until they run tasks."""
        added = [self.child("node", **self.node_options(number), **options) for number in range(count)]
        for child in added:
            self.stack.callback(child.kill)
            child.ttl_s = child.hear()["ttl_s"]
        self.pids += [child.pid for child in added]
        self.children += added
        return added

    def spent_s(self):
        """Return the processor seconds of the workers and the server."""
        return sum(processor_s(each.pid) for each in self.children), self.server_s()

    def calls(self):
        """Return the calls of all workers so far, if they are counted."""
        made = Counter()
        for each in self.children:
            each.say()
            made.update(each.hear())
        return made

    def measure(self, what, count, **options):
        """Return the figures of a submitter. For throughput, they include the processor time and the calls per task."""
        child = self.child(what, count=count, **options)
        self.stack.callback(child.kill)
        if what == "throughput":
            child.hear()  # it is warm
            made, before = self.calls(), self.spent_s()
            child.say()
        found = child.hear()
        if what == "throughput":
            runner, server = (now - then for now, then in zip(self.spent_s(), before, strict=True))
            parts = {"submitter_us": found["used_s"], "runner_us": runner, "server_us": server}
            found |= {name: used / count * 1e6 for name, used in parts.items()}
            found["cpu_ms"] = sum(parts.values()) / count * 1000
            made = self.calls() - made
            found |= {name: (made[name] + found.get(name, 0)) / count for name in ("requests", "keys")}
        child.end()
        return found


class BaselineSide(Ours):
    """A minimal executor, on the raw client or on latchwork's store."""

    def __init__(self, kind, backend, nodes):
        self.kind = kind
        super().__init__(backend, nodes=nodes)

    def child(self, role, **options):
        options = {"kind": self.kind, "url": self.url, **options}
        return Child([sys.executable, str(HERE / "baseline_executor.py"), role, json.dumps(options)])

    def node_options(self, number):
        return {"rank": number, "of": self.nodes}


class Peer(Side):
    """Another library, with an interpreter in which it is installed."""

    def __init__(self, python):
        super().__init__()
        self.python = python
        self.url = ""

    def submitter(self, what, count):
        command = [self.python, str(HERE / "executor_peers.py"), self.peer, what, self.url, str(count)]
        child = Child(command, {"BENCH_REDIS": self.url, "PYTHONPATH": str(HERE)})
        found = child.hear()
        child.end()
        return found


class OnRedis(Peer):
    """A library with Redis as its broker, either without persistence or with a sync of each confirmed write."""

    def __init__(self, python, *, syncs=False):
        super().__init__(python)
        self.syncs = syncs

    def start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        keeps = ["--appendonly", "yes", "--appendfsync", "always"] if self.syncs else ["--appendonly", "no"]
        self.run(["redis-server", "--port", str(port), "--save", "", "--dir", self.folder(), *keeps])
        self.url = f"redis://127.0.0.1:{port}/0"
        until = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                break
        self.workers()

    def workers(self):
        raise NotImplementedError


class CelerySide(OnRedis):
    """Celery with a pool of four processes, or of 32 threads."""

    peer = "celery"

    def __init__(self, python, *, syncs=False, threads=False):
        super().__init__(python, syncs=syncs)
        self.pool = ["threads", str(NODES * SLOTS)] if threads else ["prefork", str(NODES)]
        self.name = f"Celery, {self.pool[1]} {'threads' if threads else 'processes'}{', synced' if syncs else ''}"

    def workers(self):
        command = [self.python, "-m", "celery", "-A", "executor_peers", "worker", "--loglevel", "ERROR"]
        self.run([*command, "--pool", self.pool[0], "-c", self.pool[1]], BENCH_REDIS=self.url, PYTHONPATH=str(HERE))


class RqSide(OnRedis):
    """RQ with four workers."""

    peer = "rq"
    name = "RQ, 4 workers"

    def workers(self):
        bin_ = Path(self.python).parent
        for _ in range(NODES):
            command = [str(bin_ / "rq"), "worker", "--url", self.url, "--quiet", "bench"]
            self.run(command, PYTHONPATH=str(HERE))


class DaskSide(Peer):
    """Dask's scheduler, and four workers of eight threads."""

    peer = "dask"
    name = "Dask, 4 x 8 threads"
    has_batch = True

    def start(self):
        said = Path(self.folder()) / "scheduler.json"
        dask = [self.python, "-m", "distributed.cli.dask_scheduler"]
        self.scheduler = self.run(
            [*dask, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(said)]
        )
        until = time.monotonic() + 30
        while not said.exists():
            if time.monotonic() > until:
                raise SystemExit("Dask's scheduler does not start")
            time.sleep(0.1)
        self.url = json.loads(said.read_text())["address"]
        worker = [self.python, "-m", "distributed.cli.dask_worker", self.url, "--nthreads", str(SLOTS), "--no-nanny"]
        for _ in range(NODES):
            self.run([*worker, "--no-dashboard", "--local-directory", self.folder()])


class OnPostgres(Peer):
    """A peer whose queue is a table of PostgreSQL, with four workers of eight slots."""

    def __init__(self, python, peer, backend):
        super().__init__(python)
        self.peer, self.backend = peer, backend
        self.name = f"{peer}, {backend}"

    def start(self):
        server = self.stack.enter_context(SERVERS[self.backend]())
        self.pids.append(server.pid)
        self.url = f"postgresql://latchwork@{server.endpoint}/postgres"
        command = [self.python, str(HERE / "executor_peers.py"), self.peer]
        subprocess.run([*command, "prepare", self.url, "0"], check=True)
        for number in range(NODES):
            self.run([*command, "worker", self.url, str(SLOTS)])
            if number == 0:
                time.sleep(5)  # the first one of DBOS makes the tables


class PoolSide(Peer):
    """``concurrent.futures.ProcessPoolExecutor`` with four child processes of the submitter."""

    peer = "pool"
    name = "process pool, 4"
    has_batch = True

    def start(self):
        pass
