"""Measures plans: tasks per second, the time of a step of a chain and the time to build a plan, in comparison with
other libraries.

    python benches/bench_plans.py [--backends sqlite,etcd35,zookeeper] [--workers 4] [--slots 4] [--tasks 2000]
                                  [--what baseline,fan,deps,chain,build,chord,killed] [--rounds 5] [--peers PYTHON]
                                  [--prefect] [--json FILE]

Workers are processes. They share the machine with the builder and the server. Tasks only return a number. ``fan`` has
no dependencies, ``deps`` has layers of 100 tasks that depend on 10 tasks of the layer before, a chain has 50 steps, and
a chord has one task after all others. A rate is measured from the start of a stored plan to its end; ``with build``
measures from the first ``add``. ``killed`` kills a worker of latchwork, or the scheduler of other libraries, in the
middle of a plan, and reports the result.

``baseline`` compares a chain and ``deps`` with a minimal worker (``baseline_plans.py``) that uses the raw client of
each backend or the store, in turn with one worker of latchwork.

Other libraries run in another environment, ``.venv/peers/bin/python`` by default, and are left out without it. Celery
has no graphs, only groups, chords and chains. Their rates are measured from the first call, as ``with build`` is.
Prefect runs only if it is requested and installed there with ``pip install prefect``. Prints figures without goals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path

from executor_sides import CelerySide, DaskSide, Peer, processor_s

import latchwork
from latchwork.plans import Plans, PlanState, PlanWorker
from latchwork.tasks import Functions
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer

SERVERS = {
    "etcd34": lambda: EtcdServer(version="3.4"),
    "etcd35": lambda: EtcdServer(version="3.5"),
    "zookeeper": ZooKeeperServer,
}
FUNCTIONS = Functions()
LAYER, DEPS, CHAIN = 100, 10, 50
WAIT_S = 600.0
HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv" / "peers" / "bin" / "python"


@FUNCTIONS.task(name="noop")
def noop(number: int = 0) -> int:
    """Return the number."""
    return number


@FUNCTIONS.task(name="first")
def first(parts: list[int]) -> int:
    """Return the first of the results that the task depends on."""
    return parts[0]


@FUNCTIONS.task(name="nap")
def nap(number: int) -> int:
    """Sleep for a twentieth of a second and return the number."""
    time.sleep(0.05)
    return number


def fan(plan, count):
    """Add tasks without dependencies."""
    for number in range(count):
        plan.add(noop, number)


def deps(plan, count):
    """Add layers of tasks. Each task gets the results of 10 tasks of the layer before."""
    chance, before = random.Random(3), []
    for begin in range(0, count, LAYER):
        layer = []
        for number in range(begin, min(count, begin + LAYER)):
            some = chance.sample(before, DEPS) if before else []
            layer.append(plan.add(first, some) if some else plan.add(noop, number))
        before = layer


def wide(plan, count):
    """Add tasks with three dependencies each."""
    chance, refs = random.Random(3), []
    for number in range(count):
        some = chance.sample(refs[-LAYER:], min(3, len(refs)))
        refs.append(plan.add(noop, number, after=some))


def chain(plan, count):
    """Add tasks that each depend on the one before."""
    ref = plan.add(noop, 0)
    for _ in range(count - 1):
        ref = plan.add(noop, ref)


def chord(plan, count):
    """Add one task that gets the results of all others."""
    plan.add(first, [plan.add(noop, number) for number in range(count)])


def naps(plan, count):
    """Add tasks without dependencies that sleep."""
    for number in range(count):
        plan.add(nap, number)


class Crew:
    """Worker processes."""

    def __init__(self, url, workers, slots):
        self.url, self.slots = url, slots
        self.processes = [self.start() for _ in range(workers)]
        for each in self.processes:
            each.stdout.readline()

    def start(self):
        command = [sys.executable, __file__, "--role", self.url, "--slots", str(self.slots)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def kill_one(self):
        victim = self.processes.pop()
        victim.kill()
        victim.wait()

    def close(self):
        """End the workers and return the processor seconds of each."""
        used = []
        for each in self.processes:
            each.stdin.close()
            used.append(float(each.stdout.readline() or 0))
            each.wait(60)
        return used


def work(url, slots):
    """Run a worker until its standard input ends. A role of this program."""
    with latchwork.connect(url, session_ttl_s=10) as store:
        with PlanWorker(store, slots=slots, functions=FUNCTIONS):
            print("ready", flush=True)
            sys.stdin.read()
        print(time.process_time(), flush=True)


@contextmanager
def server_of(backend):
    """Start a server of this backend, and return the URL of a store."""
    with ExitStack() as stack:
        if backend == "sqlite":
            yield f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/plans.db"
        else:
            yield stack.enter_context(SERVERS[backend]()).url()


def run(store, make, count):
    """Build and run a plan. Return the seconds to build, the seconds to run, and the processor seconds of this process
    to build.
    """
    used, begun = time.process_time(), time.perf_counter()
    with Plans(store, functions=FUNCTIONS).new() as plan:
        make(plan, count)
    built, used = time.perf_counter(), time.process_time() - used
    status = plan.handle.wait(WAIT_S)
    ended = time.perf_counter()
    if status.state is not PlanState.COMPLETED:
        raise SystemExit(f"plan ended as {status}")
    return built - begun, ended - built, used


def rates(url, chosen):
    """Return the tasks per second of several plans of one shape."""
    with latchwork.connect(f"{url}" if url.startswith("sqlite") else f"{url}/{uuid.uuid4().hex[:8]}") as store:
        crew = Crew(store.url, chosen.workers, chosen.slots)
        run(store, fan, 100)
        for what, make in (("fan", fan), ("deps", deps), ("chord", chord)):
            if what in chosen.what:
                count = min(1000, chosen.tasks) if what == "chord" else chosen.tasks
                built, took, _ = run(store, make, count)
                yield {"what": what, "tasks_s": count / took, "with_build_s": count / (built + took)}
        if "chain" in chosen.what:
            took = [run(store, chain, CHAIN)[1] / CHAIN * 1000 for _ in range(chosen.rounds)]
            yield {"what": "chain", "step_ms": statistics.median(took)}
        used = crew.close()
        yield {"what": "processor", "workers_s": sum(used)}


def builds(url, count):
    """Return the seconds to build and start a plan while no worker runs."""
    with latchwork.connect(f"{url}" if url.startswith("sqlite") else f"{url}/{uuid.uuid4().hex[:8]}") as store:
        used, begun = time.process_time(), time.perf_counter()
        with Plans(store, functions=FUNCTIONS, name="unrun").new() as plan:
            wide(plan, count)
            added = time.perf_counter() - begun
        took, used = time.perf_counter() - begun, time.process_time() - used
        yield {"what": "build", "add_s": added, "build_s": took, "processor_s": used}


def killed(url, chosen, count=400):
    """Kill a worker in the middle of a plan. Return how many tasks have a result."""
    with latchwork.connect(f"{url}" if url.startswith("sqlite") else f"{url}/{uuid.uuid4().hex[:8]}") as store:
        crew = Crew(store.url, chosen.workers, chosen.slots)
        with Plans(store, functions=FUNCTIONS).new() as plan:
            naps(plan, count)
        time.sleep(count * 0.05 / chosen.workers / chosen.slots / 2)
        crew.kill_one()
        status = plan.handle.wait(WAIT_S)
        yield {"what": "killed", "of": "worker", "asked": count, "done": sum(status.tasks.values())}
        crew.close()


def measured(backend, chosen):
    """Measure everything that was requested on one backend."""
    with server_of(backend) as url:
        if {"fan", "deps", "chord", "chain"} & chosen.what:
            yield from rates(url, chosen)
    with server_of(backend) as url:
        if "build" in chosen.what:
            yield from builds(url, 10_000)
        if "killed" in chosen.what:
            yield from killed(url, chosen)


class Ref(int):
    """The number of a task of a recorded plan."""


class Recorder(list):
    """A plan that only records dependencies: for each task the numbers of the tasks that it depends on."""

    def add(self, _function, given=(), after=()):
        refs = given if isinstance(given, list) else [given]
        self.append([*after, *(each for each in refs if isinstance(each, Ref))])
        return Ref(len(self) - 1)


def measure_baseline(kind, backend, make, count):
    """Run a stored plan with one side. Return the seconds, and the processor microseconds of the worker per task."""
    with server_of(backend) as base:
        url = base if base.startswith("sqlite") else f"{base}/{uuid.uuid4().hex[:8]}"
        if kind != "ours":
            make(needs := Recorder(), count)
            options = json.dumps({"kind": kind, "url": url, "needs": needs})
            command = [sys.executable, str(HERE / "baseline_plans.py")]
            done = subprocess.run(command, input=options, capture_output=True, text=True, timeout=WAIT_S, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            return {
                "seconds": found["seconds"],
                "worker_us": found["worker_s"] / count * 1e6,
                "keys": found["keys"] / count,
            }
        with latchwork.connect(url) as store:
            crew = Crew(store.url, 1, 4)
            run(store, make, count)  # warm
            begun = processor_s(crew.processes[0].pid)
            _, took, _ = run(store, make, count)
            used = processor_s(crew.processes[0].pid) - begun
            crew.close()
            return {"seconds": took, "worker_us": used / count * 1e6}


def measure_baselines(chosen):
    """Measure a chain and layers of tasks with one worker of latchwork and with the minimal workers, in turn."""
    for backend in filter(None, chosen.backends.split(",")):
        for what, make, count in (("chain", chain, CHAIN), ("deps", deps, chosen.tasks)):
            rounds = {kind: [] for kind in ("raw", "store", "ours")}
            for number in range(chosen.rounds):
                for kind in list(rounds) if number % 2 == 0 else list(rounds)[::-1]:
                    rounds[kind].append(measure_baseline(kind, backend, make, count))
            for kind, each in rounds.items():
                shares = [b["seconds"] / a["seconds"] for a, b in zip(each, rounds["store"], strict=True)]
                seconds = statistics.median(one["seconds"] for one in each)
                figure = {
                    "step_ms": seconds / count * 1000,
                    "tasks_s": count / seconds,
                    "of_store": statistics.median(shares),
                }
                figure["worker_us"] = statistics.median(one["worker_us"] for one in each)
                yield f"{kind}, {backend}", {"what": f"baseline {what}", **figure, "rounds": each}


class Canvas(CelerySide):
    """Celery with four processes, which run the tasks of ``plans_peers.py``."""

    def workers(self):
        command = [
            self.python,
            "-m",
            "celery",
            "-A",
            "plans_peers",
            "worker",
            "--loglevel",
            "ERROR",
            "--pool",
            "prefork",
        ]
        self.run([*command, "-c", "4"], BENCH_REDIS=self.url, PYTHONPATH=str(HERE))


class Flow(Peer):
    """Prefect with a server that it starts itself."""

    name, peer = "Prefect", "prefect"

    def start(self):
        """Do nothing: a flow starts its own server."""


def asked(side, what, count, rounds):
    """Return the figure of another library for one shape, or None if it does not support the shape."""
    command = [side.python, str(HERE / "plans_peers.py"), side.peer, what, side.url, str(count), str(rounds)]
    env = {**os.environ, "BENCH_REDIS": side.url, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode:
        print(f"{side.name}: no {what}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def peers(chosen):
    """Measure the same shapes with other libraries."""
    python = str(chosen.peers)
    sides = [(Canvas(python), ("fan", "chord", "chain")), (Canvas(python, syncs=True), ("fan", "chord", "chain"))]
    sides.append((DaskSide(python), ("fan", "deps", "chord", "chain")))
    sides += [(Flow(python), ("fan", "chain"))] if chosen.prefect else []
    for side, shapes in sides:
        with side:
            for what in (each for each in shapes if each in chosen.what):
                count = CHAIN if what == "chain" else min(1000, chosen.tasks) if what == "chord" else chosen.tasks
                took = asked(side, what, count, chosen.rounds if what == "chain" else 1)
                if took is not None:
                    one = {"step_ms": took / count * 1000} if what == "chain" else {"with_build_s": count / took}
                    yield side.name, {"what": what, **one}
    if "killed" in chosen.what:
        yield "Dask", scheduler_killed(python)


def scheduler_killed(python, count=400):
    """Kill Dask's scheduler when a third of the tasks is done, and start another one at its address."""
    with DaskSide(python) as side:
        command = [python, str(HERE / "plans_peers.py"), "dask", "killed", side.url, str(count), "1"]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        client.stdout.readline()
        side.scheduler.kill()
        side.scheduler.wait()
        port = side.url.rpartition(":")[2]
        dask = [python, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
        side.run(dask)
        client.stdin.write("\n")
        client.stdin.flush()
        found = json.loads(client.stdout.readline())
        client.wait(60)
        return {"what": "killed", "of": "scheduler", **found}


def shown(side, figure):
    """Return a figure as a line of text."""
    parts = [f"{name} {value:,.2f}" for name, value in figure.items() if isinstance(value, (int, float))]
    print(f"{side:32}{figure['what']:12}" + "   ".join(parts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="sqlite,etcd35,zookeeper")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--what", default="fan,deps,chain,chord,build,killed", type=lambda text: set(text.split(",")))
    parser.add_argument("--peers", type=Path, default=PEERS)
    parser.add_argument("--prefect", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        work(chosen.role, chosen.slots)
        return
    figures = []
    for side, figure in measure_baselines(chosen) if "baseline" in chosen.what else ():
        shown(side, figure)
        figures.append({"side": side, **figure})
    for backend in filter(None, chosen.backends.split(",")):
        for figure in measured(backend, chosen):
            shown(backend, figure)
            figures.append({"side": backend, **figure})
    for side, figure in peers(chosen) if chosen.peers.exists() else ():
        shown(side, figure)
        figures.append({"side": side, **figure})
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
