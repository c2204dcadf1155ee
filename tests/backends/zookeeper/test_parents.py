"""Keys below new parents cost one request each time; what is guessed about parents is never believed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest

from latchwork.backends.base import Snapshot
from latchwork.backends.zookeeper.layout import get_bucket
from latchwork.backends.zookeeper.writing import states, writes
from latchwork.backends.zookeeper.writing.states import ParentCache, RecentValueCache
from latchwork.errors import Conflict, InvalidKey
from latchwork.types import Absent, At, Create, Delete, Exists, Put

WAIT_S = 15


def create(backend, *keys, checks=()):
    return backend.commit(list(checks), [Create(key, b"v") for key in keys]).result(WAIT_S)


def there(backend, key):
    return backend.get(key, stale_ok=False).result(WAIT_S) is not None


@pytest.fixture
def readings(monkeypatch):
    """How often the states of a transaction's keys were read, because its first multi failed."""
    found = []

    def counted(*args, **options):
        found.append(args)
        return states.read_states(*args, **options)

    monkeypatch.setattr(writes, "read_states", counted)
    return found


def batch(number):
    return [f"in/p/t{number * 10 + each}/d{dep}" for each in range(10) for dep in range(3)]


def test_trees_of_new_parents_are_read_once_and_not_for_each_transaction(backend, readings):
    create(backend, *batch(0))
    first = len(readings)
    for number in range(1, 8):
        create(backend, *batch(number))
    assert first == len(readings) == 1
    assert all(there(backend, key) for number in range(8) for key in batch(number))


def test_more_keys_below_parents_just_made_need_no_reading(backend, readings):
    create(backend, *batch(0))
    create(backend, *batch(1))
    create(backend, "in/p/t11/more", "in/p/t3/more")
    assert len(readings) == 1


def test_a_parent_taken_for_new_that_another_store_has_made_is_found(backend, other, readings):
    create(backend, "in/p/t1/a")
    create(other, "in/p/t2/b")
    create(backend, "in/p/t2/c", "in/p/t3/c")
    assert len(readings) == 3  # one for the first of either store, one for the wrong guess
    assert all(there(other, key) for key in ("in/p/t2/b", "in/p/t2/c", "in/p/t3/c"))


def test_a_parent_taken_for_there_that_another_store_has_swept_is_made_again(backend, other, raw, root):
    create(backend, "in/p/t1/a", "in/p/t1/b")
    other.delete_tree("in").result(WAIT_S)
    assert raw.exists(f"/{root}/in") is None
    create(backend, "in/p/t1/c", "in/p/t4/c")
    assert there(other, "in/p/t1/c")
    assert not there(other, "in/p/t1/a")


@pytest.mark.parametrize("count", [2, 3, 30])
def test_deletions_below_several_parents_that_are_not_there_take_a_look_or_three(backend, other, readings, count):
    """What one look finds of the parents of one key says nothing about those of the next."""
    create(other, "in/there/key")
    gone = [Delete(f"in/p{number}/q/key") for number in range(count)]
    backend.commit([], [Put("in/new", b"v"), Delete("in/there/other"), *gone]).result(WAIT_S)
    assert there(other, "in/new")
    assert len(readings) <= 3


def test_a_parent_emptied_by_our_own_deletion_is_made_again(backend):
    create(backend, "in/p/t1/a", "in/p/t2/a")
    for _ in range(3):
        backend.commit([], [Delete("in/p/t1/a"), Delete("in/p/t2/a")]).result(WAIT_S)
        create(backend, "in/p/t1/a", "in/p/t2/a")
    assert there(backend, "in/p/t1/a")


def test_a_parent_taken_for_new_may_be_a_key_and_stays_one(backend, other):
    create(backend, "in/p/t1/a")
    other.commit([], [Put("in/p/t2", b"a value")]).result(WAIT_S)
    create(backend, "in/p/t2/c")
    assert backend.get("in/p/t2", stale_ok=False).result(WAIT_S).value == b"a value"


