"""Writes that were cut off: found out, and never landing late. Each race is lost on purpose."""

from __future__ import annotations

import time

import pytest

from latchwork.errors import Closed, OutcomeUnknown, Unavailable
from latchwork.types import Create, Delete, OrderedKey, Put
from latchwork_testkit.etcd_rpc import pb
from patience import came_true


@pytest.fixture
def proxy(server, proxied):
    return proxied(server)


@pytest.fixture
def cut_off(proxy, root, opened):
    """A backend behind the proxy, with a slot in use already."""
    backend = opened(f"etcd://{proxy.endpoint}/{root}?call_timeout_s=5")
    backend.commit([], [Put("warm", b"up")]).result(5)
    return backend


def test_control_a_blind_write_delayed_in_the_network_lands_late(server, proxy, raw, raw_client):
    delayed = raw_client(proxy)
    delayed.put(b"/control", b"1")
    proxy.hold("requests", open_only=True)
    late = delayed.kv.Put.future(pb.PutRequest(key=b"/control", value=b"late"), timeout=5)
    time.sleep(0.1)
    proxy.cut_clients()
    assert late.exception(5) is not None
    raw.put(b"/control", b"newer")
    proxy.release()
    landed = came_true(lambda: raw.values(b"/control")[b"/control"] == b"late", 5)
    assert landed, "the proxy delays nothing: the tests below prove nothing"


def test_write_delayed_in_the_network_never_lands_once_its_outcome_was_told(proxy, cut_off, backend):
    proxy.hold("requests", open_only=True)
    future = cut_off.commit([], [Put("k", b"delayed")])
    time.sleep(0.1)
    proxy.cut_clients()
    told = future.result(6)  # settled as not applied, and sent again
    newer = backend.commit([], [Put("k", b"newer")]).result(5)
    assert newer.token > told.token
    proxy.release()
    time.sleep(0.5)
    found = backend.get("k", stale_ok=False).result(5)
    assert (found.value, found.token, found.created) == (b"newer", newer.token, told.token)


@pytest.mark.parametrize("kind", ["put", "create", "delete", "tree", "sequential", "ordered"])
def test_write_whose_answer_was_lost_is_told_as_it_was_and_applied_once(kind, proxy, cut_off, backend):
    first = backend.commit([], [Put("k/a", b"1"), Put("k/b", b"1"), Put("gone", b"1")]).result(5)
    proxy.hold("answers", open_only=True)
    sent = {
        "put": lambda: cut_off.commit([], [Put("k/a", b"2"), Delete("gone"), Delete("never")]),
        "create": lambda: cut_off.commit([], [Create("new", b"2")]),
        "delete": lambda: cut_off.commit([], [Delete("gone")]),
        "tree": lambda: cut_off.delete_tree("k"),
        "sequential": lambda: cut_off.create_sequential("k/n-", b"2", None),
        "ordered": lambda: cut_off.create_ordered_key("k/t-", "one", b"2", None),
    }[kind]()
    time.sleep(0.2)
    proxy.cut_clients()
    told = sent.result(6)
    entries = {entry.key: entry for entry in backend.list("", recursive=True, limit=None, start_after=None).result(5)}
    if kind == "put":
        assert told.entries == (entries["k/a"],)
        assert entries["k/a"].created == first.token
        assert told.deleted == ("gone",)
    elif kind == "create":
        assert told.entries == (entries["new"],)
    elif kind == "delete":
        assert told.deleted == ("gone",)
        assert "gone" not in entries
    elif kind == "tree":
        assert told == 2
        assert set(entries) == {"gone", "warm"}
    elif kind == "ordered":
        assert told == OrderedKey(entries["k/t-one"], None), "the older keys of that moment are not known any more"
    else:
        assert told == entries["k/n-0000000001"]
        assert sorted(entries) == ["gone", "k/a", "k/b", "k/n-0000000001", "warm"]


def test_write_that_could_not_be_settled_is_unknown_and_the_next_read_of_this_store_is_final(
    proxy, opened, root, backend
):
    cut_off = opened(f"etcd://{proxy.endpoint}/{root}?call_timeout_s=1")
    cut_off.commit([], [Put("k", b"before")]).result(5)
    proxy.hold("requests", open_only=True)
    started = time.monotonic()
    future = cut_off.commit([], [Put("k", b"delayed")])
    time.sleep(0.1)
    proxy.refuse(new_only=True)
    proxy.cut_clients()
    with pytest.raises(OutcomeUnknown, match=r"'k'.*may still be applied"):
        future.result(5)
    assert time.monotonic() - started < 1.3
    with pytest.raises(Unavailable, match="nothing was sent"):
        cut_off.commit([], [Put("other", b"")]).result(5)
    proxy.accept()
    final = cut_off.get("k", stale_ok=False)
    while True:
        try:
            assert final.result(5).value == b"before"
            break
        except Unavailable:
            final = cut_off.get("k", stale_ok=False)
    proxy.release()
    time.sleep(0.5)
    assert backend.get("k", stale_ok=False).result(5).value == b"before"
    assert cut_off.commit([], [Put("k", b"after")]).result(5).entries[0].value == b"after"


def test_pipelined_writes_of_the_same_store_survive_the_settling_of_others(proxy, cut_off, backend):
    proxy.hold("answers", open_only=True)
    futures = [cut_off.commit([], [Put(f"p/{number}", b"x"), Create(f"once/{number}", b"")]) for number in range(50)]
    time.sleep(0.3)
    proxy.cut_clients()
    tokens = [future.result(6).token for future in futures]
    assert len(set(tokens)) == 50
    entries = backend.list("p", recursive=True, limit=None, start_after=None).result(5)
    assert sorted(entry.token for entry in entries) == sorted(tokens)


def test_writer_whose_lease_ended_goes_on_with_a_new_one(server, root, backend, raw):
    backend.commit([], [Put("k", b"1")]).result(5)
    (slot,) = raw.values(f"/{root}/@w/".encode())
    raw.lease.LeaseRevoke(pb.LeaseRevokeRequest(ID=int(slot.split(b"/")[-2], 16)), timeout=5)
    assert backend.commit([], [Put("k", b"2")]).result(5).entries[0].value == b"2"
    (other,) = raw.values(f"/{root}/@w/".encode())
    assert other != slot


def test_closed_stores_leave_no_guards_behind(server, root, opened, raw):
    for _ in range(5):
        backend = opened(server.url(root))
        for future in [backend.commit([], [Put(f"k/{number}", b"")]) for number in range(20)]:
            future.result(5)
        assert raw.values(f"/{root}/@w/".encode())
        backend.close()
    assert raw.values(f"/{root}/@".encode()) == {}


def test_close_with_writes_in_flight_ends_every_future_and_nothing_lands_afterwards(proxy, cut_off, backend):
    proxy.hold("requests", open_only=True)
    futures = [cut_off.commit([], [Put(f"p/{number}", b"x")]) for number in range(100)]
    started = time.monotonic()
    cut_off.close()
    assert time.monotonic() - started < 6
    for future in futures:
        assert isinstance(future.exception(1), (OutcomeUnknown, Closed))
    proxy.release()
    time.sleep(0.3)
    landed = {
        entry.key: entry.token for entry in backend.list("p", recursive=True, limit=None, start_after=None).result(5)
    }
    time.sleep(0.3)
    later = {
        entry.key: entry.token for entry in backend.list("p", recursive=True, limit=None, start_after=None).result(5)
    }
    assert later == landed
