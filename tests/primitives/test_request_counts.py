"""What locks ask of the server, as the server counts it: however many are held, however many wait."""

from __future__ import annotations

import time
import urllib.request
import uuid
from contextlib import ExitStack
from dataclasses import replace

import pytest

import latchwork
from backends_table import BY_NAME, SERVERS
from latchwork.jobs import FixedRate, Job, JobManager
from latchwork.jobs.stored import cluster_store
from latchwork.primitives import Election, Lock, LockKeeper, ReadWriteLock, Semaphore
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer

TTL_S = 3.0
INTERVAL_S = TTL_S / 3
#: At 90 locks in a transaction, the most that a commit takes, a renewal of each lock would be 12 writes.
LOCKS = 1_000
WAITERS = 200


class Etcd(EtcdServer):
    """An etcd server that tells what it has done."""

    def counts(self):
        """Every number of its metrics; those with several labels added up by name, and by name and method."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port('metrics')}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = {}
        for line in lines:
            if not line.startswith("#"):
                name, _, number = line.rpartition(" ")
                plain, _, labels = name.partition("{")
                method = labels.partition('grpc_method="')[2].partition('"')[0]
                for key in {plain, f"{plain} {method}".strip()}:
                    found[key] = found.get(key, 0.0) + float(number)
        return found

    def writes(self):
        return int(self.counts()["etcd_server_proposals_committed_total"])

    def requests(self):
        """Calls answered, and messages that came on streams; a session's keepalives left out."""
        counts, name = self.counts(), "grpc_server_msg_received_total"
        return int(counts[name] - counts.get(f"{name} LeaseKeepAlive", 0.0))


class ZooKeeper(ZooKeeperServer):
    """A ZooKeeper server that tells what it has done; its writes include those that only check."""

    def _says(self, name):
        (line,) = (each for each in self.send_four_letter_word("srvr").splitlines() if each.startswith(f"{name}:"))
        return line.partition(":")[2].strip()

    def writes(self):
        return int(self._says("Zxid"), 16)

    def requests(self):
        return int(self._says("Received"))


COUNTING = {"etcd": Etcd, "zk": ZooKeeper}


@pytest.fixture(params=[name for name in SERVERS if BY_NAME[name].server.SCHEME in COUNTING])
def server(request):
    """A server of its own: what others left behind would be counted too."""
    backend = BY_NAME[request.param]
    with replace(backend, server=COUNTING[backend.server.SCHEME]).launch() as started:
        yield started


def writes_while_held(server, locks):
    """What the server writes in three intervals in which one keeper holds so many locks."""
    with (
        latchwork.connect(server.url(f"kept-{uuid.uuid4().hex}")) as store,
        LockKeeper(store, ttl_s=TTL_S) as keeper,
    ):
        held = keeper.try_acquire_many([f"item-{number}" for number in range(locks)])
        assert len(held) == locks
        before = server.writes()
        time.sleep(3 * INTERVAL_S)
        writes = server.writes() - before
        assert all(lock.is_held for lock in held.values())
        return writes


@pytest.mark.slow
@pytest.mark.serial
def test_a_thousand_locks_are_kept_by_as_many_writes_as_one_lock(server):
    one, many = writes_while_held(server, 1), writes_while_held(server, LOCKS)
    assert 2 <= many <= one + 2  # where an interval begins, and a renewal that is answered late


@pytest.mark.slow
@pytest.mark.serial
def test_mirrors_write_nothing_until_somebody_asks_how_old_they_are(server):
    with latchwork.connect(server.url(f"idle-{uuid.uuid4().hex}")) as store, store.mirror("a") as mirror:
        time.sleep(1.0)
        before = server.writes()
        time.sleep(4.0)
        assert server.writes() - before <= 1  # what a server does by itself
        mirror.stale_s()
        time.sleep(2.5)
        assert mirror.stale_s() < 2.5


@pytest.mark.slow
@pytest.mark.serial
def test_an_idle_cluster_writes_nothing_on_etcd_and_renews_its_sessions_on_zookeeper(server):
    """A lock owner is not rewritten while its session lives, and costs no transaction besides that of the session."""
    nodes, intervals = 3, 9
    job = Job("walk", work_pool=[f"item-{n}" for n in range(9)], run=lambda context: None, schedule=FixedRate(3600.0))
    options = {"session_ttl_s": TTL_S, "lock_ttl_s": TTL_S, "outcome_period_s": 0.0}
    url = server.url(f"quiet-{uuid.uuid4().hex}")
    with ExitStack() as stack:
        for number in range(nodes):
            stack.enter_context(JobManager(url, f"n{number}", job, **options))
        with latchwork.connect(url) as store:
            wait_until_quiet(cluster_store(store), nodes)
            before, began = server.writes(), time.monotonic()
            time.sleep(intervals * INTERVAL_S)
            wrote, took_s = server.writes() - before, time.monotonic() - began
            scheme = store.capabilities.name
    if scheme == "etcd":
        assert wrote <= 1  # what a server does by itself
    else:
        assert nodes * 2 <= wrote <= 1.4 * nodes * (took_s / INTERVAL_S)


