"""How many answers a node waits for one after the other when it starts and when it closes."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from far import FAR_SERVERS, far_store
from latchwork.jobs import FixedRate, Job, JobManager
from latchwork.jobs.stored import cluster_store

#: At most for a start and for a close, while another node runs.
MOST = {"etcd35": (6, 4), "zookeeper": (8, 5)}
#: At most for the start of the first node, which also creates the work pool.
MOST_FOR_FIRST = {"etcd35": 7, "zookeeper": 11}
#: At most for the close of the last node. It lists what is left, which takes ZooKeeper one for each level of keys.
MOST_FOR_LAST = {"etcd35": 5, "zookeeper": 7}
pytestmark = [pytest.mark.serial, pytest.mark.threads]


@pytest.mark.parametrize("name", FAR_SERVERS)
def test_a_node_starts_and_closes_in_a_bounded_number_of_round_trips(request, name):
    job = Job("walk", work_pool=["a", "b"], run=lambda _context: None, schedule=FixedRate(3600.0))
    found = []
    with far_store(request.getfixturevalue(name)) as far, JobManager(far.store, "n0", job):
        for number in range(3):  # on a busy machine some take longer
            node = JobManager(far.store, f"n{number + 1}", job)
            found.append((far.trips(node.start, 1), far.trips(node.close, 1)))
            if all(trips <= most for trips, most in zip(map(min, zip(*found, strict=True)), MOST[name], strict=True)):
                return
    pytest.fail(f"starts and closes took {found} round trips, more than {MOST[name]}")


@pytest.mark.parametrize("name", FAR_SERVERS)
def test_the_first_node_starts_in_a_bounded_number_of_round_trips(request, name):
    job = Job("walk", work_pool=["a", "b"], run=lambda _context: None, schedule=FixedRate(3600.0))
    found = []
    with far_store(request.getfixturevalue(name)) as far:
        for _ in range(3):  # on a busy machine some take longer
            node = JobManager(far.store, "n0", job)
            found.append(far.trips(node.start, 1))
            node.close()
            if found[-1] <= MOST_FOR_FIRST[name]:
                return
    pytest.fail(f"the first starts took {found} round trips, more than {MOST_FOR_FIRST[name]}")


@pytest.mark.parametrize("name", FAR_SERVERS)
def test_the_last_node_removes_the_records_in_a_bounded_number_of_round_trips(request, name):
    ran = threading.Event()
    schedule = FixedRate(3600.0)
    job = Job("walk", work_pool=["a", "b"], run=lambda _context: ran.set(), schedule=schedule, initial_delay_s=0.0)
    found = []
    with far_store(request.getfixturevalue(name)) as far:
        for _ in range(3):  # on a busy machine some take longer
            ran.clear()
            with JobManager(far.store, "n0", job) as node:
                assert ran.wait(30.0)  # its items and its locks are stored
                trips = far.trips(node.close, 1)
            left = [entry.key for entry in cluster_store(far.store).list("", recursive=True)]
            found.append((trips, left))  # a node that has just lost its session removes nothing
            if trips <= MOST_FOR_LAST[name] and left == ["outcomes/n0"]:
                return
    pytest.fail(f"the last closes took and left {found}, more than {MOST_FOR_LAST[name]} round trips or outcomes")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAR_SERVERS)
def test_a_node_with_several_jobs_starts_in_as_many_round_trips_as_one_with_one(request, name):
    jobs = [
        Job(f"walk{number}", work_pool=["a"], run=lambda _context: None, schedule=FixedRate(3600.0))
        for number in range(5)
    ]
    found = []
    with far_store(request.getfixturevalue(name)) as far, JobManager(far.store, "n0", jobs):
        for number in range(3):
            with ExitStack() as ends:
                node = JobManager(far.store, f"n{number + 1}", jobs)
                found.append(far.trips(lambda node=node, ends=ends: ends.enter_context(node), 1))
    assert min(found) <= MOST[name][0], found
