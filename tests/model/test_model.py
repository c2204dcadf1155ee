"""Random sequences of operations on each backend and on a dictionary: the same answers, the same state, all the time.

Two stores and two views of each (a namespace, and a namespace inside it) take turns. After every step the mirrors and
watches of both stores are led to the state of the dictionary. `LATCHWORK_LONG_TESTS=1` (as `make check WHAT=tests` sets
it) runs a hundred times as many steps, with new randomness each time.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

import latchwork
from latchwork.backends.embedded import reads, writes
from latchwork.errors import Closed, Conflict, InvalidKey, KeyExists, WaitTimeout
from latchwork.types import Absent, At, Create, Delete, Exists, Put
from levels import LONG
from model.dictionary import Dictionary, is_at_or_below, is_below

WAIT_S = 20.0
MOST_SESSIONS = 3

# Few keys, deep and with names that sort around the slash: "a-b" < "a/b" < "a0".
SEGMENTS = ("a", "b", "a-b", "a0")
KEYS = ["/".join(parts) for depth in (1, 2, 3) for parts in itertools.product(SEGMENTS[: 5 - depth], repeat=depth)]
keys = st.sampled_from(KEYS)
prefixes = st.sampled_from(["", *KEYS[:12], "never"])
values = st.binary(max_size=6)
clients = st.integers(0, 1)
dice = st.integers(0, 99)


class Follower:
    """A mirror and a watch of one prefix, led along with the dictionary."""

    def __init__(self, store: latchwork.Store, prefix: str) -> None:
        self.prefix = prefix
        self.mirror = store.mirror(prefix)
        self.watch = store.watch(prefix)
        self.folded: dict[str, latchwork.Entry] = {}
        self.seen: dict[str, int] = {}

    def must_reach(self, expected: dict[str, latchwork.Entry]) -> None:
        with contextlib.suppress(WaitTimeout):
            self.mirror.wait_until(lambda state: state.snapshot() == expected, timeout_s=WAIT_S)
        assert self.mirror.snapshot() == expected
        assert sorted(self.mirror) == sorted(expected)
        with contextlib.suppress(WaitTimeout):
            while self.folded != expected:
                self.fold(self.watch.next(timeout_s=WAIT_S))
        assert self.folded == expected

    def fold(self, batch) -> None:
        for change in batch:
            if change.entry is None:
                self.folded.pop(change.key, None)
                continue
            assert change.entry.token > self.seen.get(change.key, 0), "a key moved backwards"
            self.seen[change.key] = change.entry.token
            self.folded[change.key] = change.entry

    def close(self) -> None:
        self.mirror.close()
        self.watch.close()


class StoreMachine(RuleBasedStateMachine):
    """Subclasses bind it to two stores of one root."""

    stores: tuple[latchwork.Store, latchwork.Store]

    @initialize()
    def begin(self):
        name = f"e-{uuid.uuid4().hex}"
        self.views = [store.namespace(name) for store in self.stores]
        self.inner = [view.namespace("a") for view in self.views]
        self.model = Dictionary()
        self.sessions = []
        self.remembered = []
        followed = [(self.views[0], ""), (self.views[1], "a"), (self.views[1], "a/b")]
        self.followers = [Follower(view, prefix) for view, prefix in followed]

    def teardown(self):
        for follower in getattr(self, "followers", []):
            follower.close()
        for _, session in getattr(self, "sessions", []):
            session.close()

    @invariant()
    def watches_and_mirrors_get_there(self):
        for follower in self.followers:
            follower.must_reach(self.model.at_and_below(follower.prefix))

    # Reading.

    @rule(who=clients, key=keys, stale_ok=st.booleans())
    def get(self, who, key, stale_ok):
        expected = self.model.entries.get(key)
        assert self.views[who].get(key) == expected
        if stale_ok:
            self.views[who].get(key, stale_ok=True)  # whatever it says
        if is_below(key, "a"):
            inside = self.inner[who].get(key[2:])
            assert (inside and (inside.value, inside.version)) == (expected and (expected.value, expected.version))

    @rule(who=clients, wanted=st.lists(keys, max_size=6))
    def get_many(self, who, wanted):
        assert self.views[who].get_many(wanted) == [self.model.entries.get(key) for key in wanted]

    @rule(
        who=clients,
        prefix=prefixes,
        recursive=st.booleans(),
        limit=st.none() | st.integers(0, 4),
        start_after=st.none() | keys,
    )
    def list(self, who, prefix, recursive, limit, start_after):
        expected = self.model.list(prefix, recursive=recursive, limit=limit, start_after=start_after)
        assert self.views[who].list(prefix, recursive=recursive, limit=limit, start_after=start_after) == expected

    @rule(who=clients, prefix=prefixes)
    def children(self, who, prefix):
        assert self.views[who].children(prefix) == self.model.children(prefix)

    # Writing.

    @rule(who=clients, key=keys, value=values, binding=dice)
    def put(self, who, key, value, binding):
        session = self._session(who, binding)
        op = Put(key, value, session)
        if self._numbers_stay_below([op]):
            return
        if self.model.breaks_leaves([op]):
            with pytest.raises(InvalidKey):
                self.views[who].put(key, value, session=session)
            return
        self._wrote(op, self.views[who].put(key, value, session=session))

    @rule(who=clients, key=keys, value=values, binding=dice)
    def create(self, who, key, value, binding):
        session = self._session(who, binding)
        op = Create(key, value, session)
        if self._numbers_stay_below([op]):
            return
        allowed = (KeyExists,) if self.model.failed([], [op]) else ()
        allowed += (InvalidKey,) if self.model.breaks_leaves([op]) else ()
        if allowed:
            with pytest.raises(allowed):
                self.views[who].create(key, value, session=session)
            return
        self._wrote(op, self.views[who].create(key, value, session=session))

    @rule(who=clients, base=st.sampled_from(["a/n-", "b/", "a0/a/n-", "q-", "a/b/"]), value=values, binding=dice)
    def create_sequential(self, who, base, value, binding):
        session = self._session(who, binding)
        base = base if not base.endswith("/") else f"{base}s"
        if self.model.breaks_leaves([Create(f"{base}0", value, session)]):
            with pytest.raises(InvalidKey):
                self.views[who].create(base, value, session=session, sequential=True)
            return
        entry = self.views[who].create(base, value, session=session, sequential=True)
        self.model.created_sequential(base, value, session.id if session else None, entry)
        self.remembered.append(entry)

    @rule(who=clients, key=keys)
    def delete(self, who, key):
        assert self.views[who].delete(key) == (key in self.model.entries)
        self.model.removed([key] if key in self.model.entries else [])

    @precondition(lambda self: self.remembered)
    @rule(who=clients, which=dice)
    def delete_at(self, who, which):
        entry = self.remembered[which % len(self.remembered)]
        if self.model.failed([At(entry)], []):
            with pytest.raises(Conflict):
                self.views[who].delete(entry.key, version=entry.version)
            return
        assert self.views[who].delete(entry.key, version=entry.version)
        self.model.removed([entry.key])

    @rule(who=clients, prefix=prefixes.filter(bool))
    def delete_tree(self, who, prefix):
        doomed = self.model.at_and_below(prefix)
        assert self.views[who].delete_tree(prefix) == len(doomed)
        self.model.removed(doomed)

    @rule(
        who=clients,
        checked=st.lists(st.tuples(st.sampled_from(["likely", "at", "absent", "exists"]), keys, dice), max_size=3),
        written=st.lists(st.tuples(st.sampled_from(["put", "put", "create", "delete"]), keys, values), max_size=4),
        binding=dice,
        fenced=st.booleans(),
    )
    def commit(self, who, checked, written, binding, fenced):
        session = self._session(who, binding)
        checks = [self._check(*each) for each in checked]
        ops = list({op.key: op for op in (self._op(*each, session) for each in written)}.values())
        if self._numbers_stay_below(ops):
            return
        sent = [self.views[who].fence(1, *checks)] if fenced and checks else checks
        failing = self.model.failed(checks, ops)
        allowed = (Conflict,) if failing else ()
        allowed += (InvalidKey,) if self.model.breaks_leaves(ops) else ()
        if allowed:
            with pytest.raises(allowed) as caught:
                self.views[who].commit(sent, ops)
            if isinstance(caught.value, Conflict):
                assert caught.value.failed
                assert all(each in failing or each in sent for each in caught.value.failed)
            return
        done = self.views[who].commit(sent, ops)
        self.model.committed(ops, done.token, done.entries, done.deleted)
        self.remembered += done.entries

    @rule(who=clients, read=keys, write=keys, value=values, meddle=st.booleans())
    def transact(self, who, read, write, value, meddle):
        op = Put(write, value)
        if self.model.breaks_leaves([op]) or self.model.breaks_leaves([Put(read, b"meddled"), op]):
            return
        tries = []

        def change(tx):
            tries.append(tx.get(read))
            if meddle and len(tries) == 1:
                self._wrote(Put(read, b"meddled"), self.views[1 - who].put(read, b"meddled"))
            tx.put(write, b"%d" % len(tries) + value)

        self.views[who].transact(change)
        assert len(tries) == (2 if meddle else 1)
        assert tries[-1] == self.model.entries.get(read)
        entry = self.views[who].get(write)
        self._wrote(Put(write, b"%d" % len(tries) + value), entry)

    @rule(who=clients, wanted=st.lists(keys, min_size=2, max_size=6, unique=True), value=values)
    def pipelined_puts(self, who, wanted, value):
        ops = [Put(key, value) for key in wanted]
        if any(self.model.breaks_leaves([op]) for op in ops):
            return
        with self.views[who].pipeline() as pipeline:
            futures = [pipeline.put(op.key, op.value) for op in ops]
        answers = [(op, future.result(WAIT_S)) for op, future in zip(ops, futures, strict=True)]
        for op, entry in sorted(answers, key=lambda answer: answer[1].token):
            self._wrote(op, entry)

    # Sessions.

    @precondition(lambda self: len(self.sessions) < MOST_SESSIONS)
    @rule(who=clients)
    def open_session(self, who):
        self.sessions.append((who, self.stores[who].open_session(30.0)))

    @precondition(lambda self: self.sessions)
    @rule(which=dice)
    def close_session(self, which):
        who, session = self.sessions.pop(which % len(self.sessions))
        session.close()
        self.model.session_ended(session.id)
        with pytest.raises(Closed):
            self.views[who].put("late", b"", session=session)

    # Helpers.

    def _session(self, who, binding):
        """One of this store's sessions, in about a third of the cases."""
        own = [session for store, session in self.sessions if store == who]
        return own[binding % len(own)] if own and binding < 35 else None

    def _numbers_stay_below(self, ops):
        """On ZooKeeper what was a parent of sequential keys keeps their numbering, and can never be a leaf again."""
        bound = [op.key for op in ops if not isinstance(op, Delete) and op.session is not None]
        kept = [parent for parent in self.model.suffixes if any(is_at_or_below(parent, key) for key in bound)]
        return bool(kept) and self.stores[0].capabilities.name == "zk"

    def _check(self, kind, key, which):
        if kind == "likely":
            entry = self.model.entries.get(key)
            return Absent(key) if entry is None else At(entry)
        if kind == "at" and self.remembered:
            return At(self.remembered[which % len(self.remembered)])
        return Exists(key) if kind == "exists" else Absent(key)

    def _op(self, kind, key, value, session):
        if kind == "delete":
            return Delete(key)
        return Put(key, value, session) if kind == "put" else Create(key, value, session)

    def _wrote(self, op, entry):
        self.model.wrote(op, entry)
        self.model.last = entry.token
        self.remembered.append(entry)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # the store backs off with jitter