@pytest.mark.slow
@pytest.mark.serial
def test_a_work_pool_that_does_not_change_is_checked_without_a_write(server):
    """A read that a quorum confirms is a transaction on ZooKeeper: two for each check, job and node, they were."""
    checks = []

    def pool():
        checks.append(time.monotonic())
        return ["a", "b"]

    job = Job("walk", work_pool=pool, run=lambda context: None, schedule=FixedRate(3600.0), pool_check_period_s=0.1)
    url = server.url(f"pool-{uuid.uuid4().hex}")
    options = {"session_ttl_s": TTL_S, "lock_ttl_s": TTL_S, "outcome_period_s": 0.0}
    with JobManager(url, "n1", job, **options), latchwork.connect(url) as store:
        wait_until_quiet(cluster_store(store), 1)
        before, began, checked = server.writes(), time.monotonic(), len(checks)
        while len(checks) < checked + 30:
            time.sleep(0.1)
        assert server.writes() - before <= 2 + 2 * (time.monotonic() - began) / INTERVAL_S


def wait_until_quiet(cluster, owners):
    """Every node has its lock owner, and nothing but these has been written for a while."""
    seen, since, deadline = -1, time.monotonic(), time.monotonic() + 60.0
    while time.monotonic() < since + 3 * INTERVAL_S:
        assert time.monotonic() < deadline, "the cluster does not come to rest"
        entries = cluster.list("", recursive=True)
        count = sum(entry.key.startswith("owners/") and not entry.key.startswith("owners/alive/") for entry in entries)
        newest = max((entry.token for entry in entries if not entry.key.startswith("owners/")), default=0)
        if newest != seen or count != owners:
            seen, since = newest, time.monotonic()
        time.sleep(0.2)


def least_asked(server, act, undo):
    """The fewest requests of an act, of some: renewals and the like may come between."""
    counts = []
    for _ in range(8):
        server.requests()
        before = server.requests()
        act()
        counts.append(server.requests() - before)
        undo()
    idle = []
    for _ in range(8):
        before = server.requests()
        idle.append(server.requests() - before)
    return min(counts) - min(idle)


@pytest.mark.serial
def test_what_is_free_is_had_by_one_request_on_etcd_and_two_on_zookeeper(server):
    """ZooKeeper's two are one round trip. A semaphore lists its leases and takes one besides."""
    with latchwork.connect(server.url(f"free-{uuid.uuid4().hex}"), session_ttl_s=60) as store:
        one = {"etcd": 1, "zk": 2}[store.capabilities.name]
        lock, both = Lock(store, "lock"), ReadWriteLock(store, "both")
        election, semaphore = Election(store, "election", node_id="n"), Semaphore(store, "semaphore", leases=2)
        terms = []
        for mine in (lock, both.read, both.write, semaphore):
            mine.acquire(5.0)
            mine.release()
        assert least_asked(server, lock.acquire, lock.release) == one
        assert least_asked(server, both.read.acquire, both.read.release) == one
        assert least_asked(server, both.write.acquire, both.write.release) == one
        assert least_asked(server, lambda: terms.append(election.campaign()), lambda: terms.pop().resign()) == one
        assert (
            least_asked(server, semaphore.acquire, semaphore.release)
            <= one + {"etcd": 2, "zk": 4}[store.capabilities.name]
        )


@pytest.mark.serial
def test_a_hand_over_before_200_waiters_is_a_handful_of_requests(server, in_thread, eventually):
    url = server.url(f"waiters-{uuid.uuid4().hex}", session_ttl_s=60)
    with latchwork.connect(url) as store, latchwork.connect(url) as waiting_store:
        first = Lock(store, "orders")
        first.acquire(5.0)
        locks = [Lock(waiting_store, "orders") for _ in range(WAITERS)]
        takers = [in_thread(lambda each=each: each.acquire(60.0)) for each in locks]
        eventually(lambda: len(first.waiters()) == WAITERS, 60.0)
        eventually(lambda: sum(feed._tracker.ready for feed in list(waiting_store._core._feeds)) >= WAITERS, 60.0)
        asked, written = server.requests(), server.writes()
        first.release()
        eventually(lambda: any(each.is_held for each in locks))
        assert 1 <= server.writes() - written < 10
        assert 1 <= server.requests() - asked < 20  # two for the hand-over; renewals and the like come on top
        for each in locks:
            each.close()
        for each in takers:
            each.join(30.0)
