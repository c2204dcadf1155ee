"""What is stored of a task, and the names of keys: records that anybody may have written."""

from __future__ import annotations

import json

import pytest

from latchwork.errors import BadRecord, InvalidKey
from latchwork.executor.hooks import policy_allows_retry
from latchwork.executor.items import TaskItem, may_run
from latchwork.executor.keys import (
    Keys,
    check_member_id,
    check_task_id,
    generate_submitter_id,
    make_task_id,
    member_partition,
    parse_result_number,
    partition_member,
    queued_at_s,
    task_sort_key,
)
from latchwork.executor.targets import Key, Label, Member, StoredTarget
from latchwork.tasks import BlobRef, Outcome, StoredRetry

SMALL = TaskItem("square", "s", 7, ("any",), "5-0-s", payload=b"plain:x")
FULL = TaskItem(
    "square",
    "s",
    7,
    ("m.a", "m.b"),
    "0-0-s",
    blob=BlobRef("s", "x", 9, "d"),
    priority=0,
    stored_target=StoredTarget.from_target(Label(zone="a")),
    retry=StoredRetry(3, 0.5, 2.0, 9.0, 0.0, ("builtins:ValueError",)),
    timeout_s=2.5,
    is_kept=True,
    payload=b"\n\x00\nxyz",
)
DETACHED = TaskItem("report", "d", 0, ("any",), "5-0-d", own_id="d.nightly")


@pytest.mark.parametrize("item", [SMALL, FULL, DETACHED])
def test_a_task_comes_back_from_its_record(item):
    assert TaskItem.from_bytes(item.to_bytes()) == item


def test_a_plain_task_takes_few_bytes():
    assert len(SMALL.to_bytes()) < 100


@pytest.mark.parametrize(
    "change",
    [
        {"n": -1},
        {"n": "7"},
        {"fn": 7},
        {"on": []},
        {"on": "any"},
        {"on": ["any"] * 2000},
        {"priority": 10},
        {"priority": True},
        {"retry": {"attempts": 0, "initial_s": 1, "increase": 1, "max_s": 1, "jitter": 0, "on": []}},
        {"retry": {"attempts": 1}},
        {"timeout_s": -1},
        {"target": {"labels": {}}},
        {"blob": 7, "sort": None},
    ],
)
def test_a_record_that_nobody_of_ours_wrote_is_refused(change):
    line, _, payload = SMALL.to_bytes().partition(b"\n")
    stored = json.dumps({**json.loads(line), **change}).encode() + b"\n" + payload
    with pytest.raises(BadRecord):
        TaskItem.from_bytes(stored)


@pytest.mark.parametrize("value", [b"", b"x", b"{}", b"{}\n", b"[]\n", b"\xff\n", b"null\n"])
def test_bytes_that_are_no_record_are_refused(value):
    with pytest.raises(BadRecord):
        TaskItem.from_bytes(value)


def test_ids_sort_as_tasks_were_submitted():
    ids = [make_task_id("s", number) for number in (0, 9, 10, 99, 100, 123_456)]
    assert ids == sorted(ids)
    sort_keys = [task_sort_key(*parts, "s") for parts in ((0, 9), (0, 10), (5, 1), (9, 0))]
    assert sort_keys == sorted(sort_keys)


def test_a_shelf_says_when_it_was_written_to_a_quarter_of_a_second():
    assert 1_700_000_000.123 - 0.256 < queued_at_s(task_sort_key(5, 1_700_000_000_123, "s")) <= 1_700_000_000.123
    assert queued_at_s("whatever") == queued_at_s("5-zz-s") == 0.0


@pytest.mark.parametrize("number", [0, 7, 999, 1000, 123_456_789])
def test_the_number_of_a_result_comes_back_from_its_key(number):
    assert parse_result_number(Keys("default").result_key("s", number)) == number


@pytest.mark.parametrize("key", ["x/results/s/0/x", "x/results/s/0/07", "x/results/s/x/007", "x/results/s/²/007"])
def test_a_key_that_is_no_result_has_no_number(key):
    assert parse_result_number(key) is None


def test_lanes_have_members():
    assert partition_member(member_partition("web-1")) == "web-1"
    assert partition_member("any") is None
    assert len(member_partition("x" * 100)) <= 120


def test_ids_that_cannot_be_parts_of_keys_are_refused():
    for bad in ("", "a/b", "x" * 101, 7, "a b", ".."):
        with pytest.raises(InvalidKey):
            check_member_id(bad)
        with pytest.raises(InvalidKey):
            check_task_id(bad)
    assert len({generate_submitter_id() for _ in range(100)}) == 100


def test_who_may_run_a_task():
    plain = SMALL
    assert may_run(plain, "a", {})
    for target, member, labels, may in [
        (Member("a"), "a", {}, True),
        (Member("a"), "b", {}, False),
        (Member("a", "any"), "b", {}, True),
        (Key("k"), "b", {}, True),
        (Label(zone="a"), "b", {"zone": "a"}, True),
        (Label(zone="a"), "b", {"zone": "b"}, False),
    ]:
        item = TaskItem("f", "s", 1, ("any",), "", stored_target=StoredTarget.from_target(target))
        assert may_run(item, member, labels) is may


def test_classes_that_are_tried_again_are_known_by_their_names():
    item = TaskItem("f", "s", 1, ("any",), "", retry=StoredRetry(3, 0.5, 2.0, 9.0, 0.0, ("builtins:LookupError",)))
    assert policy_allows_retry(item, Outcome.from_exception(KeyError("x")))
    assert not policy_allows_retry(item, Outcome.from_exception(ValueError("x")))
    assert policy_allows_retry(SMALL, Outcome.from_exception(ValueError("x")))
