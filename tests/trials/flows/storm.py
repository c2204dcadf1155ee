"""Masters and workers of workflows, killed, frozen, cut off from store and database; and a referee of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import latchwork
from latchwork_testkit.postgres import PostgresServer
from latchwork_workflows.db import Database
from latchwork_workflows.db.policies import groups
from latchwork_workflows.direct import WorkflowClient
from latchwork_workflows.installation import initialize, join_store
from latchwork_workflows.keys import Keys, workflows_store
from latchwork_workflows.logs import open_logs
from latchwork_workflows.maintenance.doctor import Doctor
from patience import Deadline
from trials.fault import frozen, held, killed, locked, refused
from trials.flows.facts import facts_of, left_of
from trials.flows.load import Load
from trials.flows.node import SESSION_TTL_S
from trials.flows.work import GROUP, GROUP_SIZE, PERIODS_S, definitions, written_after
from trials.judges.workflows import judge
from trials.remote import Remote
from trials.stage import Stage
from trials.ways import Ways

ROOT = "flows"
#: What a database and a store are called, and the backend of the store.
PAIRS = {
    "sqlite+sqlite": "sqlite",
    "postgres+etcd": "etcd35",
    "postgres+zookeeper": "zookeeper",
    "postgres+sqlite": "sqlite",
}
MASTERS = 3
#: So long after the last fault an attempt has to end, and after each the next one, until everything is over.
GRACE_S = 120.0
#: Everything has to be over so many seconds after the last fault, however slow the machine is.
LONGEST_S = 600.0


@dataclass
class Report:
    """What a storm did and what came of it."""

    pair: str
    seed: int
    seconds: float = 0.0
    settled_s: float = 0.0
    faults: Counter = field(default_factory=Counter)
    asked: Counter = field(default_factory=Counter)
    runs: int = 0
    fires: int = 0
    attempts: Counter = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def to_json(self):
        counts = {name: dict(sorted(getattr(self, name).items())) for name in ("faults", "asked", "attempts")}
        return {**vars(self), "seconds": round(self.seconds, 1), "settled_s": round(self.settled_s, 1), **counts}


class Storm:
    """One database, one store, masters and workers on them, people who ask for things, and faults. One thread only.

    Args:
        pair: one of ``PAIRS``.
        seed: of the faults and of what is asked.
        folder: for files, and the logs of processes.
        members: servers of the store.
        workers: how many.
    """

    def __init__(self, pair, seed, folder, *, members=1, workers=10):
        self.random = random.Random(seed)
        self.folder = Path(folder)
        self.journal = self.folder / "journal"
        self.journal.mkdir(parents=True)
        self.stage = Stage(PAIRS[pair], self.folder, members=members)
        self.postgres = PostgresServer() if pair.startswith("postgres") else None
        self.masters = [f"m{number}" for number in range(MASTERS)]
        self.workers = [f"w{number}" for number in range(workers)]
        self.nodes = [*self.masters, *self.workers]
        self.processes = {}
        self.restart_at = {}
        self.keys = Keys()
        self.report = Report(pair, seed)
        self._seed = seed
        self._open = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.stage)
            self.stage.lay_ways(len(self.nodes))
            if self.postgres is not None:
                opened.enter_context(self.postgres)
                self.ways = Ways([self.postgres.endpoint], MASTERS)
                opened.callback(self.ways.close)
            self.database = Database(self.database_url())
            opened.callback(self.database.close)
            self._begin(opened)
            self.load = Load(self.database_url(), self._seed)
            opened.callback(self.load.free)
            opened.callback(lambda: [process.kill() for process in self.processes.values()])
            for node in self.nodes:
                self.start_node(node)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_):
        self._open.close()

    def _begin(self, opened):
        """Join the pair, and write the workflows."""
        initialize(self.database, shards=4)
        self.store = workflows_store(opened.enter_context(latchwork.connect(self.stage.url(ROOT))))
        logs = open_logs(self.folder / "logs")
        logs.mark(join_store(self.database, self.store, self.keys).id)
        with self.database.write() as connection:
            groups.put(connection, GROUP, GROUP_SIZE)
        made = definitions(self.journal)
        self.after = written_after(made)
        self.began_at = time.time()
        with WorkflowClient.local(self.database, self.store) as client:
            for each in made:
                client.apply(each)

    def database_url(self, number=None):
        """Straight, or by the way of a master."""
        if self.postgres is None:
            return f"sqlite:///{self.folder}/flows-database.db"
        url = self.postgres.database_url()
        return url if number is None else url.replace(self.postgres.endpoint, self.ways.endpoint(number))

    # Processes

    def start_node(self, node):
        number = self.nodes.index(node)
        url, output = self.stage.url(ROOT, number), self.folder / f"{node}.log"
        if node in self.masters:
            given = ("trials.flows.node:master", self.database_url(number), url, self.folder, node)
        else:
            given = ("trials.flows.node:worker", url, self.folder, node)
        self.processes[node] = Remote(*given, output=output)

    def look_after(self):
        """Start again what was killed, or ended because it found no server."""
        for node in self.nodes:
            if not self.processes[node].is_alive and time.monotonic() >= self.restart_at.get(node, 0.0):
                self.processes[node].kill()
                self.restart_at[node] = time.monotonic() + 1.0
                self.start_node(node)

    def sleep(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look_after()
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))

    # Faults

    def kinds(self):
        """Every kind of fault that this pair has."""
        on_nodes = ["kill", "freeze", "leave"] + ([] if self.stage.ways is None else ["cut", "silence"])
        found = [f"{what} {whom}" for whom in ("master", "worker") for what in on_nodes]
        if self.stage.server is None:
            found.append("lock store")
        else:
            found += ["kill store", "freeze store", "cut store"]
        if self.postgres is None:
            return [*found, "lock database", "lock both"]
        return [*found, "crash database", "cut database", "silence database", "part database", "cut both"]

    def strike(self, kind):
        """One fault, from its beginning to its end."""
        what, whom = kind.split()
        node = self.random.choice({"master": self.masters, "worker": self.workers}.get(whom, [""]))
        if node and not self.processes[node].is_alive:
            return
        self.report.faults[kind] += 1
        if what in ("kill", "leave") and node:
            self._end(node, what)
            return
        seconds = self.random.choice([0.2, 0.6, 1.2, 2.2]) * SESSION_TTL_S
        with self._blow(what, whom, node):
            self.sleep(seconds)

    def _end(self, node, what):
        self.restart_at[node] = time.monotonic() + self.random.uniform(0.0, 2.0)
        if what == "kill":
            self.processes[node].kill()
        else:
            self.processes[node].terminate()  # the others take over meanwhile

    def _blow(self, what, whom, node):
        if whom == "both":
            return self._on_both(what)
        if whom == "database":
            return self._on_database(what)
        if what == "freeze":
            return frozen(self.processes[node] if node else self._member())
        if what == "kill":
            return killed(self._member())
        if what == "lock":
            return locked(self.stage.path(ROOT))
        links = self.stage.ways.links(self.nodes.index(node)) if node else None
        return refused(self.stage.ways, links) if what == "cut" else held(self.stage.ways, links)

    @contextlib.contextmanager
    def _on_both(self, what):
        with self._on_database(what), self._blow("lock" if self.stage.server is None else what, "store", ""):
            yield

    def _member(self):
        return self.random.choice(self.stage.members)

    def _on_database(self, what):
        if what == "lock":
            return locked(self.folder / "flows-database.db")
        if what == "crash":
            return crashed(self.postgres)
        if what == "part":  # one master alone
            return refused(self.ways, self.ways.links(self.random.randrange(MASTERS)))
        return refused(self.ways) if what == "cut" else held(self.ways)

    # The whole of it

    def blow(self, seconds, progress=lambda _text: None):
        """Strike for so long, let all runs come to their end, judge."""
        began = time.monotonic()
        self.load.start()
        kinds = []
        while time.monotonic() < began + seconds:
            if not kinds:
                kinds = self.kinds()
                self.random.shuffle(kinds)
            kind = kinds.pop()
            self.strike(kind)
            progress(f"{time.monotonic() - began:6.1f} s: {kind}, {sum(self.report.faults.values())} faults")
            self.sleep(self.random.uniform(0.2, 2.0))
        self.load.close()
        self.settle()
        self.judge()
        self.report.seconds = time.monotonic() - began
        return self.report

    def settle(self):
        """Wait until schedules have caught up and everything is over."""
        began = time.monotonic()
        waits, longest = Deadline(GRACE_S), Deadline(LONGEST_S)
        ended, is_quiet = 0, False
        while not waits.has_passed and not longest.has_passed:
            self.sleep(0.5)
            with contextlib.suppress(latchwork.LatchworkError):
                if self._ended() > ended:  # slow, on a machine that others keep busy, is not stuck
                    ended, waits = self._ended(), Deadline(GRACE_S)
                is_quiet = is_quiet or self._has_caught_up()
                if is_quiet and self.load.settle() and not left_of(self.store, self.keys):
                    break
        else:
            after = f"{time.monotonic() - began:.0f} s after the last fault"
            self.report.violations.append(f"not everything was over {after}, {ended} attempts were")
            self._tell_where()
        self.report.settled_s = time.monotonic() - began

    def _ended(self):
        return sum(bool(each.outcome) for each in facts_of(self.database, self.journal).attempts)

    def _tell_where(self):
        """What people need who look for the reason: where each thread stands, and all that is in the store."""
        for process in self.processes.values():
            if process.is_alive:
                os.kill(process.pid, signal.SIGUSR1)
        with contextlib.suppress(latchwork.LatchworkError):
            found = [f"{each.token} {each.key} {each.value[:300]!r}" for each in self.store.list("", recursive=True)]
            (self.folder / "store.txt").write_text("\n".join(found))

    def _has_caught_up(self):
        """Whether every schedule has started what was due; they are switched off then."""
        fires = facts_of(self.database, self.journal).fires
        newest = {name: max((each.time for each in fires if each.workflow == name), default=0.0) for name in PERIODS_S}
        if any(newest[name] < time.time() - 3 * every_s for name, every_s in PERIODS_S.items()):
            return False
        self.load.silence()
        return True

    def judge(self):
        """What the referee says, and what `doctor` does."""
        facts = facts_of(self.database, self.journal)
        owed = {}
        for name, every_s in PERIODS_S.items():
            newest = max((each.time for each in facts.fires if each.workflow == name), default=self.began_at)
            first = int(self.began_at) // every_s * every_s + 2 * every_s
            owed[name] = list(range(first, int(newest) + 1, every_s))
        facts.owed, facts.after, facts.keys = owed, self.after, self.load.keys
        facts.left = left_of(self.store, self.keys)
        report = self.report
        report.violations += judge(facts) + self.load.troubles
        report.violations += [f"doctor: {each}" for each in Doctor(self.database, self.store).look()]
        report.asked, report.runs, report.fires = self.load.asked, len(facts.runs), len(facts.fires)
        report.attempts = Counter(each.outcome or "open" for each in facts.attempts)
        self._judge_end()

    def _judge_end(self):
        """Every process ends when it is told to."""
        for process in self.processes.values():
            if process.is_alive:
                process.terminate()
        for node, process in self.processes.items():
            if not process.wait(30.0):
                self.report.violations.append(f"{node} did not end within 30 s of SIGTERM")


@contextlib.contextmanager
def crashed(postgres):
    """PostgreSQL ends at once, as it does when its machine loses power; it recovers at its next start."""
    os.kill(postgres.pid, signal.SIGQUIT)  # to kill it alone would leave its children with the shared memory
    until = Deadline(20.0)
    while postgres.running and not until.has_passed:
        time.sleep(0.02)
    yield
    postgres.kill()
    postgres.start()
