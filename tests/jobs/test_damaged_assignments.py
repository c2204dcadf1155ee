"""An assignment that another program has overwritten: its node reports it, and the manager writes it again."""

from __future__ import annotations

import time

import pytest

from latchwork.jobs import Control, explain_item, inspect
from latchwork.jobs.stored import keys
from latchwork.jobs.worker import worker as worker_module

DAMAGE = b"\xff{garbage"


@pytest.fixture
def nodes(store, cluster, eventually):
    """A manager and another node, with two items each."""
    made = [cluster.node(store, name, cluster.endless()) for name in ("n1", "n2")]
    eventually(lambda: all(run_two_items(node) for node in made))
    assert made[0].is_manager
    return made


def run_two_items(node):
    return node.stats().jobs["report"].items == 2 and node.health().degraded == ()


@pytest.mark.parametrize("damaged", ["n1", "n2"])
def test_manager_in_office_writes_a_damaged_assignment_again(store, nodes, cluster, eventually, damaged):
    manager, _ = nodes
    key, before = keys.assignment_key(damaged, "report"), cluster.log.count(damaged)
    assigned = store.get(key).value
    store.put(key, DAMAGE)
    eventually(lambda: cluster.log.count(damaged) == {item: 2 * count for item, count in before.items()})
    eventually(lambda: all(run_two_items(node) for node in nodes))
    assert store.get(key).value == assigned
    assert manager.is_manager
    eventually(lambda: store.list("nodes", recursive=True) == [])


def test_damaged_assignment_of_a_node_without_items_is_deleted(store, cluster, eventually):
    nodes = [cluster.node(store, name, cluster.endless(items=["a"])) for name in ("n1", "n2")]
    eventually(lambda: sum(node.stats().jobs["report"].items for node in nodes) == 1)
    eventually(lambda: len(inspect(store).nodes) == 2)
    (idle,) = [node for node in nodes if node.stats().jobs["report"].items == 0]
    key = keys.assignment_key(idle.node_id, "report")
    store.put(key, DAMAGE)
    eventually(lambda: store.get(key) is None)
    eventually(lambda: store.list("nodes", recursive=True) == [])
    eventually(lambda: idle.health().degraded == ())


def test_assignment_that_is_damaged_again_and_again_is_written_once_in_a_while(store, nodes, eventually, monkeypatch):
    """Until then, ``why`` and the health of the node say so."""
    monkeypatch.setattr(worker_module, "_REPORT_S", 1.0)
    _, node = nodes
    key, repairs, until = keys.assignment_key("n2", "report"), 0, time.monotonic() + 4.0
    item = inspect(store).nodes["n2"].assigned["report"][0]
    while time.monotonic() < until:
        if store.get(key).value != DAMAGE:
            store.put(key, DAMAGE)
            repairs += 1
        time.sleep(0.01)
    assert 2 <= repairs <= 6
    eventually(lambda: store.get(key).value != DAMAGE and run_two_items(node))
    node._worker._report_at = store.clock.now() + 3600.0
    store.put(key, DAMAGE)
    text = "the assignment of node n2 in job report is damaged in the store"
    eventually(lambda: any(text in each for each in node.health().degraded))
    assert node.health().ok
    found = explain_item(inspect(store), Control(store).settings(), "report", item)
    assert any(text in each for each in found.sentences)
