"""A soak: churn for a while, a sample now and then, and a judge who compares the last third with the first."""

from __future__ import annotations

import collections
import gc
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import latchwork
from latchwork import Store, forget
from latchwork.backends.url import parse_url
from trials.raw import RawEtcd, RawPostgres, RawSqlite, RawZooKeeper
from trials.soak.churn import Churn

_DIGITS = re.compile(r"[0-9a-f]{8,}|[0-9]+")
#: Segments of a key that name what it belongs to.
_PREFIX_SEGMENTS = 3
#: A process of the churn is killed after so many seconds, and another one begins.
_KILLED_AFTER_S = 8.0


@dataclass(frozen=True)
class Sample:
    """What there was at one time.

    Attributes:
        at_s: Seconds since the beginning.
        keys: Keys in the store by prefix, with those that no store shows.
        sizes: Bytes of files, memory, threads and descriptors.
    """

    at_s: float
    keys: dict[str, int]
    sizes: dict[str, float]


@dataclass(frozen=True)
class Bound:
    """How much more the last third may have than the first: a part of the first, and a number."""

    part: float
    number: float

    def allows(self, first: float, last: float) -> bool:
        return last <= first * (1 + self.part) + self.number


#: Keys of what is under way vary; one key left by each turn of the churn would be dozens more.
KEYS = Bound(0.2, 12)
#: A group writes a base, and deletes the views before it, after a thousand changes. The owner of the locks of a killed
#: process stays for ten minutes, in which 75 processes are killed; so does a persistent lock that it held.
#: PostgreSQL keeps the ID of a killed process as a writer for a day.
CEILINGS = {
    "keys @executor/default/group": 1_100,
    "keys @locks/locks/soak-victim-N-N-persistent": 100,
    "keys @locks/owners/N": 100,
    "keys @writers/N": 250,
}
SIZES = {
    "rss": Bound(0.1, 12_000_000),
    "threads": Bound(0.0, 12),
    "descriptors": Bound(0.0, 16),
    "objects": Bound(0.1, 20_000),
    "files": Bound(0.25, 20_000_000),
    "rows": Bound(0.2, 20_000),
}


@dataclass
class Result:
    """What a soak found: its samples, what the churn did, and its errors."""

    samples: list[Sample] = field(default_factory=list)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    errors: list[str] = field(default_factory=list)

    def table(self) -> str:
        """The medians of the first and the last third, a line each."""
        first, last = thirds(self.samples)
        lines = [f"{'':40} {'first third':>14} {'last third':>14}"]
        for what, pick in _rows(self.samples):
            lines.append(f"{what:40} {_median(first, pick):14,.0f} {_median(last, pick):14,.0f}")
        return "\n".join([*lines, f"turns: {dict(self.counts)}"])


def thirds(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """The first and the last third, without the beginning, in which everything is opened for the first time."""
    settled = samples[len(samples) // 10 :]
    third = len(settled) // 3
    return settled[:third], settled[-third:]


def judge(samples: Sequence[Sample]) -> list[str]:
    """What grew above its bound; a sentence each."""
    first, last = thirds(samples)
    if len(first) < 3:
        return [f"{len(samples)} samples are too few to compare thirds"]
    wrong = []
    for what, pick in _rows(samples):
        bound = SIZES.get(what, KEYS)
        before, after = _median(first, pick), _median(last, pick)
        if not bound.allows(before, after) and after > CEILINGS.get(what, 0):
            wrong.append(f"{what} grew from {before:,.0f} to {after:,.0f}")
    return wrong


def _rows(samples: Iterable[Sample]) -> list[tuple[str, Callable[[Sample], float]]]:
    prefixes = sorted({prefix for sample in samples for prefix in sample.keys})
    sizes = sorted({what for sample in samples for what in sample.sizes})
    rows: list[tuple[str, Callable[[Sample], float]]] = [
        (f"keys {prefix}", lambda sample, prefix=prefix: sample.keys.get(prefix, 0)) for prefix in prefixes
    ]
    return rows + [(what, lambda sample, what=what: sample.sizes.get(what, 0)) for what in sizes]


def _median(samples: Sequence[Sample], pick: Callable[[Sample], float]) -> float:
    return statistics.median(map(pick, samples))


def prefix_of(key: str) -> str:
    """What a key belongs to, without the numbers that tell one name from the next."""
    return "/".join(_DIGITS.sub("N", segment) for segment in key.split("/")[:_PREFIX_SEGMENTS])


class Sampler:
    """Takes samples of a store, of this process, and of the files below a folder."""

    def __init__(self, url: str, files: Path | None) -> None:
        self._files = files
        self._began = time.monotonic()
        parsed = parse_url(url)
        hosts = [f"{host}:{port}" for host, port in parsed.hosts]
        match url.partition(":")[0]:
            case "etcd":
                self._raw = RawEtcd(hosts, parsed.root)
            case "zk":
                self._raw = RawZooKeeper(hosts, parsed.root)
            case "sqlite":
                self._raw = RawSqlite(Path(parsed.path or ""), parsed.root)
            case _:
                self._raw = RawPostgres(f"postgresql://latchwork@{hosts[0]}/postgres", parsed.root)

    def take(self) -> Sample:
        found = {stored.key for stored in self._raw.state()}.union(self._raw.hidden())
        if isinstance(self._raw, RawZooKeeper):  # the others show them as hidden keys
            found.update(self._raw.system_keys())
        process = psutil.Process()
        gc.collect()
        sizes: dict[str, float] = {
            "rss": process.memory_info().rss,
            "threads": process.num_threads(),
            "descriptors": process.num_fds(),
            "objects": len(gc.get_objects()),
        }
        if self._files is not None:
            sizes["files"] = sum(_size(path) for path in self._files.rglob("*"))
        return Sample(time.monotonic() - self._began, dict(collections.Counter(map(prefix_of, found))), sizes)

    def close(self) -> None:
        self._raw.close()


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size if path.is_file() else 0
    return 0


def soak(url: str, seconds: float, *, every_s: float, files: Path | None = None) -> Result:
    """Churn in this process and in others, which are killed one after the other."""
    result = Result()
    with Churn(url) as churn, closing(Sampler(url, files)) as sampler, _victims(url):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(every_s)
            result.samples.append(sampler.take())
        result.counts, result.errors = churn.counts, churn.errors
    return result


def _forget_semaphores(store: Store, pid: int) -> None:
    """Remove the sizes of semaphores that a killed process left, once its session has ended, as its users would."""
    for entry in store.list("", recursive=True):
        if match := re.fullmatch(rf"(soak-victim-{pid}-\d+/semaphore)/leases/size", entry.key):
            forget(store, match[1])


@contextmanager
def _victims(url: str) -> Iterator[None]:
    """Run one process after the other, and kill each after a while. Raises what ended that early."""
    ending = threading.Event()

    def kill_again_and_again() -> None:
        last = before = 0
        with latchwork.connect(url) as store:
            while not ending.is_set():
                command = [sys.executable, str(Path(__file__).with_name("victim.py")), url]
                with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                    ending.wait(_KILLED_AFTER_S)
                    process.kill()
                _forget_semaphores(store, before)  # killed two rounds ago: longer than a TTL
                before, last = last, process.pid

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_again_and_again)
        try:
            yield
        finally:
            ending.set()
            killing.result()
