"""A check with a version that was read never passes after the key was changed, however it was changed.

The tests try each kind of change (`CHANGES`) alone and in pairs, by the same store and by another one, then inside
`transact`, and finally random changes by many concurrent writers.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import latchwork
from latchwork.errors import Conflict, KeyExists, SessionLost
from latchwork.types import At, Create, Delete, Exists, Put

WAIT_S = 30.0
LONG = bool(os.environ.get("LATCHWORK_LONG_TESTS"))
RANDOM_WRITES_S = 20.0 if LONG else 1.5
#: Number of checked commits that a random run needs, and the seconds that it waits for the next one of them. With 3 %
#: of a processor and an event loop, 20 commits took 44 s.
MIN_CLAIMS, PATIENCE_S = 20, 40.0


# Kinds of changes. After each of them the key exists and was written at least once.


def overwrite(key, one, two):
    two.put(key, b"v")


def recreate(key, one, two):
    one.delete(key)
    one.create(key, b"v")


def recreate_by_another(key, one, two):
    two.delete(key)
    two.create(key, b"v")


def recreate_in_turns(key, one, two):
    two.delete(key)
    one.put(key, b"v")


def recreate_and_write_as_often(key, one, two):
    """Create the key again, and write it as often as before, because ZooKeeper's version counts writes."""
    one.delete(key)
    for _ in range(3):
        two.put(key, b"v")


def recreate_by_commits(key, one, two):
    two.commit([Exists(key)], [Delete(key)])
    two.commit([], [Create(key, b"v")])


def remove_the_tree(key, one, two):
    two.put(f"{key}.tree/x", b"")
    two.delete_tree(key)
    two.put(key, b"v")


def bind(key, one, two):
    one.put(key, b"v", session=one.session)


def bind_to_another(key, one, two):
    two.put(key, b"v", session=two.session)


def bind_and_unbind(key, one, two):
    one.put(key, b"v", session=one.session)
    one.delete(key)
    one.put(key, b"v")


def bind_from_nothing(key, one, two):
    two.delete(key)
    two.create(key, b"v", session=two.session)


def end_with_a_session(key, one, two):
    with_session(two, lambda session: two.put(key, b"v", session=session))
    one.create(key, b"v")


def end_with_a_session_and_bind_to_the_next(key, one, two):
    with_session(two, lambda session: two.put(key, b"v", session=session))
    two.create(key, b"v", session=two.session)


def be_an_implied_parent(key, one, two):
    one.delete(key)
    one.put(f"{key}/below", b"")
    two.put(key, b"v")
    two.delete(f"{key}/below")


CHANGES = (
    overwrite,
    recreate,
    recreate_by_another,
    recreate_in_turns,
    recreate_and_write_as_often,
    recreate_by_commits,
    remove_the_tree,
    bind,
    bind_to_another,
    bind_and_unbind,
    bind_from_nothing,
    end_with_a_session,
    end_with_a_session_and_bind_to_the_next,
    be_an_implied_parent,
)


def with_session(store, fn):
    session = store.open_session(5.0)
    try:
        fn(session)
    finally:
        session.close()


# Ways to get an entry, and ways to use its version in a check.


def by_put(store, key):
    return store.put(key, b"v")


def by_get(store, key):
    store.put(key, b"v")
    return store.get(key)


def by_stale_get(store, key):
    store.put(key, b"v")
    return store.get(key, stale_ok=True)


def by_commit(store, key):
    return store.commit([], [Put(key, b"v")]).entries[0]


def by_list(store, key):
    store.put(key, b"v")
    return next(entry for entry in store.list("") if entry.key == key)


def by_get_many(store, key):
    store.put(key, b"v")
    return store.get_many([key])[0]


def by_mirror(store, key):
    store.put(key, b"v")
    with store.mirror(key) as mirror:
        return mirror[key]


SOURCES = (by_put, by_get, by_stale_get, by_commit, by_list, by_get_many, by_mirror)


def check_only(store, stale):
    store.commit([At(stale)], [])


def write_the_key(store, stale):
    store.commit([At(stale)], [Put(stale.key, b"late")])


def write_elsewhere(store, stale):
    store.commit([At(stale)], [Put(f"{stale.key}.elsewhere", b"late")])


def delete_the_key(store, stale):
    store.delete(stale.key, version=stale.version)


def delete_in_a_commit(store, stale):
    store.commit([At(stale)], [Delete(stale.key)])


def through_a_fence(store, stale):
    store.commit([store.fence(1, At(stale))], [Put(f"{stale.key}.elsewhere", b"late")])


