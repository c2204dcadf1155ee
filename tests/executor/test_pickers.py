"""Pickers and targets: pure decisions. Shares are judged by chi-square, what moves by counting."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from executor.conftest import PATIENCE_S
from executor.work import square
from latchwork._base.decoding import Decoder, encode
from latchwork.errors import BadRecord, InvalidKey
from latchwork.executor import (
    All,
    Key,
    Label,
    LeastLoaded,
    Load,
    Member,
    NoSuchMember,
    Pull,
    Random,
    Rank,
    Rendezvous,
    RoundRobin,
    TaskInfo,
    Weighted,
)
from latchwork.executor.pickers import pick_by_weight, pick_for_copies
from latchwork.executor.targets import StoredTarget, eligible_members, find_key_owner
from latchwork.primitives import GroupMember, View

PICKS = 10_000
#: Of chi-square, by degrees of freedom: a fair picker is above it once in a thousand runs. The seeds are fixed.
LIMIT = {2: 13.82, 3: 16.27}


TARGET = Decoder(StoredTarget)


def view(*weights, number=1, labels=()):
    members = [
        GroupMember(f"m{at}", weight, labels[at] if labels else {}, created=at) for at, weight in enumerate(weights)
    ]
    return View(number, tuple(members))


def tasks(count=PICKS):
    return (TaskInfo(f"sid.{number:09d}", "square", number) for number in range(count))


def picks(picker, seen, count=PICKS, load=None):
    return Counter(picker.pick(task, seen, load or {}) for task in tasks(count))


def chi_square(counts, shares):
    whole = sum(counts.values())
    return sum((counts[member] - whole * share) ** 2 / (whole * share) for member, share in shares.items())


@pytest.mark.parametrize("picker", [Weighted(seed=7), Rendezvous()])
def test_shares_follow_the_weights_within_five_per_cent(picker):
    counts = picks(picker, view(1.0, 2.0, 3.0))
    shares = {"m0": 1 / 6, "m1": 1 / 3, "m2": 1 / 2}
    assert chi_square(counts, shares) < LIMIT[2]
    assert all(abs(counts[member] / PICKS - share) < 0.05 * share * 2 for member, share in shares.items())


@pytest.mark.parametrize("picker", [Random(seed=7), Weighted(seed=7), Rendezvous(), Rank(), RoundRobin()])
def test_equal_members_get_equal_shares(picker):
    counts = picks(picker, view(1.0, 1.0, 1.0, 1.0))
    assert chi_square(counts, {f"m{number}": 0.25 for number in range(4)}) < LIMIT[3]


def test_a_picker_of_wrong_shares_is_found_out():
    counts = Counter({"m0": 1750, "m1": 3250, "m2": 5000})
    assert chi_square(counts, {"m0": 1 / 6, "m1": 1 / 3, "m2": 1 / 2}) > LIMIT[2] / 3
    counts = Counter({"m0": 1900, "m1": 3100, "m2": 5000})
    assert chi_square(counts, {"m0": 1 / 6, "m1": 1 / 3, "m2": 1 / 2}) > LIMIT[2]


def test_a_new_weight_counts_from_the_next_view_on():
    picker = Weighted(seed=3)
    assert set(picks(picker, view(1.0, 0.0), 200)) == {"m0"}
    assert set(picks(picker, view(0.0, 1.0), 200)) == {"m1"}


def test_pull_asks_nobody_first():
    assert set(picks(Pull(), view(1.0, 1.0), 10)) == {None}


@pytest.mark.parametrize(
    "picker", [Rank(), Random(), RoundRobin(), Weighted(), Rendezvous(), Rendezvous(by="function"), LeastLoaded()]
)
def test_no_picker_fails_when_nobody_is_there_or_all_have_weight_zero(picker):
    task = TaskInfo("a.1", "f", 1)
    assert picker.pick(task, View(), {}) is None
    assert picker.pick(task, view(0.0, 0.0), {}) in {None, "m0", "m1"}


def test_rank_deals_by_age():
    seen = View(1, (GroupMember("a", created=9), GroupMember("b", created=1)))
    assert [Rank().pick(TaskInfo("x", "f", number), seen, {}) for number in range(4)] == ["b", "a", "b", "a"]


def test_round_robin_goes_on_behind_the_last_when_members_come_and_go():
    picker = RoundRobin()
    assert [picker.pick(TaskInfo("x", "f", 0), view(1, 1, 1), {}) for _ in range(4)] == ["m0", "m1", "m2", "m0"]
    assert picker.pick(TaskInfo("x", "f", 0), View(2, (GroupMember("m2"),)), {}) == "m2"
    assert picker.pick(TaskInfo("x", "f", 0), view(1, 1, 1), {}) == "m0"


def test_rendezvous_moves_only_what_the_member_that_left_had():
    before, after = view(1, 1, 1, 1), View(2, view(1, 1, 1, 1).members[:-1])
    for task in tasks(1000):
        owner = Rendezvous().pick(task, before, {})
        if owner != "m3":
            assert Rendezvous().pick(task, after, {}) == owner


def test_rendezvous_by_function_sends_all_calls_of_one_to_one_member():
    assert len(picks(Rendezvous(by="function"), view(1, 1, 1), 50)) == 1
    with pytest.raises(ValueError, match="by must be"):
        Rendezvous(by="key")


def test_least_loaded_takes_the_member_with_fewest_tasks_for_each_slot():
    load = {"m0": Load(4, 0, 8), "m1": Load(1, 1, 2), "m2": Load(1, 0, 1)}
    assert LeastLoaded().pick(TaskInfo("x", "f", 0), view(1, 1, 1), load) == "m0"


def test_each_copy_goes_to_another_member_as_far_as_there_are_some():
    for picker in (Pull(), Rank(), Random(), RoundRobin(), Weighted(), Rendezvous(), LeastLoaded()):
        picked = pick_for_copies(picker, TaskInfo("a.7", "f", 7), view(1, 1, 1), {}, 4)
        assert len(picked) == 4
        assert set(picked) == {"m0", "m1", "m2", None}


def test_one_copy_of_a_pulled_task_is_everybodys():
    assert pick_for_copies(Pull(), TaskInfo("a.7", "f", 7), view(1, 1), {}, 1) == [None]


def test_drawn_gives_each_member_its_stretch():
    members = view(1.0, 0.0, 3.0).members
    assert [pick_by_weight(members, chance) for chance in (0.0, 0.249, 0.25, 0.999)] == ["m0", "m0", "m2", "m2"]


def test_a_key_has_one_owner_and_others_keep_theirs_when_a_member_leaves():
    seen = view(1, 1, 1)
    owners = {f"k{number}": find_key_owner(f"k{number}", seen.members) for number in range(300)}
    left = [member for member in seen.members if member.id != "m1"]
    assert set(owners.values()) == {"m0", "m1", "m2"}
    assert all(find_key_owner(key, left) == owner for key, owner in owners.items() if owner != "m1")
    assert find_key_owner("k", view(0.0).members) is None


def test_candidates_of_targets():
    seen = view(1, 1, labels=({"zone": "a"}, {"zone": "b", "gpu": "yes"}))
    assert [member.id for member in eligible_members(Label(zone="b"), seen)] == ["m1"]
    assert [member.id for member in eligible_members(Member("m0"), seen)] == ["m0"]
    assert eligible_members(Member("x", "any"), seen) == ()
    assert (
        len(eligible_members(None, seen))
        == len(eligible_members(Key("k"), seen))
        == len(eligible_members(All(), seen))
        == 2
    )
    with pytest.raises(NoSuchMember, match="online: m0, m1"):
        eligible_members(Member("x"), seen)


@pytest.mark.parametrize("target", [Member("m0"), Member("m0", "wait"), Key("customer/7"), Label(a="1", b="2")])
def test_a_target_comes_back_from_its_record(target):
    stored = StoredTarget.from_target(target)
    assert TARGET.decode(encode(stored)).to_target() == target


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"member": 7},
        {"member": "m", "otherwise": "x"},
        {"member": "a/b", "otherwise": "any"},
        {"labels": {}},
        {"labels": {"a": 1}},
    ],
)
def test_a_target_that_nobody_of_ours_wrote_is_a_bad_record(body):
    with pytest.raises(BadRecord):
        TARGET.decode(encode(body))


def test_bad_targets_are_refused():
    with pytest.raises(InvalidKey, match="member id"):
        Member("a/b")
    with pytest.raises(InvalidKey, match="1 to 100"):
        Member("x" * 101)
    with pytest.raises(ValueError, match="otherwise"):
        Member("a", "never")
    with pytest.raises(TypeError, match="labels"):
        Label()
    with pytest.raises(TypeError, match="key"):
        Key(7)


@pytest.mark.parametrize(
    "options", [{"copies": 2}, {"picker": RoundRobin()}, {"target": Key("a")}], ids=lambda each: next(iter(each))
)
def test_tasks_that_ask_for_a_member_are_stored_at_once_before_the_first_worker_is_there(pool, workers, options):
    asking = [pool.with_options(**options).submit(square, n) for n in range(5)]
    plain = pool.submit(square, 9)
    began = time.monotonic()
    pool.flush(PATIENCE_S)
    assert time.monotonic() - began < 5.0, "not ten seconds for each of them"
    workers()
    assert [future.result(PATIENCE_S) for future in [*asking, plain]] == [0, 1, 4, 9, 16, 81]


def test_a_plain_task_does_not_wait_behind_those_that_ask_for_a_member(workers, pool, monkeypatch):
    workers()
    asked, before, number = [], [], 400

    class Slow:
        def pick(self, task, view, load):
            asked.append(task.number)

    is_stored = pool._submitter._mark_stored

    def settled(placed):
        placed = list(placed)
        if number in [ticket.number for ticket, _ in placed]:
            before.append(len(asked))
        is_stored(placed)

    monkeypatch.setattr(pool._submitter, "_mark_stored", settled)
    for _ in range(number):
        pool.with_options(picker=Slow()).submit(square, 1)
    had = len(asked)
    pool.submit(square, 2)
    pool.flush(PATIENCE_S)
    assert before[0] - had <= 160, "two batches at most, however many wait"
