"""A job that demands labels runs only on nodes that have them."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.jobs import Control, UnknownJob, explain_item, inspect
from latchwork.jobs.stored import cluster_store


@pytest.fixture
def memory():
    with latchwork.connect("memory://requires") as store:
        yield cluster_store(store)


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


def test_a_job_whose_labels_nobody_has_is_a_warning_that_names_them(memory, cluster, eventually, caplog):
    cluster.node(memory, "n1", cluster.endless("gpu", requires={"gpu": "yes", "zone": "x"}), labels={"zone": "x"})
    eventually(lambda: "job gpu runs nowhere" in caplog.text)
    assert "node n1 has it but lacks the required labels: {'gpu': 'yes'}" in caplog.text
    cluster.node(memory, "n2", cluster.endless("other", items=["z"]))
    eventually(lambda: set(cluster.log.owners()) == {"z"})
    assert caplog.text.count("job gpu runs nowhere") == 1


def test_a_job_whose_items_are_known_and_whose_labels_nobody_has_any_more_says_which(
    memory, cluster, eventually, caplog
):
    def job():
        return cluster.endless("gpu", items=["a"], requires={"gpu": "yes"})

    cluster.node(memory, "n1", job())
    able = cluster.node(memory, "n2", job(), labels={"gpu": "yes"})
    eventually(lambda: set(cluster.log.owners()) == {"a"})
    able.close()
    eventually(
        lambda: "no ready worker can run its 1 items; node n1 has it but lacks the required labels" in caplog.text
    )


def test_the_inspector_knows_a_job_whose_labels_nobody_has_and_says_why_it_does_not_run(memory, cluster):
    cluster.node(memory, "n1", cluster.endless("gpu", items=["a"], requires={"gpu": "yes"}))
    state = inspect(memory)
    assert (state.job("gpu").nodes, state.job("gpu").items) == ((), 0)
    assert state.job("gpu").unmet_labels == {"n1": {"gpu": "yes"}}
    told = explain_item(state, Control(memory).settings(), "gpu", "a").sentences
    assert "no running node can run job gpu: n1 has it, but not the label gpu=yes" in told
    with pytest.raises(UnknownJob, match="known are: gpu"):
        state.job("nope")
