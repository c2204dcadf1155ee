"""Large values in chunks: whole or refused, and nothing stays of what nobody named."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pytest

from latchwork.errors import BadRecord, InvalidKey, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.tasks import BlobRef, Blobs, PayloadTooLarge
from latchwork.tasks.blobs import CHUNK_BYTES, LATE_S
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Create, Put

PATIENCE_S = 45.0


def eventually(is_so):
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_value_comes_back_whole_and_goes_with_its_record(store, size):
    blobs = Blobs(store, "data")
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    ref = blobs.write("owner", data)
    store.put("record", ref.to_bytes())
    found = BlobRef.from_bytes(store.get("record").value)
    assert blobs.read(found) == data
    store.commit([], [*blobs.delete_ops(found), Put("record", b"done")])
    assert store.list("data", recursive=True) == []


def test_a_value_above_the_limit_is_refused_before_anything_is_written(store):
    blobs = Blobs(store, "data", max_bytes=10)
    with pytest.raises(PayloadTooLarge, match="11 bytes, and at most 10 are stored"):
        blobs.write("owner", b"x" * 11)
    assert store.children("data") == []
    with pytest.raises(PayloadTooLarge, match="at most 10 are read"):
        blobs.read(BlobRef("owner", "id", 11, ""))


def test_a_value_that_somebody_damaged_is_refused(store):
    blobs = Blobs(store, "data")
    ref = blobs.write("owner", b"x" * (CHUNK_BYTES + 5))
    store.put(f"data/owner/{ref.id}/0001", b"y" * 5)
    with pytest.raises(BadRecord, match="another program wrote to its keys"):
        blobs.read(ref)
    store.delete(f"data/owner/{ref.id}/0001")
    with pytest.raises(BadRecord, match="has lost a part"):
        blobs.read(ref)


@pytest.mark.parametrize(
    "part",
    [{"size": 10**15}, {"size": -1}, {"owner": "a/../b"}, {"id": "x/y"}, {"id": ""}, {"digest": 5}, {"owner": None}],
)
def test_a_reference_that_is_none_is_refused(part):
    good = {"owner": "o", "id": "i", "size": 5, "digest": "d"}
    assert BlobRef.from_bytes(json.dumps(good).encode()).chunk_count == 1
    with pytest.raises(BadRecord):
        BlobRef.from_bytes(json.dumps({**good, **part}).encode())


def test_an_owner_is_one_segment(store):
    with pytest.raises(LatchworkError, match="one segment"):
        Blobs(store, "data").write("a/b", b"")
    with pytest.raises(InvalidKey):
        Blobs(store, "data").write("a b", b"")


def test_a_write_that_fails_leaves_nothing(backend_url):
    import latchwork

    with FaultyStore(latchwork.connect(backend_url)) as store:
        store.add(Fault("fail", op="put", key="data/owner/*/0002"))
        with pytest.raises(Unavailable):
            Blobs(store, "data").write("owner", b"x" * (3 * CHUNK_BYTES))
        eventually(lambda: store.list("data", recursive=True) == [])


def test_a_sweep_removes_what_owners_who_are_gone_have_left_and_nothing_else(store):
    blobs = Blobs(store, "data")
    kept, _ = blobs.write("alive", b"1"), blobs.write("dead", b"2")
    with closing(store.open_session(10)) as session:
        store.commit([], [Create("owners/alive", b"", session)])
        assert blobs.sweep(lambda: store.children("owners")) == ["dead"]
        assert blobs.read(kept) == b"1"
    assert blobs.sweep(lambda: store.children("owners")) == ["alive"]
    assert store.list("data", recursive=True) == []


def test_a_sweep_asks_who_lives_after_it_has_seen_who_has_left_something(store):
    """An owner that appears in between is not taken for one that is gone."""
    blobs = Blobs(store, "data")

    def living():
        blobs.write("new", b"1")
        return []

    blobs.write("old", b"1")
    assert blobs.sweep(living) == ["old"]
    assert store.children("data") == ["new"]


@pytest.mark.parametrize("trouble", ["fail", "cut_before"])
def test_what_nobody_will_name_is_deleted_until_that_works(backend_url, trouble):
    """Its writer goes on; so nobody would sweep it for long."""
    import latchwork

    with FaultyStore(latchwork.connect(backend_url)) as store:
        store.add(Fault("fail", op="put", key="data/owner/*/0002"))
        store.add(Fault(trouble, op="delete_tree", times=4))
        with pytest.raises(Unavailable):
            Blobs(store, "data").write("owner", b"x" * (3 * CHUNK_BYTES))
        eventually(lambda: store.list("data", recursive=True) == [])
        assert [call.op for call in store.faults] == ["put", *["delete_tree"] * 4]


def test_a_chunk_that_lands_after_it_was_deleted_is_deleted_again(backend_url):
    import latchwork

    with FaultyStore(latchwork.connect(backend_url)) as store:
        store.add(Fault("land_late", op="put", key="data/owner/*/0000", delay_s=LATE_S / 2))
        with pytest.raises(OutcomeUnknown):
            Blobs(store, "data").write("owner", b"x")
        time.sleep(LATE_S / 2)
        eventually(lambda: [call.op for call in store.calls].count("delete_tree") == 2)
        eventually(lambda: store.list("data", recursive=True) == [])
