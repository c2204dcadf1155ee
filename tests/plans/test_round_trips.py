"""How many answers a step of a chain waits for one after the other, measured through a proxy that delays each."""

from __future__ import annotations

import time

import pytest

import latchwork
from backends_table import SERVERS
from latchwork.plans import Plans, PlanWorker
from latchwork_testkit.proxy import Proxy
from patience import eventually
from plans.work import FUNCTIONS, WAIT_S

DELAY_S, STEPS = 0.4, 10
#: One commit; on ZooKeeper some are sent again, because a guard has moved.
MOST = {"etcd35": 1.7, "zookeeper": 2.6}
pytestmark = [pytest.mark.serial, pytest.mark.threads]


@pytest.fixture(params=[name for name in SERVERS if name in MOST])
def far(request):
    """A proxy, the URL of a server behind it, and the server's name."""
    server = request.getfixturevalue(request.param)
    with Proxy(server.endpoint) as proxy:
        yield proxy, server.url(f"trips-{time.time_ns()}").replace(server.endpoint, proxy.endpoint), request.param


@pytest.mark.slow
def test_a_step_of_a_chain_waits_for_one_commit(far):
    proxy, url, name = far
    with latchwork.connect(url) as store, PlanWorker(store, functions=FUNCTIONS) as worker:
        worker.wait_ready(WAIT_S)
        with Plans(store, functions=FUNCTIONS).new() as plan:
            ref = plan.add("same", 0)
            for _ in range(2 * STEPS):
                ref = plan.add("same", ref)
            proxy.delay(DELAY_S, "answers")
        eventually(lambda: worker.stats().done > 2, WAIT_S)
        begun, before = time.monotonic(), worker.stats().done
        eventually(lambda: worker.stats().done >= before + STEPS, WAIT_S)
        trips = (time.monotonic() - begun) / DELAY_S / STEPS
        proxy.delay(0.0, "answers")
        assert plan.handle.result(ref, WAIT_S) == 0
    assert trips < MOST[name], trips
