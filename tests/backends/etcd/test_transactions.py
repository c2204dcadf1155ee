"""What is special about transactions, keys and lists on etcd."""

from __future__ import annotations

import itertools
import threading

import pytest

from latchwork.backends.base import MAX_VALUE_BYTES, Current, Snapshot
from latchwork.backends.capabilities import MAX_CHECKS, MAX_OPS
from latchwork.backends.etcd.layout import EtcdKeys, exclude_keys
from latchwork.errors import Conflict, InvalidKey, TransactionTooLarge
from latchwork.types import Absent, At, Create, Delete, Exists, Put
from latchwork_testkit.etcd_rpc import pb


@pytest.fixture
def calls(backend):
    """Names of the calls that the backend sends, as it sends them."""
    sent = []
    send = backend._connection.send

    def spy(method, request, timeout_s, **how):
        sent.append(method)
        return send(method, request, timeout_s, **how)

    backend._connection.send = spy
    return sent


def test_hundred_checks_and_hundred_creations_below_different_parents_are_all_or_nothing(backend):
    held = backend.commit([], [Put(f"held/{number}", b"") for number in range(MAX_CHECKS)]).result(5)
    session = backend.open_session(30, lambda: None).result(5)
    checks = [At(entry) for entry in held.entries]
    ops = [Create(f"a{number}/b{number}/c{number}", b"x", session) for number in range(MAX_OPS)]
    done = backend.commit(checks, ops).result(5)
    assert [entry.key for entry in done.entries] == [op.key for op in ops]
    assert {entry.owner for entry in done.entries} == {session.id}
    backend.delete_tree("a7").result(5)
    again = [Create("new/k", b""), *ops[1:]]
    refused = backend.commit(checks, again).exception(5)
    assert isinstance(refused, Conflict)
    assert set(refused.failed) == set(ops[1:7]) | set(ops[8:])
    assert backend.get("new/k", stale_ok=False).result(5) is None
    assert backend.get("a7/b7/c7", stale_ok=False).result(5) is None


def test_large_transaction_names_the_one_failed_check(backend):
    checks = [*(Absent(f"no/{number}") for number in range(99)), Exists("missing")]
    ops = [Create(f"x{number}/y/z", b"") for number in range(MAX_OPS)]
    refused = backend.commit(checks, ops).exception(5)
    assert isinstance(refused, Conflict)
    assert refused.failed == (Exists("missing"),)
    assert backend.children("").result(5) == []


def test_one_round_trip_writes_and_another_one_tells_which_check_failed(backend, calls):
    first = backend.commit([], [Put("a", b"1"), Put("b", b"1")]).result(5)
    backend.commit([], [Put("b", b"2")]).result(5)
    del calls[:]
    refused = backend.commit([At(entry) for entry in first.entries], [Put("a", b"3")]).exception(5)
    assert refused.failed == (At(first.entries[1]),)
    assert calls == ["Txn"]


def test_put_without_session_keeps_the_owner_whoever_wrote_it(backend, server, root, opened):
    other = opened(server.url(root))
    session = backend.open_session(30, lambda: None).result(5)
    created = backend.commit([], [Create("k", b"1", session)]).result(5)
    for client in (backend, other):
        entry = client.commit([], [Put("k", b"2")]).result(5).entries[0]
        assert (entry.owner, entry.created) == (session.id, created.token)
    session.close().result(5)
    assert other.get("k", stale_ok=False).result(5) is None
    assert other.commit([], [Put("k", b"3")]).result(5).entries[0].owner is None


def test_put_keeps_the_owner_of_a_key_that_changes_hands_all_the_time(backend, server, root, opened):
    other = opened(server.url(root))
    sessions = [backend.open_session(30, lambda: None).result(5) for _ in range(2)]
    stop = threading.Event()

    def rebind():
        turn = 0
        while not stop.is_set():
            turn += 1
            backend.commit([], [Put("k", b"bound", sessions[turn % 2])]).result(5)

    thread = threading.Thread(target=rebind)
    thread.start()
    try:
        for _ in range(50):
            entry = other.commit([], [Put("k", b"plain")]).result(9).entries[0]
            assert entry.owner in {None, *(session.id for session in sessions)}
    finally:
        stop.set()
        thread.join()
    assert backend.get("k", stale_ok=False).result(5).owner is not None


def test_session_bound_keys_are_leaves_also_in_the_middle_of_a_transaction(backend):
    session = backend.open_session(30, lambda: None).result(5)
    backend.commit([], [Create("a/leaf", b"", session), Create("b/c/d", b"")]).result(5)
    for ops in (
        [Put("a/leaf/x", b"")],
        [Create("a/leaf/x/y", b"", session)],
        [Put("b", b"", session)],
        [Put("b/c", b"", session)],
    ):
        with pytest.raises(InvalidKey):
            backend.commit([], ops).result(5)
    backend.commit([], [Delete("a/leaf"), Create("a/leaf/x", b"")]).result(5)
    backend.commit([], [Delete("b/c/d"), Put("b/c", b"", session)]).result(5)
    backend.commit([], [Put("b/c-d", b"")]).result(5)


def test_largest_value_can_be_written_and_overwritten_with_a_watch_and_a_list(backend, collector):
    seen = collector()
    backend.watch("big", seen)
    for fill in (b"1", b"2"):
        value = fill * (MAX_VALUE_BYTES - 10)
        for number in range(3):
            backend.commit([], [Put(f"big/{number}", value)]).result(5)
        entries = backend.list("big", recursive=False, limit=None, start_after=None).result(5)
        assert [entry.value for entry in entries] == [value] * 3
        seen.wait_until(lambda it, value=value: it.values() == {f"big/{number}": value for number in range(3)})
    late = collector()
    backend.watch("big", late)
    late.wait_until(lambda it: len(it.state) == 3)


