"""A parent that a write on its way makes counts as there for what is sent behind it, and for nothing else."""

from __future__ import annotations

import pytest

from latchwork.backends.zookeeper.layout import Znode
from latchwork.backends.zookeeper.writing import states, writes
from latchwork.backends.zookeeper.writing.compiler import KnownStates, MultiPlan
from latchwork.backends.zookeeper.writing.states import ParentCache, VersionCache
from latchwork.errors import Conflict
from latchwork.types import Absent, At, Create, Put

WAIT_S = 15


def begin(backend, key, *checks):
    return backend.commit(list(checks), [Create(key, b"v")])


def there(backend, key):
    return backend.get(key, stale_ok=False).result(WAIT_S) is not None


def coming(backend):
    return backend._writer.version_cache.parents._coming


@pytest.fixture
def readings(monkeypatch):
    """How often the states of a transaction's keys were read."""
    found = []

    def counted(*args, **options):
        found.append(args)
        return states.read_states(*args, **options)

    monkeypatch.setattr(writes, "read_states", counted)
    return found


@pytest.fixture
def behind(connect, proxy):
    """A backend behind the proxy that takes parents beside ``in/p/t1`` for missing."""
    backend = connect(proxy.endpoint)
    begin(backend, "in/p/t1/a").result(WAIT_S)
    return backend


@pytest.mark.parametrize("op", [Put, Create])
def test_pipelined_keys_below_new_parents_are_not_read_for_each_key(behind, readings, op):
    keys = [f"in/p/t{2 + number // 20}/{number}" for number in range(100)]
    for future in [behind.commit([], [op(key, b"v")]) for key in keys]:
        future.result(WAIT_S)
    assert not readings
    assert all(there(behind, key) for key in keys)
    assert not coming(behind)


def test_what_relied_on_a_parent_whose_maker_was_refused_makes_it_itself(behind, other, proxy):
    old = behind.commit([], [Put("k", b"1")]).result(WAIT_S).entries[0]
    proxy.drop_requests.set()
    maker = begin(behind, "in/p/t2/a", At(old))
    others = [begin(behind, f"in/p/t2/b{number}") for number in range(5)]
    assert list(coming(behind)) == ["in/p/t2"]
    other.commit([], [Put("k", b"2")]).result(WAIT_S)
    proxy.drop_requests.clear()
    proxy.cut()
    with pytest.raises(Conflict):
        maker.result(WAIT_S)
    for future in others:
        future.result(WAIT_S)
    assert all(there(other, f"in/p/t2/b{number}") for number in range(5))
    assert not there(other, "in/p/t2/a")
    assert not coming(behind)


def test_a_connection_that_is_lost_between_maker_and_the_rest_loses_no_key(behind, other, proxy, wait_until):
    proxy.drop_answers.set()
    maker = begin(behind, "in/p/t2/a")
    wait_until(lambda: there(other, "in/p/t2/a"))
    proxy.drop_requests.set()
    rest = [begin(behind, f"in/p/t2/b{number}") for number in range(5)]
    proxy.cut()
    proxy.drop_answers.clear()
    proxy.drop_requests.clear()
    for future in (maker, *rest):
        future.result(WAIT_S)
    assert all(there(other, f"in/p/t2/b{number}") for number in range(5))
    assert not coming(behind)


def test_a_parent_that_another_client_deletes_behind_its_maker_is_made_again(behind, other, proxy, wait_until):
    proxy.drop_answers.set()
    maker = begin(behind, "in/p/t2/a")
    wait_until(lambda: there(other, "in/p/t2/a"))
    other.delete_tree("in/p/t2").result(WAIT_S)
    rest = begin(behind, "in/p/t2/b")
    proxy.cut()
    proxy.drop_answers.clear()
    maker.result(WAIT_S)
    rest.result(WAIT_S)
    assert there(other, "in/p/t2/b")
    assert not there(other, "in/p/t2/a")


def test_a_parent_that_another_client_made_first_is_found_by_its_maker_and_by_the_rest(behind, other, proxy):
    proxy.drop_requests.set()
    ours = [begin(behind, f"in/p/t2/{name}") for name in "ab"]
    begin(other, "in/p/t2/z").result(WAIT_S)
    proxy.drop_requests.clear()
    proxy.cut()
    for future in ours:
        future.result(WAIT_S)
    assert all(there(other, f"in/p/t2/{name}") for name in "abz")


def test_who_was_misled_once_sees_to_its_parents_itself(backend, monkeypatch):
    begin(backend, "in/p/t1/a").result(WAIT_S)
    monkeypatch.setattr(ParentCache, "is_being_created", lambda *_: True)
    begin(backend, "in/p/t2/a").result(WAIT_S)
    begin(backend, "new/p/t2/a", Absent("new/p/t3")).result(WAIT_S)
    assert there(backend, "in/p/t2/a")
    assert there(backend, "new/p/t2/a")


def test_a_parent_is_on_its_way_for_its_connection_and_until_its_own_maker_has_ended():
    parents, one, two = ParentCache(), object(), object()
    parents.record_existence("a/x", exists=False)
    first, second = MultiPlan(makes=["a/b"]), MultiPlan(makes=["a/b"])
    parents.record_sent(first, one)
    assert parents.find_missing_parent("a/b/c", one) is None
    assert parents.find_missing_parent("a/b/c", two) == "a/b"
    parents.record_sent(second, one)
    parents.record_ended(first)
    assert parents.find_missing_parent("a/b/c", one) is None
    parents.record_ended(second)
    assert parents.find_missing_parent("a/b/c", one) == "a/b"


def test_a_key_that_the_transaction_names_is_as_it_was_read():
    memory, connection = VersionCache(), object()
    memory.parents.record_sent(MultiPlan(makes=["a", "a/b"]), connection)
    known = KnownStates({key: Znode(exists=False) for key in ("a", "a/b", "a/b/c")}, fresh=True)
    seen = memory.add_pending_parents(known, [Absent("a/b")], [Create("a/b/c", b"")], connection)
    assert [seen.nodes[key].exists for key in ("a", "a/b", "a/b/c")] == [True, False, False]
    assert seen.fresh
