"""Group commit: units of many go together where they do not touch, and each has its own answer."""

from __future__ import annotations

import threading
import time

import pytest

import latchwork
from latchwork.errors import (
    Closed,
    Conflict,
    InvalidKey,
    LockLost,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
    UserCodeFailed,
    ValueTooLarge,
)
from latchwork.tasks import GroupCommit
from latchwork.tasks.group_commit import (
    MOST_CHECKS,
    MOST_OPS,
    TIMEOUT_S,
    CommitUnit,
    find_conflicting_units,
    merge_ops,
    select_next_batch,
)
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Absent, At, Create, Delete, Entry, Exists, Fence, Put, SessionAlive

PATIENCE_S = 45.0


class Session:
    def __init__(self, name):
        self.id = name


def never(_error):
    return False


def unit(checks=(), ops=(), prefix=""):
    return CommitUnit(tuple(checks), tuple(ops), never, prefix=prefix)


def at(key, version=1):
    return At(Entry(key, b"", version, 1, 1))


# Which units go together: pure


def together(*units):
    return [units.index(each) for each in select_next_batch(units)]


def test_units_of_different_keys_go_together():
    assert together(unit([at("a")], [Delete("a")]), unit([at("b")], [Put("b", b"")]), unit([], [Create("c", b"")])) == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (unit([], [Put("a", b"1")]), unit([], [Put("a", b"2")])),
        (unit([], [Put("a", b"1")]), unit([], [Delete("a")])),
        (unit([], [Create("a", b"1")]), unit([Absent("a")], [Put("b", b"")])),
        (unit([Exists("a")], [Put("b", b"")]), unit([], [Delete("a")])),
        (unit([at("a", 1)], [Put("b", b"")]), unit([at("a", 2)], [Put("c", b"")])),
        (unit([Absent("a")], [Put("b", b"")]), unit([Exists("a")], [Put("c", b"")])),
        (unit([], [Put("a", b"", Session("1"))]), unit([], [Put("b", b"", Session("2"))])),
        (unit([], [Delete("claim")], "ns/"), unit([Fence(1, (at("ns/claim"),))], [Put("b", b"")], "ns/")),
        (unit([Fence(1, (at("ns/claim"),))], [Put("b", b"")], "ns/"), unit([], [Delete("claim")], "ns/")),
    ],
)
def test_units_that_touch_one_key_never_go_together(one, other):
    assert together(one, other) == [0]


def test_units_that_ask_the_same_go_together():
    shared = [Exists("subs/s"), SessionAlive("s"), Fence(1, (at("lead"), SessionAlive("s")))]
    assert together(unit(shared, [Put("a", b"")]), unit(shared, [Put("b", b"")])) == [0, 1]


def test_units_that_write_the_same_to_a_key_that_none_asks_about_share_that_write():
    mark = Put("mark", b"")
    one, two, three = (unit([at(f"claim{n}")], [Delete(f"claim{n}"), mark]) for n in range(3))
    assert together(one, two, three) == [0, 1, 2]
    assert merge_ops([one, two, three]) == [Delete("claim0"), mark, Delete("claim1"), Delete("claim2")]
    assert together(*(unit([], [mark, *(Put(f"{n}-{m}", b"") for m in range(44))]) for n in range(3))) == [0, 1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (unit([], [Put("mark", b"")]), unit([], [Put("mark", b"other")])),
        (unit([], [Put("mark", b"")]), unit([], [Put("mark", b"", Session("1"))])),
        (unit([], [Put("mark", b"", Session("1"))]), unit([], [Put("mark", b"", Session("1"))])),
        (unit([], [Create("mark", b"")]), unit([], [Create("mark", b"")])),
        (unit([], [Put("mark", b"")]), unit([], [Create("mark", b"")])),
        (unit([], [Put("mark", b"")]), unit([at("mark")], [Put("mark", b"")])),
        (unit([at("mark")], [Put("mark", b"")]), unit([], [Put("mark", b"")])),
    ],
)
def test_a_write_is_shared_with_the_same_one_alone(one, other):
    assert together(one, other) == [0]


