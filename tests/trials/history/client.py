"""One client of a history: a store whose calls are written down, and the random calls it makes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from latchwork.errors import Conflict, KeyExists, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.types import Absent, At, Create, Delete, Entry, Exists, Put
from trials.judges.linearizable.calls import CONFLICT, OK, REFUSED, UNKNOWN, Call, Check, Op, Seen

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    import latchwork
    from latchwork.types import Committed

    Tokens = dict[Any, int]

T = TypeVar("T")
KEYS = ("a", "a/x", "b", "c")
_SETTLE_S = 30.0
_PAUSE_S = 0.02  # after a refusal, so that an outage does not fill the history
_REMEMBERED = 6
_USUAL = (Conflict, KeyExists, Unavailable)
NOTHING: dict[Any, int] = {}


class Sink(Protocol):
    """Where calls are written down."""

    def begin(self, call: Call) -> None:
        """It is about to be made; no answer yet."""

    def end(self, call: Call) -> None:
        """Its answer is in; or, of a call that was given up, it is over."""


class Recorder:
    """The part of a store's interface that is judged, every call written down. One thread only.

    Args:
        store: the store.
        client: its name in the history.
        number: of its first call; numbers are unique in a run.
        sink: told of every call.
        patience_s: give up calls that take longer, as a caller with a deadline of its own does. The outcome is unknown
            to it then; nothing settles such a call, but when it has returned it can land no more.
    """

    def __init__(
        self, store: latchwork.Store, client: str, number: int, sink: Sink, *, patience_s: float | None = None
    ) -> None:
        self.store = store
        self.client = client
        self.unexpected: list[str] = []
        self._number = number
        self._values = 0
        self._sink = sink
        self._patience_s = patience_s
        self._given_up: list[Future[Any]] = []
        self._threads = ThreadPoolExecutor(4, f"given-up-{client}") if patience_s is not None else None

    def get(self, key: str) -> Entry | None:
        def answer(call: Call, entry: Entry | None) -> None:
            call.found = _seen(entry) if entry is not None else None

        return self._made(self._call("get", key=key), lambda: self.store.get(key), answer)

    def put(self, key: str, value: bytes) -> Entry:
        call = self._call("put", ops=(Op("put", key, value.decode()),))
        return self._made(call, lambda: self.store.put(key, value), _wrote)

    def create(self, key: str, value: bytes) -> Entry:
        call = self._call("create", ops=(Op("create", key, value.decode()),))
        return self._made(call, lambda: self.store.create(key, value), _wrote)

    def delete(self, key: str, *, at: Entry | None = None) -> bool:
        def answer(call: Call, was_there: bool) -> None:
            call.deleted = (key,) if was_there else ()

        checks = () if at is None else (Check("at", key, at.token),)
        tokens = {} if at is None else {At(at): at.token}
        version = None if at is None else at.version
        call = self._call("delete", checks=checks, ops=(Op("delete", key),))
        return self._made(call, lambda: self.store.delete(key, version=version), answer, tokens)

    def commit(self, checks: list[At | Absent | Exists], ops: list[Put | Create | Delete], tokens: Tokens) -> Committed:
        """As ``Store.commit``; an At does not tell its token, so it is given beside."""

        def answer(call: Call, done: Committed) -> None:
            call.token = done.token
            call.written = tuple(_seen(each) for each in done.entries)
            call.deleted = done.deleted

        told = tuple(_check(each, tokens) for each in checks)
        call = self._call("commit", checks=told, ops=tuple(_op(each) for each in ops))
        return self._made(call, lambda: self.store.commit(checks, ops), answer, tokens)

    def new_value(self) -> bytes:
        """One that nobody has written, nor ever will again."""
        self._values += 1
        return f"{self.client}.{self._values}".encode()

    def settle(self) -> None:
        """Read until there is an answer, and wait for what was given up: nothing of this client can land after that."""
        deadline = time.monotonic() + _SETTLE_S
        wait(self._given_up, _SETTLE_S)
        self._given_up.clear()
        while time.monotonic() < deadline:
            with contextlib.suppress(LatchworkError):
                self.get(KEYS[0])
                return
            time.sleep(_PAUSE_S)
        self.unexpected.append(f"{self.client} got no answer for {_SETTLE_S:.0f} s after the last fault was over")

    def close(self) -> None:
        """Close the store, after what was given up has returned."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self.store.close()

    def _call(self, kind: str, **fields: Any) -> Call:
        self._number += 1
        return Call(self._number, self.client, kind, 0, **fields)

    def _made(
        self, call: Call, make: Callable[[], T], answer: Callable[[Call, T], None], tokens: Tokens = NOTHING
    ) -> T:
        call.invoked = time.monotonic_ns()
        self._sink.begin(call)
        try:
            result = make() if self._threads is None else self._patiently(call, make)
        except _GivenUp:
            raise OutcomeUnknown(call.told()) from None
        except Exception as error:
            self._failed(call, error, tokens)
            self._ended(call)
            raise
        call.outcome = OK
        answer(call, result)
        self._ended(call)
        return result

    def _patiently(self, call: Call, make: Callable[[], T]) -> T:
        assert self._threads is not None
        future = self._threads.submit(make)
        try:
            return future.result(self._patience_s)
        except FutureTimeout:
            call.client += "/given-up"  # no later answer says anything about it
            wait(self._given_up, _SETTLE_S)  # one at a time: with dozens under way no search ends
            self._given_up = [future]
            future.add_done_callback(lambda _: self._ended(call, over=True))
            raise _GivenUp from None

    def _failed(self, call: Call, error: Exception, tokens: Tokens) -> None:
        call.error = type(error).__name__
        if isinstance(error, KeyExists):
            call.outcome, call.failed = CONFLICT, call.ops
        elif isinstance(error, Conflict):
            call.outcome, call.failed = CONFLICT, tuple(_named(each, tokens) for each in error.failed)
        elif isinstance(error, Unavailable):
            call.outcome = REFUSED
        if (call.is_read and call.outcome == UNKNOWN) or not isinstance(error, (*_USUAL, OutcomeUnknown)):
            self.unexpected.append(f"{call.told()}: {type(error).__name__}: {error}")
        if call.outcome == CONFLICT and not call.failed:
            self.unexpected.append(f"a conflict that names nothing: {call.told()}: {error}")

    def _ended(self, call: Call, *, over: bool = False) -> None:
        if over or call.outcome != UNKNOWN:
            call.returned = time.monotonic_ns()
        self._sink.end(call)


