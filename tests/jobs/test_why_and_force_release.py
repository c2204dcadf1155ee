"""Why an item is where it is, and taking a lock from a node by hand."""

from __future__ import annotations

import re
import threading

import pytest

import latchwork
from latchwork import Conflict
from latchwork.assignment import Rendezvous
from latchwork.jobs import Control, Job, JobManager, LockNotHeld, UnknownJob, explain_item, inspect, read_audit
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.stored.requests import (
    AuditRecord,
    decode_audit_record,
    delete_old_audit_records,
    find_force_released_tokens,
)
from latchwork.schedules.fires import FireProgress


@pytest.fixture
def memory():
    with latchwork.connect("memory://why") as store:
        yield cluster_store(store)


def said(store, job, item, **more):
    return " / ".join(explain_item(inspect(store), Control(store).settings(), job, item, **more).sentences)


# Why


def test_a_running_item_is_explained_by_its_node_its_assignment_and_its_lock(memory, cluster, eventually):
    cluster.node(memory, "n1", cluster.endless(items=["north"]))
    eventually(cluster.log.owners)
    found = explain_item(inspect(memory), Control(memory).settings(), "report", "north")
    assert (found.assigned, found.locked_by, found.able, found.enabled) == ("n1", "n1", ("n1",), True)
    assert found.sentences[0] == "it is assigned to node n1"
    assert "distributed as n1 1 (able: n1)" in found.sentences[1]
    assert found.sentences[2].startswith("strategy balanced: 'n1' keeps 'north'")
    assert re.search(r"node n1 holds its lock since \d{4}-\d\d-\d\dT[\d:]+Z \(fencing token ", found.sentences[3])
    assert "everything is done up to 1970-01-01T00:10:00Z" in said(memory, "report", "north", fired=FireProgress(600.0))
    assert "has started and not ended" in said(memory, "report", "north", fired=FireProgress(600.0, 600.0))


@pytest.mark.parametrize(
    ("strategy", "name", "reasons"),
    [
        ("balanced", "balanced", {"kept"}),
        ("evenly-spread", "evenly-spread", {"kept"}),
        (Rendezvous("compat"), "rendezvous:compat", {"score"}),
        ("evenly-rendezvous", "evenly-rendezvous", {"score", "score-with-room"}),
    ],
)
def test_the_strategy_says_why_it_has_an_item_where_it_is(memory, cluster, eventually, strategy, name, reasons):
    for node in ("n1", "n2"):
        cluster.node(memory, node, cluster.endless(items="abcdef"), strategy={"report": strategy})
    placed = {"n1", "n2"} if "rendezvous" not in name else set()
    eventually(lambda: len(cluster.log.owners()) == 6 and placed <= set(cluster.log.owners().values()))
    found = eventually(lambda: explained(memory, cluster, reasons))
    for item, it in found.items():
        assert it.strategy == name
        told = [sentence for sentence in it.sentences if sentence.startswith(f"strategy {name.partition(':')[0]}: ")]
        assert len(told) == 1
        assert f"{item}'" in told[0]


def explained(store, cluster, reasons):
    """Why each item is where it is, once it runs there and was put there with both nodes in view."""
    if (state := settled(store, cluster)) is None:
        return None
    found = {item: explain_item(state, Control(store).settings(), "report", item) for item in "abcdef"}
    return found if {each.reason for each in found.values()} <= reasons else None


def settled(store, cluster):
    """The state, once everything runs where it is assigned."""
    state = inspect(store)
    return state if state.job("report").assigned == cluster.log.owners() else None


def test_of_a_custom_strategy_only_the_name_is_said(memory, cluster, eventually):
    class Mine:
        name = "mine"

        def assign(self, problem):
            return Rendezvous().assign(problem)

    cluster.node(memory, "n1", cluster.endless(items=["a"]), strategy=Mine())
    eventually(cluster.log.owners)
    found = explain_item(inspect(memory), Control(memory).settings(), "report", "a")
    assert (found.strategy, found.reason) == ("custom:mine", None)


def test_an_item_that_is_not_in_the_pool_is_answered_with_similar_ones(memory, cluster, eventually):
    cluster.node(memory, "n1", cluster.endless(items=["north", "south"]))
    eventually(lambda: len(cluster.log.owners()) == 2)
    assert said(memory, "report", "norht").startswith(
        "item 'norht' is not in the work pool of job report, which has 2 items; similar names are 'north'"
    )
    with pytest.raises(UnknownJob, match="known are: report"):
        said(memory, "rapport", "north")


