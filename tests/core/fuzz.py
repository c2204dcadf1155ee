"""Random calls of every part of the extension, with hostile arguments. Only declared errors may come out.

    make check WHAT=fuzz                        a minute, with overflow checks and debug assertions
    LATCHWORK_FUZZ_S=600 make check WHAT=fuzz   ten minutes
    python tests/core/fuzz.py CORE SECONDS [SEED...]

Each seed runs in a process of its own. When one ends with an error or dies, its last calls are printed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ERRORS = (ValueError, TypeError, OverflowError, IndexError, AttributeError)
WEIGHTS = [5e-324, 1e-308, 2.3e-308, 1e-9, 0.1, 0.5, 1.0, 1.0000000000000002, 2.0, 7.0, 1e9, 1e300, sys.float_info.max]
BAD_WEIGHTS = [0.0, -1.0, -0.0, float("nan"), float("inf"), -float("inf")]
UNSIGNED = [0, 1, 2, 63, 64, 65, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


def load(path: str) -> None:
    """Import this build of the extension as ``latchwork._core``."""
    loader = importlib.machinery.ExtensionFileLoader("latchwork._core", path)
    spec = importlib.util.spec_from_loader("latchwork._core", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    import latchwork

    sys.modules["latchwork._core"] = latchwork._core = module  # type: ignore[attr-defined]


class Fuzzer:
    """Makes arguments from one seed, and calls with them."""

    def __init__(self, seed: int, log: Path) -> None:
        self.random = random.Random(seed)
        self.log = log.open("w", encoding="utf-8", errors="backslashreplace")

    def note(self, *call: Any) -> None:
        """Write down the next call, which may end the process."""
        self.log.seek(0)
        self.log.truncate()
        self.log.write(repr(call))
        self.log.flush()

    def attempt(self, call: Any, *args: Any, **options: Any) -> Any:
        """Call; None for a declared error."""
        try:
            return call(*args, **options)
        except ERRORS:
            return None

    def one_of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def number(self) -> int:
        return self.random.choice([*UNSIGNED, -1, -(2**63), 2**64, self.random.randrange(1000)])

    def weight(self) -> float:
        if self.chance(0.0005):
            return self.random.choice(BAD_WEIGHTS)
        return self.random.choice(WEIGHTS) if self.chance(0.6) else 10 ** self.random.uniform(-300, 300)

    def text(self) -> str:
        if self.chance(0.0005):
            return "\ud800"
        if self.chance(0.15):
            return self.one_of("", "a", "a" * 15, "a" * 16, "a" * 17, "a" * 4096, "\0", "\u00e9", "\U0001d11e", "a/b")
        return self.random.choice("abcwxyz") + str(self.random.randrange(40))

    def names(self, most: int) -> list[str]:
        names = [self.text() for _ in range(self.random.randrange(most))]
        return names if self.chance(0.1) else list(dict.fromkeys(names))


class Placements(Fuzzer):
    """Hashers, item sets, assignments, boards, strategies, move limits and replicas."""

    def hashing(self) -> None:
        from latchwork import _core

        data, seed, key, worker = self.one_of(b"", self.random.randbytes(70), self.text()), self.number(), *"ab"
        self.note("hash128", data, seed)
        self.attempt(_core.hash128, data, seed)
        self.attempt(_core.fast_score, self.text(), worker)
        self.attempt(_core.compat_score, key, self.text())

    def rendezvous(self) -> None:
        from latchwork import _core

        workers = self.names(self.one_of(3, 20, 80, 300, 1100))
        weights = None if self.chance(0.3) else [self.weight() for _ in workers]
        mode, items = self.one_of("fast", "fast", "compat", "other"), self.names(self.one_of(5, 100, 600))
        count, threads = self.number(), self.one_of(None, 1, 2, 0, -1, 5)
        self.note("hasher", workers, weights, mode, items, count, threads)
        hasher = self.attempt(_core.RendezvousHasher, workers, weights, mode)
        keys = self.attempt(_core.ItemSet, items, self.text() if self.chance(0.5) else None)
        if hasher is None or keys is None:
            return
        self.attempt(hasher.owner, self.text())
        self.attempt(hasher.owners, self.text(), count if count < 10**6 else 5)
        self.attempt(hasher.owners, keys, min(count, 3000))
        self.attempt(hasher.assign, items, threads=threads)
        self.attempt(hasher.assign_evenly, keys, threads=threads)
        self.assignment(hasher.assign(keys), workers, items)

    def assignment(self, assignment: Any, workers: list[str], items: list[str]) -> None:
        for _ in range(self.random.randrange(12)):
            worker = self.random.choice(workers) if workers and self.chance(0.6) else self.text()
            weight, some = self.weight(), [item for item in items if self.chance(0.3)]
            method, args = self.one_of(
                ("join", (worker, weight)),
                ("leave", (worker,)),
                ("reweigh", (worker, weight)),
                ("add_items", (self.names(20),)),
                ("remove_items", (some,)),
                ("to_dict", ()),
                ("by_worker", ()),
                ("__repr__", ()),
            )
            self.note("assignment", workers, items, method, args)
            self.attempt(getattr(assignment, method), *args)
            assert len(bytes(assignment.indices)) == 4 * len(assignment.items)
            self.attempt(assignment.items.__getitem__, self.number())

    def board(self) -> None:
        from latchwork import _core

        strategy, calls = self.one_of("balanced", "balanced", "evenly-spread", "rendezvous"), list[Any]()
        board = self.attempt(_core.Board, strategy)
        if board is None:
            return
        for _ in range(self.random.randrange(40)):
            job, worker, items = self.one_of("j", "k", self.text()), self.text(), self.names(self.one_of(4, 50, 200))
            previous = {item: self.text() for item in items if self.chance(0.7)}
            method, args = self.one_of(
                ("add_job", (job, items, self.one_of(None, previous))),
                ("add_job", (job, items)),
                ("join", (worker, self.weight(), self.one_of(None, [*self.names(5), "j"]))),
                ("join", (worker, 1.0)),
                ("join", (worker, self.weight())),
                ("leave", (worker,)),
                ("reweigh", (worker, self.weight())),
                ("add_items", (job, items)),
                ("remove_items", (job, items)),
                ("remove_job", (self.text(),)),
                ("owners", (job,)),
                ("by_worker", (job,)),
                ("unplaced", (job,)),
                ("shares", (job, tuple(sorted(items)))),
                ("owner", (job, items[0] if items else "")),
                ("place", (self.one_of(None, 0, 1, 2, 5, self.number()),)),
            )
            calls.append((method, args))
            self.note("board", strategy, calls)
            moves = self.attempt(getattr(board, method), *args)
            if method == "place" and moves is not None:
                assert len(list(moves)) == len(moves) == sum(len(list(moves.of(name))) for name in moves.jobs)

    def strategy(self) -> None:
        from latchwork import _core

        workers, jobs = self.names(30), list[Any]()
        for _ in range(self.random.randrange(5)):
            items = self.names(self.one_of(5, 60))
            able = {worker: self.weight() for worker in workers if self.chance(0.8)}
            held = {item: self.random.choice([*workers, "gone", 3]) for item in items if self.chance(0.5)}
            jobs.append((self.text(), items, able, held))
        name = self.one_of("rendezvous", "evenly-rendezvous", "evenly-spread", "balanced", "")
        mode = self.one_of("fast", "compat")
        self.note("place", name, jobs, mode)
        self.attempt(_core.place, name, jobs, mode)

    def replicas(self) -> None:
        from latchwork import _core

        count = self.random.randrange(9)
        zones = [self.one_of(0, 1, 2, max(count - 1, 0), 2**32 - 1 if self.chance(0.02) else 0) for _ in range(count)]
        weights = [self.weight() if self.chance(0.5) else 1.0 for _ in range(count)]
        held = [
            [self.random.randrange(count) for _ in range(self.random.randrange(4))] if count else []
            for _ in range(self.random.randrange(30))
        ]
        copies = self.one_of(0, 1, 2, 3, count, count + 1, 2**32 - 1, 2**32, -1)
        self.note("place_replicas", copies, zones, weights, held)
        self.attempt(_core.place_replicas, copies, zones, weights, held)

    def move_limit(self) -> None:
        from latchwork import _core

        most = self.one_of(2, 4, 20, 2**32)
        moves = [tuple(self.random.randrange(most) for _ in range(3)) for _ in range(self.one_of(0, 1, 5, 50, 400))]
        limit = self.one_of(0, 1, 2, len(moves) // 2, len(moves), self.number())
        self.note("choose_moves", moves, limit)
        self.attempt(_core.choose_moves, moves, limit)

    def run(self) -> None:
        self.one_of(
            self.hashing, self.rendezvous, self.board, self.board, self.strategy, self.replicas, self.move_limit
        )()


class Session:
    """A session by its ID."""

    def __init__(self, session_id: Any) -> None:
        self.id = session_id


class Text(str):
    """A subclass of str."""

    __slots__ = ()


class Messages(Fuzzer):
    """Requests and answers of etcd and ZooKeeper: well-formed ones, damaged ones and noise."""

    def __init__(self, seed: int, log: Path) -> None:
        from latchwork import _core
        from latchwork.backends.etcd.writing import compiler
        from latchwork.backends.zookeeper.layout import Version
        from latchwork.types import Absent, At, Committed, Create, Delete, Entry, Exists, Put, SessionAlive

        super().__init__(seed, log)
        self.etcd = _core.EtcdCodec(
            b"root/",
            (self.one_of(0, 3, 120, 2**63), self.one_of(0, 3, 64)),
            entry=Entry,
            version=compiler.VersionKey,
            committed=Committed,
            checks=(At, Absent, Exists, SessionAlive),
            ops=(Put, Create, Delete),
        )
        self.zookeeper = _core.ZooKeeperCodec("ro/ot", entry=Entry, version=Version)
        self.version = compiler.VersionKey

    # Answers.

    def unsigned(self) -> int:
        return self.random.choice([*UNSIGNED, self.random.randrange(2**40)])

    def fields(self, *fields: tuple[int, int | bytes]) -> bytes:
        """Encode a message, most of the time with all of its fields."""
        encoded = b""
        for field, value in fields:
            if isinstance(value, bytes):
                encoded += varint(field << 3 | 2) + varint(len(value)) + value
            else:
                encoded += varint(field << 3) + varint(value)
        return encoded

    def key_value(self) -> bytes:
        noise = self.random.randbytes(self.random.randrange(8))
        key = self.one_of(b"", b"roo", b"root/", b"root/a", b"root/a/b/c", b"root/\xff\xfe", b"root/" + noise, b"x")
        numbers = [(field, self.unsigned()) for field in (2, 3, 4, 6) if self.chance(0.85)]
        return self.fields((1, key), *numbers, (5, noise))

    def range(self) -> bytes:
        keys = [(2, self.key_value()) for _ in range(self.random.randrange(5))]
        return self.fields((1, self.fields((3, self.unsigned()))), *keys, (3, self.random.randrange(2)))

    def transaction(self) -> bytes:
        answers = [
            (3, self.one_of(b"", *(self.fields((kind, self.range())) for kind in (1, 2, 3, 4))))
            for _ in range(self.random.randrange(6))
        ]
        succeeded = self.unsigned() if self.chance(0.1) else 1
        return self.fields((1, self.fields((3, self.unsigned()))), (2, succeeded), *answers)

    def multi_read(self) -> bytes:
        answers = b""
        for _ in range(self.random.randrange(6)):
            if self.chance(0.3):
                answers += struct.pack("!iBii", -1, 0, -101, self.one_of(-101, -102, 0, 2**31 - 1))
                continue
            noise = self.random.randbytes(32)
            data = self.one_of(b"", b"=v", b"@" + b"a" * 32 + b"=v", b"@" + noise + b"=", noise)
            size = self.one_of(len(data), len(data), -1, 0, 2**31 - 1, -(2**31))
            answers += struct.pack("!iBii", 4, 0, 0, size) + data + self.random.randbytes(68)
        return answers + struct.pack("!iBi", -1, 1, -1)

    def damaged(self, message: bytes) -> bytes:
        if self.chance(0.1):
            return self.random.randbytes(self.random.randrange(60))
        for _ in range(self.one_of(0, 1, 1, 2, 5)):
            at = self.random.randrange(len(message) + 1)
            rest = message[at + self.random.randrange(5) :]
            message = message[:at] + self.one_of(b"", self.random.randbytes(5), varint(self.unsigned())) + rest
        return message

    # Requests.

    def key(self) -> Any:
        long = self.one_of("a/" * 200, "x" * 300)
        return self.one_of("a", "a/b", "a/b/c", "\u00e9/\U0001d11e", "", "\ud800", "/", long, Text("a"), 5, None)

    def op(self) -> Any:
        from latchwork.types import Create, Delete, Put

        value = self.one_of(b"", self.random.randbytes(9), "no bytes")
        session = self.one_of(None, None, *(Session(each) for each in ("7f", "7f", "8", "\ud800", 5)), "no session")
        key = self.key()
        return self.one_of(Put(key, value, session), Create(key, value, session), Delete(key), object())

    def check(self) -> Any:
        from latchwork.types import Absent, At, Exists, SessionAlive

        version = self.one_of(None, self.version(self.unsigned()), self.version(-1), self.version(None))
        return self.one_of(
            At.of(self.key(), version), Absent(self.key()), Exists(self.key()), SessionAlive(self.one_of("ab", None)), 3
        )

    def run(self) -> None:
        self.one_of(self.pages, self.transactions, self.reads)()

    def pages(self) -> None:
        answer = self.damaged(self.range())
        self.note("page", answer)
        self.attempt(self.etcd.entry, answer)
        page = self.attempt(self.etcd.page, answer)
        if page is not None:
            for call in (page.names, page.strangers, page.last, page.count, page.entries):
                self.attempt(call)
            skip = self.one_of(0, 5, 7, 2**63, 2**64 - 1, -1)
            self.attempt(page.count, skip)
            self.attempt(page.entries, skip)

    def transactions(self) -> None:
        answer, ops = self.damaged(self.transaction()), [self.op() for _ in range(self.random.randrange(5))]
        checks = [self.check() for _ in range(self.random.randrange(4))]
        self.note("transaction", answer, ops, checks)
        self.attempt(self.etcd.committed, answer, ops)
        self.attempt(self.etcd.found, answer)
        ended = self.one_of(set[str](), {"7f"}, {5})
        self.attempt(self.etcd.transaction, checks, ops, ended, b"guard", self.number(), self.number())
        self.attempt(self.etcd.get_many, [self.key() for _ in range(3)], True)
        self.attempt(self.etcd.get, self.key(), False)

    def reads(self) -> None:
        answer, keys = self.damaged(self.multi_read()), [self.key() for _ in range(self.random.randrange(8))]
        start, end = self.one_of(0, 0, 0, 1, 5, 2**31, 2**64 - 1), self.one_of(0, 3, 2**64 - 1)
        self.note("multi-read", answer, keys, start, end)
        self.attempt(self.zookeeper.entries, answer, keys, start, [object()] * self.one_of(0, 1, 16))
        self.attempt(self.zookeeper.reads, keys, start, end)


def varint(number: int) -> bytes:
    """Encode a number of protobuf."""
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def fuzz(core: str, seconds: float, seed: int, log: Path) -> None:
    """Call until the time is over."""
    load(core)
    fuzzers = (Placements(seed, log), Messages(seed, log.with_suffix(".messages")))
    end, programs = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        fuzzers[0].run()
        for _ in range(10):
            fuzzers[1].run()
        programs += 11
    print(f"seed {seed}: {programs} programs")


def main(core: str, seconds: str, *seeds: str) -> int:
    """Run a process per seed, and print the last calls of those that failed."""
    given = [int(seed) for seed in seeds] or [int.from_bytes(os.urandom(4), "big") for _ in range(os.cpu_count() or 1)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for seed in given:
            log = Path(folder) / str(seed)
            command = [sys.executable, __file__, "--child", core, seconds, str(seed), str(log)]
            running.append((log, subprocess.Popen(command)))
        for log, process in running:
            if process.wait() != 0:
                failed += 1
                print(f"seed {log.name} ended with {process.returncode}; the last calls, of one of them:")
                for each in (log, log.with_suffix(".messages")):
                    print(each.read_text(encoding="utf-8"))
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        fuzz(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        sys.exit(main(*sys.argv[1:]))
