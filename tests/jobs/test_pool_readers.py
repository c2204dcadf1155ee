"""Several nodes read one work pool: the last read wins, and where they disagree a warning shows the difference."""

from __future__ import annotations

import logging
import threading

import pytest

import latchwork
from latchwork.jobs import inspect
from latchwork.jobs.node import pools as pools_module
from latchwork.jobs.stored import cluster_store, keys


@pytest.fixture
def memory():
    with latchwork.connect("memory://pool-readers") as store:
        yield cluster_store(store)


@pytest.fixture
def source():
    return ["a"]


def reader(cluster, source, **options):
    return cluster.endless(work_pool=lambda: list(source), **{"pool_check_period_s": 0.0, **options})


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_node_that_registers_anew_does_not_take_a_newer_pool_back(store, cluster, eventually, expire, source, caplog):
    """The node's own read is older than what another one stored since; no later check would mend it."""
    newer = reader(cluster, source)
    cluster.node(store, "n1", newer)
    second = cluster.node(store, "n2", reader(cluster, source))
    eventually(lambda: set(cluster.log.owners()) == {"a"})
    source.append("b")
    newer.refresh_pool()
    eventually(lambda: set(cluster.log.owners()) == {"a", "b"}, 15)
    version = store.get(keys.work_pool_key("report")).version
    caplog.set_level(logging.INFO)
    lost = second._membership.session
    expire(lost)
    eventually(lambda: second._membership.session is not lost and second._membership.get_registration() is not None, 15)
    assert "another node has stored a newer one" in caplog.text
    eventually(lambda: second._membership._pools._good["report"].items == ("a", "b"))
    assert store.get(keys.work_pool_key("report")).version == version


def test_a_node_that_registers_anew_writes_a_pool_that_is_gone(memory, cluster, eventually, expire, source):
    node = cluster.node(memory, "n1", reader(cluster, source))
    memory.delete_tree(keys.WORK_POOL)
    expire(node._membership.session)
    eventually(lambda: inspect(memory).pools == {"report": ("a",)})


def test_a_read_that_began_before_another_node_stored_its_own_is_made_again(memory, cluster, eventually, source):
    """The slow read ends last, with what the source held first."""
    quick = reader(cluster, source)
    cluster.node(memory, "n1", quick)
    begun, go_on = threading.Event(), threading.Event()

    def slow_pool():
        found = list(source)
        if armed.is_set() and not begun.is_set():
            begun.set()
            go_on.wait(20)
        return found

    armed = threading.Event()
    slow = cluster.endless(work_pool=slow_pool, pool_check_period_s=0.0)
    cluster.node(memory, "n2", slow)
    armed.set()
    slow.refresh_pool()
    assert begun.wait(10)
    source.append("b")
    quick.refresh_pool()
    eventually(lambda: inspect(memory).pools == {"report": ("a", "b")})
    version = memory.get(keys.work_pool_key("report")).version
    go_on.set()
    eventually(lambda: cluster.nodes[1]._membership._pools._good["report"].items == ("a", "b"))
    eventually(lambda: set(cluster.log.owners()) == {"a", "b"})
    assert memory.get(keys.work_pool_key("report")).version == version, "the old read was stored, if only for a moment"


def test_a_start_that_had_to_wait_for_its_id_does_not_take_a_newer_pool_back(memory, cluster, eventually, source):
    other = reader(cluster, source)
    cluster.node(memory, "n1", other)
    former = memory.open_session(10.0)
    memory.put(keys.alive_key("n2"), b"{}", session=former)
    threading.Thread(target=cluster.node, args=(memory, "n2", reader(cluster, source))).start()
    eventually(lambda: len(cluster.nodes) == 2 and cluster.nodes[1]._membership is not None)
    eventually(lambda: cluster.nodes[1]._membership._pools._good)
    source.append("b")
    other.refresh_pool()
    eventually(lambda: inspect(memory).pools == {"report": ("a", "b")})
    version = memory.get(keys.work_pool_key("report")).version
    former.close()
    eventually(lambda: cluster.nodes[1].state == "started")
    assert memory.get(keys.work_pool_key("report")).version == version


def test_a_node_that_joins_with_other_items_says_which(memory, cluster, caplog):
    cluster.node(memory, "n1", cluster.endless(items=["a", "b"], pool_check_period_s=0.0))
    cluster.node(memory, "n2", cluster.endless(items=["b", "c"], pool_check_period_s=0.0))
    assert inspect(memory).pools == {"report": ("b", "c")}, "the last read wins"
    said = [text for text in warnings(caplog) if "work pool" in text]
    assert len(said) == 1
    assert "another node stored other items; those of node n2 replace them: " in said[0]
    assert said[0].endswith("1 added ['c'], 1 removed ['a']")


def test_a_check_that_finds_other_items_stored_says_which_and_no_more_than_a_few(memory, cluster, eventually, caplog):
    many = [f"i{number}" for number in range(9)]
    first = cluster.endless(items=["a"], pool_check_period_s=0.0)
    cluster.node(memory, "n1", first)
    cluster.node(memory, "n2", cluster.endless(items=["a", *many], pool_check_period_s=0.0))
    caplog.clear()
    first.refresh_pool()
    eventually(lambda: warnings(caplog))
    assert warnings(caplog)[0].endswith(
        f"those of node n1 replace them: 0 added [], 9 removed {many[: pools_module._MAX_SHOWN]}"
    )


def test_a_lone_node_that_comes_back_with_another_pool_disagrees_with_nobody(memory, cluster, caplog):
    memory.put(keys.work_pool_key("report"), b'{"count":1,"items":["z"]}')
    caplog.set_level(logging.INFO)
    cluster.node(memory, "n1", cluster.endless(items=["a"]))
    assert "work pool of job report changed since it was stored: 1 added ['a'], 1 removed ['z']" in caplog.text
    assert not [text for text in warnings(caplog) if "work pool" in text]