def test_a_parent_taken_for_new_that_is_bound_to_a_session_is_refused(backend, other):
    create(backend, "in/p/t1/a")
    session = other.open_session(5.0, lambda: None).result(WAIT_S)
    other.commit([], [Create("in/p/t2", b"", session)]).result(WAIT_S)
    with pytest.raises(InvalidKey, match="bound to a session"):
        create(backend, "in/p/t2/c")


def test_a_check_of_what_is_below_a_parent_taken_for_new_is_not_fooled(backend, other):
    create(backend, "in/p/t1/a")
    create(other, "in/p/t2/b")
    with pytest.raises(Conflict) as caught:
        create(backend, "in/p/t2/c", checks=[Absent("in/p/t2/b")])
    assert caught.value.failed == (Absent("in/p/t2/b"),)
    with pytest.raises(Conflict) as caught:
        create(backend, "in/p/t3/c", checks=[Exists("in/p/t3")])
    assert caught.value.failed == (Exists("in/p/t3"),)


def test_a_parent_that_is_made_a_key_in_the_same_transaction_is_one(backend, other):
    create(backend, "in/p/t1/a")
    create(other, "in/p/t3/b")
    backend.commit([], [Create("in/p/t2", b"2"), Create("in/p/t2/c", b"")]).result(WAIT_S)
    backend.commit([], [Create("in/p/t3", b"3"), Create("in/p/t3/c", b"")]).result(WAIT_S)
    assert [backend.get(f"in/p/t{n}", stale_ok=False).result(WAIT_S).value for n in (2, 3)] == [b"2", b"3"]


def test_stores_that_make_and_sweep_the_same_parents_lose_no_key(backend, other):
    def rounds(mine, name):
        for number in range(40):
            create(mine, *(f"in/p/t{each}/{name}{number}" for each in range(4)), f"in/p/{name}{number}/x")
            if number:
                gone = [f"in/p/t{each}/{name}{number - 1}" for each in range(4)]
                mine.commit([], [Delete(key) for key in gone]).result(WAIT_S)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rounds, (backend, other), "ab"))
    assert all(there(backend, f"in/p/{name}{number}/x") for name in "ab" for number in range(40))
    assert all(there(other, f"in/p/t{each}/{name}39") for name in "ab" for each in range(4))


def test_a_parent_that_is_emptied_and_used_again_is_neither_removed_nor_made_again(backend, readings, raw, root):
    create(backend, "in/p/t1/a")
    made = raw.exists(f"/{root}/in/p/t1").czxid
    for _ in range(5):
        backend.commit([], [Delete("in/p/t1/a")]).result(WAIT_S)
        create(backend, "in/p/t1/a")
    assert raw.exists(f"/{root}/in/p/t1").czxid == made
    assert len(readings) == 1


def test_parents_that_are_empty_are_removed_when_the_store_is_closed(connect, raw, root):
    mine = connect()
    create(mine, "in/p/t1/a")
    mine.commit([], [Delete("in/p/t1/a")]).result(WAIT_S)
    mine.close()
    assert raw.exists(f"/{root}/in") is None


def test_a_new_key_that_is_put_beside_others_that_were_new_is_not_read_before(backend, readings):
    for number in range(5):
        backend.commit([], [Put(f"in/k{number}", b"v"), Put("beside", b"")]).result(WAIT_S)
    assert len(readings) == 1
    assert all(there(backend, f"in/k{number}") for number in range(5))


def test_a_key_taken_for_new_that_another_store_has_put_is_overwritten(backend, other, readings):
    backend.commit([], [Put("in/k1", b"v"), Put("beside", b"")]).result(WAIT_S)
    before = other.commit([], [Put("in/k2", b"theirs")]).result(WAIT_S).entries[0]
    del readings[:]
    done = backend.commit([], [Put("in/k2", b"ours"), Put("beside", b"")]).result(WAIT_S)
    assert (done.entries[0].value, done.entries[0].created) == (b"ours", before.created)
    assert len(readings) == 1
    backend.commit([], [Put("in/k3", b"ours"), Put("beside", b"")]).result(WAIT_S)
    assert len(readings) == 2  # the last one was there, so this one was not taken for new