CHECKED_CALLS = (check_only, write_the_key, write_elsewhere, delete_the_key, delete_in_a_commit, through_a_fence)


@pytest.fixture
def other(backend_url, store):
    with latchwork.connect(backend_url) as opened:
        yield opened


def apply_changes(changes, key, store, other):
    """Change a key in the given ways. If a change needs keys below a session-bound key, unbind the key first."""
    for change in changes:
        before = store.get(key)
        if change is be_an_implied_parent and before is not None and before.owner is not None:
            store.delete(key)
            store.put(key, b"v")
        change(key, store, other)


def test_no_change_of_a_key_lets_an_old_version_pass(store, other):
    """Try each change and pairs of changes. The ways to get an entry and to check its version alternate."""
    pairs = list(itertools.product(CHANGES, CHANGES))
    pairs = pairs if LONG else random.Random(7).sample(pairs, 60)
    turns = zip(itertools.cycle(SOURCES), itertools.cycle(CHECKED_CALLS), strict=False)  # 7 and 6: all combinations
    for number, changes in enumerate([*itertools.product(CHANGES), *pairs]):
        source, checked_call = next(turns)
        key = f"k{number}"
        stale = source(store, key)
        apply_changes(changes, key, store, other)
        story = f"{source.__name__}, {', '.join(change.__name__ for change in changes)}, {checked_call.__name__}"
        fresh = store.get(key)
        assert fresh.version != stale.version, story
        assert fresh.token > stale.token, story
        for each in (store, other):
            with pytest.raises(Conflict) as caught:
                checked_call(each, stale)
            assert At(stale) in caught.value.failed or checked_call is through_a_fence, story
        assert store.get(key).version == fresh.version, f"a refused commit wrote: {story}"
        other.commit([At(fresh)], [])  # the current version is not refused


@pytest.mark.parametrize("change_key", CHANGES, ids=lambda change: change.__name__)
def test_a_transaction_is_repeated_when_its_key_was_changed_meanwhile(change_key, store, other):
    store.put("k", b"first")
    seen = []

    def change(tx):
        entry = tx.get("k")
        seen.append(entry.value)
        if len(seen) == 1:
            change_key("k", store, other)
        tx.put("done", b"after " + entry.value)

    store.transact(change)
    assert seen == [b"first", b"v"]
    assert store.get("done").value == b"after v"


def test_versions_of_one_write_are_equal_wherever_they_were_read_and_of_two_writes_never(store, other):
    versions = {}
    for number in range(12):
        written = store.put("k", b"v") if number % 3 else other.put("k", b"v")
        if number % 4 == 3:
            store.delete("k")
            written = other.create("k", b"v")
        read = [store.get("k"), other.get("k"), store.list("")[0], other.get_many(["k"])[0]]
        assert {entry.version for entry in read} == {written.version}
        assert written.version not in versions
        versions[written.version] = written.token
    assert sorted(versions.values()) == list(versions.values())


DOOMED = """
import sys, latchwork
with latchwork.connect(sys.argv[1]) as store:
    session = store.open_session(1.0)
    for key in "abc":
        store.put(key, b"v", session=session)
    print("ready", flush=True)
    sys.stdin.read()
"""