def test_the_reason_why_nothing_runs_is_said_first(memory, cluster, eventually):
    control = Control(memory)
    cluster.node(memory, "n1", cluster.endless(items=["a"]))
    eventually(cluster.log.owners)
    control.disable("report")
    eventually(lambda: not cluster.log.owners())
    assert said(memory, "report", "a").startswith("job report is disabled: its switch is off; ")
    control.enable("report")
    control.drain("n1")
    eventually(lambda: inspect(memory).job("report").assigned == {})
    assert "not assigned: no running node can run job report; not n1 (drained)" in said(memory, "report", "a")


def test_an_item_whose_old_run_does_not_stop_is_said_to_be_locked_there(memory, cluster, eventually):
    leave = threading.Event()
    cluster.node(memory, "n1", cluster.endless(items=["a"], run=lambda _context: leave.wait(20)))
    eventually(lambda: inspect(memory).job("report").running == {"a": "n1"})
    cluster.node(memory, "n2", cluster.endless(items=["a"]))
    Control(memory).drain("n1")
    eventually(lambda: inspect(memory).job("report").assigned == {"a": "n2"})
    assert "its lock is still held by node n1" in said(memory, "report", "a")
    assert "node n2 waits for it" in said(memory, "report", "a")
    leave.set()
    eventually(lambda: inspect(memory).job("report").running == {"a": "n2"})


# By hand


def test_a_lock_freed_by_hand_stops_its_run_refuses_its_writes_and_is_written_down(store, cluster, eventually):
    contexts, ended, leave = [], threading.Event(), threading.Event()

    def run(context):
        contexts.append((context, context.fence("a")))
        context.wait_for_stop(20)
        leave.wait(20)
        ended.set()

    node = cluster.node(store, "n1", cluster.endless(items=["a"], run=run))
    eventually(lambda: contexts)
    context, fence = contexts[0]
    record = Control(store, by="ops@desk").force_release("report", "a", reason="hangs in I/O")
    eventually(lambda: context.should_stop)
    with pytest.raises(Conflict):
        store.commit([fence], [latchwork.Put("result/a", b"late")])
    assert (record.job, record.item, record.by, record.reason) == ("report", "a", "ops@desk", "hangs in I/O")
    assert record.token == fence.token
    assert "'n1'" in record.holder
    assert read_audit(store) == [record]
    leave.set()
    assert ended.wait(5)
    eventually(lambda: len(contexts) >= 2)
    assert contexts[1][1].token > fence.token, "it is locked anew"
    node.close()


def test_a_lock_that_nobody_holds_cannot_be_freed(memory):
    with pytest.raises(LockNotHeld, match="the lock of item 'a' of job report is free; nothing was changed"):
        Control(memory).force_release("report", "a", reason="typing error")
    assert read_audit(memory) == []


def test_the_item_starts_elsewhere_at_once_when_its_lock_is_freed_by_hand(memory, cluster, eventually):
    leave = threading.Event()
    hung = Job("report", work_pool=["a"], run=lambda _context: leave.wait(20), initial_delay_s=0.0)
    first = JobManager(memory, "n1", hung, session_ttl_s=60.0, lock_ttl_s=60.0, close_timeout_s=0.5, debounce_s=0.05)
    with first:
        eventually(lambda: inspect(memory).job("report").running == {"a": "n1"})
        cluster.node(memory, "n2", cluster.endless(items=["a"]))
        Control(memory).drain("n1")
        eventually(lambda: inspect(memory).job("report").assigned == {"a": "n2"})
        Control(memory).force_release("report", "a", reason="n1 hangs")
        eventually(lambda: cluster.log.owners() == {"a": "n2"})
        leave.set()


def test_audit_records_survive_being_stored_and_strangers_are_left_out(memory):
    record = AuditRecord("j", "i", 7, "n1", "me", "now", "why")
    assert decode_audit_record(record.to_bytes()) == record
    assert decode_audit_record(b"[]") is None
    for number in range(1003):
        memory.put(f"audit/{number:06}", AuditRecord("j", "i", number, "n1", "me", "now", "why").to_bytes())
    memory.put("audit/x", b"?")
    assert find_force_released_tokens(memory.list("audit")) == {("j", "i"): 1002}
    assert delete_old_audit_records(memory, []) == 4
    assert len(memory.list("audit")) == 1000
