"""What other programs write below the root, and is no key: skipped, warned of once, and no harm to anything else."""

from __future__ import annotations

import logging

import pytest

from latchwork_testkit.etcd_rpc import pb

STRANGERS = [b"x/\xff\xfe", b"x//y", b"x/a b", b"x/\x1b[31mred", b"x/", b"/x", b"x/\xc3\xa9", b"x/y\n", b"", b"x/.."]


@pytest.fixture
def invade(raw, root):
    """Write these below the root, and a key of ours in the same transaction."""

    def write(*keys, value=b"v"):
        puts = [pb.PutRequest(key=b"/%s/" % root.encode() + key, value=value) for key in keys]
        raw.kv.Txn(pb.TxnRequest(success=[pb.RequestOp(request_put=put) for put in puts]), timeout=5)

    return write


def listed(backend, prefix="", **options):
    options = {"recursive": True, "limit": None, "start_after": None, **options}
    return [entry.key for entry in backend.list(prefix, **options).result(15)]


def test_an_open_watch_tells_the_other_changes_of_the_same_response(backend, invade, collector):
    seen = collector()
    backend.watch("", seen)
    seen.wait_until(lambda c: c.events)
    invade(*STRANGERS[:5], b"ours", *STRANGERS[5:])
    seen.wait_until(lambda c: "ours" in c.state)
    invade(b"x/\xff\xfe", b"later")
    seen.wait_until(lambda c: "later" in c.state)
    assert sorted(seen.state) == ["later", "ours"]


def test_a_watch_goes_on_when_a_stranger_is_deleted(backend, raw, root, invade, collector):
    invade(*STRANGERS)
    seen = collector()
    backend.watch("x", seen)
    seen.wait_until(lambda c: c.events)
    raw.kv.DeleteRange(pb.DeleteRangeRequest(key=b"/%s/x/\xff\xfe" % root.encode()), timeout=5)
    invade(b"x/ours")
    seen.wait_until(lambda c: "x/ours" in c.state)
    assert sorted(seen.state) == ["x/ours"]


def test_lists_and_children_leave_them_out(backend, invade):
    invade(*STRANGERS, b"x/ours", b"z")
    assert listed(backend) == ["x/ours", "z"]
    assert listed(backend, "x", recursive=False) == ["x/ours"]
    assert backend.children("").result(15) == ["x", "z"]
    assert backend.children("x").result(15) == ["ours"]


def test_a_limit_counts_keys_only(backend, invade):
    for number in range(30):
        invade(*(b"x/%03d %d" % (number, each) for each in range(20)), b"x/%03d" % number)
    expected = [f"x/{number:03}" for number in range(30)]
    assert listed(backend, "x", limit=25) == expected[:25]
    assert listed(backend, "x", recursive=False, limit=25) == expected[:25]
    assert listed(backend, "x", recursive=False) == expected


def test_a_name_with_nothing_but_strangers_below_is_no_parent(backend, invade):
    invade(b"x/a b", b"y/ours")
    assert backend.children("").result(15) == ["y"]


def test_each_is_named_once_and_made_harmless(backend, invade, caplog):
    invade(*STRANGERS)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            listed(backend)
        invade(b"x/a b", b"x/new one")
        listed(backend)
    told = [record.getMessage() for record in caplog.records if "are not valid keys" in record.getMessage()]
    assert [message.split()[0] for message in told] == ["2", "8", "1"], "the root is read in two parts"
    assert "new one" in told[2]
    assert "a b'" not in told[2]
    assert "\x1b" not in "".join(told)
    assert backend._keys.invalid_keys.count == len(STRANGERS) + 1
