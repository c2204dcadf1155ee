"""What masters and workers write for each other is read as it was written, and hostile bytes are one clear error."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from latchwork.errors import BadRecord, InvalidKey, ValueTooLarge
from latchwork_workflows.keys import (
    ItemName,
    build_log_ref,
    build_partition,
    build_sort_key,
    format_attempt_key,
    get_worker_group,
    list_pool_keys,
    parse_attempt_key,
)
from latchwork_workflows.messages import (
    INLINE_BYTES,
    MAX_RESULT_BYTES,
    AttemptResult,
    RunningRecord,
    TaskHead,
    TaskMessage,
)
from latchwork_workflows.state import Outcome

HEAD = TaskHead(3, 42, 2, 7, 1, 5, "default.nightly", "load", "shell", "etl", 600.0)
SPEC = TaskMessage(
    HEAD, {"script": "echo $day"}, {"TZ": "UTC"}, {"day": "2026-11-22", "got.rows": 3}, 1.5e9, "Europe/Berlin"
)
RESULT = AttemptResult(Outcome.FAILURE, 99, "w1", "host", 1.0, 2.5, 4711, -9, {"rows": 3}, "killed", "1/7/42/2.99.log")


def test_a_small_spec_is_in_its_item_and_a_large_one_has_its_head_there():
    value, body = SPEC.to_bytes()
    assert body is None
    assert TaskMessage.from_bytes(value) == SPEC
    large = replace(SPEC, params={"script": "x" * 100_000})
    value, body = large.to_bytes()
    assert len(value) < INLINE_BYTES
    assert TaskHead.from_bytes(value) == structs.replace(HEAD, has_body=True)
    assert TaskMessage.from_bytes(value, body).params == large.params
    with pytest.raises(BadRecord, match=r"42\.2 is missing"):
        TaskMessage.from_bytes(value)
    with pytest.raises(ValueTooLarge, match="'load' would get"):
        replace(SPEC, values={"all": "x" * 1_000_000}).to_bytes()


def test_a_result_is_read_as_it_was_written():
    assert AttemptResult.from_bytes(RESULT.to_bytes()) == RESULT
    plain = AttemptResult(Outcome.SUCCESS, 1, "w", "h", 1.0, 2.0)
    assert AttemptResult.from_bytes(plain.to_bytes()) == plain
    assert len(AttemptResult.from_bytes(structs.replace(RESULT, error="x" * 10_000).to_bytes()).error) == 4_000
    with pytest.raises(ValueTooLarge, match="at most 64,000"):
        structs.replace(RESULT, outputs={"all": "x" * MAX_RESULT_BYTES}).to_bytes()


def test_who_runs_an_attempt_is_read_as_it_was_written_and_nonsense_is_harmless():
    running = RunningRecord("w1", "host", 5.0, "its node closed")
    assert RunningRecord.from_bytes(running.to_bytes()) == running
    assert RunningRecord.from_bytes(b"\xff") == RunningRecord("?", "?", 0.0)


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b"\xff", b'{"outcome":"great"}', json.dumps({"outcome": "success", "claim": -1}).encode()],
)
def test_what_is_no_record_of_ours_is_said_to_be_none(value):
    for read in (TaskHead.from_bytes, TaskMessage.from_bytes, AttemptResult.from_bytes):
        with pytest.raises(BadRecord):
            read(value)


def test_the_name_of_an_item_says_what_it_is():
    item = ItemName(42, 2, 3, 1)
    assert item.id == "0100000000000000000042.2.3"
    assert ItemName.parse(item.id) == item
    assert parse_attempt_key(item.attempt_key) == (42, 2)
    for name in ("task", "0100000000000000000042.2", "0100000000000000000042.2.3.4", "\u06600100000000000000042.2.3"):
        with pytest.raises(InvalidKey):
            ItemName.parse(name)
    for name in ("", "1", "1.x", "a.1", "1.1.1"):
        with pytest.raises(InvalidKey):
            parse_attempt_key(name)


def test_names_sort_by_priority_then_by_number_so_nine_is_before_ten():
    places = [
        (build_sort_key("run", run_id, pp, tp, 0.0), ItemName(task, 1, 0, tp).id)
        for pp in (0, 4)
        for run_id in (9, 10)
        for tp in (0, 2)
        for task in (9, 10)
    ]
    assert places == sorted(places)
    by_time = [build_sort_key("submitted", 1, pp, tp, at) for pp in (0, 4) for tp in (0, 4) for at in (540.0, 600.0)]
    assert by_time == sorted(by_time)


def test_a_partition_is_of_a_worker_group_or_of_a_pool_in_it():
    assert (get_worker_group("gpu"), list_pool_keys(build_partition("gpu"))) == ("gpu", ())
    assert list_pool_keys(build_partition("gpu", "licences")) == ("licences",)
    assert build_log_ref(1, 7, format_attempt_key(42, 2), 99) == "1/7/42/2.99.log"
