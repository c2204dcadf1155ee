"""Rights that are taken away while something is watched: servers say nothing, the watch ends all the same."""

from __future__ import annotations

import time
import uuid
from contextlib import closing

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

import latchwork
from backends_table import BY_NAME, ETCD
from latchwork import Absent, AuthenticationFailed, Delete, Exists, PermissionDenied, Put
from latchwork.backends.etcd.watching import watches as etcd_watches
from latchwork.backends.zookeeper.watching import single_keys, watches
from latchwork_testkit.proxy import Proxy
from levels import LONG
from security.accounts import Accounts

#: Promised are 5 s; machines are busy.
SOON_S = 30.0
PASSWORD = "app-secret"


@pytest.fixture(scope="module", params=ETCD)
def accounts(request):
    """Of a server of etcd."""
    with BY_NAME[request.param].launch() as server, closing(Accounts(server, PASSWORD)) as made:
        made.log_in()
        made.url = lambda root="app/x": server.url(root).replace("://", f"://app:{PASSWORD}@")
        yield made


def ended(watch):
    """The error that a watch ends with."""
    with pytest.raises((PermissionDenied, AuthenticationFailed)) as caught:
        while watch.next(SOON_S):
            pass
    return caught.value


def test_an_open_watch_on_etcd_ends_when_its_account_loses_the_right(accounts, monkeypatch):
    if not LONG:
        monkeypatch.setattr(etcd_watches, "_RIGHTS_EVERY_S", 0.5)
    with latchwork.connect(accounts.url()) as store:
        store.put("k", b"1")
        mirror = store.mirror("")
        with store.watch("k") as watch:
            watch.next(SOON_S)
            mirror.wait_until(lambda it: "k" in it, timeout_s=SOON_S)
            accounts.revoke()
            try:
                error = ended(watch)
                with pytest.raises(PermissionDenied):
                    mirror.wait_until(lambda it: False, timeout_s=SOON_S)
            finally:
                accounts.grant()
        assert isinstance(error, PermissionDenied)
        assert "watch 'k'" in str(error)
        with store.watch("k") as again:
            assert again.next(SOON_S)


def test_an_open_watch_on_etcd_goes_on_when_only_other_parts_of_the_root_are_refused(accounts, monkeypatch):
    monkeypatch.setattr(etcd_watches, "_RIGHTS_EVERY_S", 0.2)
    accounts.grant(b"/part/mine/")
    with latchwork.connect(accounts.url("part")) as store, store.watch("mine/k") as watch:
        watch.next(SOON_S)
        with pytest.raises(PermissionDenied):
            store.get("k")
        time.sleep(1.5)
        accounts.put(b"/part/mine/k", b"1")
        assert watch.next(SOON_S)[-1].entry.value == b"1"


def test_a_right_that_is_lost_ends_no_watch_of_a_store_with_another_root(accounts, monkeypatch):
    monkeypatch.setattr(etcd_watches, "_RIGHTS_EVERY_S", 0.2)
    accounts.grant(b"/other/")
    with (
        latchwork.connect(accounts.url()) as store,
        latchwork.connect(accounts.url("other")) as other,
        store.watch("k") as watch,
        other.watch("k") as theirs,
    ):
        assert other._core.backend._connection is store._core.backend._connection
        watch.next(SOON_S)
        theirs.next(SOON_S)
        accounts.revoke()
        try:
            assert isinstance(ended(watch), PermissionDenied)
        finally:
            accounts.grant()
        accounts.put(b"/other/k", b"1")
        assert theirs.next(SOON_S)[-1].entry.value == b"1"


def transact(store):
    def put_anew(tx):
        tx.get("sec/k")
        tx.put("sec/k", b"")

    store.transact(put_anew)


def pipelined(store):
    with store.pipeline() as pipeline:
        pipeline.put("sec/k", b"").result(SOON_S)


def watched(store):
    with store.watch("sec/k") as watch:
        watch.next(SOON_S)


#: Calls, and the keys one of which was refused: the error has to name them, for servers do not say which it was.
REFUSED = {
    "get": (lambda store: store.get("sec/k"), ["sec/k"]),
    "get a stale state": (lambda store: store.get("sec/k", stale_ok=True), ["sec/k"]),
    "get_many": (lambda store: store.get_many(["sec/k", "sec/l"]), ["sec/k"]),
    "list": (lambda store: store.list("sec"), ["sec"]),
    "list a subtree": (lambda store: store.list("sec", recursive=True), ["sec"]),
    "children": (lambda store: store.children("sec"), ["sec"]),
    "put": (lambda store: store.put("sec/k", b""), ["sec/k"]),
    "create": (lambda store: store.create("sec/k", b""), ["sec/k"]),
    "create in sequence": (lambda store: store.create("sec/q-", b"", sequential=True), ["sec"]),
    "delete": (lambda store: store.delete("sec/k"), ["sec/k"]),
    "delete_tree": (lambda store: store.delete_tree("sec"), ["sec"]),
    "check": (lambda store: store.commit([Exists("sec/k"), Absent("sec/m")], []), ["sec/k", "sec/m"]),
    "commit": (lambda store: store.commit([], [Put("sec/a", b""), Delete("sec/b")]), ["sec/a", "sec/b"]),
    "check and commit": (lambda store: store.commit([Exists("sec/k")], [Put("sec/b", b"")]), ["sec/k", "sec/b"]),
    "transact": (transact, ["sec/k"]),
    "pipeline": (pipelined, ["sec/k"]),
    "watch": (watched, ["sec/k"]),
    "mirror": (lambda store: store.mirror("sec"), ["sec"]),
}
AT_ONCE_S = 2.0


