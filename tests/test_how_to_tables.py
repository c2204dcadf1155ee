"""The tables of docs/how-to/come-from-*.md: what they name is there, on both sides, and takes those arguments.

Nothing of a table is run: each piece of code is read, its names are looked up in the installed library, and its calls
are held against the signatures.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import re
from functools import partial
from pathlib import Path

import kazoo.exceptions
import pytest
from kazoo.client import KazooClient
from kazoo.recipe.cache import TreeCache

import latchwork
from latchwork import assignment, primitives
from latchwork_testkit.etcd_rpc import import_etcd3

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "how-to"
SPAN = re.compile(r"`([^`]+)`")


class Anything:
    """A value of the reader's: has all attributes, takes all arguments."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_args, **_options):
        return self


#: What a reader's code has: its own values and functions.
YOURS = dict.fromkeys(
    [
        "path",
        "items",
        "values",
        "fn",
        "key",
        "value",
        "name",
        "prefix",
        "url",
        "checks",
        "ops",
        "old",
        "new",
        "timedelta",
        "ids",
        "weights",
        "keys",
        "timeout_s",
    ],
    Anything(),
)


class Reader:
    """Looks up what code names.

    Args:
        names: what the names in it mean.
        made: what a call gives, by the name of what is called; where nothing is said, anything. "parts" are handed out.
        shy: properties would ask a server that is not there; it is enough that there are such.
    """

    def __init__(self, names, made, *, shy=False):
        self.names = {**YOURS, **names}
        self.made = made
        self.shy = shy
        self.seen = []

    def read_cell(self, cell):
        """Every piece of code of a cell."""
        for span in SPAN.findall(cell):
            code = span.removeprefix("@")
            if keyword.iskeyword(code):
                continue
            code = f"_before{code}" if code.startswith(".") else code
            for statement in ast.parse(code + " pass" if code.endswith(":") else code).body:
                self.read(statement)

    def read(self, statement):
        """One statement: the few kinds that tables have."""
        if isinstance(statement, ast.Expr):
            self.of(statement.value)
        elif isinstance(statement, ast.Assign):
            (target,) = statement.targets
            found = self.of(statement.value)
            pair = isinstance(target, ast.Tuple)
            self.names |= {each.id: Anything() for each in target.elts} if pair else {target.id: found}
        elif isinstance(statement, ast.AugAssign):
            assert hasattr(self.of(statement.target), "__add__")
        elif isinstance(statement, ast.For):
            assert hasattr(self.of(statement.iter), "__iter__")
        elif isinstance(statement, ast.With):
            self.read_with(statement)

    def read_with(self, statement):
        for item in statement.items:
            found = self.of(item.context_expr)
            assert isinstance(found, Anything) or hasattr(found, "__enter__")
            if item.optional_vars is not None:
                self.names[item.optional_vars.id] = found
        for each in statement.body:
            self.read(each)

    def of(self, node):
        """What an expression means."""
        if isinstance(node, ast.Call):
            found = self.call(node)
        elif isinstance(node, ast.Attribute):
            found = self.attribute(node)
        elif isinstance(node, ast.Name):
            found = self.names[node.id] if node.id in self.names else self.among_those_seen(node.id)
        else:
            found = Anything()  # a literal
        self.seen.append(found)
        return found

    def attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id == "_before":
            return self.among_those_seen(node.attr)
        owner = self.of(node.value)
        if self.shy and isinstance(inspect.getattr_static(owner, node.attr, None), property):
            return Anything()
        return getattr(owner, node.attr)

    def among_those_seen(self, name):
        """What is called so of the thing named last that has it: in a cell, or of what it hands out."""
        for each in [*reversed(self.seen), *self.made.get("parts", ())]:
            if not isinstance(each, Anything) and hasattr(each, name):
                return getattr(each, name)
        raise AttributeError(f"nobody knows what {name!r} is")

    def call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            assert hasattr(self.of(node.args[0]), "__len__")
            return Anything()
        called = self.of(node.func)
        if isinstance(called, Anything):
            return called
        given = [self.of(arg) for arg in node.args]
        if not any(isinstance(arg, ast.Constant) and arg.value is ... for arg in node.args):
            options = {each.arg: self.of(each.value) for each in node.keywords}
            inspect.signature(called).bind(*given, **options)
        plain = called.func if isinstance(called, partial) else called
        return self.made.get(plain.__name__, Anything())


def tables(page, peer):
    """The rows of those tables of a page that compare with the peer: what is on its side, and on ours."""
    rows, inside = [], False
    for line in (FOLDER / page).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
        elif line == f"| with {peer} | with latchwork |":
            inside = True
        elif inside and not line.startswith("|---"):
            theirs, ours = re.split(r"\s+\|\s+", line.strip("| "))
            rows.append((theirs, ours))
    return rows


