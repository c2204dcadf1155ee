"""Who watches a node: metrics, spans, structured log records, health; and what happens when a watcher raises."""

from __future__ import annotations

import json
import logging
import threading
import urllib.error
import urllib.request

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import latchwork
from latchwork.cli.probe import serve_node
from latchwork.jobs import Control, FixedDelay, JobManager, Observer
from latchwork.jobs.metrics import PrometheusMetrics
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.tracing import Tracing


@pytest.fixture
def memory():
    with latchwork.connect("memory://observed") as store:
        yield cluster_store(store)


@pytest.fixture
def registry():
    return CollectorRegistry()


def flaky(context):
    if context.items == ("bad",):
        raise RuntimeError("no luck")


def figure(registry, name, **labels):
    return registry.get_sample_value(f"latchwork_{name}", labels) or 0.0


def test_every_promised_metric_is_there_with_the_nodes_label(memory, cluster, eventually, registry):
    node = cluster.node(
        memory, "n1", cluster.endless(items=["good", "bad"], run=flaky), observers=[PrometheusMetrics(registry)]
    )
    here = {"node": "n1", "job": "report"}
    eventually(lambda: figure(registry, "runs_total", **here) >= 6)
    eventually(lambda: figure(registry, "run_failures_total", **here) >= 3)
    assert figure(registry, "run_seconds_count", **here) >= 5
    assert figure(registry, "schedule_lag_seconds_count", **here) >= 6
    assert figure(registry, "init_seconds_count", node="n1") == 1
    assert figure(registry, "pool_items", **here) == 2
    assert figure(registry, "items_assigned", **here) == 2
    assert figure(registry, "run_threads", **here) == 2
    assert figure(registry, "is_manager", node="n1") == 1
    assert figure(registry, "healthy", node="n1") == 1
    assert figure(registry, "moves_total", node="n1") == 2
    assert figure(registry, "rebalances_total", node="n1") >= 1
    assert figure(registry, "rebalance_seconds_count", node="n1") >= 1
    assert 0 < figure(registry, "lock_margin_seconds", node="n1") <= 6.0
    assert registry.get_sample_value("latchwork_active_runs", here) is not None
    cluster.node(memory, "n2", cluster.endless("other", ["x", "y", "z"]), observers=[PrometheusMetrics(registry)])
    of_other = {"node": "n2", "job": "other"}
    eventually(lambda: figure(registry, "active_runs", **of_other) == 3)
    Control(memory).disable("other")
    eventually(lambda: registry.get_sample_value("latchwork_active_runs", of_other) == 0)
    names = [sample.name for family in registry.collect() for sample in family.samples]
    assert all(name.startswith("latchwork_") for name in names)
    assert all("node" in sample.labels for family in registry.collect() for sample in family.samples)
    node.close()
    assert figure(registry, "close_seconds_count", node="n1") == 1
    assert registry.get_sample_value("latchwork_healthy", {"node": "n1"}) is None, "a closed node has no gauges"


def test_nodes_of_one_process_share_the_metrics_and_a_failed_pool_is_counted(memory, cluster, eventually, registry):
    broken = threading.Event()

    def pool():
        if broken.is_set():
            raise OSError("no disk")
        return ["a"]

    for name in ("n1", "n2"):
        job = cluster.endless(work_pool=pool, pool_check_period_s=0.05)
        cluster.node(memory, name, job, observers=[PrometheusMetrics(registry)])
    broken.set()
    for name in ("n1", "n2"):
        eventually(lambda name=name: figure(registry, "pool_read_failures_total", node=name, job="report") >= 1)


