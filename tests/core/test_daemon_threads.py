"""A process ends well while daemon threads are inside the extension: at every entry, also where Python code runs.

CPython before 3.14 unwinds such threads, which must not go through the frames of pyo3.
"""

from __future__ import annotations

import ast
import collections
import re
import subprocess
from pathlib import Path

import pytest

from latchwork import _core
from levels import LONG
from native import LOAD, interpreters

PROCESSES = 200 if LONG else 2
AT_ONCE = 4
SOURCES = Path(__file__).resolve().parents[2] / "rust"

#: What three daemon threads do forever, by entry.
ENTRIES = {
    "hash128": "c.hash128('x', slow(1))",
    "fast_score": "c.fast_score('x', 'y')",
    "compat_score": "c.compat_score('x', 'y')",
    "place": "c.place('balanced', each([('j', each(ITEMS[:50]), dict.fromkeys(WORKERS, slow(1)), {})]))",
    "choose_moves": "c.choose_moves(each((i % 7, i % 11, i % 13) for i in range(300)), slow(150))",
    "place_replicas": "c.place_replicas(2, [0, 1, 2], each([slow(1.0)] * 3), [[0]] * 300)",
    "Board.__new__": "c.Board()",
    "Board.strategy": "B.strategy",
    "Board.jobs": "B.jobs",
    "Board.workers": "B.workers",
    "Board.add_job": "b = c.Board(); b.add_job('x', each(ITEMS[:9]), {'1': 'w1'})",
    "Board.remove_job": "b = c.Board(); b.add_job('x', ITEMS); b.remove_job('x')",
    "Board.add_items": "b = c.Board(); b.add_job('x', []); b.add_items('x', each(ITEMS[:9]))",
    "Board.remove_items": "b = c.Board(); b.add_job('x', ITEMS); b.remove_items('x', each(ITEMS[:9]))",
    "Board.join": "b = c.Board(); b.join('x', slow(1.0), each('ab'))",
    "Board.leave": "b = c.Board(); b.join('x'); b.leave('x')",
    "Board.reweigh": "B.reweigh('w1', slow(2.0))",
    "Board.place": "B.place(slow(10)); B.leave('w2'); B.place(); B.join('w2')",
    "Board.owner": "B.owner('j', '5')",
    "Board.owners": "B.owners('j')",
    "Board.by_worker": "B.by_worker('j')",
    "Board.shares": "B.shares('j', tuple(sorted(ITEMS[:2000])))",
    "Board.unplaced": "B.unplaced('j')",
    "Board.__repr__": "repr(B)",
    "Moves.deferred": "M.deferred",
    "Moves.jobs": "M.jobs",
    "Moves.of": "list(M.of('j'))",
    "Moves.__len__": "len(M)",
    "Moves.__iter__": "list(M)",
    "Moves.__repr__": "repr(M)",
    "MoveRows.__iter__": "iter(iter(M))",
    "MoveRows.__next__": "next(iter(M), None)",
    "RendezvousHasher.__new__": "c.RendezvousHasher(each(WORKERS[:9]), each([slow(2.0)] * 9))",
    "RendezvousHasher.workers": "H.workers",
    "RendezvousHasher.mode": "H.mode",
    "RendezvousHasher.owner": "H.owner('x')",
    "RendezvousHasher.owners": "H.owners('x', slow(3)); H.owners(S, 3)",
    "RendezvousHasher.assign": (
        "H.assign(S, threads=slow(2)); H.assign(each(ITEMS[:9])); C.assign(FEW); C.assign(ITEMS[:99])"
    ),
    "RendezvousHasher.assign_evenly": "H.assign_evenly(S, threads=slow(2))",
    "RendezvousHasher.__len__": "len(H)",
    "RendezvousHasher.__repr__": "repr(H)",
    "ItemSet.__new__": "c.ItemSet(each(ITEMS[:99]), 'p:', most=slow(99))",
    "ItemSet.prefix": "S.prefix",
    "ItemSet.__len__": "len(S)",
    "ItemSet.__getitem__": "S[slow(3)]",
    "ItemSet.to_list": "S.to_list()",
    "ItemSet.__repr__": "repr(S)",
    "Assignment.workers": "A.workers",
    "Assignment.weights": "A.weights",
    "Assignment.items": "A.items",
    "Assignment.indices": "A.indices",
    "Assignment.__getbuffer__": "memoryview(A)",
    "Assignment.to_dict": "A.to_dict()",
    "Assignment.by_worker": "A.by_worker()",
    "Assignment.join": "a = H.assign(FEW); a.join('x', slow(1.0)); A.join(me, 1.0); A.leave(me)",
    "Assignment.leave": "A.join(me); A.leave(me)",
    "Assignment.reweigh": "A.reweigh('w1', slow(1.5)); A.reweigh('w1', 1.0)",
    "Assignment.add_items": "A.add_items(each([me])); A.remove_items([me])",
    "Assignment.remove_items": "A.add_items([me]); A.remove_items(each([me]))",
    "Assignment.__len__": "len(A)",
    "Assignment.__repr__": "repr(A)",
    "Delta.items": "D.items",
    "Delta.sources": "D.sources",
    "Delta.targets": "D.targets",
    "Delta.__len__": "len(D)",
    "Delta.__iter__": "list(D)",
    "Delta.__repr__": "repr(D)",
    "Numbers.__getbuffer__": "bytes(H.assign_evenly(FEW))",
    "EtcdCodec.__new__": "codec()",
    "EtcdCodec.get": "E.get('a', False)",
    "EtcdCodec.get_many": "E.get_many(each('ab'), True)",
    "EtcdCodec.transaction": "E.transaction([At()], [Put()], set(), b'g', slow(1), slow(1))",
    "EtcdCodec.committed": "E.committed(TXN, [Put()])",
    "EtcdCodec.entry": "E.entry(PAGE)",
    "EtcdCodec.found": "E.found(TXN)",
    "EtcdCodec.page": "E.page(PAGE)",
    "EtcdPage.more": "P.more",
    "EtcdPage.revision": "P.revision",
    "EtcdPage.size": "P.size",
    "EtcdPage.__len__": "len(P)",
    "EtcdPage.names": "P.names()",
    "EtcdPage.strangers": "P.strangers()",
    "EtcdPage.last": "P.last()",
    "EtcdPage.count": "P.count(slow(3))",
    "EtcdPage.entries": "P.entries(slow(3))",
    "ZooKeeperCodec.__new__": "c.ZooKeeperCodec('/r', entry=Entry, version=ZooVersion)",
    "ZooKeeperCodec.reads": "Z.reads(['a', 'b'], slow(0), 2)",
    "ZooKeeperCodec.entries": "Z.entries(END, ['a'], slow(0), [1])",
}
PRELUDE = """
import threading, time, sys
sys.setswitchinterval(1e-4)
me = threading.local()
ITEMS = [str(i) for i in range(20000)]
WORKERS = [f'w{i}' for i in range(200)]
class Slow:
    def __init__(self, value): self.value = value
    def __float__(self): time.sleep(1e-4); return float(self.value)
    def __index__(self): time.sleep(1e-4); return int(self.value)
slow = Slow
def each(values):
    for value in values:
        time.sleep(1e-4)
        yield value
def record(name, slots): return type(name, (), {'__slots__': tuple(slots.split())})
Entry = record('Entry', 'key value version token created owner')
EtcdVersion, Committed = record('EtcdVersion', 'token'), record('Committed', 'token entries deleted')
ZooVersion = record('ZooVersion', 'mzxid data gen created owner born')
class Put:
    @property
    def key(self): time.sleep(1e-4); return 'a/b'
    session, value = None, b'v'
class At(Put): pass
def codec():
    return c.EtcdCodec(b'r/', (slow(9), 9), entry=Entry, version=EtcdVersion, committed=Committed,
                       checks=(int, At, bytes, str), ops=(Put, float, complex))
def field(number, value): return bytes([number << 3 | 2, len(value)]) + value
PAGE = b''.join(field(2, field(1, b'r/k%03d' % i) + field(5, b'v')) for i in range(500))
TXN = b'\\x10\\x01' + field(3, field(2, b'')) + field(3, field(1, PAGE[:13]))
END = b'\\xff\\xff\\xff\\xff\\x01\\xff\\xff\\xff\\xff'
H, C = c.RendezvousHasher(WORKERS), c.RendezvousHasher(WORKERS[:20], mode='compat')
S, FEW = c.ItemSet(ITEMS), c.ItemSet(ITEMS[:2000])
A = H.assign(FEW)
D = H.assign(FEW).leave('w3')
B = c.Board()
for w in WORKERS: B.join(w)
B.add_job('j', ITEMS[:2000])
M = B.place()
E, Z = codec(), c.ZooKeeperCodec('/r', entry=Entry, version=ZooVersion)
P = E.page(PAGE)
"""
LOOP = """
def forever(me):
    while True:
        try:
            {body}
        except (TypeError, ValueError):
            pass
for n in range(3): threading.Thread(target=forever, args=(f'me{{n}}',), daemon=True).start()
time.sleep(0.05)
"""


