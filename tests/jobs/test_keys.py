"""Ids and work items as parts of keys."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latchwork.jobs.stored.keys import check_id, check_item, decode_item, encode_item, lock_name, split_lock_name
from latchwork.store.keys import validate_key

ITEMS = st.text(st.characters(exclude_categories=("Cs",)), max_size=512).filter(lambda s: len(s.encode()) <= 512)


@given(ITEMS)
@settings(deadline=None)
@example("")
@example(".")
@example("..")
@example("~")
@example("+")
@example("a+")
@example("@gen")
@example("a/b")
@example("x" * 512)
@example("." * 121)
@example("x" * 119 + "..")
@example("\x00" * 512)
@example("ż" * 256)
def test_every_item_becomes_a_valid_key_and_comes_back(item):
    path = encode_item(item)
    validate_key(f"locks/job/{path}")
    assert decode_item(path) == item


@given(st.lists(ITEMS, min_size=2, max_size=8, unique=True))
@settings(deadline=None)
@example(["x" * 119, "x" * 200])
@example(["x" * 120, "x" * 240])
def test_no_two_items_share_a_key_and_none_lies_above_another(items):
    paths = [encode_item(item) for item in items]
    assert len(set(paths)) == len(items)
    for a in paths:
        assert not any(b.startswith(a + "/") for b in paths)


def test_a_plain_item_stays_readable_in_its_key():
    assert encode_item("region-1_a.b:c=d,e") == "region-1_a.b:c=d,e"
    assert encode_item("a/b c") == "a~2Fb~20c"


def test_a_lock_name_gives_back_its_job_and_item():
    assert split_lock_name(lock_name("report", "a/b" * 150)) == ("report", "a/b" * 150)


def test_a_foreign_key_below_locks_is_refused():
    with pytest.raises(ValueError, match="not an encoded work item"):
        decode_item("a/b")


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "x" * 121, ".", "..", "ż", "a\n", None, 7])
def test_an_id_that_cannot_be_a_segment_is_refused_with_its_value(bad):
    with pytest.raises(ValueError, match=r"job id .* cannot be used"):
        check_id("job", bad)


def test_ids_of_the_longest_length_and_all_signs_are_accepted():
    assert check_id("node", "x" * 120) == "x" * 120
    assert check_id("node", "A-z_0.9") == "A-z_0.9"


@pytest.mark.parametrize(
    ("bad", "reason"), [(7, "of type int"), (b"a", "of type bytes"), ("\ud800", "surrogate"), ("ż" * 257, "514 bytes")]
)
def test_an_item_that_is_no_short_text_is_refused_with_the_reason(bad, reason):
    with pytest.raises(ValueError, match=reason):
        check_item(bad)
