"""Runs five nodes in processes of their own and hurts them, their network and their server, by a seed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import latchwork
from latchwork.jobs import inspect
from latchwork_testbed.proxy import Proxy
from latchwork_testbed.servers import EtcdServer, ZooKeeperServer
from trials.chaos.hidden import KEPT, hidden_of_etcd, hidden_of_sqlite, hidden_of_zookeeper
from trials.chaos.node import CRON_PERIOD_S, ITEMS, JOBS, LOCK_TTL_S, ON_CRON, SESSION_TTL_S, now
from trials.judges.jobs import Fault, Verdict, judge

sys.path.insert(0, str(Path(__file__).parents[2]))

NODE = Path(__file__).with_name("node.py")
NODES = [f"n{number}" for number in range(5)]
SERVERS = {"etcd34": EtcdServer, "etcd35": EtcdServer, "zookeeper": ZooKeeperServer}
BACKENDS = ["sqlite", *SERVERS]
PROCESS_FAULTS = ["kill worker", "kill manager", "freeze worker", "freeze manager"]
SERVER_FAULTS = ["cut worker", "cut manager", "silence worker", "silence manager", "kill server", "freeze server"]
#: After the last fault every item has to run again within the greater TTL and so much more.
GRACE_S = 5.0
#: So many faults of each kind have to land in a storm of at least so many minutes; a shorter one is judged without.
LEAST_OF_EACH, FROM_MINUTES = 5, 4.0


@dataclass
class Report:
    """What a storm did and what came of it."""

    backend: str
    seed: int
    seconds: float = 0.0
    landed: Counter = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    left_over: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def demand(self, kinds, minutes):
        """Fewer than five faults of a kind are a violation, or, where there was no time for more, a note."""
        few = [f"{kind} ({self.landed[kind]})" for kind in kinds if self.landed[kind] < LEAST_OF_EACH]
        text = f"fewer than {LEAST_OF_EACH} faults landed of: {', '.join(few)}"
        if few and minutes >= FROM_MINUTES:
            self.verdict.violations.append(text)
        elif few:
            self.notes.append(f"{text}; that is demanded of {FROM_MINUTES:g} minutes or more")

    @property
    def ok(self):
        return not self.verdict.violations and not self.left_over

    def to_json(self):
        return {
            "backend": self.backend,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": dict(sorted(self.landed.items())),
            "runs": self.verdict.runs,
            "refused_writes": self.verdict.refused,
            "forgiven_overlaps": self.verdict.forgiven,
            "of_starved_processes": self.verdict.starved,
            "fire_times_run_again": self.verdict.again,
            "violations": self.verdict.violations,
            "left_over": self.left_over,
            "notes": self.notes,
        }


class Storm:
    """One cluster under a seeded series of faults. One thread only."""

    def __init__(self, backend, seed, folder):
        self.random = random.Random(seed)
        self.backend = backend
        self.folder = Path(folder)
        self.log = self.folder / "events.jsonl"
        self.faults = []
        self.report = Report(backend, seed)
        self.processes = {}
        self.proxies = {}
        self.restart_at = {}
        self.server = None

    # The cluster

    def start(self):
        if self.backend in SERVERS:
            self.server = SERVERS[self.backend](
                **({"version": f"3.{self.backend[-1]}"} if "etcd" in self.backend else {})
            )
            self.server.start()
            self.proxies = {node: Proxy(self.server.endpoint) for node in NODES}
        for node in NODES:
            self.start_node(node)
        self.wait_for_runs(NODES, 30.0)

    def url(self, node=None):
        if self.backend == "sqlite":
            return f"sqlite:///{self.folder}/chaos.db?root=chaos"
        scheme = "zk" if self.backend == "zookeeper" else "etcd"
        endpoint = self.server.endpoint if node is None else self.proxies[node].endpoint
        return f"{scheme}://{endpoint}/chaos"

    def start_node(self, node):
        output = (self.folder / f"{node}.log").open("ab")
        command = [sys.executable, str(NODE), self.url(node), node, str(self.log)]
        self.processes[node] = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        output.close()

    def look_after(self):
        """Start again what was killed, or ended because it found no server."""
        for node in NODES:
            due = self.restart_at.get(node)
            if self.processes[node].poll() is not None and (due is None or now() >= due):
                self.restart_at.pop(node, None)
                self.start_node(node)

    def manager(self):
        with contextlib.suppress(latchwork.LatchworkError), latchwork.connect(self.url()) as store:
            state = inspect(store)
            if state is not None and state.manager in self.processes:
                return state.manager
        return None

    def wait_for_runs(self, nodes, timeout_s):
        until = now() + timeout_s
        while now() < until:
            seen = {event["node"] for event in self.events() if event["event"] == "start"}
            if seen >= set(nodes):
                return
            time.sleep(0.2)
        raise TimeoutError(f"after {timeout_s} s only {sorted(seen)} run anything; see {self.folder}")

    def events(self):
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]

    # Faults

    def kinds(self):
        return PROCESS_FAULTS + (SERVER_FAULTS if self.server is not None else [])

    def strike(self, kind):
        """One fault, from beginning to end; the cluster goes on meanwhile. False when there was nobody to hurt."""
        what, whom = kind.split()
        if whom == "server":
            since = now()
            self._strike_server(what)
            self._landed(Fault(kind, since, now()))
            return True
        node = self.manager() if whom == "manager" else self.random.choice(NODES)
        if node is None or self.processes[node].poll() is not None:
            return False
        process, since = self.processes[node], now()
        if what == "kill":
            process.kill()
            process.wait(10)
            self.restart_at[node] = now() + self.random.uniform(0.0, 2.0)
        elif what == "freeze":
            process.send_signal(signal.SIGSTOP)
            self.sleep(self.random.choice([0.5, 1.0, 1.5, 2.0]) * LOCK_TTL_S)
            process.send_signal(signal.SIGCONT)
        else:
            self._strike_network(what, self.proxies[node])
        self._landed(Fault(kind, since, now(), process.pid))
        return True

    def _strike_network(self, what, proxy):
        seconds = self.random.choice([0.3, 1.0, 2.0]) * LOCK_TTL_S
        if what == "cut":
            proxy.refuse()
            self.sleep(seconds)
            proxy.accept()
        else:
            proxy.hold(self.random.choice(["requests", "answers", "both"]))
            self.sleep(seconds)
            proxy.release()

    def _strike_server(self, what):
        if what == "kill":
            self.server.kill()
            self.sleep(self.random.uniform(0.1, 1.0))
            self.server.start()
        else:
            self.server.pause()
            self.sleep(self.random.choice([0.4, 1.5]) * LOCK_TTL_S)
            self.server.resume()

    def _landed(self, fault):
        self.faults.append(fault)
        self.report.landed[fault.kind] += 1

    def sleep(self, seconds):
        until = now() + seconds
        while now() < until:
            self.look_after()
            time.sleep(min(0.1, max(0.0, until - now())))

    # The whole of it

    def blow(self, seconds, progress=lambda _text: None):
        """Strike for so long, let it recover, close everything, judge."""
        began = now()
        kinds = []
        while now() < began + seconds:
            if not kinds:
                kinds = self.kinds()
                self.random.shuffle(kinds)
            kind = kinds.pop()
            if not self.strike(kind):
                kinds.insert(0, kind)  # again at the end of this round: each has a fault of each kind
            progress(f"{now() - began:6.1f} s  {kind}: {sum(self.report.landed.values())} faults landed")
            self.sleep(self.random.uniform(0.2, 2.5))
        self.sleep(max(SESSION_TTL_S, LOCK_TTL_S) + GRACE_S + 1.0)
        ended = now()
        self.close_nodes()
        self.report.seconds = now() - began
        (self.folder / "faults.json").write_text(json.dumps([asdict(fault) for fault in self.faults]))
        self.report.verdict = judge(
            self.events(),
            self.faults,
            items=[(job, f"{job}/item-{i}") for job in JOBS for i in range(ITEMS)],
            ended_at=ended,
            bound_s=max(SESSION_TTL_S, LOCK_TTL_S) + GRACE_S,
            once_per_fire=frozenset(ON_CRON),
            every_fire_s={job: CRON_PERIOD_S for job, cron in ON_CRON.items() if cron.misfire == "all"},
            lock_ttl_s=LOCK_TTL_S,
            one_file=self.server is None,
        )
        self.report.left_over = self.left_over()
        return self.report

    def left_over(self):
        """What is in the store after all have closed, hidden keys included, but for what is kept on purpose."""
        kept = ("results/", "fired/", "settings/", *KEPT)
        until = now() + 3.0 * SESSION_TTL_S
        while True:  # a session that was lost a moment ago may need its TTL
            with latchwork.connect(self.url()) as store:
                found = [entry.key for entry in store.list("", recursive=True)]
            left = [key for key in (*found, *self.hidden()) if not key.startswith(kept)]
            if not left or now() > until:
                return left
            time.sleep(0.2)

    def hidden(self):
        """Latchwork's own keys."""
        if self.backend == "sqlite":
            return hidden_of_sqlite(self.folder / "chaos.db", "chaos")
        look = hidden_of_zookeeper if self.backend == "zookeeper" else hidden_of_etcd
        return look(self.server.endpoint, "chaos")

    def close_nodes(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for node, process in self.processes.items():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                self.report.verdict.violations.append(f"node {node} did not close within 20 s")
                process.kill()

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                os.kill(process.pid, signal.SIGCONT)
            process.wait(10)
        for proxy in self.proxies.values():
            proxy.close()
        if self.server is not None:
            self.server.close()

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()
