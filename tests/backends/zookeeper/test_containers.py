"""The server removes childless parents at any time: nothing stays, and no check, write or lock is fooled by it."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

import latchwork
from latchwork.backends.zookeeper.connection import ZooKeeperConnection
from latchwork.errors import Conflict
from latchwork.primitives import Lock
from latchwork.types import Absent, Create, Delete, Exists, Put
from latchwork_testkit.servers import ZooKeeperServer
from patience import eventually

WAIT_S = 15
#: dataVersion of an implied parent that has never been a key.
_PARENT = 1

#: A process that creates keys, bound and unbound, and dies without a word.
_DIES = """
import os, sys, latchwork
from latchwork.primitives import Lock, Semaphore
store = latchwork.connect(sys.argv[1], session_ttl_s=4)
Lock(store, "orders/one").acquire()
store.put("bound/a/b/key", b"", session=store.session)
store.put("plain/a/b/key", b"")
store.delete("plain/a/b/key")
os._exit(9)
"""


def commit(backend, *ops, checks=()):
    return backend.commit(list(checks), list(ops)).result(WAIT_S)


def value(backend, key):
    entry = backend.get(key, stale_ok=False).result(WAIT_S)
    return None if entry is None else entry.value


def tree(raw, path):
    """All paths of keys and parents below one, each after those below it."""
    found = []
    with contextlib.suppress(NoNodeError):
        for name in raw.get_children(path):
            if name[0] != "@":
                found += [*tree(raw, f"{path}/{name}"), f"{path}/{name}"]
    return found


def remove_childless(raw, root):
    """Do what the server's container manager does; which znodes are containers it tells nobody."""
    for path in tree(raw, f"/{root}"):
        stat = raw.exists(path)
        if stat is not None and stat.version == _PARENT and not (stat.dataLength or stat.numChildren):
            with contextlib.suppress(NoNodeError, NotEmptyError):
                raw.delete(path)


@pytest.fixture
def before_requests(monkeypatch):
    """Install a function that is called before each request of one backend, with the number of the request."""
    submit = ZooKeeperConnection._submit

    def install(backend, act):
        numbers, inside = itertools.count(), threading.local()

        def submitting(connection, call, **options):
            if connection._settings is backend._settings and not getattr(inside, "on", False):
                inside.on = True
                try:
                    act(next(numbers))
                finally:
                    inside.on = False
            submit(connection, call, **options)

        monkeypatch.setattr(ZooKeeperConnection, "_submit", submitting)
        return numbers

    return install


@pytest.fixture(scope="module")
def quick():
    """A server that looks for childless containers five times a second, not once a minute."""
    with ZooKeeperServer(jvm_args=["-Dznode.container.checkIntervalMs=200"]) as server:
        yield server


@pytest.mark.slow
def test_a_process_that_dies_leaves_no_parents(quick):
    with latchwork.connect(quick.url("dies")) as looks:
        looks.put("stays", b"")
        ended = subprocess.run([sys.executable, "-c", _DIES, quick.url("dies")], timeout=60, check=False)
        assert ended.returncode == 9
        client = KazooClient(quick.endpoint)
        client.start()
        try:
            eventually(
                lambda: sorted(n for n in client.get_children("/dies") if not n.startswith("@")) == ["stays"], 30
            )
        finally:
            client.stop()
            client.close()


def test_no_key_that_has_been_overwritten_once_has_the_version_of_a_parent(backend, raw, root):
    commit(backend, Create("a", b""))
    commit(backend, Put("a", b"1"))
    commit(backend, Create("deep/b", b""))
    assert raw.get(f"/{root}/deep")[1].version == 1
    assert raw.get(f"/{root}/a")[1].version == 2


