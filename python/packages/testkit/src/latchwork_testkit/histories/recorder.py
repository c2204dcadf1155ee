"""Records the calls on a store with their answers, for the part of the interface that is judged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import latchwork
from latchwork.errors import Conflict, KeyExists, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.types import Absent, At, Committed, Create, Delete, Entry, Exists, Put
from latchwork_testkit.histories.calls import CONFLICT, OK, REFUSED, UNKNOWN, Call, Check, Op, Seen

Tokens = dict[Any, int]
T = TypeVar("T")
KEYS = ("a", "a/x", "b", "c")
_SETTLE_S = 60.0
PAUSE_S = 0.02  # after a refusal, so that an outage does not fill the history
_USUAL = (Conflict, KeyExists, Unavailable)
NOTHING: dict[Any, int] = {}


class Recorder:
    """A store that records its calls. Not thread-safe.

    Args:
        store: The store.
        client: Name of the client in the history.
        number: Number of the first call. Numbers are unique in a run.
        sink: Called with each call when it begins and when it has ended.
        give_up_after_s: Seconds after which to give up a call, like a caller with its own deadline. The outcome is then
            unknown to the caller. Such a call is not settled, but it cannot take effect after it has returned. None
            never gives up.
    """

    def __init__(
        self,
        store: latchwork.Store,
        client: str,
        number: int,
        sink: Callable[[Call], None],
        *,
        give_up_after_s: float | None = None,
    ) -> None:
        self.store = store
        self.client = client
        self.last: Call | None = None
        self.unexpected: list[str] = []
        self._number = number
        self._values = 0
        self._sink = sink
        self._give_up_after_s = give_up_after_s
        self._given_up: list[Future[Any]] = []
        self._threads = ThreadPoolExecutor(4, f"given-up-{client}") if give_up_after_s is not None else None

    def get(self, key: str) -> Entry | None:
        """Record a get."""

        def answer(call: Call, entry: Entry | None) -> None:
            call.found = _seen(entry) if entry is not None else None

        return self._record(self._call("get", key=key), lambda: self.store.get(key), answer)

    def put(self, key: str, value: bytes) -> Entry:
        """Record a put."""
        call = self._call("put", ops=(Op("put", key, value.decode()),))
        return self._record(call, lambda: self.store.put(key, value), _set_written)

    def create(self, key: str, value: bytes) -> Entry:
        """Record a creation."""
        call = self._call("create", ops=(Op("create", key, value.decode()),))
        return self._record(call, lambda: self.store.create(key, value), _set_written)

    def delete(self, key: str, *, at: Entry | None = None) -> bool:
        """Record a deletion, of any version or of an entry that was read."""

        def answer(call: Call, was_there: bool) -> None:
            call.deleted = (key,) if was_there else ()

        checks = () if at is None else (Check("at", key, at.token),)
        tokens = {} if at is None else {At(at): at.token}
        version = None if at is None else at.version
        call = self._call("delete", checks=checks, ops=(Op("delete", key),))
        return self._record(call, lambda: self.store.delete(key, version=version), answer, tokens)

    def commit(self, checks: list[At | Absent | Exists], ops: list[Put | Create | Delete], tokens: Tokens) -> Committed:
        """Record a commit. The tokens of ``At`` checks are passed separately, because a check does not contain its
        token.
        """

        def answer(call: Call, done: Committed) -> None:
            call.token = done.token
            call.written = tuple(_seen(each) for each in done.entries)
            call.deleted = done.deleted

        stored_checks = tuple(_check(each, tokens) for each in checks)
        call = self._call("commit", checks=stored_checks, ops=tuple(_op(each) for each in ops))
        return self._record(call, lambda: self.store.commit(checks, ops), answer, tokens)

    def new_value(self) -> bytes:
        """Return a value that is never written twice."""
        self._values += 1
        return f"{self.client}.{self._values}".encode()

    def settle(self) -> None:
        """Read until there is an answer, and wait for abandoned calls. Afterwards, no call of this client can take
        effect.
        """
        deadline = time.monotonic() + _SETTLE_S
        wait(self._given_up, _SETTLE_S)
        self._given_up.clear()
        while time.monotonic() < deadline:
            with contextlib.suppress(LatchworkError):
                self.get(KEYS[0])
                return
            time.sleep(PAUSE_S)
        self.unexpected.append(f"{self.client} got no answer for {_SETTLE_S:.0f} s after the last fault was over")

    def close(self) -> None:
        """Close the store after all abandoned calls have returned."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self.store.close()

    def _call(self, kind: str, **fields: Any) -> Call:
        self._number += 1
        return Call(self._number, self.client, kind, 0, **fields)

    def _record(
        self, call: Call, make: Callable[[], T], answer: Callable[[Call, T], None], tokens: Tokens = NOTHING
    ) -> T:
        self.last = call
        call.invoked = time.monotonic_ns()
        self._sink(call)
        try:
            result = make() if self._threads is None else self._call_with_deadline(call, make)
        except _GivenUp:
            raise OutcomeUnknown(call.describe()) from None
        except Exception as error:
            self._failed(call, error, tokens)
            self._ended(call)
            raise
        call.outcome = OK
        answer(call, result)
        self._ended(call)
        return result

    def _call_with_deadline(self, call: Call, make: Callable[[], T]) -> T:
        assert self._threads is not None
        future = self._threads.submit(make)
        try:
            return future.result(self._give_up_after_s)
        except TimeoutError:
            call.client += "/given-up"  # no later answer says anything about it
            wait(self._given_up, _SETTLE_S)  # one at a time: with dozens under way no search ends
            over: Future[None] = Future()
            self._given_up = [over]
            future.add_done_callback(lambda _: over.set_result(self._ended(call, over=True)))
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
            self.unexpected.append(f"{call.describe()}: {type(error).__name__}: {error}")
        if call.outcome == CONFLICT and not call.failed:
            self.unexpected.append(f"a conflict that names nothing: {call.describe()}: {error}")

    def _ended(self, call: Call, *, over: bool = False) -> None:
        if over or call.outcome != UNKNOWN:
            call.returned = time.monotonic_ns()
        self._sink(call)


class _GivenUp(Exception):
    """The call took longer than ``give_up_after_s``."""


def _set_written(call: Call, entry: Entry) -> None:
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
