"""Clients that make random calls on a store. Each has its own store and thread, and its calls are recorded."""

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

_KNOWN_ENTRIES = 6
_FINISH_TIMEOUT_S = 60.0


class Workload:
    """Makes random calls on a few keys, most of them on keys that were just read or written. Not thread-safe.

    Args:
        recorder: Store that records the calls.
        rng: Source of randomness.
        known_entries: The last entries of each key that clients of this process have read or written. They are used in
            checks, and shared with other workloads.
        mean_pause_s: Average pause before a call, in seconds.
    """

    def __init__(
        self,
        recorder: Recorder,
        rng: random.Random,
        known_entries: dict[str, deque[Entry]],
        *,
        mean_pause_s: float = 0.0,
    ) -> None:
        self._recorder = recorder
        self._rng = rng
        self._known_entries = known_entries
        self._mean_pause_s = mean_pause_s
        self._exists: dict[str, bool] = dict.fromkeys(KEYS, False)

    def make_random_call(self) -> None:
        """Make one random call. An error of the store is recorded and not raised."""
        if self._mean_pause_s:
            time.sleep(self._mean_pause_s * 2 * self._rng.random())
        choice = self._rng.choices(_STEPS, _WEIGHTS)[0]
        try:
            getattr(self, choice)(self._rng.choice(KEYS))
        except Unavailable:
            time.sleep(PAUSE_S)
        except Exception:  # noqa: S110 - the recorder has recorded it
            pass

    def _get(self, key: str) -> None:
        entry = self._recorder.get(key)
        self._exists[key] = entry is not None
        if entry is not None:
            self._known_entries[key].append(entry)

    def _put(self, key: str) -> None:
        self._note_entries([self._recorder.put(key, self._value())])

    def _create(self, key: str) -> None:
        self._note_entries([self._recorder.create(key, self._value())])

    def _delete(self, key: str) -> None:
        self._recorder.delete(key)
        self._exists[key] = False

    def _delete_at(self, key: str) -> None:
        entry = self._choose_known_entry(key)
        if entry is not None:
            self._recorder.delete(key, at=entry)
            self._exists[key] = False

    def _commit(self, _: str) -> None:
        tokens: Tokens = {}
        checks = [self._random_check(key, tokens) for key in self._some_keys(3)]
        ops = [self._random_op(key) for key in self._some_keys(3)] if self._rng.random() < 0.9 else []
        done = self._recorder.commit(checks, ops, tokens)
        self._note_entries(done.entries)
        self._exists.update(dict.fromkeys(done.deleted, False))

    def _some_keys(self, most: int) -> list[str]:
        return self._rng.sample(KEYS, self._rng.randint(1, most))

    def _random_check(self, key: str, tokens: Tokens) -> At | Absent | Exists:
        likely = self._exists[key] == (self._rng.random() < 0.85)
        entry = self._choose_known_entry(key)
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

    def _choose_known_entry(self, key: str) -> Entry | None:
        """Choose a known entry of a key for a check. Sometimes this is an older one, whose version is no longer
        current.
        """
        entries = list(self._known_entries[key])
        if not entries:
            return None
        return self._rng.choice(entries) if self._rng.random() < 0.25 else max(entries, key=lambda each: each.token)

    def _note_entries(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._exists[entry.key] = True
            self._known_entries[entry.key].append(entry)

    def _value(self) -> bytes:
        return self._recorder.new_value()


_STEPS = ("_get", "_put", "_create", "_delete", "_delete_at", "_commit")
_WEIGHTS = (30, 14, 14, 5, 5, 32)


class Clients:
    """Several clients in one process. Between `start` and `finish`, each makes calls in its own thread. Not
    thread-safe.

    Args:
        clients: Name, number of the first call, and store URL of each client.
        on_update: Called with each call when it begins and when it has ended.
        give_up_after_s: Seconds after which a client gives up a call; see `Recorder`.
        mean_pause_s: Average pause before a call, in seconds.
        wrap: Returns the object on which a client makes its calls, given its store. A test can add faults with it.
    """

    def __init__(
        self,
        clients: list[tuple[str, int, str]],
        on_update: Callable[[Call], None],
        *,
        give_up_after_s: float | None,
        mean_pause_s: float,
        wrap: Callable[[latchwork.Store], Any] = lambda store: store,
    ) -> None:
        self._stop = threading.Event()
        self._mean_pause_s = mean_pause_s
        self._known_entries: dict[str, deque[Entry]] = {key: deque(maxlen=_KNOWN_ENTRIES) for key in KEYS}
        self._threads: list[threading.Thread] = []
        self.stores, self._recorders = [], []
        for name, number, url in clients:
            self.stores.append(latchwork.connect(url))
            self._recorders.append(
                Recorder(wrap(self.stores[-1]), name, number, on_update, give_up_after_s=give_up_after_s)
            )

    def start(self, seed: int) -> None:
        """Start a thread for each client that makes random calls until `stop`.

        Args:
            seed: Seed of the random calls.
        """
        self._stop.clear()
        rng = random.Random(seed)
        for recorder in self._recorders:
            workload = Workload(
                recorder, random.Random(rng.random()), self._known_entries, mean_pause_s=self._mean_pause_s
            )
            self._threads.append(threading.Thread(target=self._run, args=(recorder, workload), name=recorder.client))
            self._threads[-1].start()

    def stop(self) -> None:
        """Tell each client to stop after its current call."""
        self._stop.set()

    def finish(self) -> list[str]:
        """Wait until every client has stopped and none of its calls can take effect any more.

        Returns:
            A sentence for each unexpected error since the previous `finish`, and for each client that hangs.
        """
        deadline = time.monotonic() + _FINISH_TIMEOUT_S
        problems = []
        for thread, recorder in zip(self._threads, self._recorders, strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            problems += recorder.unexpected
            recorder.unexpected = []
            if thread.is_alive():
                problems.append(f"{recorder.client} hangs in {recorder.last.describe()}")
        self._threads = []
        return problems

    def close(self) -> None:
        """Close the stores of all clients."""
        for recorder in self._recorders:
            recorder.close()

    def _run(self, recorder: Recorder, workload: Workload) -> None:
        while not self._stop.is_set():
            workload.make_random_call()
        recorder.settle()