# What the state of an implied parent was read for. Behind the reading the server removes it, and another client makes
# its path a key that has been written as often as the parent.
LOSSES = {
    "create": lambda backend: commit(backend, Create("p", b"ours")),
    "absent": lambda backend: commit(backend, Create("beside", b""), checks=[Absent("p")]),
    "create and absent of another": lambda backend: commit(backend, Create("p", b"ours"), checks=[Absent("q")]),
}


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("what", LOSSES)
def test_a_parent_that_was_removed_and_became_a_key_is_not_taken_for_it(
    backend, other, raw, root, before_requests, what, at
):
    commit(other, Create("p/child", b""))
    commit(backend, Create("warm", b""))
    came_first = []

    def act(number):
        if number == at and value(other, "p") is None:
            raw.delete(f"/{root}/p/child")
            remove_childless(raw, root)
            commit(other, Put("p", b"1"))
            commit(other, Put("p", b"2"))
            came_first.append(number)

    before_requests(backend, act)
    try:
        LOSSES[what](backend)
    except Conflict:
        assert came_first
    else:
        assert not came_first, "nothing was refused, though the key was there"
    if came_first:
        assert value(other, "p") == b"2"


@pytest.mark.parametrize("at", range(12))
def test_a_sweep_that_was_overtaken_removes_no_key(backend, other, raw, root, before_requests, at):
    commit(backend, Create("p/child", b""))
    commit(backend, Delete("p/child"))

    def act(number):
        if number == at:
            remove_childless(raw, root)
            commit(other, Put("p", b"1"))
            commit(other, Put("p", b"2"))

    before_requests(backend, act)
    backend._sweep_now(["p"]).result(WAIT_S)
    act(at)
    assert value(other, "p") == b"2"


def _life(backend):
    """Keys that come and go below others, and become parents; what is there at the end."""
    commit(backend, Create("a/b/c", b"1"))
    commit(backend, Create("a/b", b"2"), Put("a/x/y", b"3"))
    commit(backend, Delete("a/b"), checks=[Exists("a/b/c"), Absent("a/z")])
    commit(backend, Delete("a/b/c"))
    commit(backend, Create("a/b", b"4"), checks=[Absent("a/b/c")])
    commit(backend, Put("a/b", b"5"))
    commit(backend, Create("a/b/c/d", b"6"))
    commit(backend, Delete("a/b"), Delete("a/x/y"))
    commit(backend, Put("a/b", b"7"), Create("a/q/r", b"8"))
    commit(backend, Delete("a/b/c/d"), checks=[Exists("a/b")])
    return {
        entry.key: entry.value
        for entry in backend.list("", recursive=True, limit=None, start_after=None).result(WAIT_S)
    }


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_removals_between_any_two_requests_change_nothing_that_is_stored(backend, raw, root, before_requests, every):
    before_requests(backend, lambda number: remove_childless(raw, root) if number % every == 0 else None)
    assert _life(backend) == {"a/b": b"7", "a/q/r": b"8"}


def test_a_removal_before_each_single_request_changes_nothing_that_is_stored(connect, raw, zookeeper, monkeypatch):
    for at in range(40):
        backend = connect()
        backend.delete_tree("").result(WAIT_S)
        submit, numbers = ZooKeeperConnection._submit, itertools.count()

        def submitting(connection, call, **options):
            if connection is backend._main and next(numbers) == at:  # noqa: B023
                remove_childless(raw, backend._layout.root[1:])  # noqa: B023
            submit(connection, call, **options)  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(ZooKeeperConnection, "_submit", submitting)
            assert _life(backend) == {"a/b": b"7", "a/q/r": b"8"}, at
        backend.close()


def test_a_lock_keeps_its_order_and_its_fences_while_its_name_is_removed_and_created_again(
    zookeeper, raw, root, monkeypatch
):
    """Before each request of the three users the server removes what is childless: tokens grow all the same."""
    submit, inside = ZooKeeperConnection._submit, threading.local()

    def submitting(connection, call, **options):
        if not getattr(inside, "on", False):
            inside.on = True
            try:
                remove_childless(raw, root)
            finally:
                inside.on = False
        submit(connection, call, **options)

    monkeypatch.setattr(ZooKeeperConnection, "_submit", submitting)
    tokens, holders, overlaps = [], [], []

    def use(url):
        with latchwork.connect(url) as store:
            for _ in range(6):
                with Lock(store, "l/x/y") as fence:
                    holders.append(store)
                    overlaps.extend(holders[1:])
                    tokens.append(fence.token)
                    holders.pop()

    threads = [threading.Thread(target=use, args=(f"zk://{zookeeper.endpoint}/{root}",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tokens) == 18
    assert tokens == sorted(tokens)
    assert not overlaps
