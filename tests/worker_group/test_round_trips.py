"""How many answers a worker waits for one after the other when it joins, and at a barrier."""

from __future__ import annotations

import threading

import pytest

import latchwork
from far import FAR_SERVERS, far_store
from latchwork.worker_group import GroupWorker

pytestmark = [pytest.mark.serial, pytest.mark.threads]
WORKERS = 4


@pytest.mark.parametrize("name", FAR_SERVERS)
def test_a_barrier_of_four_workers_takes_a_handful_of_round_trips(request, name):
    found = []

    def run(worker):
        worker.wait_for_all(timeout_s=60)
        worker.barrier(timeout_s=60)
        if worker.rank:
            for _ in range(3):
                worker.barrier(timeout_s=60)
        else:
            found.append(far.trips(lambda: worker.barrier(timeout_s=60)))

    def work(key):
        with latchwork.connect(far.url) as store, GroupWorker(store, "train", workers=WORKERS, key=key) as worker:
            worker.run(run)

    with far_store(request.getfixturevalue(name)) as far:
        threads = [threading.Thread(target=work, args=(f"k{number}",)) for number in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found[0] <= (4 if name == "etcd35" else 6), found