def kazoo_side():
    client = KazooClient(hosts="127.0.0.1:1")
    made = {
        kind: getattr(client, kind)("/x")
        for kind in ("Lock", "ReadLock", "WriteLock", "Semaphore", "Election", "Barrier", "Party", "Counter", "Queue")
    }
    made |= {"LockingQueue": client.LockingQueue("/x"), "DoubleBarrier": client.DoubleBarrier("/x", 2)}
    made |= {"KazooClient": client, "transaction": client.transaction()}
    errors = {"LockTimeout": kazoo.exceptions.LockTimeout, "TreeCache": TreeCache, "KazooClient": KazooClient}
    names = {"client": client, "queue": made["LockingQueue"]}
    names |= {name.lower(): made[name] for name in ("Lock", "Election", "Barrier", "Party")}
    return Reader({**names, **errors}, made, shy=True)


def etcd3_side():
    etcd3 = import_etcd3()
    client = object.__new__(etcd3.Etcd3Client)  # its constructor connects
    lock, lease = object.__new__(etcd3.locks.Lock), object.__new__(etcd3.leases.Lease)
    made = {"client": client, "lock": lock, "lease": lease}
    return Reader({"etcd3": etcd3, **made}, made, shy=True)


PEERS = {"kazoo": kazoo_side, "etcd3": etcd3_side}
THEIRS = [(peer, theirs) for peer in PEERS for theirs, _ in tables(f"come-from-{peer}.md", peer) if "`" in theirs]
OURS = [(peer, ours) for peer in ("kazoo", "etcd3", "tooz") for _, ours in tables(f"come-from-{peer}.md", peer)]


def test_the_tables_are_found():
    assert [len(tables(f"come-from-{peer}.md", peer)) > 10 for peer in ("kazoo", "etcd3", "tooz")] == [True] * 3


@pytest.mark.parametrize(("peer", "cell"), THEIRS)
def test_what_a_table_names_of_the_peer_is_there_and_takes_those_arguments(peer, cell):
    PEERS[peer]().read_cell(cell)


@pytest.fixture(scope="module")
def our_side():
    """Makes a reader of our side: with one of each primitive, on a store in memory."""
    with latchwork.connect("memory://how-to-tables") as store:
        lock = primitives.Lock(store, "lock")
        latch = primitives.LeaderLatch(store, "latch", node_id="n1")
        group = primitives.Group(store, "group", member_id="n1")
        queue = primitives.PriorityQueue(store, "queue")
        queue.put(b"1")
        claim = queue.take(5)
        election = primitives.Election(store, "election", node_id="n1")
        term = election.campaign(timeout_s=5)
        hasher = assignment.RendezvousHasher(["n1"])
        made = {
            "connect": store, "Lock": lock, "LeaderLatch": latch, "Group": group, "Election": election, "take": claim,
            "Queue": queue, "PriorityQueue": queue, "campaign": term, "open_session": store.session,
            "ReadWriteLock": primitives.ReadWriteLock(store, "rw"), "Counter": primitives.Counter(store, "counter"),
            "Semaphore": primitives.Semaphore(store, "semaphore", leases=3), "RendezvousHasher": hasher,
            "PersistentLock": primitives.PersistentLock(store, "persistent"), "watch": store.watch("watched"),
            "Barrier": primitives.Barrier(store, "barrier", parties=1, member_id="n1"),
            "DoubleBarrier": primitives.DoubleBarrier(store, "double", parties=1, member_id="n1"),
            "mirror": store.mirror("mirrored"), "namespace": store, "pipeline": store.pipeline(),
        }  # fmt: skip
        member = primitives.GroupMember("n1")
        made["parts"] = (member, primitives.ViewChange(primitives.View(), (member,), (), ()), latch, store)
        names = {name: getattr(latchwork, name) for name in latchwork.__all__}
        names |= {name: getattr(primitives, name) for name in primitives.__all__}
        names |= {name: getattr(assignment, name) for name in assignment.__all__}
        names |= {"store": store, "lock": lock, "latch": latch, "group": group, "queue": queue, "claim": claim}
        names |= {"election": election, "term": term, "session": store.session, "entry": store.put("k", b"")}
        names |= {"member": member, "change": Anything(), "fence": term.fence, "work": Anything()}
        yield lambda: Reader(names, made)
        claim.ack()
        term.resign()
        group.close()
        latch.close()


@pytest.mark.parametrize(("peer", "cell"), OURS)
def test_what_a_table_names_of_ours_is_there_and_takes_those_arguments(peer, cell, our_side):
    del peer
    our_side().read_cell(cell)


@pytest.mark.parametrize(
    ("peer", "cell"),
    [
        ("kazoo", "`client.NoSuchRecipe(path)`"),
        ("kazoo", "`lock.acquire(patience=5)`"),
        ("kazoo", "`client.Semaphore(path)`, `.leases_held()`"),
        ("etcd3", "`client.lock('orders', seconds=10)`"),
    ],
)
def test_what_is_not_there_is_noticed(peer, cell):
    with pytest.raises((AttributeError, TypeError)):
        PEERS[peer]().read_cell(cell)