def test_every_entry_has_a_case():
    """Entries are the functions in `#[pymethods]` and `#[pyfunction]`; getters of fields run no code."""
    found = {name for name, each in vars(_core).items() if type(each).__name__ == "builtin_function_or_method"}
    for source in SOURCES.rglob("*.rs"):
        kind = None
        for line in source.read_text(encoding="utf-8").splitlines():
            if line.startswith("impl ") and kind == "":
                kind = line.split()[1].rstrip(" {")
            elif line == "#[pymethods]":
                kind = ""
            elif line == "}":
                kind = None
            elif kind and line.startswith(("    fn ", "    unsafe fn ")):
                name = line.split("fn ")[1].split("(")[0].split("<")[0]
                found.add(f"{kind}.{'__new__' if name == 'new' else name}")
    assert found == set(ENTRIES) - {"EtcdPage.more", "EtcdPage.revision"}


def test_every_entry_is_guarded():
    """The first thing that an entry does is to call the guard."""
    missing = []
    for source in SOURCES.rglob("*.rs"):
        lines = source.read_text(encoding="utf-8").splitlines()
        is_entry = inside = False
        for at, line in enumerate(lines):
            inside = line == "#[pymethods]" or (inside and line != "}")
            is_entry |= line.startswith("#[pyfunction]") or (inside and line.startswith(("    fn ", "    unsafe fn ")))
            if is_entry and line.endswith("{"):
                is_entry = False
                if not lines[at + 1].strip().startswith("guarded("):
                    missing.append(f"{source.name}: {line.strip()}")
    assert missing == []


