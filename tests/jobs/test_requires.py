"""A job that demands labels runs only on nodes that have them."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.jobs import inspect


@pytest.fixture
def memory():
    with latchwork.connect("memory://requires") as store:
        yield store


def test_a_job_runs_only_on_nodes_that_have_the_labels_it_requires(memory, cluster, eventually):
    def jobs():
        return [cluster.endless("gpu", items=["a", "b"], requires={"gpu": "yes"}), cluster.endless("any", items=["c"])]

    cluster.node(memory, "n1", jobs(), labels={"gpu": "no"})
    eventually(lambda: set(cluster.log.owners()) == {"c"})
    assert "gpu" not in inspect(memory).pools, "a node that cannot run it does not say what it has to do"
    cluster.node(memory, "n2", jobs(), labels={"gpu": "yes", "zone": "x"})
    eventually(lambda: set(cluster.log.owners()) == {"a", "b", "c"})
    state = inspect(memory)
    assert set(state.job("gpu").assigned.values()) == {"n2"}
    assert state.job("gpu").nodes == ("n2",)
    assert state.job("any").nodes == ("n1", "n2")
