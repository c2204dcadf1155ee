"""How many answers a task waits for one after the other, measured through a proxy that delays each: they stay few."""

from __future__ import annotations

import contextlib
import time

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError

import latchwork
from backends_table import SERVERS
from executor.conftest import PATIENCE_S
from executor.work import WORK, square
from latchwork.backends.zookeeper.layout import BUCKETS, get_bucket
from latchwork.executor import Executor, ExecutorWorker
from latchwork.tasks import Functions
from latchwork.types import Delete, Put
from latchwork_testkit.proxy import Proxy

DELAY_S = 0.25
#: Three commits; on ZooKeeper an event has no value, so the item and the result are read.
MOST = {"etcd35": 3, "zookeeper": 5}
#: A session takes two, and joining one. Then a worker that is there writes the view.
MOST_UNTIL_READY = {"etcd35": 4, "zookeeper": 6}
#: The same without another worker. The worker writes the view itself. On ZooKeeper it also creates the parents.
MOST_UNTIL_FIRST_IS_READY = {"etcd35": 5, "zookeeper": 8}
pytestmark = [pytest.mark.serial, pytest.mark.threads]


@pytest.fixture
def raw(zookeeper):
    """A plain kazoo client next to the server."""
    client = KazooClient(zookeeper.endpoint)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture(params=[name for name in SERVERS if name in MOST])
def far(request):
    """A proxy, and a function that opens a store behind it, or next to the server."""
    server = request.getfixturevalue(request.param)
    url = server.url(f"trips-{time.time_ns()}")
    with Proxy(server.endpoint) as proxy:

        def connect(*, near=False):
            return latchwork.connect(url if near else url.replace(server.endpoint, proxy.endpoint))

        yield proxy, connect, request.param


@pytest.mark.slow
@pytest.mark.parametrize("idle_s", [0.0, 3.0], ids=["at once", "idle"])
def test_a_task_waits_for_its_three_commits_and_the_reads_of_its_events(far, idle_s):
    proxy, connect, name = far
    trips = []
    with connect() as theirs, connect() as ours:
        proxy.delay(DELAY_S, "answers")
        with (
            ExecutorWorker(theirs, node_id="n1", slots=4, functions=WORK) as worker,
            Executor(ours, functions=WORK) as pool,
        ):
            worker.wait_ready(PATIENCE_S)
            assert pool.submit(square, 2).result(PATIENCE_S) == 4
            for number in range(4):
                time.sleep(idle_s)
                begun = time.monotonic()
                assert pool.submit(square, number).result(PATIENCE_S) == number**2
                trips.append((time.monotonic() - begun) / DELAY_S)
            proxy.delay(0.0, "answers")
    assert min(trips) < MOST[name] + 0.5, trips
    assert sorted(trips)[1] < MOST[name] + 1, trips


def test_deletions_of_other_clients_delay_no_submit(far):
    """On ZooKeeper a check of a version fails if any key of its bucket was deleted since."""
    proxy, connect, name = far
    keys = {get_bucket(key): key for key in (f"deleted/{number}" for number in range(2000))}
    assert len(keys) == BUCKETS
    trips = []
    with connect() as theirs, connect() as ours:
        proxy.delay(DELAY_S, "answers")
        with (
            ExecutorWorker(theirs, node_id="n1", slots=4, functions=WORK) as worker,
            Executor(ours, functions=WORK) as pool,
            connect(near=True) as other,
        ):
            worker.wait_ready(PATIENCE_S)
            assert pool.submit(square, 2).result(PATIENCE_S) == 4
            for number in range(3):
                other.commit([], [Put(key, b"") for key in keys.values()])
                other.commit([], [Delete(key) for key in keys.values()])
                begun = time.monotonic()
                assert pool.submit(square, number).result(PATIENCE_S) == number**2
                trips.append((time.monotonic() - begun) / DELAY_S)
            proxy.delay(0.0, "answers")
    assert min(trips) < MOST[name] + 1, trips


@pytest.mark.parametrize("far", ["zookeeper"], indirect=True)
def test_results_keep_their_parents_while_a_task_waits_for_its_result(far, raw):
    """The task removes all parents without children, as the server does each minute."""
    proxy, connect, name = far
    functions, trips = Functions(), []

    @functions.task(name="reap")
    def reap(_number):
        for path in (path for depth in (2, 1) for path in list_below(raw, f"{root}/@executor/default/results", depth)):
            with contextlib.suppress(NotEmptyError):
                raw.delete(path)

    with (
        connect() as theirs,
        connect() as ours,
        ExecutorWorker(theirs, node_id="n1", slots=4, functions=functions) as worker,
        Executor(ours, functions=functions) as pool,
    ):
        worker.wait_ready(PATIENCE_S)
        root = next(f"/{each}" for each in raw.get_children("/") if each in repr(ours))
        pool.submit(reap, 0).result(PATIENCE_S)
        proxy.delay(DELAY_S, "answers")
        for number in range(4):
            begun = time.monotonic()
            pool.submit(reap, number).result(PATIENCE_S)
            trips.append((time.monotonic() - begun) / DELAY_S)
        proxy.delay(0.0, "answers")
    assert min(trips) < MOST[name] + 1, trips


def list_below(client, path, depth):
    """Return the paths of the znodes at a depth below a path."""
    paths = [path]
    for _ in range(depth):
        paths = [f"{above}/{name}" for above in paths if client.exists(above) for name in client.get_children(above)]
    return paths


def test_a_worker_is_ready_in_a_bounded_number_of_round_trips(far):
    proxy, connect, name = far
    trips = []
    with connect() as store, ExecutorWorker(store, node_id="n0", functions=WORK) as first:
        first.wait_ready(PATIENCE_S)
        for number in range(4):
            proxy.delay(DELAY_S, "answers")
            begun = time.monotonic()
            with ExecutorWorker(store, node_id=f"n{number + 1}", functions=WORK) as worker:
                worker.wait_ready(PATIENCE_S)
                trips.append((time.monotonic() - begun) / DELAY_S)
                proxy.delay(0.0, "answers")
    assert min(trips) < MOST_UNTIL_READY[name] + 0.9, trips


def test_the_first_worker_is_ready_in_a_bounded_number_of_round_trips(far):
    proxy, connect, name = far
    trips = []
    with connect() as store:
        store.put("used", b"")  # the store itself is ready
        assert store.session.remaining_s() > 0.0
        for number in range(4):
            proxy.delay(DELAY_S, "answers")
            begun = time.monotonic()
            with ExecutorWorker(store, f"executor-{number}", node_id="n1", functions=WORK) as worker:
                worker.wait_ready(PATIENCE_S)
                trips.append((time.monotonic() - begun) / DELAY_S)
                proxy.delay(0.0, "answers")
    assert min(trips) < MOST_UNTIL_FIRST_IS_READY[name] + 0.9, trips