def test_request_beyond_what_the_server_takes_is_refused_in_our_words(backend):
    with pytest.raises(TransactionTooLarge, match="'k'"):
        backend.commit([], [Put("k", b"x" * 1_600_000)]).result(5)


def test_roots_that_start_alike_do_not_mix(server, root, opened, collector):
    short, long = opened(server.url(root)), opened(server.url(f"{root}2"))
    seen = collector()
    short.watch("", seen)
    long.commit([], [Put("k", b"other")]).result(5)
    short.commit([], [Put("k", b"mine")]).result(5)
    seen.wait_until(lambda it: it.values() == {"k": b"mine"})
    assert short.delete_tree("").result(5) == 1
    assert long.get("k", stale_ok=False).result(5).value == b"other"


def test_values_are_readable_as_they_are_under_their_name(backend, root, raw):
    backend.commit([], [Put("jobs/report", b'{"a":1}')]).result(5)
    assert raw.values(f"/{root}/jobs".encode()) == {f"/{root}/jobs/report".encode(): b'{"a":1}'}


def test_own_keys_are_hidden_from_lists_children_and_watches(backend, collector):
    seen = collector()
    backend.watch("", seen)
    session = backend.open_session(30, lambda: None).result(5)
    backend.create_sequential("q/n-", b"", session).result(5)
    seen.wait_until(lambda it: it.state)
    assert list(seen.state) == ["q/n-0000000001"]
    assert backend.children("").result(5) == ["q"]
    listed = backend.list("", recursive=True, limit=None, start_after=None).result(5)
    assert [entry.key for entry in listed] == ["q/n-0000000001"]


def test_direct_children_among_huge_subtrees_cost_few_pages(backend, raw, root, calls):
    puts = [pb.RequestOp(request_put=pb.PutRequest(key=f"/{root}/d/{n:02d}/{m:05d}".encode(), value=b"v"))
            for n in range(4) for m in range(1200)]  # fmt: skip
    for start in range(0, len(puts), 100):
        raw.kv.Txn(pb.TxnRequest(success=puts[start : start + 100]), timeout=5)
    backend.commit([], [Put("d/00", b"a"), Put("d/01-x", b"b"), Put("d/04", b"c")]).result(5)
    del calls[:]
    listed = backend.list("d", recursive=False, limit=None, start_after=None).result(5)
    assert [(entry.key, entry.value) for entry in listed] == [("d/00", b"a"), ("d/01-x", b"b"), ("d/04", b"c")]
    assert len(calls) <= 8
    del calls[:]
    assert backend.children("d").result(5) == ["00", "01", "01-x", "02", "03", "04"]
    assert len(calls) <= 8
    limited = backend.list("d", recursive=False, limit=2, start_after="d/00").result(5)
    assert [entry.key for entry in limited] == ["d/01-x", "d/04"]
    paged, after = [], None
    while page := backend.list("d", recursive=True, limit=999, start_after=after).result(5):
        paged += [entry.key for entry in page]
        after = paged[-1]
    assert len(paged) == 4803
    assert paged == sorted(paged)


def test_sequence_numbers_of_three_stores_and_fifty_creators_are_unique_and_in_commit_order(server, root, opened):
    stores = [opened(server.url(root)) for _ in range(3)]
    futures = [stores[number % 3].create_sequential(f"q/n{number % 2}-", b"", None) for number in range(50)]
    entries = sorted((future.result(9) for future in futures), key=lambda entry: entry.token)
    numbers = [int(entry.key[-10:]) for entry in entries]
    assert numbers == list(range(1, 51))
    assert stores[0].delete_tree("q").result(5) == 50
    assert stores[1].create_sequential("q/n-", b"", None).result(5).key == "q/n-0000000051"


def test_number_that_somebody_used_by_hand_is_passed_over(backend):
    backend.commit([], [Put("q/n-0000000001", b"by hand")]).result(5)
    assert backend.create_sequential("q/n-", b"", None).result(5).key == "q/n-0000000002"


def test_idle_watch_is_known_to_be_current_every_two_seconds(backend, collector):
    seen = collector()
    backend.watch("w", seen)
    seen.wait_until(lambda it: sum(isinstance(event, Current) for event in it.events) >= 2, 6)
    times = [event.as_of for event in seen.events if isinstance(event, (Snapshot, Current))]
    assert times == sorted(times)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 2.0


def test_closed_watch_is_silent_and_closes_from_inside_its_own_sink(backend):
    events, closed = [], threading.Event()

    def sink(event):
        events.append(event)
        watch.close()
        closed.set()

    ready = threading.Event()
    watch = backend.watch("w", lambda event: ready.wait(5) and sink(event))
    ready.set()
    assert closed.wait(5)
    backend.commit([], [Put("w/k", b"1")]).result(5)
    other = threading.Event()
    backend.watch("w", lambda event: other.set())
    assert other.wait(5)
    assert len(events) == 1


def test_ranges_with_holes_cover_everything_else():
    keys = EtcdKeys("r")
    (span,) = keys.ranges_below("a")
    parts = exclude_keys(span, [b"/r/a/b", b"/r/a/c"])
    assert parts == [(b"/r/a/", b"/r/a/b"), (b"/r/a/b\0", b"/r/a/c"), (b"/r/a/c\0", b"/r/a0")]
    assert exclude_keys(span, []) == [span]
