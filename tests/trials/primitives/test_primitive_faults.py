"""A sample of the plays: each primitive once, each fault, each server. `make check WHAT=primitive-faults` gives all."""

from __future__ import annotations

import contextlib
import functools

import pytest

from backends_table import SHARED
from trials.primitives.faults import BY_NAME, FAULTS
from trials.primitives.players import DRIVEN_MODULES  # noqa: F401 - for the fixture `driver`
from trials.primitives.plays import ALL, PRIMITIVES, play
from trials.stage import Stage

SAMPLE = [
    ("zookeeper", "holder frozen past its TTL", "LeaderLatch"),
    ("zookeeper", "connection cut for more than the TTL", "Lock"),
    ("zookeeper", "holder killed", "Semaphore"),
    ("zookeeper", "session expired from outside", "Once"),
    ("zookeeper", "server restarted", "PersistentLock"),
    ("zookeeper", "connection cut for less than the TTL", "Barrier"),
    ("etcd35", "session expired from outside", "Election"),
    ("etcd35", "holder killed", "ReadWriteLock"),
    ("etcd35", "connection cut for more than the TTL", "Queue"),
    ("etcd35", "server restarted", "RateLimiter"),
    ("etcd35", "holder frozen past its TTL", "Group"),
    ("etcd35", "connection cut for less than the TTL", "LockKeeper"),
    ("zookeeper", "network silent for more than the TTL", "Lock"),
    ("etcd35", "network silent for more than the TTL", "PersistentLock"),
    ("zookeeper", "waiter killed", "Lock"),
    ("etcd35", "waiter frozen past its TTL", "Semaphore"),
    ("pgbouncer", "holder killed", "Election"),
    ("etcd35", "connection of a waiter cut for more than the TTL", "Queue"),
    ("zookeeper", "holder frozen past its TTL", "WorkQueue"),
    ("etcd34", "leader of three killed", "Counter"),
    ("etcd34", "leader of three killed", "PriorityQueue"),
    ("etcd34", "leader of three frozen, then woken", "ReadWriteLock"),
    ("postgresql", "server restarted", "Lock"),
    ("postgresql", "session expired from outside", "LockKeeper"),
    ("postgresql", "network silent for more than the TTL", "WorkQueue"),
    ("sqlite", "holder frozen past its TTL", "Sequence"),
    ("sqlite", "holder killed", "DoubleBarrier"),
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The stage of a backend, opened when it is first asked for."""
    with contextlib.ExitStack() as opened:

        @functools.cache
        def get(backend, members):
            return opened.enter_context(Stage(backend, tmp_path_factory.mktemp("faults"), members=members))

        yield get


def test_the_sample_has_each_primitive_each_fault_and_each_backend():
    backends, faults, primitives = (set(column) for column in zip(*SAMPLE, strict=True))
    assert backends == set(SHARED) - {"etcd36", "zookeeper39"}  # got for the long form only
    assert faults == {fault.name for fault in FAULTS}
    assert primitives == set(PRIMITIVES)
    assert {(backend, BY_NAME[fault], primitive) for backend, fault, primitive in SAMPLE} <= set(ALL)


@pytest.mark.parametrize(("backend", "fault", "primitive"), SAMPLE, ids=lambda part: part.replace(" ", "-"))
def test_its_rules_hold_through(stage, backend, fault, primitive):
    play(stage(backend, BY_NAME[fault].members), BY_NAME[fault], primitive)
