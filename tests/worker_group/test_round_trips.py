"""How many answers the slowest of four workers waits for one after the other, at a barrier that all reach together."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

import latchwork
from far import DELAY_S, FAR_SERVERS, far_store
from latchwork.worker_group import GroupWorker

pytestmark = [pytest.mark.serial, pytest.mark.threads]
WORKERS, ROUNDS = 4, 5


@pytest.mark.parametrize("name", FAR_SERVERS)
def test_a_barrier_of_four_workers_takes_a_handful_of_round_trips(request, name):
    slowest = [0.0] * ROUNDS
    delays = ExitStack()
    begin = threading.Barrier(WORKERS, timeout=60)
    begin_far = threading.Barrier(WORKERS, lambda: delays.enter_context(far.delayed()), timeout=60)
    end_far = threading.Barrier(WORKERS, delays.close, timeout=60)

    def run(worker):
        worker.wait_for_all(timeout_s=60)
        worker.barrier(timeout_s=60)
        begin_far.wait()
        for number in range(ROUNDS):
            begin.wait()
            began = time.monotonic()
            worker.barrier(timeout_s=60)
            slowest[number] = max(slowest[number], (time.monotonic() - began) / DELAY_S)
        end_far.wait()

    def work(key):
        with latchwork.connect(far.url) as store, GroupWorker(store, "train", workers=WORKERS, key=key) as worker:
            worker.run(run)

    with far_store(request.getfixturevalue(name)) as far:
        threads = [threading.Thread(target=work, args=(f"k{number}",)) for number in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 0 < round(min(slowest)) <= (3 if name == "etcd35" else 4), slowest