def test_a_version_that_is_checked_again_and_again_is_read_once_for_each_deletion_in_its_bucket(backend, readings):
    """A deletion of another key moves the bucket's guard: what was read of it since then is remembered."""
    entry = backend.commit([], [Put("lasting", b"")]).result(WAIT_S).entries[0]
    near = next(f"n{n}" for n in range(10_000) if get_bucket(f"n{n}") == get_bucket("lasting"))
    create(backend, near)
    backend.commit([], [Delete(near)]).result(WAIT_S)
    del readings[:]
    for number in range(5):
        create(backend, f"k{number}", checks=[At(entry)])
    assert len(readings) == 1
    backend.commit([], [Put("lasting", b"written since")]).result(WAIT_S)
    with pytest.raises(Conflict):
        create(backend, "k9", checks=[At(entry)])


def test_a_reported_key_is_written_and_deleted_without_reading_though_others_delete_in_its_bucket(
    backend, other, readings
):
    """A watch reads the guards with the keys. So the first write knows the guard, and so does the second one."""
    told: Queue = Queue()
    create(backend, "first")  # the first write reads all guards
    watch = backend.watch("in", told.put)
    assert isinstance(told.get(timeout=WAIT_S), Snapshot)
    near = next(f"n{n}" for n in range(10_000) if get_bucket(f"n{n}") == get_bucket("in/item"))
    create(other, near)
    other.commit([], [Delete(near)]).result(WAIT_S)
    create(other, "in/item")
    (item,) = [change.entry for change in told.get(timeout=WAIT_S).changes if change.key == "in/item"]
    del readings[:]
    claimed = backend.commit([At(item)], [Put("in/item", b"claimed")]).result(WAIT_S).entries[0]
    backend.commit([At(claimed)], [Delete("in/item")]).result(WAIT_S)
    assert readings == []
    watch.close()


def test_only_a_parent_beside_one_that_was_missing_is_taken_for_new():
    parents = ParentCache()
    assert parents.find_missing_parent("a/b/c") is None
    parents.record_existence("a/x", exists=False)
    assert parents.find_missing_parent("a/b/c") == "a/b"
    assert parents.find_missing_parent("other/b/c") is None
    parents.record_key_written("a/b")
    assert parents.find_missing_parent("a/b/d") is None
    parents.record_existence("a/y", exists=True)
    assert parents.find_missing_parent("a/z/c") is None


def test_a_parent_that_may_be_swept_is_not_taken_for_there():
    parents = ParentCache()
    parents.record_existence("a/x", exists=False)
    parents.record_key_written("a/b")
    parents.record_emptied(["a/b", "never seen"])
    assert parents.find_missing_parent("a/b/c") == "a/b"


def test_what_is_remembered_of_parents_is_bounded():
    parents = ParentCache(10)
    for number in range(100):
        parents.record_key_written(f"p{number}")
        parents.record_existence(f"q{number}/x", exists=False)
    assert len(parents._there) <= 10
    assert len(parents._growing) <= 10


def test_what_each_transaction_asks_for_is_remembered_however_many_keys_go_by():
    recent = RecentValueCache(10)
    recent.put("draft", 1)
    for number in range(100):
        recent.put(f"k{number}", number)
        assert recent.get("draft") == 1
    assert recent.get("k50") is None
    assert len(recent) <= 10


def test_a_key_that_another_store_wrote_is_read_once_for_many_checks(backend, other, readings):
    other.commit([], [Put("draft", b"")]).result(WAIT_S)
    create(backend, *batch(0), checks=[Exists("draft")])
    create(backend, *batch(1), checks=[Exists("draft")])
    create(backend, *batch(2), checks=[Exists("draft")])
    assert len(readings) == 1


