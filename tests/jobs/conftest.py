"""Nodes, run logs and patience for the tests of the job manager."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.jobs import FixedDelay, Job, JobManager, Threads
from latchwork.jobs.stored import cluster_store
from patience import eventually


@pytest.fixture
def store(store):
    """The store of the cluster, in which its keys are as its modules write them."""
    return cluster_store(store)


class RunLog:
    """Who ran which item when, in this process. An item that is started twice at a time is remembered for ever."""

    def __init__(self):
        self._lock = threading.Lock()
        self.active = {}
        self.overlaps = []
        self.runs = []

    def begin(self, context):
        with self._lock:
            for item in context.items:
                if item in self.active:
                    self.overlaps.append((item, self.active[item], context.node_id))
                self.active[item] = context.node_id
                self.runs.append((context.node_id, item))

    def end(self, context):
        with self._lock:
            for item in context.items:
                self.active.pop(item, None)

    def owners(self):
        """Item to node, of what runs at this moment."""
        with self._lock:
            return dict(self.active)

    def count(self, node=None):
        with self._lock:
            return Counter(item for who, item in self.runs if node in {None, who})


class Cluster:
    """Job managers of one process, closed at the end of the test."""

    def __init__(self):
        self.log = RunLog()
        self.nodes = []

    def endless(self, job_id="report", items=("a", "b", "c", "d"), *, on_start=None, on_stop=None, **options):
        """A job whose runs go on until they are told to stop; what is given is called with the context then."""

        def run(context):
            self.log.begin(context)
            try:
                if on_start is not None:
                    on_start(context)
                context.wait_for_stop()
                if on_stop is not None:
                    on_stop(context)
            finally:
                self.log.end(context)

        defaults = {"schedule": FixedDelay(0.05), "initial_delay_s": 0.0, "threads": Threads.per_item()}
        return Job(job_id, **{"work_pool": list(items), "run": run, **defaults, **options})

    def node(self, store, node_id, jobs, **options):
        """A started node; its TTLs outlast a machine that is late, and are short where a test is about their end."""
        defaults = {"session_ttl_s": 8.0, "lock_ttl_s": 6.0, "close_timeout_s": 5.0, "debounce_s": 0.1}
        made = JobManager(store, node_id, jobs, **{**defaults, **options})
        self.nodes.append(made)
        return made.start()

    def close(self):
        for node in reversed(self.nodes):
            node.close()


@pytest.fixture
def cluster():
    made = Cluster()
    yield made
    made.close()
    assert made.log.overlaps == []


def expire(session):
    """Make the deadline pass as it does when no renewal is confirmed any more."""
    renewer = session._renewer
    with renewer._lock:
        renewer._lease._counted = SYSTEM_CLOCK.now() - session.ttl_s
        renewer._lease._waiting.clear()
    session._wake()


def die(node):
    """What a dead process does: its session runs out, its locks are renewed no more, it never comes back."""
    node._membership._closing.set()
    node._worker.locks.close(release=False)
    expire(node._membership.session)


@pytest.fixture(name="eventually")
def _eventually():
    return eventually


@pytest.fixture(name="expire")
def _expire():
    return expire


@pytest.fixture(name="die")
def _die():
    return die