def test_a_write_overtakes_no_other_write_of_its_key_though_it_is_shared_with_a_third():
    same, other = Put("mark", b"1"), Put("mark", b"2")
    assert together(unit([], [same]), unit([], [other]), unit([], [same])) == [0]
    assert together(unit([], [Put("a", b"")]), unit([], [Put("a", b"b"), other]), unit([], [other])) == [0, 2]
    blocked = [unit([], [Create("a", b""), each]) for each in (same, other)]
    assert together(unit([], [Create("a", b"")]), *blocked, unit([], [other])) == [0]


def test_a_unit_overtakes_none_that_it_touches():
    first, second = unit([], [Put("a", b"1")]), unit([], [Put("a", b"2"), Put("b", b"2")])
    third, fourth = unit([], [Put("b", b"3")]), unit([], [Put("c", b"4")])
    assert together(first, second, third, fourth) == [0, 3]
    assert together(second, third, fourth) == [0, 2]


def test_a_unit_that_asks_about_a_key_does_not_overtake_the_one_that_writes_it():
    assert together(unit([], [Put("a", b"1")]), unit([], [Put("a", b"2"), Put("b", b"")]), unit([Absent("b")], [])) == [
        0
    ]


@pytest.mark.parametrize(
    "units",
    [
        [unit([], [Put(f"{n}-{m}", b"") for m in range(MOST_OPS // 2)]) for n in range(3)],
        [unit([Exists(f"{n}-{m}") for m in range(MOST_CHECKS // 2)], []) for n in range(3)],
        [unit([Fence(1, tuple(at(f"{n}-{m}") for m in range(MOST_CHECKS // 2)))], []) for n in range(3)],
        [unit([], [Put(f"{n}", b"x" * 440_000)]) for n in range(3)],
    ],
)
def test_no_transaction_outgrows_what_stores_allow(units):
    assert together(*units) == [0, 1]


def test_a_unit_that_is_too_large_for_company_goes_alone():
    assert together(unit([], [Put("a", b"x" * 980_000)]), unit([], [Put("b", b"")])) == [0]


def test_those_are_blamed_whose_checks_or_writes_did_not_hold():
    shared = Exists("s")
    one, two, three = unit([shared, at("a")], []), unit([shared], [Create("b", b"")]), unit([at("c")], [])
    units = [one, two, three]
    assert find_conflicting_units(units, Conflict("", [at("a")])) == [one]
    assert find_conflicting_units(units, Conflict("", [Create("b", b"")])) == [two]
    assert find_conflicting_units(units, Conflict("", [shared])) == [one, two]
    assert find_conflicting_units(units, Conflict("", [at("zzz")])) == []


# On stores


@pytest.fixture
def counted(backend_url):
    """A store whose commits are counted and can be held up."""
    with FaultyStore(latchwork.connect(backend_url)) as store:
        yield store


def results(futures):
    return [future.exception(PATIENCE_S) for future in futures]


def test_units_that_come_while_a_commit_is_in_flight_go_in_one_transaction(store):
    sent = []

    class Watching:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def commit(self, checks, ops):
            sent.append(len(ops))
            if len(sent) == 1:
                begun.set()
                go_on.wait(PATIENCE_S)
            return self.inner.commit(checks, ops)

    begun, go_on = threading.Event(), threading.Event()
    with GroupCommit(Watching(store)) as commits:
        futures = [commits.submit([], [Create("k/first", b"")], never)]
        assert begun.wait(PATIENCE_S)
        futures += [commits.submit([], [Create(f"k/{n}", b"")], never) for n in range(40)]
        go_on.set()
        assert results(futures) == [None] * 41
    assert sent == [1, 40]
    assert len(store.children("k")) == 41


def test_units_that_share_a_write_land_in_one_transaction_and_each_is_refused_alone(store):
    store.create("k/b", b"")
    with GroupCommit(store) as commits:
        commits.submit([], [Put("k/held", b"")], never).result(PATIENCE_S)
        futures = [commits.submit([], [Create(f"k/{each}", b""), Put("k/mark", b"")], never) for each in "abc"]
        assert [type(error) for error in results(futures)] == [type(None), Conflict, type(None)]
    assert store.children("k") == ["a", "b", "c", "held", "mark"]


def test_a_refusal_answers_its_own_unit_and_no_other(store):
    store.put("k/there", b"")
    with GroupCommit(store) as commits:
        for _ in range(5):
            futures = [commits.submit([], [Create("k/there" if n == 3 else f"k/{n}", b"")], never) for n in range(8)]
            found = results(futures)
            assert [type(each) for each in found] == [type(None) if n != 3 else Conflict for n in range(8)]
            store.commit([], [Delete(f"k/{n}") for n in range(8) if n != 3])


def test_units_of_one_key_are_written_in_the_order_in_which_they_came(store):
    with GroupCommit(store) as commits:
        futures = [commits.submit([], [Put("k", str(n).encode()), Create(f"seen/{n}", b"")], never) for n in range(50)]
        assert results(futures) == [None] * 50
    assert store.get("k").value == b"49"


def test_a_unit_in_a_namespace_does_not_go_with_one_whose_fence_it_breaks(store):
    inner = store.namespace("ns")
    claim = inner.create("claim", b"")
    fence = inner.fence(1, At(claim))
    with GroupCommit(inner) as commits:
        futures = [commits.submit([], [Put("warm", b"")], never), commits.submit([fence], [Delete("claim")], never)]
        futures.append(commits.submit([fence], [Put("late", b"")], never))
        assert [type(each) for each in results(futures)] == [type(None), type(None), Conflict]
    assert inner.get("late") is None


@pytest.mark.parametrize(
    "bad", [[Put("not a key!", b"")], [Put("big", b"x" * 2_000_000)], [Put("a", b""), Put("a", b"")]]
)
def test_a_unit_that_cannot_be_written_fails_alone(store, bad):
    with GroupCommit(store) as commits:
        futures = [commits.submit([], [Create(f"k/{n}", b"")] if n != 2 else bad, never) for n in range(5)]
        found = results(futures)
    assert isinstance(found[2], (InvalidKey, ValueTooLarge, ValueError))
    assert [found[n] for n in (0, 1, 3, 4)] == [None] * 4


def test_a_unit_that_cannot_be_written_fails_alone_among_others(store):
    held = threading.Event()
    with GroupCommit(store) as commits:
        commits.submit([Exists("nothing")], [], lambda _e: held.wait(PATIENCE_S))
        time.sleep(0.2)  # the others gather behind it
        ops = [[Create(f"k/{n}", b"")] if n != 2 else [Put("not a key!", b"")] for n in range(5)]
        futures = [commits.submit([], each, never) for each in ops]
        held.set()
        assert [type(each) for each in results(futures)] == [InvalidKey if n == 2 else type(None) for n in range(5)]


def test_an_answer_that_was_lost_is_found_by_each_unit(counted):
    """The transaction landed and nobody said so: each unit looks for itself, and none is written twice."""
    counted.add(Fault("cut_after", op="*", key="k/*"))
    with GroupCommit(counted) as commits:
        futures = [
            commits.submit(
                [Absent(f"k/{n}")], [Create(f"k/{n}", b"")], lambda _e, n=n: counted.get(f"k/{n}") is not None
            )
            for n in range(5)
        ]
        assert results(futures) == [None] * 5
    assert len(counted.children("k")) == 5


def test_a_write_that_was_lost_is_written_again(counted):
    counted.add(Fault("fail", op="*", key="k/*"))
    with GroupCommit(counted) as commits:
        assert results([commits.submit([], [Create("k/1", b"")], never)]) == [None]


def test_a_unit_is_given_up_when_its_time_is_over(counted):
    counted.add(Fault("fail", op="*", key="k/*", times=None))
    with GroupCommit(counted) as commits:
        begun = time.monotonic()
        (error,) = results([commits.submit([], [Create("k/1", b"")], never, timeout_s=0.5)])
        assert isinstance(error, Unavailable)
        assert time.monotonic() - begun < 20


def test_a_unit_that_may_have_landed_is_unknown_though_its_last_try_was_refused(counted, monkeypatch):
    counted.add(Fault("cut_before", op="*", key="k/*"))
    commit, calls = counted.commit, []

    def full(checks, ops):
        calls.append(ops)
        if len(calls) > 1:
            raise QuotaExceeded("no room")
        return commit(checks, ops)

    monkeypatch.setattr(counted, "commit", full)
    with GroupCommit(counted) as commits:
        assert [type(each) for each in results([commits.submit([], [Create("k/1", b"")], never)])] == [OutcomeUnknown]


def test_what_landed_raises_is_the_answer(store):
    store.put("k", b"")

    def lost(_error):
        raise LockLost("gone")

    with GroupCommit(store) as commits:
        assert isinstance(results([commits.submit([Absent("k")], [Put("k", b"1")], lost)])[0], LockLost)


def test_a_refusal_of_what_had_landed_is_success(store):
    """After an answer that was lost, the second try is refused because the first got through."""
    store.put("k", b"")
    with GroupCommit(store) as commits:
        assert commits.submit([Absent("k")], [Put("k", b"1")], lambda _e: True).result(PATIENCE_S) is None


def test_a_callback_or_a_question_that_calls_exit_ends_itself_alone(store):
    def leave(*_):
        raise SystemExit

    store.put("k", b"")
    with GroupCommit(store) as commits:
        commits.submit([], [Put("a", b"")], never).add_done_callback(leave)
        assert isinstance(results([commits.submit([Absent("k")], [], leave)])[0], UserCodeFailed)
        assert results([commits.submit([], [Put("b", b"")], never)]) == [None]


def test_close_commits_what_was_submitted_and_takes_no_more(store):
    commits = GroupCommit(store)
    futures = [commits.submit([], [Create(f"k/{n}", b"")], never) for n in range(20)]
    commits.close()
    commits.close()
    assert results(futures) == [None] * 20
    with pytest.raises(Closed, match="create another one"):
        commits.submit([], [], never)


def test_close_does_not_wait_for_ever_for_a_store_that_is_away(counted):
    counted.add(Fault("fail", op="*", key="k/*", times=None))
    commits = GroupCommit(counted)
    future = commits.submit([], [Create("k/1", b"")], never)
    commits.close(0.3)
    assert isinstance(future.exception(PATIENCE_S), (Unavailable, OutcomeUnknown))


def test_close_waits_no_longer_for_what_was_on_its_way_when_it_began(counted):
    counted.add(Fault("cut_before", op="*", key="k/*"))
    counted.add(Fault("fail", op="*", key="k/*", times=None))
    checked, closes = threading.Event(), threading.Event()

    def has_committed(_error):
        checked.set()
        return not closes.wait(PATIENCE_S)

    commits = GroupCommit(counted)
    future = commits.submit([], [Create("k/1", b"")], has_committed)
    assert checked.wait(PATIENCE_S)
    begun = time.monotonic()
    threading.Timer(0.3, closes.set).start()
    commits.close(0.1)
    assert time.monotonic() - begun < TIMEOUT_S / 2
    assert isinstance(future.exception(0), OutcomeUnknown)


def test_a_store_that_is_closed_answers_all(backend_url):
    store = latchwork.connect(backend_url)
    with GroupCommit(store) as commits:
        store.close()
        assert isinstance(results([commits.submit([], [Put("k", b"")], never)])[0], Closed)