def test_a_key_that_another_store_wrote_is_read_once_for_many_refused_puts(backend, other, readings):
    mine = backend.commit([], [Put("mine", b"")]).result(WAIT_S).entries[0]
    other.commit([], [Put("theirs", b"")]).result(WAIT_S)
    other.commit([], [Put("mine", b"")]).result(WAIT_S)
    del readings[:]
    for number in range(3):
        other.commit([], [Put("mine", b"%d" % number)]).result(WAIT_S)
        with pytest.raises(Conflict):
            backend.commit([At(mine)], [Put("mine", b""), Put("theirs", b"")]).result(WAIT_S)
    assert len(readings) == 1
    other.commit([], [Delete("theirs")]).result(WAIT_S)
    backend.commit([], [Put("theirs", b"new"), Put("mine", b"")]).result(WAIT_S)
    assert there(other, "theirs")


def test_a_check_that_a_key_exists_does_not_read_it_after_deletions_in_its_bucket(backend, other, readings):
    """A key that was written once has no other state. After another write its bucket counts."""
    near = next(f"n{n}" for n in range(10_000) if get_bucket(f"n{n}") == get_bucket("draft"))
    create(backend, "draft", "before")
    for count, found in ((1, 0), (2, 3)):
        for number in range(3):
            create(other, near)
            other.commit([], [Delete(near)]).result(WAIT_S)
            create(backend, f"k{count}{number}", checks=[Exists("draft")])
        assert len(readings) == found
        backend.commit([], [Put("draft", b"again")]).result(WAIT_S)
        del readings[:]


@pytest.mark.parametrize("writes", [1, 2])
def test_a_key_remembered_for_a_check_may_be_gone_and_written_again(backend, other, writes):
    for _ in range(writes):
        other.commit([], [Put("draft", b"")]).result(WAIT_S)
    create(backend, "a", checks=[Exists("draft")])
    other.commit([], [Delete("draft")]).result(WAIT_S)
    with pytest.raises(Conflict):
        create(backend, "b", checks=[Exists("draft")])
    other.commit([], [Put("draft/below", b"")]).result(WAIT_S)
    with pytest.raises(Conflict):
        create(backend, "b", checks=[Exists("draft")])
    other.commit([], [Put("draft", b"")]).result(WAIT_S)
    create(backend, "b", checks=[Exists("draft")])
    assert there(other, "b")


def test_an_unseen_key_that_was_written_once_is_deleted_without_reading(backend, other, readings):
    create(other, "p/a")
    before = len(readings)
    done = backend.commit([], [Delete("p/a")]).result(WAIT_S)
    assert (done.deleted, len(readings) - before) == (("p/a",), 0)
    assert not there(other, "p/a")


def overwrite(backend):
    for value in (b"1", b"2"):
        backend.commit([], [Put("p/a", value)]).result(WAIT_S)


UNSEEN = {
    "overwritten": (overwrite, ("p/a",), []),
    "with children": (lambda store: create(store, "p/a", "p/a/b"), ("p/a",), ["p/a/b"]),
    "a parent": (lambda store: create(store, "p/a/b"), (), ["p/a/b"]),
    "absent": (lambda _store: None, (), []),
}


@pytest.mark.parametrize("kind", UNSEEN)
def test_an_unseen_key_that_is_not_as_guessed_is_read_before_its_deletion(backend, other, kind):
    make, deleted, left = UNSEEN[kind]
    make(other)
    assert backend.commit([], [Delete("p/a")]).result(WAIT_S).deleted == deleted
    assert not there(other, "p/a")
    assert [each for each in ("p/a/b",) if there(other, each)] == left


def test_an_unseen_key_that_must_be_absent_is_not_deleted(backend, other):
    create(other, "p/a")
    with pytest.raises(Conflict):
        backend.commit([Absent("p/a")], [Delete("p/a")]).result(WAIT_S)
    assert there(other, "p/a")
