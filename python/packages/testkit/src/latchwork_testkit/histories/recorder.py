"""A store that records its calls and their answers. It has the calls that the checker of histories knows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import latchwork
from latchwork.errors import Conflict, KeyExists, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.types import Absent, At, Committed, Create, Delete, Entry, Exists, Put
from latchwork_testkit.histories.calls import CONFLICT, OK, REFUSED, UNKNOWN, Call, Check, Operation, ReportedEntry

Tokens = dict[Any, int]
T = TypeVar("T")
KEYS = ("a", "a/x", "b", "c")
_SETTLE_S = 60.0
PAUSE_S = 0.02  # after a refusal, so that an outage does not fill the history
_EXPECTED_ERRORS = (Conflict, KeyExists, Unavailable)
NOTHING: dict[Any, int] = {}


class Recorder:
    """A store that records its calls. Not thread-safe.

    Args:
        store: The store on which the calls are made.
        client: Name of the client in the history.
        number: Number of the first call. Numbers are unique in a run.
        on_update: Called with each call when it begins and when it has ended.
        give_up_after_s: Seconds after which the client gives up a call, like a caller with its own deadline. The
            outcome of the call is then unknown to the caller, and later calls do not settle it. It cannot take effect
            after the store has returned. None never gives up.
    """

    def __init__(
        self,
        store: latchwork.Store,
        client: str,
        number: int,
        on_update: Callable[[Call], None],
        *,
        give_up_after_s: float | None = None,
    ) -> None:
        self.store = store
        self.client = client
        self.last: Call | None = None
        self.unexpected: list[str] = []
        self._number = number
        self._values = 0
        self._on_update = on_update
        self._give_up_after_s = give_up_after_s
        self._given_up: list[Future[Any]] = []
        self._executor = ThreadPoolExecutor(4, f"given-up-{client}") if give_up_after_s is not None else None

    def get(self, key: str) -> Entry | None:
        """Get the entry of a key, and record the call."""

        def answer(call: Call, entry: Entry | None) -> None:
            call.found = _reported_entry(entry) if entry is not None else None

        return self._record(self._call("get", key=key), lambda: self.store.get(key), answer)

    def put(self, key: str, value: bytes) -> Entry:
        """Put a value, and record the call."""
        call = self._call("put", ops=(Operation("put", key, value.decode()),))
        return self._record(call, lambda: self.store.put(key, value), _set_written)

    def create(self, key: str, value: bytes) -> Entry:
        """Create a key, and record the call."""
        call = self._call("create", ops=(Operation("create", key, value.decode()),))
        return self._record(call, lambda: self.store.create(key, value), _set_written)

    def delete(self, key: str, *, at: Entry | None = None) -> bool:
        """Delete a key, and record the call.

        Args:
            key: The key.
            at: Delete only this version of the key. None deletes any version.
        Returns:
            Whether the key existed.
        """

        def answer(call: Call, was_there: bool) -> None:
            call.deleted = (key,) if was_there else ()

        checks = () if at is None else (Check("at", key, at.token),)
        tokens = {} if at is None else {At(at): at.token}
        version = None if at is None else at.version
        call = self._call("delete", checks=checks, ops=(Operation("delete", key),))
        return self._record(call, lambda: self.store.delete(key, version=version), answer, tokens)

    def commit(self, checks: list[At | Absent | Exists], ops: list[Put | Create | Delete], tokens: Tokens) -> Committed:
        """Commit operations if their checks hold, and record the call.

        Args:
            checks: Checks that must hold.
            ops: Operations to apply.
            tokens: Token of each `At` check, because a check does not contain it.
        """

        def answer(call: Call, done: Committed) -> None:
            call.token = done.token
            call.written = tuple(_reported_entry(each) for each in done.entries)
            call.deleted = done.deleted

        stored_checks = tuple(_check(each, tokens) for each in checks)
        call = self._call("commit", checks=stored_checks, ops=tuple(_op(each) for each in ops))
        return self._record(call, lambda: self.store.commit(checks, ops), answer, tokens)

    def new_value(self) -> bytes:
        """Return a value that no client has written or will write again."""
        self._values += 1
        return f"{self.client}.{self._values}".encode()

    def settle(self) -> None:
        """Wait until no call of this client can take effect any more.

        Waits for the calls that were given up, and reads until the store responds. If it never responds, adds a problem
        to `unexpected`.
        """
        deadline = time.monotonic() + _SETTLE_S
        wait(self._given_up, _SETTLE_S)
        self._given_up.clear()
        while time.monotonic() < deadline:
            with contextlib.suppress(LatchworkError):
                self.get(KEYS[0])
                return
            time.sleep(PAUSE_S)
        self.unexpected.append(f"{self.client} got no answer for {_SETTLE_S:.0f} s after the last fault had ended")

    def close(self) -> None:
        """Wait until the calls that were given up have returned, and close the store."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self.store.close()

    def _call(self, kind: str, **fields: Any) -> Call:
        self._number += 1
        return Call(self._number, self.client, kind, 0, **fields)

    def _record(
        self, call: Call, function: Callable[[], T], answer: Callable[[Call, T], None], tokens: Tokens = NOTHING
    ) -> T:
        self.last = call
        call.invoked = time.monotonic_ns()
        self._on_update(call)
        try:
            result = function() if self._executor is None else self._call_with_deadline(call, function)
        except _GivenUp:
            raise OutcomeUnknown(call.describe()) from None
        except Exception as error:
            self._record_error(call, error, tokens)
            self._record_end(call)
            raise
        call.outcome = OK
        answer(call, result)
        self._record_end(call)
        return result

    def _call_with_deadline(self, call: Call, function: Callable[[], T]) -> T:
        assert self._executor is not None
        future = self._executor.submit(function)
        try:
            return future.result(self._give_up_after_s)
        except TimeoutError:
            call.client += "/given-up"  # later answers do not settle this call
            wait(self._given_up, _SETTLE_S)  # one at a time: with dozens in flight, no search would end
            ended: Future[None] = Future()
            self._given_up = [ended]
            future.add_done_callback(lambda _: ended.set_result(self._record_end(call, ended=True)))
            raise _GivenUp from None

    def _record_error(self, call: Call, error: Exception, tokens: Tokens) -> None:
        call.error = type(error).__name__
        if isinstance(error, KeyExists):
            call.outcome, call.failed = CONFLICT, call.ops
        elif isinstance(error, Conflict):
            call.outcome, call.failed = CONFLICT, tuple(_failed_condition(each, tokens) for each in error.failed)
        elif isinstance(error, Unavailable):
            call.outcome = REFUSED
        if (call.is_read and call.outcome == UNKNOWN) or not isinstance(error, (*_EXPECTED_ERRORS, OutcomeUnknown)):
            self.unexpected.append(f"{call.describe()}: {type(error).__name__}: {error}")
        if call.outcome == CONFLICT and not call.failed:
            self.unexpected.append(f"a conflict that names no check: {call.describe()}: {error}")

    def _record_end(self, call: Call, *, ended: bool = False) -> None:
        if ended or call.outcome != UNKNOWN:
            call.returned = time.monotonic_ns()
        self._on_update(call)


class _GivenUp(Exception):
    """Raised when a call takes longer than ``give_up_after_s``."""


def _set_written(call: Call, entry: Entry) -> None:
    call.token = entry.token
    call.written = (_reported_entry(entry),)


def _reported_entry(entry: Entry) -> ReportedEntry:
    return ReportedEntry(entry.key, entry.value.decode(), entry.token, entry.created)


def _check(check: At | Absent | Exists, tokens: Tokens) -> Check:
    return Check(type(check).__name__.lower(), check.key, tokens.get(check, 0))


def _op(op: Put | Create | Delete) -> Operation:
    return Operation(type(op).__name__.lower(), op.key, "" if isinstance(op, Delete) else op.value.decode())


def _failed_condition(failed: Any, tokens: Tokens) -> Check | Operation:
    return _op(failed) if isinstance(failed, Create) else _check(failed, tokens)
