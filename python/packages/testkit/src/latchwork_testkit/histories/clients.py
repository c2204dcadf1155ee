"""Clients of a history. Each has its own store and thread, and makes random calls that are recorded."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import latchwork
from latchwork.errors import Unavailable
from latchwork.types import Absent, At, Create, Delete, Entry, Exists, Put
from latchwork_testkit.histories.calls import Call
from latchwork_testkit.histories.recorder import KEYS, PAUSE_S, Recorder, Tokens

_REMEMBERED = 6
_IDLE_S = 60.0


class Workload:
    """Random calls on few keys, most of them on keys that were just read or written. Not thread-safe.

    Args:
        recorder: Makes the calls.
        rng: Source of randomness.
        seen: The last entries of each key that clients of this process have seen, for checks. Shared with other
            workloads.
        think_s: Average pause between two calls, in seconds.
    """

    def __init__(
        self, recorder: Recorder, rng: random.Random, seen: dict[str, deque[Entry]], *, think_s: float = 0.0
    ) -> None:
        self._recorder = recorder
        self._rng = rng
        self._seen = seen
        self._think_s = think_s
        self._exists: dict[str, bool] = dict.fromkeys(KEYS, False)

    def step(self) -> None:
        """Make one call. Its errors are part of the history."""
        if self._think_s:
            time.sleep(self._think_s * 2 * self._rng.random())
        choice = self._rng.choices(_STEPS, _WEIGHTS)[0]
        try:
            getattr(self, choice)(self._rng.choice(KEYS))
        except Unavailable:
            time.sleep(PAUSE_S)
        except Exception:  # noqa: S110 - the recorder has it
            pass

    def _get(self, key: str) -> None:
        entry = self._recorder.get(key)
        self._exists[key] = entry is not None
        if entry is not None:
            self._seen[key].append(entry)

    def _put(self, key: str) -> None:
        self._remember([self._recorder.put(key, self._value())])

    def _create(self, key: str) -> None:
        self._remember([self._recorder.create(key, self._value())])

    def _delete(self, key: str) -> None:
        self._recorder.delete(key)
        self._exists[key] = False

    def _delete_at(self, key: str) -> None:
        entry = self._remembered(key)
        if entry is not None:
            self._recorder.delete(key, at=entry)
            self._exists[key] = False

    def _commit(self, _: str) -> None:
        tokens: Tokens = {}
        checks = [self._random_check(key, tokens) for key in self._some_keys(3)]
        ops = [self._random_op(key) for key in self._some_keys(3)] if self._rng.random() < 0.9 else []
        done = self._recorder.commit(checks, ops, tokens)
        self._remember(done.entries)
        self._exists.update(dict.fromkeys(done.deleted, False))

    def _some_keys(self, most: int) -> list[str]:
        return self._rng.sample(KEYS, self._rng.randint(1, most))

    def _random_check(self, key: str, tokens: Tokens) -> At | Absent | Exists:
        likely = self._exists[key] == (self._rng.random() < 0.85)
        entry = self._remembered(key)
        if likely and entry is not None and self._rng.random() < 0.6:
            check = At(entry)
            tokens[check] = entry.token
            return check
        return Exists(key) if likely else Absent(key)

    def _random_op(self, key: str) -> Put | Create | Delete:
        dice = self._rng.random()
        if dice < 0.3:
            return Delete(key)
        if dice < 0.55 and not self._exists[key]:
            return Create(key, self._value())
        return Put(key, self._value())

    def _remembered(self, key: str) -> Entry | None:
        """Return the newest known entry of a key, or sometimes an older one, which was overwritten or created again
        since.
        """
        entries = list(self._seen[key])
        if not entries:
            return None
        return self._rng.choice(entries) if self._rng.random() < 0.25 else max(entries, key=lambda each: each.token)

    def _remember(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._exists[entry.key] = True
            self._seen[entry.key].append(entry)

    def _value(self) -> bytes:
        return self._recorder.new_value()


_STEPS = ("_get", "_put", "_create", "_delete", "_delete_at", "_commit")
_WEIGHTS = (30, 14, 14, 5, 5, 32)


class Clients:
    """Several clients of one process, each with its own thread from ``start`` to ``finish``. Not thread-safe.

    Args:
        specs: Name, number of the first call, and store URL of each client.
        sink: Called twice for each call; see ``Recorder``.
        give_up_after_s: See ``Recorder``.
        think_s: See ``Workload``.
        wrap: Wraps the store that the calls are made on.
    """

    def __init__(
        self,
        specs: list[tuple[str, int, str]],
        sink: Callable[[Call], None],
        *,
        give_up_after_s: float | None,
        think_s: float,
        wrap: Callable[[latchwork.Store], Any] = lambda store: store,
    ) -> None:
        self._stop = threading.Event()
        self._think_s = think_s
        self._seen: dict[str, deque[Entry]] = {key: deque(maxlen=_REMEMBERED) for key in KEYS}
        self._threads: list[threading.Thread] = []
        self.stores, self._recorders = [], []
        for name, number, url in specs:
            self.stores.append(latchwork.connect(url))
            self._recorders.append(Recorder(wrap(self.stores[-1]), name, number, sink, give_up_after_s=give_up_after_s))

    def start(self, seed: int) -> None:
        """Let every client make random calls until ``stop``."""
        self._stop.clear()
        rng = random.Random(seed)
        for recorder in self._recorders:
            workload = Workload(recorder, random.Random(rng.random()), self._seen, think_s=self._think_s)
            self._threads.append(threading.Thread(target=self._run, args=(recorder, workload), name=recorder.client))
            self._threads[-1].start()

    def stop(self) -> None:
        """Let each client stop after its current call."""
        self._stop.set()

    def finish(self) -> list[str]:
        """Wait until all clients are idle and none of their calls can take effect any more. Return the problems since
        the last call.
        """
        until = time.monotonic() + _IDLE_S
        problems = []
        for thread, recorder in zip(self._threads, self._recorders, strict=True):
            thread.join(max(0.0, until - time.monotonic()))
            problems += recorder.unexpected
            recorder.unexpected = []
            if thread.is_alive():
                problems.append(f"{recorder.client} hangs in {recorder.last.describe()}")
        self._threads = []
        return problems

    def close(self) -> None:
        """Close the stores."""
        for recorder in self._recorders:
            recorder.close()

    def _run(self, recorder: Recorder, workload: Workload) -> None:
        while not self._stop.is_set():
            workload.step()
        recorder.settle()
