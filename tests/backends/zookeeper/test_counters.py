"""The server's counters have 32 bits: what happens at their ends, with counters that are said to be there."""

from __future__ import annotations

import threading

import pytest

from latchwork.backends.zookeeper.layout import ANY, UNKNOWN, Version, Znode, ZnodeLayout
from latchwork.backends.zookeeper.reads import ZooKeeperReader
from latchwork.backends.zookeeper.writing import sequences
from latchwork.backends.zookeeper.writing.compiler import KnownStates, MissingStates, compile_plan
from latchwork.errors import QuotaExceeded, Unavailable
from latchwork.types import Absent, At, Create, Delete, Exists, Put

FIRST = 2**31


def result(future):
    return future.result(15)


def numbered(backend, name="q/t-", count=1, session=None):
    return [result(backend.create_sequential(name, b"v", session)).key for _ in range(count)]


@pytest.fixture
def near_the_end(monkeypatch):
    """The server's counter is taken to end with its next number but three."""
    monkeypatch.setattr(sequences, "MARGIN", FIRST - 3)


@pytest.mark.usefixtures("near_the_end")
@pytest.mark.parametrize("name", ["q/t-", "a/b/q/", "top-"])
def test_numbers_go_on_growing_behind_the_end_of_the_servers_counter(backend, other, name):
    keys = [key for _ in range(5) for store in (backend, other) for key in numbered(store, name)]
    assert keys == sorted(keys)
    assert {len(key) for key in keys} == {len(name) + 10}
    numbers = [int(key[-10:]) for key in keys]
    assert numbers[-3:] == [numbers[-3], numbers[-3] + 1, numbers[-3] + 2]
    assert 0 <= numbers[0] < FIRST <= numbers[-3]
    entry = result(backend.get(keys[-1], stale_ok=False))
    assert (entry.value, entry.created) == (b"v", entry.token)
    assert result(backend.commit([At(entry)], [Delete(entry.key)])).deleted == (entry.key,)
    assert numbered(backend, name)[0] > keys[-1]


@pytest.mark.usefixtures("near_the_end")
def test_creators_at_the_end_of_the_servers_counter_get_numbers_of_their_own(backend, other):
    session, made = result(backend.open_session(20.0, lambda: None)), []

    def create(store, mine):
        made.extend(numbered(store, count=10, session=mine))

    threads = [
        threading.Thread(target=create, args=(one, mine)) for one, mine in ((backend, session), (other, None)) * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made) == 40
    assert result(backend.get(numbered(backend, session=session)[0], stale_ok=False)).owner == session.id


@pytest.mark.usefixtures("near_the_end")
def test_a_number_whose_key_is_there_already_is_passed_over(backend, raw, root):
    last = int(numbered(backend, count=6)[-1][-10:])
    result(backend.commit([], [Put(f"q/t-{last + 1}", b""), Put(f"q/t-{last + 2}", b"")]))
    assert numbered(backend) == [f"q/t-{last + 3}"]
    assert raw.get(f"/{root}/q/#keep")[0] == b"%d" % (last + 4)


@pytest.mark.usefixtures("near_the_end")
def test_our_own_counter_ends_with_an_error(backend, raw, root):
    numbered(backend, count=6)
    raw.set(f"/{root}/q/#keep", b"9999999999")
    assert numbered(backend) == ["q/t-9999999999"]
    with pytest.raises(QuotaExceeded, match="keys next to 'q/t-' have been used; use another parent"):
        numbered(backend)
    assert numbered(backend, "other/t-")[0] == "other/t-0000000001"


def test_far_from_its_end_the_servers_counter_is_used_and_keep_stays_empty(backend, raw, root):
    assert [int(key[-10:]) for key in numbered(backend, count=3)] == [1, 2, 3]
    data, stat = raw.get(f"/{root}/q/#keep")
    assert (data, stat.version) == (b"", 0)


# The version of a znode's data, and of the guards.


def key(data, gen=7):
    return Znode(True, Version(5, data, gen, 5, None, False), data, 0, gen)


def compiled(checks, ops, *, fresh=True, **nodes):
    absent = {each.key: Znode(exists=False, gen=7) for each in (*checks, *ops) if each.key not in nodes}
    return compile_plan(ZnodeLayout("root"), checks, ops, KnownStates({**nodes, **absent}, fresh=fresh))


@pytest.mark.parametrize("data", [2**31 - 1, -(2**31), -2, 0])
def test_versions_that_came_round_are_checked_like_others(data):
    node = key(data)
    assert compiled([At.of("k", node.version)], [Put("k", b"")], k=node).writes
    assert compiled([At.of("k", node.version)], [Put("other", b"")], k=node).writes


def test_the_version_that_the_server_takes_for_any_is_not_checked_for():
    node = key(ANY)
    for ops in ([Put("k", b"")], [Delete("k")], [Put("other", b"")]):
        with pytest.raises(Unavailable, match=r"'k' has been written 4,294,967,295 times.*put it once without a check"):
            compiled([At.of("k", node.version)], ops, k=node)
        with pytest.raises(MissingStates):
            compiled([At.of("k", node.version)], ops, fresh=False, k=node)
    with pytest.raises(Unavailable):
        compiled([Absent("k")], [Put("other", b"")], k=Znode(True, None, ANY, 1, 7))


@pytest.mark.parametrize("ops", [[Put("k", b"")], [Delete("k")], [Put("k", b""), Create("other", b"")]])
def test_a_write_without_a_check_leaves_that_version_behind(ops):
    assert compiled([], ops, k=key(ANY)).writes
    assert compiled([Exists("k")], ops, k=key(ANY)).writes


def test_a_guard_at_that_version_is_read_again():
    with pytest.raises(MissingStates):
        compiled([At.of("k", key(3, ANY).version)], [Put("k", b"")], k=key(3, ANY))


def test_a_guard_at_that_version_is_moved_on(backend, monkeypatch):
    entry = result(backend.commit([], [Put("k", b"1")])).entries[0]
    real = backend._writer._read_states.__func__.__globals__["read_states"]
    reads = []

    def read_states(*args):
        known = yield from real(*args)
        reads.append(known)
        if len(reads) > 1:
            return known
        nodes = {
            name: Znode(n.exists, n.version, n.data, n.children, ANY, n.ephemeral) for name, n in known.nodes.items()
        }
        return KnownStates(nodes, known.gone, fresh=True)

    monkeypatch.setitem(backend._writer._read_states.__func__.__globals__, "read_states", read_states)
    backend._writer.version_cache.discard(["k"])
    again = result(backend.commit([At(entry), Absent("other")], [Put("k", b"2")])).entries[0]
    assert again.value == b"2"
    if reads:
        assert reads[1].nodes["k"].gen == reads[0].nodes["k"].gen + 1, "it was moved on, then read again"


def test_what_was_learned_of_a_guard_comes_round_with_it():
    reader = ZooKeeperReader(ZnodeLayout("root"))
    assert reader.guard_versions()[3] == UNKNOWN
    for gen, learned in (
        (5, 5),
        (4, 5),
        (2**31 - 1, 2**31 - 1),
        (-(2**31), -(2**31)),
        (2**31 - 2, -(2**31)),
        (-1, -1),
        (0, 0),
    ):
        reader.record_guard_version(3, gen)
        assert reader.guard_versions()[3] == learned