#: What runs Python code or waits for the interpreter lock in pyo3, where nothing stops an unwinding.
BYPASSES = re.compile(
    r"\.(detach|check_signals|try_iter|getattr|repr|str|call|call0|call1|call_method\d?|eq|lt|hash|import)\("
    r"|Python::(with_gil|attach|try_attach)\(|extract::<[fiu]\d+>"
)


def test_nothing_runs_python_code_but_what_is_made_to_be_stopped():
    found = {
        f"{source.name}: {line.strip()}"
        for source in (SOURCES / "python" / "src").rglob("*.rs")
        for line in source.read_text(encoding="utf-8").splitlines()
        if source.name != "calls.rs" and BYPASSES.search(line)
    }
    allowed = ("class.getattr", 'view.call_method1("cast"')  # what these call is in C
    assert [line for line in sorted(found) if not any(each in line for each in allowed)] == []


@pytest.mark.slow
@pytest.mark.timeout(7200 if LONG else 600)
@pytest.mark.parametrize("interpreter", interpreters())
def test_processes_end_well_while_daemon_threads_are_in_any_entry(interpreter):
    bad, running = collections.Counter(), []

    def reap(entry: str, process: subprocess.Popen[str]) -> None:
        try:
            output, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            output = "it did not end"
        if process.returncode or output:
            bad[entry, process.returncode, output.strip()[-300:]] += 1

    for entry, body in ENTRIES.items():
        code = LOAD + PRELUDE + LOOP.format(body=body)
        ast.parse(code)
        for _ in range(PROCESSES):
            process = subprocess.Popen(
                [interpreter, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            running.append((entry, process))
            if len(running) == AT_ONCE:
                reap(*running.pop(0))
    for entry, process in running:
        reap(entry, process)
    assert not bad
