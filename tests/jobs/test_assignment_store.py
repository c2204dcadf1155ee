"""How the leader writes the assignment."""

from __future__ import annotations

import pytest

import latchwork
from latchwork import Conflict, Exists
from latchwork.jobs.manager.assignment_store import AssignmentStore
from latchwork.jobs.manager.rebalance import AssignmentChange
from latchwork.jobs.stored import cluster_store, keys
from latchwork.jobs.stored.chunked_set import read_set


@pytest.fixture
def memory():
    with latchwork.connect("memory://ledger") as store:
        cluster = cluster_store(store)
        cluster.put("leader/t1", b"")
        yield cluster


@pytest.fixture
def fence(memory):
    return memory.fence(1, Exists("leader/t1"))


def ledger_of(store, fence, tag="m1"):
    ledger = AssignmentStore(store, tag)
    ledger.load(fence)
    return ledger


def change(worker, after, before=(), job="report"):
    return AssignmentChange(worker, job, tuple(before), tuple(after))


def test_what_one_leader_wrote_the_next_one_reads(memory, fence):
    big = tuple(f"item-{i:05d}" for i in range(2_000))
    ledger_of(memory, fence).write([change("w1", big), change("w2", ("x",))], fence)
    assert ledger_of(memory, fence, "m2").get_assignments() == {"report": {"w1": big, "w2": ("x",)}}


def test_an_emptied_assignment_leaves_no_key(memory, fence):
    ledger = ledger_of(memory, fence)
    ledger.write([change("w1", [f"item-{i:05d}" for i in range(2_000)])], fence)
    ledger.write([change("w1", (), ledger.get_assignments()["report"]["w1"])], fence)
    assert memory.list("workers", recursive=True) == []


def test_a_leader_without_leadership_writes_nothing(memory, fence):
    ledger = ledger_of(memory, fence)
    memory.delete("leader/t1")
    with pytest.raises(Conflict):
        ledger.write([change("w1", ("a",))], fence)
    assert memory.list("workers", recursive=True) == []
    assert memory.get(keys.GUARD_ASSIGNMENT) is None


def test_a_leader_that_missed_a_write_is_refused_by_the_guard_and_by_the_head(memory, fence):
    first, second = ledger_of(memory, fence), ledger_of(memory, fence, "m2")
    first.write([change("w1", ("a",))], fence)
    with pytest.raises(Conflict):
        second.write([change("w2", ("a",))], fence)
    second.load(fence)
    second.write([change("w2", ("b",))], fence)
    assert second.get_assignments() == {"report": {"w1": ("a",), "w2": ("b",)}}


def test_an_assignment_that_another_client_wrote_is_not_overwritten(memory, fence):
    ledger = ledger_of(memory, fence)
    ledger.write([change("w1", ("a",))], fence)
    by_hand = memory.put(keys.assignment_key("w1", "report"), b"by hand")
    with pytest.raises(Conflict) as refused:
        ledger.write([change("w1", ("a", "b"), ("a",))], fence)
    assert [failed.key for failed in refused.value.failed] == [by_hand.key]
    assert memory.get(by_hand.key) == by_hand


def test_a_small_rebalance_is_one_transaction(memory, fence):
    ledger = ledger_of(memory, fence)
    ledger.write([change(f"w{i}", (f"a{i}",)) for i in range(50)], fence)
    assert ledger.writes == 1


def test_a_large_rebalance_shrinks_heads_before_it_grows_others(memory, fence):
    ledger = ledger_of(memory, fence)
    ledger.write([change(f"w{i:03d}", (f"a{i}", f"b{i}")) for i in range(200)], fence)
    swapped = [change(f"w{i:03d}", (f"a{i}", f"b{(i + 1) % 200}"), (f"a{i}", f"b{i}")) for i in range(200)]
    commit = memory.commit

    def commit_and_look(checks, ops):
        done = commit(checks, ops)
        owners = {}
        for worker in range(200):
            for item in read_set(memory, keys.assignment_key(f"w{worker:03d}", "report")).chunked.items:
                owners.setdefault(item, []).append(worker)
        assert all(len(workers) == 1 for workers in owners.values())
        return done

    memory.commit = commit_and_look
    ledger.write(swapped, fence)
    assert ledger.get_assignments()["report"]["w007"] == ("a7", "b8")


def test_loading_deletes_chunks_that_no_head_names(memory, fence):
    memory.put(f"{keys.assignment_key('w1', 'report')}/m0-1", b'["a"]')
    ledger_of(memory, fence)
    assert memory.list("workers", recursive=True) == []


def test_a_damaged_assignment_is_written_again(memory, fence):
    big = [f"item-{i:05d}" for i in range(2_000)]
    ledger_of(memory, fence).write([change("w1", big)], fence)
    chunk = memory.list(keys.assignment_key("w1", "report"))[0]
    memory.delete(chunk.key)
    ledger = ledger_of(memory, fence, "m2")
    assert ledger.get_assignments() == {"report": {"w1": ()}}
    ledger.write([change("w1", big)], fence)
    assert read_set(memory, keys.assignment_key("w1", "report")).chunked.items == tuple(big)
    ledger_of(memory, fence, "m3")
    names = read_set(memory, keys.assignment_key("w1", "report")).chunked.chunk_names()
    assert len(memory.list(keys.assignment_key("w1", "report"))) == len(names)


def test_a_dead_workers_jobs_are_forgotten_but_not_those_of_one_that_came_back(memory, fence):
    memory.put(keys.available_job_key("w1", "report"), b"{}")
    ledger = ledger_of(memory, fence)
    assert ledger.find_stored_workers() == {"w1"}
    memory.put(keys.alive_key("w1"), b"{}")
    with pytest.raises(Conflict):
        ledger.delete_worker_jobs("w1", fence)
    memory.delete(keys.alive_key("w1"))
    ledger.delete_worker_jobs("w1", fence)
    assert memory.list("workers", recursive=True) == []