class _GivenUp(Exception):
    """The caller's patience is over."""


class Workload:
    """Random calls on few keys, most of them on what was just read or written. One thread only.

    Args:
        recorder: makes the calls.
        rng: decides.
        shared: entries that clients of this process saw, for checks; others add to it, too.
        think_s: pause between two calls, on average.
    """

    def __init__(
        self,
        recorder: Recorder,
        rng: random.Random,
        shared: dict[str, deque[Entry]] | None = None,
        *,
        think_s: float = 0.0,
    ) -> None:
        self._recorder = recorder
        self._rng = rng
        self._seen = shared if shared is not None else new_memory()
        self._think_s = think_s
        self._there: dict[str, bool] = dict.fromkeys(KEYS, False)

    def step(self) -> None:
        """One call; its errors are part of the history."""
        if self._think_s:
            time.sleep(self._think_s * 2 * self._rng.random())
        choice = self._rng.choices(_STEPS, _WEIGHTS)[0]
        try:
            choice(self, self._rng.choice(KEYS))
        except Unavailable:
            time.sleep(_PAUSE_S)
        except Exception:  # it was written down
            pass

    def _get(self, key: str) -> None:
        entry = self._recorder.get(key)
        self._there[key] = entry is not None
        if entry is not None:
            self._seen[key].append(entry)

    def _put(self, key: str) -> None:
        self._learn([self._recorder.put(key, self._value())])

    def _create(self, key: str) -> None:
        self._learn([self._recorder.create(key, self._value())])

    def _delete(self, key: str) -> None:
        self._recorder.delete(key)
        self._there[key] = False

    def _delete_at(self, key: str) -> None:
        entry = self._remembered(key)
        if entry is not None:
            self._recorder.delete(key, at=entry)
            self._there[key] = False

    def _commit(self, _: str) -> None:
        tokens: Tokens = {}
        checks = [self._random_check(key, tokens) for key in self._some_keys(3)]
        ops = [self._random_op(key) for key in self._some_keys(3)] if self._rng.random() < 0.9 else []
        done = self._recorder.commit(checks, ops, tokens)
        self._learn(done.entries)
        self._there.update(dict.fromkeys(done.deleted, False))

    def _some_keys(self, most: int) -> list[str]:
        return self._rng.sample(KEYS, self._rng.randint(1, most))

    def _random_check(self, key: str, tokens: Tokens) -> At | Absent | Exists:
        likely = self._there[key] == (self._rng.random() < 0.85)
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
        if dice < 0.55 and not self._there[key]:
            return Create(key, self._value())
        return Put(key, self._value())

    def _remembered(self, key: str) -> Entry | None:
        """The newest entry seen, now and then an old one: that of a key that was written or created again since."""
        entries = list(self._seen[key])
        if not entries:
            return None
        return self._rng.choice(entries) if self._rng.random() < 0.25 else max(entries, key=lambda each: each.token)

    def _learn(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._there[entry.key] = True
            self._seen[entry.key].append(entry)

    def _value(self) -> bytes:
        return self._recorder.new_value()


_STEPS = (Workload._get, Workload._put, Workload._create, Workload._delete, Workload._delete_at, Workload._commit)
_WEIGHTS = (30, 14, 14, 5, 5, 32)


def new_memory() -> dict[str, deque[Entry]]:
    """Entries seen, by key: the last few."""
    return {key: deque(maxlen=_REMEMBERED) for key in KEYS}


def _wrote(call: Call, entry: Entry) -> None:
    call.token = entry.token
    call.written = (_seen(entry),)


def _seen(entry: Entry) -> Seen:
    return Seen(entry.key, entry.value.decode(), entry.token, entry.created)


def _check(check: At | Absent | Exists, tokens: Tokens) -> Check:
    return Check(type(check).__name__.lower(), check.key, tokens.get(check, 0))


def _op(op: Put | Create | Delete) -> Op:
    return Op(type(op).__name__.lower(), op.key, "" if isinstance(op, Delete) else op.value.decode())


def _named(failed: Any, tokens: Tokens) -> Check | Op:
    return _op(failed) if isinstance(failed, Create) else _check(failed, tokens)