def refuses_by_name(store, call):
    act, keys = REFUSED[call]
    began = time.monotonic()
    with pytest.raises(PermissionDenied) as caught:
        act(store)
    assert time.monotonic() - began < AT_ONCE_S
    assert [key for key in keys if f"'{key}" not in str(caught.value)] == []


@pytest.mark.parametrize("call", REFUSED)
def test_a_refusal_by_etcd_comes_at_once_and_names_the_keys(accounts, call):
    with latchwork.connect(accounts.url("strangers")) as store:
        refuses_by_name(store, call)


def test_an_open_watch_on_etcd_ends_when_its_account_is_removed(accounts, monkeypatch):
    """The last test of the server: the account is gone."""
    monkeypatch.setattr(etcd_watches, "_RIGHTS_EVERY_S", 0.2)
    with latchwork.connect(accounts.url()) as store, store.watch("") as watch:
        watch.next(SOON_S)
        accounts.remove()
        assert isinstance(ended(watch), AuthenticationFailed)


@pytest.fixture
def ann(zookeeper):
    """Her store, and somebody who may change the rights to what is hers."""
    root = f"rights-{uuid.uuid4().hex}"
    raw = KazooClient(zookeeper.endpoint, auth_data=[("digest", "ann:secret"), ("digest", "bob:secret")])
    raw.start()
    with (
        Proxy(zookeeper.endpoint) as proxy,
        latchwork.connect(f"zk://ann:secret@{proxy.endpoint}/{root}") as store,
    ):
        store.give_to_bob = lambda key: raw.set_acls(f"/{root}/{key}", [make_digest_acl("bob", "secret", all=True)])
        store.proxy = proxy
        yield store
    raw.stop()
    raw.close()


@pytest.mark.parametrize("value", [b"small", b"x" * 100_000], ids=["small", "large"])
def test_an_open_watch_on_zookeeper_ends_when_its_account_loses_the_right_to_its_prefix(ann, value, monkeypatch):
    if len(value) > 100:  # one of the two takes its time
        monkeypatch.setattr(watches, "_RIGHTS_EVERY", 1)
    ann.put("k", value)
    mirror = ann.mirror("k")
    with ann.watch("k") as watch:
        watch.next(SOON_S)
        mirror.wait_until(lambda it: "k" in it, timeout_s=SOON_S)
        ann.give_to_bob("k")
        error = ended(watch)
    assert isinstance(error, PermissionDenied)
    assert "'k'" in str(error)
    with pytest.raises(PermissionDenied, match="'k'"):
        mirror.wait_until(lambda it: False, timeout_s=SOON_S)


def test_an_open_watch_on_zookeeper_ends_with_the_next_connection_when_it_may_not_read_a_key_below_any_more(ann):
    """The server hides what happens to such a key."""
    ann.put("w/k", b"1")
    with ann.watch("w") as watch:
        watch.next(SOON_S)
        ann.give_to_bob("w/k")
        ann.proxy.cut()
        assert "'w/k'" in str(ended(watch))


def test_a_watched_leaf_on_zookeeper_ends_when_its_account_loses_the_right_to_it(ann, monkeypatch):
    monkeypatch.setattr(single_keys, "_RIGHTS_EVERY_S", 0.2)
    ann.put("k", b"1", session=ann.session)
    with ann.watch("k", single_key=True) as watch:
        watch.next(SOON_S)
        ann.give_to_bob("k")
        assert "'k'" in str(ended(watch))


@pytest.mark.parametrize("call", REFUSED)
def test_a_refusal_by_zookeeper_comes_at_once_and_names_the_keys(ann, zookeeper, call):
    for key in ("sec/k", "sec/l"):
        ann.put(key, b"1")
    root = ann.url.rpartition("/")[2]
    with latchwork.connect(f"zk://eve:secret@{zookeeper.endpoint}/{root}") as store:
        refuses_by_name(store, call)


def test_a_mirror_on_zookeeper_without_rights_says_so(ann, zookeeper):
    ann.put("k", b"1")
    ann.give_to_bob("k")
    with pytest.raises(PermissionDenied, match="'k'"):
        ann.mirror("").wait_until(lambda it: False, timeout_s=SOON_S)
