"""Numbers that are changed exactly once, on every backend."""

from __future__ import annotations

import pytest

from latchwork.errors import Conflict, InvalidKey, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives import Counter, Lock
from latchwork.primitives.numbers.shared_number import KEPT, Reading, UnconfirmedChange, was_applied
from latchwork.types import Absent


@pytest.fixture
def flaky(connect, monkeypatch):
    """A client whose commits do what the test says, in turn: ``ok``, ``applied``, ``lost``, ``refused``."""

    def make(*outcomes, between=lambda: None):
        store = connect()
        commit, script = store.commit, list(outcomes)

        def scripted(checks, ops):
            outcome = script.pop(0) if script else "ok"
            if outcome == "refused":
                raise Unavailable("cut")
            done = commit(checks, ops) if outcome in ("ok", "applied") else None
            if outcome == "ok":
                return done
            between()
            raise OutcomeUnknown("cut")

        monkeypatch.setattr(store, "commit", scripted)
        return store

    return make


def test_it_begins_at_zero_and_adds(store):
    counter = Counter(store, "hits")
    assert counter.value() == 0
    assert [counter.add(), counter.add(41), counter.add(-50), counter.value()] == [1, 42, -8, -8]


def test_it_has_no_limit(store):
    counter = Counter(store, "hits")
    counter.put(10**40)
    assert counter.add(1) == 10**40 + 1


@pytest.fixture
def lone(connect, monkeypatch):
    """A counter that only this client has changed, and a list of its later reads."""
    store, reads = connect(), []
    counter = Counter(store, "hits")
    assert [counter.add(), counter.add()] == [1, 2]
    get = store.get
    monkeypatch.setattr(store, "get", lambda *args, **options: reads.append(args) or get(*args, **options))
    return counter, reads


def test_a_client_that_is_alone_changes_it_without_reading(lone):
    counter, reads = lone
    assert [counter.add(5), counter.compare_and_set(7, 8), counter.add()] == [7, True, 9]
    assert reads == []


def test_a_change_of_another_client_in_between_is_read(lone, connect):
    counter, reads = lone
    Counter(connect(), "hits").put(40)
    assert [counter.add(), counter.value()] == [41, 41]
    assert reads


def test_a_comparison_is_refused_only_by_what_is_stored(lone, connect):
    counter, _reads = lone
    Counter(connect(), "hits").put(40)
    assert counter.compare_and_set(40, 50)
    assert not counter.compare_and_set(40, 60)


def test_every_change_of_many_at_once_is_counted_once(connect, in_thread):
    counters = [Counter(connect(), "hits") for _ in range(4)]
    seen = []

    def add(counter):
        seen.extend(counter.add(timeout_s=60.0) for _ in range(10))

    for each in [in_thread(lambda counter=counter: add(counter)) for counter in counters]:
        each.outcome(90.0)
    assert counters[0].value() == 40
    assert sorted(seen) == list(range(1, 41))


def test_a_change_of_another_between_read_and_write_is_not_lost(connect, other, monkeypatch):
    store, theirs = connect(), Counter(other, "hits")
    read = store.get

    def then_another(key):
        found = read(key)
        monkeypatch.setattr(store, "get", read)
        theirs.add()
        return found

    monkeypatch.setattr(store, "get", then_another)
    assert Counter(store, "hits").add() == 2
    assert theirs.value() == 2


def test_compare_and_set_changes_what_is_expected_and_nothing_else(store):
    counter = Counter(store, "hits")
    assert counter.compare_and_set(0, 7)
    entry = store.get("hits")
    assert not counter.compare_and_set(0, 8)
    assert store.get("hits").version == entry.version
    assert counter.value() == 7


@pytest.mark.parametrize(
    "outcomes", [["applied"], ["lost"], ["lost", "lost"], ["lost", "applied"], ["refused", "applied"]]
)
def test_a_change_with_a_lost_answer_is_counted_once(flaky, store, outcomes):
    assert Counter(flaky(*outcomes), "hits").add(5) == 5
    assert Counter(store, "hits").value() == 5


