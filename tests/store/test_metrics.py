"""Metrics of a store, its sessions and primitives, without a job manager; and all of them before their first event."""

from __future__ import annotations

import gc

import pytest
from prometheus_client import CollectorRegistry

import latchwork
from latchwork.errors import Conflict
from latchwork.jobs import Job, JobManager
from latchwork.jobs.metrics import PrometheusMetrics
from latchwork.primitives import Counter, LeaderLatch, Lock
from latchwork.primitives.metrics import PrimitiveMetrics
from latchwork.store import StoreObserver
from latchwork.store.observe.metrics import StoreMetrics
from latchwork.types import Exists


@pytest.fixture
def registry():
    return CollectorRegistry()


def test_calls_are_counted_by_what_they_came_to_and_timed(backend_url, registry):
    with latchwork.connect(backend_url, observers=[StoreMetrics("orders", registry=registry)]) as store:

        def calls(call, outcome):
            labels = {"store": "orders", "call": call, "outcome": outcome}
            return registry.get_sample_value("latchwork_store_calls_total", labels)

        assert calls("commit", "ok") == calls("commit", "conflict") == 0.0, "it is there before its first event"
        store.put("a", b"1")
        with pytest.raises(Conflict):
            store.commit([Exists("b")], [])
        store.get("a")
        assert calls("commit", "conflict") == 1.0
        assert calls("commit", "ok") >= 1.0
        assert calls("get", "ok") >= 1.0
        timed = {"store": "orders", "call": "get"}
        assert registry.get_sample_value("latchwork_store_call_seconds_count", timed) == calls("get", "ok")


def test_sessions_are_counted_and_their_time_is_told(backend_url, registry):
    with latchwork.connect(backend_url, observers=[StoreMetrics(registry=registry)]) as store:

        def value(name, **labels):
            return registry.get_sample_value(name, {"store": "default", **labels})

        assert value("latchwork_session_changes_total", state="lost") == 0.0
        assert value("latchwork_session_remaining_seconds") is None
        session = store.open_session(5.0)
        assert value("latchwork_sessions_opened_total") == 1.0
        assert value("latchwork_sessions", state="active") == 1.0
        assert 0.0 < value("latchwork_session_remaining_seconds") <= session.ttl_s
        session.close()
        assert value("latchwork_sessions", state="active") == 0.0


def test_a_store_of_observers_does_all_that_another_does(backend_url):
    with latchwork.connect(backend_url, observers=[StoreObserver()]) as store:
        with Lock(store, "orders"), store.mirror("") as mirror:
            assert Counter(store, "n").add(2) == 2
            mirror.wait_until(lambda state: "n" in state, 10.0)
        assert store.namespace("x").within(lambda: 5.0).get("n") is None
        assert store.delete_tree("") >= 1


def test_what_is_no_observer_is_refused():
    with pytest.raises(TypeError, match="StoreObserver"):
        latchwork.connect("memory://refused-observers", observers=[print])


def test_a_primitive_tells_whether_it_is_held_and_for_how_long(store, registry):
    metrics, lock = PrimitiveMetrics(registry=registry), Lock(store, "orders")
    latch = LeaderLatch(store, "leads", node_id="n1")
    metrics.watch("orders", lock)
    metrics.watch("leads", latch)
    labels = {"primitive": "orders", "kind": "Lock"}
    assert registry.get_sample_value("latchwork_primitive_held", labels) == 0.0
    assert registry.get_sample_value("latchwork_primitive_lost_total", labels) == 0.0
    with lock:
        assert registry.get_sample_value("latchwork_primitive_held", labels) == 1.0
        assert 0 < registry.get_sample_value("latchwork_primitive_remaining_seconds", labels) <= store.session.ttl_s
    led = {"primitive": "leads", "kind": "LeaderLatch"}
    with latch:
        latch.wait(20.0)
        assert registry.get_sample_value("latchwork_primitive_held", led) == 1.0
    del lock
    gc.collect()
    assert registry.get_sample_value("latchwork_primitive_held", labels) is None, "it is not kept alive"
    with pytest.raises(TypeError, match="pass a lock"):
        metrics.watch("n", Counter(store, "n"))


def test_a_node_has_all_its_metrics_before_their_first_event(registry):
    job = Job("report", work_pool=["a"], run=print, schedule="@yearly")
    with JobManager("memory://early-metrics", "n1", job, observers=[PrometheusMetrics(registry)]):
        of_job, of_node = {"node": "n1", "job": "report"}, {"node": "n1"}
        for name in ("runs", "run_failures", "pool_read_failures"):
            assert registry.get_sample_value(f"latchwork_{name}_total", of_job) == 0.0, name
        for name in ("run_seconds_count", "schedule_lag_seconds_count"):
            assert registry.get_sample_value(f"latchwork_{name}", of_job) == 0.0, name
        for name in ("rebalance_failures_total", "close_seconds_count"):
            assert registry.get_sample_value(f"latchwork_{name}", of_node) == 0.0, name
