"""One bad record in a store harms itself only: other primitives, other items, other nodes and all screens go on."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import latchwork
from latchwork import BadRecord, LatchworkError, Put, WaitTimeout
from latchwork.jobs import Control, FixedDelay, Job, JobManager, Threads, inspect, read_audit
from latchwork.jobs.stored import cluster_store
from latchwork.primitives import (
    Barrier,
    Counter,
    Election,
    LeaderLatch,
    Lock,
    Once,
    PersistentLock,
    Queue,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    Sequence,
)
from latchwork.primitives.leased.inspect import lock_states
from latchwork.store import system_namespace
from levels import LONG
from patience import eventually
from security.stored import PARTS, spoilt

NAME = "it"
DEEP = b"[" * 100_000
HUGE = b'{"state":"ready","owner":"o1","pid":1' + b"0" * 400 + b',"ttl_s":1' + b"0" * 400 + b',"since":1e300}'


def barrier_of_one(store, keep):
    with pytest.raises(WaitTimeout):
        keep(Barrier(store, NAME, parties=2, member_id="x")).wait(0.05)


#: The primitives as somebody uses them who stays; `keep` closes what it is given at the end.
FIRST = {
    "lock": lambda store, keep: keep(Lock(store, NAME, label="me")).acquire(5),
    "reader": lambda store, keep: keep(ReadWriteLock(store, NAME, label="me")).read.acquire(5),
    "latch": lambda store, keep: keep(LeaderLatch(store, NAME, node_id="me")).start(),
    "election": lambda store, keep: keep(Election(store, NAME, node_id="me")).campaign(b"\xff", timeout_s=5),
    "semaphore": lambda store, keep: keep(Semaphore(store, NAME, leases=2)).acquire(5),
    "persistent lock": lambda store, keep: keep(PersistentLock(store, NAME, ttl_s=5)).acquire(5),
    "counter": lambda store, _: Counter(store, NAME).add(1),
    "sequence": lambda store, _: Sequence(store, NAME).take(lambda number: [Put(f"r/{number}", b"x")]),
    "queue": lambda store, keep: (
        keep(Queue(store, NAME, capacity=5)).put_many([b"1", b"2" * 5000, b"3"], timeout_s=5),
        keep(Queue(store, NAME)).take(5),
    ),
    "once": lambda store, keep: keep(Once(store, NAME)).run(lambda _: b"x", timeout_s=5),
    "rate limiter": lambda store, keep: keep(RateLimiter(store, NAME, permits=2, interval_s=1)).acquire(timeout_s=5),
    "barrier": barrier_of_one,
}
#: What others do with them, each call by itself.
SECOND = {
    "lock": lambda store, keep: [
        Lock(store, NAME).holder,
        Lock(store, NAME).waiters,
        lambda: keep(Lock(store, NAME)).acquire(0.02),
    ],
    "reader": lambda store, keep: [lambda: keep(ReadWriteLock(store, NAME)).write.acquire(0.02)],
    "latch": lambda store, _: [LeaderLatch(store, NAME, node_id="x").candidates],
    "election": lambda store, keep: [
        Election(store, NAME, node_id="x").leader,
        Election(store, NAME, node_id="x").candidates,
        lambda: keep(Election(store, NAME, node_id="x")).campaign(b"", timeout_s=0.02),
        lambda: keep(Election(store, NAME, node_id="x").observe()).next(1.0),
    ],
    "semaphore": lambda store, keep: [lambda: keep(Semaphore(store, NAME, leases=2)).acquire(0.02)],
    "persistent lock": lambda store, keep: [
        lambda: keep(PersistentLock(store, NAME, ttl_s=5)).acquire(0.02),
        lambda: lock_states(store),
    ],
    "counter": lambda store, _: [Counter(store, NAME).value, lambda: Counter(store, NAME).add(1, timeout_s=1)],
    "sequence": lambda store, _: [lambda: Sequence(store, NAME).take(lambda number: [Put(f"r/{number}", b"x")])],
    "queue": lambda store, keep: [
        Queue(store, NAME).items,
        Queue(store, NAME).claims,
        lambda: keep(Queue(store, NAME, capacity=5)).take(0.02),
        lambda: keep(Queue(store, NAME, capacity=5)).put(b"4", timeout_s=0.02),
        Queue(store, NAME).dead_letters,
    ],
    "once": lambda store, keep: [lambda: keep(Once(store, NAME)).run(lambda _: b"x", timeout_s=1)],
    "rate limiter": lambda store, keep: [
        lambda: keep(RateLimiter(store, NAME, permits=2, interval_s=1)).acquire(timeout_s=0.02)
    ],
    "barrier": lambda store, keep: [lambda: keep(Barrier(store, NAME, parties=2, member_id="x")).wait(0.05)],
}


@pytest.fixture
def memory():
    with latchwork.connect("memory://bad-records", call_timeout_s=5) as store:
        yield store


def keys_of(store):
    return [entry.key for entry in store.list("", recursive=True)]


def use_beside(store, name, nth, spoil):
    """Use a primitive of which the nth stored record is another value; False when it has no such record."""
    store = system_namespace(store, "locks") if name == "persistent lock" else store
    store.delete_tree("")
    with ExitStack() as stack:

        def keep(made):
            return stack.enter_context(closing(made))

        FIRST[name](store, keep)
        entries = store.list("", recursive=True)
        if nth >= len(entries):
            return False
        store.put(entries[nth].key, spoil(entries[nth].value))
        begun = time.monotonic()
        for call in SECOND[name](store, keep):
            try:
                call()
            except LatchworkError as error:
                str(error).encode()
        assert time.monotonic() - begun < 10
    store.delete_tree("")
    return True


@pytest.mark.parametrize("value", [DEEP, HUGE, b"\xff", b'"\\ud800"'], ids=["deep", "huge", "binary", "surrogate"])
@pytest.mark.parametrize("name", FIRST)
def test_a_primitive_with_a_bad_record_answers_or_says_so(memory, name, value):
    store = memory.namespace(f"{name.replace(' ', '-')}-{len(value)}")
    for nth in range(9):
        if not use_beside(store, name, nth, lambda _: value):
            return


def spoilt_somewhere(value, part, at):
    try:
        found = list(spoilt(value, part))
    except ValueError:
        return b"\xff"
    return found[at % len(found)]


@settings(max_examples=600 if LONG else 20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(FIRST)), st.integers(0, 5), st.sampled_from(PARTS), st.integers(0, 20))
def test_a_primitive_with_a_bad_part_in_a_record_answers_or_says_so(memory, name, nth, part, at):
    use_beside(memory.namespace("parts"), name, nth, lambda value: spoilt_somewhere(value, part, at))


def test_what_is_no_item_of_a_queue_is_a_dead_letter_and_the_next_item_is_taken(store):
    with closing(Queue(store, "q")) as queue:
        ids = queue.put_many([b"1", b"2"])
        store.put(f"q/partitions/all/items/5-000000000/{ids[0]}", DEEP)
        with queue.take(5) as claim:
            assert claim.value == b"2"
        (letter,) = queue.dead_letters()
        assert letter.id == ids[0]
        assert letter.value == DEEP
        assert "does not contain an item of a work queue" in letter.why
        store.put("q/dead/zzz", b"nobody's")
        assert [each.id for each in queue.dead_letters()] == [ids[0], "zzz"]
        with pytest.raises(BadRecord, match=r"delete it"):
            queue.requeue("zzz")
        queue.drop("zzz")
        assert queue.size() == 0


def test_a_lock_whose_owner_is_no_segment_of_a_key_does_not_stop_the_sweep_of_others(store):
    with closing(PersistentLock(store, "good", ttl_s=5)) as lock:
        lock.acquire(5)
        locks = system_namespace(store, "locks")
        for number, owner in enumerate(["a b", "../x", "x" * 500, "a/b/", "\u202e"]):
            locks.put(f"locks/bad{number}", json.dumps({"owner": owner, "nonce": "n"}).encode())
        held = [state.name for state in lock_states(store) if state.holder is not None]
        assert held == ["good"]


BAD = {
    "alive/evil": DEEP,
    "alive/evil2": HUGE,
    "alive/evil3": b'{"state":"ready","weight":1e308,"ttl_s":1e308,"since":-1e300,"labels":[1],'
    b'"unmet_labels":{"j":[[]]}}',
    "workers/evil3/available/j": b"",
    "settings/cluster": DEEP,
    "settings/jobs/j": HUGE,
    "settings/jobs/other": b'{"threads":' + b"1" * 400 + b',"schedule":{"fixed_delay_s":' + b"1" * 400 + b"}}",
    "nodes/evil": DEEP,
    "nodes/evil2": b'{"state":"restarting","weight":1' + b"0" * 400 + b"}",
    "nodes/evil4": b'{"state":"restarting","weight":1e308,"timeout_s":1e308,"jobs":["j"]}',
    "work-pool/deep": DEEP,
    "work-pool/text": b"x",
    "work-pool/missing": b'{"chunks":["nope"]}',
    "work-pool/path": b'{"chunks":["../x","a b"]}',
    "work-pool/twice": b'{"items":["a","a"]}',
    "work-pool/surrogate": b'{"items":["\\ud800"]}',
    "work-pool/long": json.dumps({"items": ["x" * 100_000]}).encode(),
    "workers/evil/assigned/j": DEEP,
    "workers/evil2/assigned/j": b'{"items":["b","a"]}',
    "workers/evil5/assigned/j": b'{"chunks":["nope"]}',
    "audit/0000000001": DEEP,
    "runs/evil": DEEP,
    "runs/evil2": b'{"jobs":{"j":{"runs":1e308,"items":[],"since":1e300,"named":{"a":1e300}}}}',
    "owners/evil": DEEP,
    "owners/evil2": b'{"ttl_s":1e308,"label":5,"host":[],"pid":1e308}',
    "locks/j/zzz": DEEP,
    "locks/j/zzy": b'{"owner":"evil2","since_s":1e300}',
    "locks/j/zzx": b'{"owner":"a b"}',
    "locks/~ZZ": b'{"owner":"evil2"}',
    "fired/j/c1": b'{"fired":[[0,null]],"of":[[0,1000000000]],"token":1,"owner":"x"}',
    "fired/j/c1/items": b'["a"]',
    "fired/gone/c2": DEEP,
}


def test_a_cluster_with_a_bad_record_of_every_kind_still_gives_each_item_to_a_node(store):
    items = [f"i{number:02}" for number in range(12)]
    seen, cluster = {}, cluster_store(store)

    def node(node_id):
        def run(context):
            for item in context.items:
                seen.setdefault(item, set()).add(node_id)
            context.wait_for_stop(0.05)

        job = Job("j", work_pool=items, run=run, schedule=FixedDelay(0.1), initial_delay_s=0, threads=Threads.whole())
        return JobManager(
            store, node_id, job, session_ttl_s=3, lock_ttl_s=3, debounce_s=0.1, debounce_max_s=0.5, close_timeout_s=5
        )

    def shares(*ids):
        state = inspect(store)
        found = {each: set(state.nodes[each].assigned.get("j", ())) for each in ids if each in state.nodes}
        return found if len(found) == len(ids) and set().union(*found.values()) == set(items) else None

    with ExitStack() as stack:
        one = node("n1").start()
        stack.callback(one.close)
        stack.callback(node("n2").start().close)
        eventually(lambda: shares("n1", "n2"))
        for key, value in BAD.items():
            if key != "workers/evil3/available/j":  # it would have its part of the items, and run none
                cluster.put(key, value)
        stack.callback(node("n3").start().close)
        eventually(lambda: (found := shares("n1", "n2", "n3")) and all(found.values()))
        state = inspect(store)
        assert {"evil", "evil2", "evil3"} <= state.nodes.keys()
        Control(store).settings()
        assert read_audit(store) == []
        cluster.put("workers/evil3/available/j", b"")
        one.close()
        cluster.delete("alive/evil3")
        seen.clear()
        eventually(lambda: (found := shares("n2", "n3")) and all(found.values()))
        eventually(lambda: seen.keys() == set(items))