def bind_until_expiry(url, store, stale):
    """Bind three keys to a session of another process, and kill that process. The entries are added to `stale`."""
    doomed = subprocess.Popen(
        [sys.executable, "-c", DOOMED, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with doomed:
        assert doomed.stdout.readline() == "ready\n"
        stale.extend(store.list(""))
        doomed.kill()


def bind_to_unrenewed_session(store, stale):
    """Bind three keys to a session that is not renewed. The entries are added to `stale`. For stores in memory."""
    session = store._core.backend.open_session(0.25, lambda: None).result(WAIT_S)
    for key in "abc":
        store._core.backend.commit([], [Put(key, b"v", SimpleNamespace(id=session.id))]).result(WAIT_S)
    stale.extend(store.list(""))


def test_no_version_outlives_the_expiry_of_its_session(backend_url, store, other):
    stale = []
    if store.capabilities.multi_process:
        bind_until_expiry(backend_url, store, stale)
    else:
        bind_to_unrenewed_session(store, stale)
    with store.mirror("") as mirror:
        mirror.wait_until(lambda state: not state, timeout_s=WAIT_S)
    with pytest.raises(Conflict):
        store.commit([At(stale[0])], [])
    store.create("a", b"v")
    store.create("b", b"v", session=store.session)
    other.create("c", b"v", session=other.session)
    assert [entry.key for entry in stale] == ["a", "b", "c"]
    for entry, each in itertools.product(stale, (store, other)):
        with pytest.raises(Conflict):
            each.commit([At(entry)], [Put("late", b"")])
    assert store.get("late") is None


class RandomWriters:
    """Concurrent writers on two keys. They record the token of each write and of each version that they checked."""

    def __init__(self, url, seed):
        self.url = url
        self.seed = seed
        self.keys = ("x", "y/z")
        self.lock = threading.Lock()
        self.writes = {key: set() for key in self.keys}  # tokens of every write and deletion that was answered
        self.claims = []  # (key, token relied on, its created, entry written)
        self.failures = []
        self.grew_at = 0.0

    def run(self, seconds):
        deadline = self.grew_at = time.monotonic() + seconds
        threads = [threading.Thread(target=self.work, args=(number, deadline)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(MIN_CLAIMS * PATIENCE_S)
            assert not thread.is_alive()

    def work(self, number, deadline):
        rng = random.Random(f"{self.seed}/{number}")
        try:
            with latchwork.connect(self.url) as store:
                while time.monotonic() < deadline or self.wants_more():
                    step = rng.choice((self.rely, self.rely, self.rely_in_transact, self.write, self.delete, self.bind))
                    try:
                        step(store, rng.choice(self.keys), rng)
                    except (Conflict, KeyExists, SessionLost):
                        continue
        except BaseException as error:  # a run in which a writer ends early proves nothing
            self.failures.append(error)

    def wants_more(self):
        """Return whether more checked commits are needed. A busy machine takes longer."""
        return len(self.claims) <= MIN_CLAIMS and time.monotonic() < self.grew_at + PATIENCE_S

    def note(self, key, token):
        with self.lock:
            self.writes[key].add(token)

    def rely(self, store, key, rng):
        entry = store.get(key)
        if entry is None:
            return
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.004))  # so that the entry is often stale
        self.claim(entry, store.commit([At(entry)], [Put(key, b"claimed")]).entries[0])

    def rely_in_transact(self, store, key, rng):
        found, log = [], f"log.{threading.get_ident()}"  # no other writer uses it, and a commit has one token

        def change(tx):
            found[:] = [tx.get(key)]
            if found[0] is not None:
                tx.put(key, b"%d" % rng.getrandbits(60))
                tx.put(log, b"")

        store.transact(change, attempts=3)
        if found[0] is not None:
            self.claim(found[0], SimpleNamespace(token=store.get(log).token, created=None))

    def claim(self, entry, written):
        with self.lock:
            self.claims.append((entry.key, entry, written))
            self.grew_at = max(self.grew_at, time.monotonic())
            self.writes[entry.key].add(written.token)

    def write(self, store, key, rng):
        self.note(key, (store.create if rng.random() < 0.7 else store.put)(key, b"written").token)

    def delete(self, store, key, rng):
        done = store.commit([], [Delete(key)])
        if done.deleted:
            self.note(key, done.token)

    def bind(self, store, key, rng):
        def bound(session):
            self.note(key, store.put(key, b"bound", session=session).token)
            if rng.random() < 0.5:
                self.rely(store, key, rng)

        with_session(store, bound)

    def check(self):
        relied = [(key, before.token) for key, before, _ in self.claims]
        assert len(relied) == len(set(relied)), "two commits replaced the same version"
        for key, before, written in self.claims:
            between = [token for token in self.writes[key] if before.token < token < written.token]
            assert not between, f"{key}: At({before.token}) passed at {written.token}, after {between}"
            assert written.created in {None, before.created}, f"{key}: a commit at {before} created the key again"


def test_versions_hold_under_concurrent_writers_deletions_and_ending_sessions(backend_url, store):
    writers = RandomWriters(backend_url, seed=11)
    writers.run(RANDOM_WRITES_S)
    assert writers.failures == []
    assert len(writers.claims) > MIN_CLAIMS
    writers.check()


def test_the_check_of_random_writers_detects_a_version_that_passed_wrongly():
    entry = functools.partial(SimpleNamespace, key="x", created=1)
    for writes, claims in (
        ({5, 7, 9}, [("x", entry(token=5), entry(token=9))]),
        ({5, 7, 9}, [("x", entry(token=5), entry(token=7)), ("x", entry(token=5), entry(token=9))]),
        ({5, 7}, [("x", entry(token=5), SimpleNamespace(token=7, created=7))]),
    ):
        writers = RandomWriters("", seed=0)
        writers.writes["x"], writers.claims = writes, claims
        with pytest.raises(AssertionError):
            writers.check()