def test_each_run_and_each_rebalance_has_a_span_and_an_error_is_in_it(memory, cluster, eventually):
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    job = cluster.endless(items=["bad"], run=flaky, schedule=FixedDelay(3600.0))
    cluster.node(memory, "n1", job, observers=[Tracing(provider)])
    eventually(lambda: len([each for each in spans.get_finished_spans() if each.name == "latchwork.run"]) == 1)
    run = next(each for each in spans.get_finished_spans() if each.name == "latchwork.run")
    assert run.attributes["latchwork.job"] == "report"
    assert run.attributes["latchwork.items.first"] == ("bad",)
    assert [event.name for event in run.events] == ["exception"]
    rebalance = next(each for each in spans.get_finished_spans() if each.name == "latchwork.rebalance")
    assert rebalance.attributes["latchwork.moves"] == 1
    assert rebalance.end_time >= rebalance.start_time


def test_events_are_log_records_with_their_figures_as_attributes(memory, cluster, eventually, caplog):
    caplog.set_level(logging.DEBUG, logger="latchwork.events")
    cluster.node(memory, "n1", cluster.endless(items=["bad"], run=flaky)).close()
    found = {}
    for record in caplog.records:
        if record.name == "latchwork.events":
            found.setdefault(record.latchwork["event"], record.latchwork)
    assert {"node_started", "pool_read", "node_closed"} <= set(found)
    assert found["pool_read"]["items"] == 1
    assert json.loads(json.dumps(found["node_started"]))["node"] == "n1"


class Events:
    """The records of events as they come, by name."""

    def __init__(self, caplog):
        caplog.set_level(logging.DEBUG, logger="latchwork.events")
        self._caplog = caplog

    def of(self, event):
        found = [record for record in list(self._caplog.records) if record.name == "latchwork.events"]
        return [(r.levelname, r.latchwork) for r in found if r.latchwork["event"] == event]


@pytest.fixture
def events(caplog):
    return Events(caplog)


def test_a_run_that_ends_well_and_one_that_raises_have_records_of_their_own(memory, cluster, eventually, events):
    job = cluster.endless(items=["good", "bad"], run=flaky, schedule=FixedDelay(3600.0))
    cluster.node(memory, "n1", job)
    eventually(lambda: events.of("run_ended") and events.of("run_failed"))
    assert [level for level, _ in events.of("run_started")] == ["DEBUG", "DEBUG"]
    for _, started in events.of("run_started"):
        assert (started["node"], started["job"], started["items"]) == ("n1", "report", 1)
        assert started["lag_s"] >= 0
    ((level, ended),) = events.of("run_ended")
    assert (level, ended["job"], ended["seconds"] >= 0) == ("DEBUG", "report", True)
    assert "error" not in ended
    ((level, failed),) = events.of("run_failed")
    assert (level, failed["job"], failed["error"]) == ("ERROR", "report", "RuntimeError")


def test_a_rebalance_has_a_record_with_its_moves_and_none_when_nothing_is_written(memory, cluster, eventually, events):
    job = cluster.endless(items=["a", "b", "c"])
    cluster.node(memory, "n1", job)
    eventually(lambda: len(cluster.log.owners()) == 3)
    ((level, done),) = eventually(lambda: events.of("rebalanced"))
    assert (level, done["node"], done["assignments"], done["moves"]) == ("INFO", "n1", 1, 3)
    assert done["seconds"] > 0
    job.refresh_pool()
    assert not threading.Event().wait(0.5), "time to rebalance"
    assert len(events.of("rebalanced")) == 1
    assert events.of("rebalance_failed") == []


def test_a_rebalance_and_a_read_of_a_pool_that_fail_have_records_that_name_the_error(
    memory, cluster, eventually, events
):
    class Stuck:
        name = "stuck"

        def assign(self, problem):
            raise RuntimeError("out of ideas")

    broken = threading.Event()

    def pool():
        if broken.is_set():
            raise OSError("no disk")
        return ["a"]

    cluster.node(memory, "n1", cluster.endless(work_pool=pool, pool_check_period_s=0.05), strategy=Stuck())
    level, failed = eventually(lambda: events.of("rebalance_failed"))[0]
    assert (level, failed["node"], failed["error"]) == ("WARNING", "n1", "RuntimeError")
    broken.set()
    level, unread = eventually(lambda: events.of("pool_read_failed"))[0]
    assert (level, unread["node"], unread["job"], "items" in unread) == ("WARNING", "n1", "report", False)


