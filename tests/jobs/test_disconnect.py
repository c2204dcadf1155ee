"""A node that is cut off from its server: goes on while its locks last, stops in time, and comes back by itself."""

from __future__ import annotations

import threading

import pytest

import latchwork
from backends_table import BY_NAME, SERVERS
from latchwork.errors import LatchworkError, LockLost
from latchwork.jobs import Control, JobManager
from latchwork.jobs.worker.runs import compute_stop_margin_s
from latchwork_testkit.proxy import Proxy


@pytest.fixture(params=SERVERS)
def own_server(request):
    """A server that may be hurt."""
    with BY_NAME[request.param].launch() as server:
        yield server


def test_a_short_cut_restarts_nothing_and_a_long_one_stops_runs_in_time_and_recovers(own_server, cluster, eventually):
    margins = []
    job = cluster.endless(on_stop=lambda context: margins.append(context.remaining_s()))
    with latchwork.connect(own_server.url("test", call_timeout_s=2)) as store:
        node = cluster.node(store, "n1", job, session_ttl_s=3.0, lock_ttl_s=3.0)
        eventually(lambda: len(cluster.log.owners()) == 4)

        own_server.pause()
        store.clock.wait(node._closed, 1.0)
        own_server.resume()
        store.clock.wait(node._closed, 2.0)
        assert set(cluster.log.count().values()) == {1}, "a cut shorter than the TTL must restart nothing"

        own_server.pause()
        try:
            eventually(lambda: len(margins) == 4, 6)
        finally:
            own_server.resume()
        assert min(margins) > 0.2, "the runs were told to stop too late"
        eventually(lambda: len(cluster.log.owners()) == 4, 20, "the return of the runs")
        eventually(lambda: node.is_manager, 20)
        node.close()


LOCK_TTL_S = 6.0
GRACE_S = 2.0


class Line:
    """Two nodes of one cluster, one of them behind a proxy, and what its runs saw when they were told to stop."""

    def __init__(self, server, cluster, **options):
        self.proxy = Proxy(server.endpoint)
        url = server.url("grace", call_timeout_s=2)
        self.far_store = latchwork.connect(url.replace(server.endpoint, self.proxy.endpoint))
        self.near_store = latchwork.connect(url)
        self.clock = self.near_store.clock
        self.stopped = []
        self.starts = []
        self.cluster = cluster
        options = {"session_ttl_s": 4.0, "lock_ttl_s": LOCK_TTL_S, **options}
        self.far = cluster.node(self.far_store, "far", self.job(), **options)
        self.near = cluster.node(self.near_store, "near", self.job(), **options)

    def job(self):
        return self.cluster.endless(on_start=self.note_start, on_stop=self.note_stop)

    def note_start(self, context):
        self.starts.append((context.node_id, context.items[0], self.clock.now()))

    def note_stop(self, context):
        left_s = context.remaining_s()
        self.stopped.append((context.node_id, context.items[0], left_s, self.clock.now() + left_s))

    def close(self):
        self.proxy.release()
        self.cluster.close()
        for store in (self.far_store, self.near_store):
            store.close()
        self.proxy.close()

    def of(self, node):
        return {item for item, owner in self.cluster.log.owners().items() if owner == node}


@pytest.fixture
def line(own_server, cluster, request):
    made = Line(own_server, cluster, **request.param)
    yield made
    made.close()


@pytest.mark.parametrize(
    "line", [{"disconnect_grace_s": 9.0, "lock_ttl_s": 12.0, "session_ttl_s": 12.0}], indirect=True
)
def test_back_within_the_grace_nothing_stops_and_nothing_starts_anew(line, eventually):
    eventually(lambda: len(line.of("far")) == len(line.of("near")) == 2, 30)
    starts, stops = list(line.starts), list(line.stopped)
    line.proxy.hold("both")
    # Cut off for well over half of the grace: one of 5 s would have ended the runs, and one of 9 s has time left.
    eventually(lambda: line.far._worker.locks.remaining_s() < 6.5, 20, "5.5 s since the last renewal")
    line.proxy.release()
    eventually(lambda: line.far._worker.locks.remaining_s() > 8.5, 10, "the next renewal")
    line.clock.wait(line.far._closed, 1.0)  # what the node does about it has shown by then
    assert line.far.health().ok
    assert line.stopped == stops, "no run was told to stop"
    assert line.starts == starts, "no run started anew"


@pytest.mark.parametrize("line", [{}], indirect=True)
def test_beyond_the_grace_runs_are_told_to_stop_and_others_start_when_the_locks_have_run_out(line, eventually):
    eventually(lambda: len(line.of("far")) == len(line.of("near")) == 2, 30)
    cut_off = line.of("far")
    Control(line.near_store).change_cluster(disconnect_grace_s=GRACE_S)
    eventually(lambda: line.far._worker._settings.node.disconnect_grace_s == GRACE_S, 10, "the new setting")
    line.stopped.clear()
    line.starts.clear()
    line.proxy.hold("both")
    eventually(lambda: {item for node, item, *_ in line.stopped if node == "far"} == cut_off, 20)
    ends = {item: (left_s, deadline) for node, item, left_s, deadline in line.stopped if node == "far"}
    assert min(left_s for left_s, _ in ends.values()) > LOCK_TTL_S / 4, "it is the grace that ended them, not the locks"
    eventually(lambda: {item for node, item, _ in line.starts if node == "near"} >= cut_off, 30)
    for node, item, started in line.starts:
        if node == "near" and item in cut_off:
            assert started >= ends[item][1], "it starts elsewhere only after the locks have run out"
    line.proxy.release()
    eventually(lambda: line.far.health().ok and len(line.of("far")) == 2, 30, "the return of the node")


@pytest.mark.parametrize(
    ("grace_s", "left_s"),
    [(None, 2.5), (5.0, 5.0), (7.5, 2.5), (60.0, 2.5), (0.0, 9.7)],
)
def test_the_grace_never_outlasts_three_quarters_of_the_locks(grace_s, left_s):
    assert compute_stop_margin_s(10.0, grace_s) == pytest.approx(left_s)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"disconnect_grace_s": 0.1}, "at least 0.3"),
        ({"disconnect_grace_s": 8.0}, "raise lock_ttl_s"),
        ({"disconnect_grace_s": 8.0, "lock_ttl_s": 20.0, "session_ttl_s": 5.0}, "raise session_ttl_s"),
    ],
)
def test_a_grace_that_cannot_be_kept_is_refused_and_the_message_says_what_to_raise(cluster, options, word):
    with pytest.raises(ValueError, match=word):
        JobManager("memory://grace", "n1", cluster.endless(), **options)


def test_a_call_of_a_run_to_a_server_that_hangs_ends_when_its_locks_do(own_server, cluster, eventually):
    asking = threading.Event()
    errors = []

    def run(context):
        try:
            while True:
                context.store.get("anything")
                asking.set()
        except LatchworkError as error:
            errors.append((error, context.remaining_s()))
            context.wait_for_stop(20)

    with latchwork.connect(own_server.url("hangs", call_timeout_s=40)) as store:
        node = cluster.node(store, "n1", cluster.endless(run=run, items=["a"]), session_ttl_s=3.0, lock_ttl_s=2.0)
        eventually(asking.is_set, 20)
        own_server.pause()
        try:
            eventually(lambda: errors, 20, "the end of a call, which may last 40 s without locks")
        finally:
            own_server.resume()
        assert isinstance(errors[0][0], LockLost)
        assert errors[0][1] == 0.0
        node.close()