def test_a_change_that_landed_is_found_behind_the_changes_of_others(flaky, store):
    others = Counter(store, "hits")

    def change():
        for _ in range(KEPT - 1):
            others.add(100)

    assert Counter(flaky("applied", between=change), "hits").add(1) == 1
    assert others.value() == 1 + 100 * (KEPT - 1)


def test_a_change_that_did_not_land_is_made_behind_the_changes_of_others(flaky, store):
    others = Counter(store, "hits")
    assert Counter(flaky("lost", between=lambda: others.add(100)), "hits").add(1) == 101
    assert others.value() == 101


def test_after_too_many_changes_of_others_it_is_said_to_be_unknown(flaky, store):
    others = Counter(store, "hits")
    others.add()

    def change():
        for _ in range(KEPT + 1):
            others.add(100)

    with pytest.raises(OutcomeUnknown, match="it is unknown whether it was changed"):
        Counter(flaky("applied", between=change), "hits").add(1)
    assert others.value() == 2 + 100 * (KEPT + 1)  # and never twice


def test_a_compare_and_set_with_a_lost_answer_knows_that_it_was_itself(flaky, store):
    assert Counter(flaky("applied"), "hits").compare_and_set(0, 1)
    assert Counter(store, "hits").value() == 1


def test_an_unknown_outcome_that_cannot_be_settled_in_time_is_reported(flaky, monkeypatch):
    store = flaky("applied")
    get, commit = store.get, store.commit

    def cutting(checks, ops):
        monkeypatch.setattr(store, "get", lambda *_, **__: (_ for _ in ()).throw(Unavailable("cut")))
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", cutting)
    with pytest.raises(OutcomeUnknown, match="could not be found out"):
        Counter(store, "hits").add(timeout_s=0.2)
    monkeypatch.setattr(store, "get", get)
    assert Counter(store, "hits").value() == 1


def test_a_server_that_cannot_be_reached_leaves_it_unchanged(flaky, store):
    with pytest.raises(Unavailable):
        Counter(flaky(*["refused"] * 100), "hits").add(timeout_s=0.2)
    assert Counter(store, "hits").value() == 0


def test_under_a_fence_nothing_is_changed_once_it_is_broken(store, other):
    counter = Counter(store, "hits")
    with Lock(other, "guard") as fence:
        assert counter.add(fence=fence) == 1
    with pytest.raises(Conflict, match="fence with token"):
        counter.add(fence=fence)
    assert counter.value() == 1


def test_a_broken_fence_refuses_at_once_however_often_others_change_it(connect, other, monkeypatch):
    store, busy, tries = connect(), Counter(other, "hits"), []
    with Lock(other, "guard") as fence:
        pass
    commit = store.commit

    def after_others(checks, ops):
        tries.append(ops)
        busy.add()
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", after_others)
    with pytest.raises(Conflict, match="fence with token"):
        Counter(store, "hits").add(fence=fence, timeout_s=20.0)
    assert len(tries) == 1


def test_a_key_that_holds_something_else_is_refused(store):
    store.put("hits", b"hello")
    with pytest.raises(LatchworkError, match="'hits' does not contain "):
        Counter(store, "hits").add()
    assert store.get("hits").value == b"hello"


@pytest.mark.parametrize("name", ["", "a//b"])
def test_a_malformed_name_is_refused_before_any_io(name):
    with pytest.raises(InvalidKey, match="counter name"):
        Counter(None, name)


def reading(writes, *recent):
    return Reading(0, writes, recent, Absent("hits"), writes)


@pytest.mark.parametrize(
    ("now", "landed"),
    [
        (reading(5, "a", "b"), False),
        (reading(6, "b", "mine"), True),
        (reading(7, "mine", "c"), True),
        (reading(7, "c", "d"), False),
        (reading(8, "d", "e"), None),
        (reading(0), None),
    ],
)
def test_the_fate_of_a_try_shows_in_a_later_reading(now, landed):
    assert was_applied(UnconfirmedChange(reading(5, "a", "b"), 1, OutcomeUnknown("cut")), now, "mine") is landed