@pytest.mark.timeout(3600 if LONG else 180)
def test_a_store_answers_like_a_dictionary(backend_url):
    with latchwork.connect(backend_url) as first, latchwork.connect(backend_url) as second:
        machine = type("Machine", (StoreMachine,), {"stores": (first, second)})
        run_state_machine_as_test(machine, settings=_settings())


def _settings() -> settings:
    return settings(
        max_examples=600 if LONG else 30,
        stateful_step_count=60 if LONG else 40,
        derandomize=not LONG,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if LONG else [Phase.generate],
        print_blob=True,
        report_multiple_bugs=False,
        database=None,
    )


def at_is_taken_for_exists(monkeypatch):
    real = writes._holds

    def holds(conn, root, check, alive):
        return real(conn, root, Exists(check.key) if isinstance(check, At) else check, alive)

    monkeypatch.setattr(writes, "_holds", holds)


def lists_are_in_reverse(monkeypatch):
    real = reads.list_entries_below
    monkeypatch.setattr(reads, "list_entries_below", lambda *args, **more: real(*args, **more)[::-1])


def watches_miss_deletions(monkeypatch):
    real = reads.read_changes_since

    def read_changes_since(*args):
        found = real(*args)
        return found and [change for change in found if change.entry is not None]

    monkeypatch.setattr(reads, "read_changes_since", read_changes_since)


def overwriting_counts_as_creation(monkeypatch):
    real = writes._Writer._put

    def put(self, op):
        real(self, op)
        self.entries[-1] = replace(self.entries[-1], created=self.entries[-1].token)

    monkeypatch.setattr(writes._Writer, "_put", put)


@pytest.mark.parametrize(
    "plant", [at_is_taken_for_exists, lists_are_in_reverse, watches_miss_deletions, overwriting_counts_as_creation]
)
def test_the_dictionary_notices_a_store_that(plant, monkeypatch):
    plant(monkeypatch)
    monkeypatch.setitem(globals(), "WAIT_S", 0.5)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_a_store_answers_like_a_dictionary(f"memory://{uuid.uuid4().hex}/test")