def test_an_observer_that_raises_disturbs_nothing_and_is_logged_once(memory, cluster, eventually, caplog):
    class Clumsy(Observer):
        def run(self, info):
            raise RuntimeError("oops")

        def rebalanced(self, info):
            raise RuntimeError("oops")

    ran = []
    cluster.node(memory, "n1", cluster.endless(items=["a"], run=ran.append), observers=[Clumsy()])
    eventually(lambda: len(ran) > 5)
    assert caplog.text.count("raised an exception in run;") == 1


def test_what_is_no_observer_is_refused(memory, cluster):
    with pytest.raises(ValueError, match="observer 'metrics' is not an observer"):
        JobManager(memory, "n1", cluster.endless(), observers=["metrics"])


def test_health_says_what_is_wrong(memory, cluster, eventually, expire, monkeypatch):
    begun, leave, may_open = threading.Event(), threading.Event(), threading.Event()
    open_session = memory.open_session
    may_open.set()
    monkeypatch.setattr(
        memory, "open_session", lambda *args, **fields: may_open.wait(20) and open_session(*args, **fields)
    )
    job = cluster.endless(items=["a"], run=lambda _context: begun.set() or leave.wait(20))
    node = JobManager(memory, "n1", job, session_ttl_s=2.0, lock_ttl_s=1.5, debounce_s=0.05, close_timeout_s=1.0)
    assert node.health().reasons == ("the node is new",)
    with node:
        assert node.health().ok, node.health()
        assert node.health().session == "active"
        eventually(lambda: (margin := node.health().lock_margin_s) and 0 < margin <= 1.5)
        assert begun.wait(20)  # a job that is disabled before it begins has no run that does not stop
        Control(memory).change_cluster(stop_timeout_s=0.1)
        Control(memory).disable("report")
        eventually(lambda: node.health().reasons == ("runs do not stop: report",))
        leave.set()
        eventually(lambda: node.health().ok)
        may_open.clear()
        expire(node._membership.session)
        eventually(lambda: not node.health().ok)
        may_open.set()
        eventually(lambda: node.health().ok)
    assert node.health().reasons == ("the node is closed",)


def test_health_is_degraded_while_every_run_of_a_job_fails(memory, cluster, eventually):
    broken, good = {"good", "bad"}, threading.Event()

    def run(context):
        if broken.intersection(context.items):
            raise RuntimeError("no luck")
        good.set()

    node = cluster.node(memory, "n1", cluster.endless(items=["good", "bad"], run=run))
    eventually(lambda: node.stats().jobs["report"].items == 2)  # with one item of two it may be degraded for a time
    eventually(lambda: node.health().degraded == ("every run of job report fails: RuntimeError: no luck",))
    assert node.health().ok, "a restart does not help"
    with (
        serve_node(node, "127.0.0.1", 0) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as answer,
    ):
        assert json.load(answer)["degraded"] == list(node.health().degraded)
    broken.remove("good")
    assert good.wait(20)
    eventually(lambda: node.health().degraded == ())


def test_probes_and_metrics_are_served_over_http(memory, cluster, eventually):
    node = cluster.node(memory, "n1", cluster.endless(), observers=[PrometheusMetrics()])
    with serve_node(node, "127.0.0.1", 0) as port:
        address = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{address}/healthz", timeout=5) as answer:
            assert json.load(answer)["ok"] is True
        with urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
            assert b'latchwork_healthy{node="n1"} 1.0' in answer.read()
        node.close()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}/healthz", timeout=5)
        assert refused.value.code == 503
        refused.value.close()
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"{address}/other", timeout=5)
        assert missing.value.code == 404
        missing.value.close()
