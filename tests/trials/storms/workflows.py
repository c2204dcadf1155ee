"""Masters and workers of workflows, on a database and a store that are hurt as well."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager as Context
from contextlib import ExitStack
from typing import Any

import latchwork
from latchwork_testkit.postgres import PostgresServer
from latchwork_workflows.db import Database, pools
from latchwork_workflows.installation import initialize, join_store
from latchwork_workflows.keys import Keys, get_workflows_store
from latchwork_workflows.logs import open_logs
from latchwork_workflows.maintenance.doctor import Doctor
from latchwork_workflows.schemas.pools import PoolSettings
from patience import Deadline, came_true
from trials.fault import held, locked, refused
from trials.judges.workflows import judge
from trials.storms.kinds import CUT_SERVER, LEAVE, Kind, kinds_of
from trials.storms.storm import Load, Storm
from trials.storms.workflows_facts import facts_of, left_of
from trials.storms.workflows_node import SESSION_TTL_S
from trials.storms.workflows_requests import Requests
from trials.storms.workflows_work import PERIODS_S, POOL, POOL_SIZE, definitions, written_after
from trials.ways import Ways
from workflows.hands import client_of

ROOT = "flows"
#: What a database and a store are called, and the backend of the store. For etcd it is a version that keeps confirmed
#: writes when it is killed (see ``trials.witness``): 3.5.1 lost one, and its task stayed claimed.
PAIRS = {
    "sqlite+sqlite": "sqlite",
    "postgres": "postgresql",
    "postgres+etcd": "etcd34",
    "postgres+zookeeper": "zookeeper",
    "postgres+sqlite": "sqlite",
}
MASTERS = tuple(f"m{number}" for number in range(3))
#: So long after the last fault an attempt has to end, and after each the next one, until everything has ended.
GRACE_S = 120.0
#: Everything has to have ended so many seconds after the last fault, however slow the machine is.
LONGEST_S = 600.0


class WorkflowsLoad(Load):
    """Three masters, and workers, for which people ask for runs of all kinds.

    Args:
        pair: one of ``PAIRS``.
        workers: how many.
    """

    ttl_s = SESSION_TTL_S

    def __init__(self, pair: str, *, workers: int = 10) -> None:
        self.is_one = "+" not in pair
        self.postgres = PostgresServer() if pair.startswith("postgres+") else None
        self.workers = tuple(f"w{number}" for number in range(workers))
        self.nodes = (*MASTERS, *self.workers)
        self.keys = Keys()
        self.settled_s = 0.0

    def open(self, opened: ExitStack) -> None:
        self.journal = self.storm.folder / "journal"
        self.journal.mkdir(parents=True)
        if self.is_one:
            self.postgres = self.storm.stage.server
        elif self.postgres is not None:
            opened.enter_context(self.postgres)
        if self.postgres is not None:
            self.ways = Ways([self.postgres.endpoint], len(MASTERS))
            opened.callback(self.ways.close)
        self.database = Database(self.database_url())
        opened.callback(self.database.close)
        initialize(self.database, shards=4)
        self.store = get_workflows_store(opened.enter_context(latchwork.connect(self.storm.url(ROOT))))
        open_logs(self.storm.folder / "logs").set_owner(join_store(self.database, self.store, self.keys).id)
        with self.database.write() as connection:
            pools.save_pool(connection, PoolSettings(name=POOL, size=POOL_SIZE))
        made = definitions(self.journal)
        self.after = written_after(made)
        with client_of(self.database, self.store) as client:
            for each in made:
                client.workflows.apply(each)
        self.began_at = time.time()  # no fire time from before its schedule was set is owed
        self.requests = Requests(self.database_url(), self.storm.seed)
        opened.callback(self.requests.free)

    def database_url(self, node: str | None = None) -> str:
        """Return the URL of the database: the straight one, or by the way of a master."""
        if self.postgres is None:
            return f"sqlite:///{self.storm.folder}/flows-database.db"
        url = self.postgres.database_url()
        return url if node is None else url.replace(self.postgres.endpoint, self.ways.endpoint(MASTERS.index(node)))

    def process(self, node: str) -> tuple[Any, ...]:
        url, folder = self.storm.url(ROOT, node), self.storm.folder
        if node in MASTERS:
            return "trials.storms.workflows_node:master", self.database_url(node), url, folder, node
        return "trials.storms.workflows_node:worker", url, folder, node

    def wait_ready(self) -> None:
        self.requests.start()

    def victim(self, role: str) -> str:
        return self.storm.random.choice(MASTERS if role == "master" else self.workers)

    # The end

    def settle(self) -> None:
        """Wait until schedules have caught up and everything has ended."""
        self.requests.close()
        began = time.monotonic()
        waits, longest = Deadline(GRACE_S), Deadline(LONGEST_S)
        ended, is_quiet = 0, False
        while not waits.has_passed and not longest.has_passed:
            self.storm.sleep(0.5)
            with contextlib.suppress(latchwork.LatchworkError):
                if self._ended() > ended:  # slow, on a machine that others keep busy, is not stuck
                    ended, waits = self._ended(), Deadline(GRACE_S)
                is_quiet = is_quiet or self._has_caught_up()
                if is_quiet and self.requests.settle() and not left_of(self.store, self.keys):
                    break
        else:
            after = f"{time.monotonic() - began:.0f} s after the last fault"
            self.storm.report.violations.append(f"not everything had ended {after}, {ended} attempts had")
            self._write_where_they_stand()
        self.settled_s = time.monotonic() - began

    def _ended(self) -> int:
        return sum(bool(each.outcome) for each in facts_of(self.database, self.journal).attempts)

    def _write_where_they_stand(self) -> None:
        """Write for people who look for the reason: where each thread stands, and all that is in the store."""
        for process in self.storm.processes.values():
            if process.is_alive:
                os.kill(process.pid, signal.SIGUSR1)
        with contextlib.suppress(latchwork.LatchworkError):
            found = [f"{each.token} {each.key} {each.value[:300]!r}" for each in self.store.list("", recursive=True)]
            (self.storm.folder / "store.txt").write_text("\n".join(found))

    def _has_caught_up(self) -> bool:
        """Return whether every schedule has started what was due, and if so switch them off."""
        fires = facts_of(self.database, self.journal).fires
        newest = {name: max((each.time for each in fires if each.workflow == name), default=0.0) for name in PERIODS_S}
        if any(newest[name] < time.time() - 3 * every_s for name, every_s in PERIODS_S.items()):
            return False
        self.requests.silence()
        return True


def judge_workflows(storm: Storm) -> tuple[list[str], dict[str, Any]]:
    """Judge the database, the journal of the tasks, and the store; ask the doctor; end every process."""
    load = storm.load
    facts = facts_of(load.database, load.journal)
    owed = {}
    for name, every_s in PERIODS_S.items():
        newest = max((each.time for each in facts.fires if each.workflow == name), default=load.began_at)
        first = int(load.began_at) // every_s * every_s + 2 * every_s
        owed[name] = list(range(first, int(newest) + 1, every_s))
    facts.owed, facts.after, facts.keys = owed, load.after, load.requests.keys
    facts.left = left_of(load.store, load.keys)
    wrong = judge(facts) + load.requests.troubles
    wrong += [f"doctor: {each}" for each in Doctor(load.database, load.store).check()]
    storm.end_nodes(load.nodes, 30.0)
    figures = {
        "settled_s": round(load.settled_s, 1),
        "asked": dict(sorted(load.requests.asked.items())),
        "runs": len(facts.runs),
        "fires": len(facts.fires),
        "attempts": dict(sorted(Counter(each.outcome or "open" for each in facts.attempts).items())),
    }
    return wrong, figures


# Faults of the database, and of both


def kinds_of_pair(pair: str) -> dict[str, Kind]:
    """Return the kinds of faults that a pair has."""
    backend = PAIRS[pair]
    found = kinds_of(backend, "master", "worker", leave=LEAVE)
    on_store = {"lock store": _kind(_locked_store)} if backend == "sqlite" else {"cut server": CUT_SERVER}
    if pair.startswith("sqlite"):
        return {**found, **on_store, "lock database": _kind(_locked_database), "lock both": _kind(_locked_both)}
    return {
        **found,
        **on_store,
        **({} if pair == "postgres" else {"crash database": _kind(_crashed_database)}),
        "cut database": _kind(lambda load: refused(load.ways)),
        "silence database": _kind(lambda load: held(load.ways)),
        "part database": _kind(_parted_database),
        "cut both": _kind(_cut_both),
    }


def _kind(inflict: Any) -> Kind:
    return Kind(lambda storm, _: inflict(storm.load), on_node=False)


def _locked_store(load: WorkflowsLoad) -> Context[None]:
    return locked(load.storm.stage.path(ROOT))


def _locked_database(load: WorkflowsLoad) -> Context[None]:
    return locked(load.storm.folder / "flows-database.db")


@contextlib.contextmanager
def _locked_both(load: WorkflowsLoad) -> Iterator[None]:
    with _locked_database(load), _locked_store(load):
        yield


@contextlib.contextmanager
def _cut_both(load: WorkflowsLoad) -> Iterator[None]:
    ways = load.storm.stage.ways
    with refused(load.ways), _locked_store(load) if ways is None else refused(ways):
        yield


def _parted_database(load: WorkflowsLoad) -> Context[int]:
    """One master alone loses the database."""
    return refused(load.ways, load.ways.links(load.storm.random.randrange(len(MASTERS))))


@contextlib.contextmanager
def _crashed_database(load: WorkflowsLoad) -> Iterator[None]:
    """PostgreSQL ends at once, as it does when its machine loses power. It recovers at its next start."""
    os.kill(load.postgres.pid, signal.SIGQUIT)  # to kill it alone would leave its children with the shared memory
    came_true(lambda: not load.postgres.running, 20.0)
    yield
    load.postgres.kill()
    load.postgres.start()
