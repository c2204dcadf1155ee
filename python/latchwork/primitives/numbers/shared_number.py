"""A number in one key. Every change is applied exactly once, or reported as unknown.

Keys:  <name>   {"value", "writes", "recent"} as JSON: the number, the number of its changes, and the nonces of the last
                changes

A change is written on condition that the key is as it was read, so at most one of all tries of a change can be applied:
once the key has another version, an earlier try never will be. The nonce shows whether it was. After more changes than
nonces are kept, the change is reported as unknown.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from latchwork._base.decoding import Count, Decoder, encode
from latchwork._base.event import Signal
from latchwork.errors import Conflict, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.store.backoff import Backoff
from latchwork.store.forks import ForkGuard
from latchwork.store.steps import Pause, StepCoroutine, ask
from latchwork.store.store import Store
from latchwork.types import Absent, At, Check, Entry, Fence, Op, Put

#: From the old and the new number to what is written together with it.
Writes = Callable[[int, int], StepCoroutine[Sequence[Op]]]
#: Nonces kept: a change of unknown outcome is found again if no more than so many others followed it.
KEPT = 16


class StoredNumber(Struct, frozen=True):
    """The stored record of a number of any size. The fields are those of ``Reading``."""

    value: int
    writes: Count
    recent: tuple[str, ...]


_NUMBER: Decoder[StoredNumber] = Decoder(StoredNumber, "a number of ours", "use another name")


def is_number(value: bytes) -> bool:
    """Return whether a stored value is the record of a counter or sequence."""
    return _NUMBER.find(value) is not None


@dataclass(frozen=True, slots=True)
class Reading:
    """A number as it was read from the store.

    Attributes:
        value: The number; 0 if the key does not exist.
        writes: How often it was changed.
        recent: The nonces of the last changes, newest last. A nonce is a unique text for each change.
        check: The precondition that the number is unchanged.
        version: The version of the key. None if it does not exist.
    """

    value: int
    writes: int
    recent: tuple[str, ...]
    check: Check
    version: Hashable

    @classmethod
    def from_entry(cls, key: str, entry: Entry | None) -> Reading:
        """Decode the stored number in an entry.

        Args:
            key: The key of the number.
            entry: The entry. None if the key does not exist, which counts as 0.
        Raises:
            BadRecord: The value is not the record of a number.
        """
        if entry is None:
            return cls(0, 0, (), Absent(key), None)
        stored = _NUMBER.decode_entry(entry)
        return cls(stored.value, stored.writes, stored.recent, At(entry), entry.version)

    def encode_change(self, value: int, nonce: str) -> bytes:
        """Encode the record that replaces this reading when the number is changed.

        Args:
            value: The new number.
            nonce: The unique text of the change.
        """
        return encode(StoredNumber(value, self.writes + 1, (*self.recent, nonce)[-KEPT:]))


@dataclass(frozen=True, slots=True)
class UnconfirmedChange:
    """A change whose outcome is unknown.

    Attributes:
        reading: The number before the change, as it was read.
        value: The number after the change, if it was applied.
        error: Why the outcome is unknown.
    """

    reading: Reading
    value: int
    error: LatchworkError


def was_applied(attempt: UnconfirmedChange, current: Reading, nonce: str) -> bool | None:
    """Return whether a change with a lost answer was applied, as a later reading shows. None if it is unknown.

    If the result is False and the version of the key has changed, the earlier change can never be applied, because it
    checks the old version.

    Args:
        attempt: The earlier change.
        current: The later reading.
        nonce: The unique text of the earlier change.
    """
    if nonce in current.recent:
        return True
    since = current.writes - attempt.reading.writes
    return None if since < 0 or since > len(current.recent) else False


def _is_caused_by_caller(error: Conflict, current: Reading) -> bool:
    """Return whether a change failed because of the caller's own checks or writes, so that a retry is pointless.

    Always True if a fence failed, because a lost ownership stays lost.
    """
    failed = error.failed
    return any(isinstance(one, Fence) for one in failed) or (bool(failed) and current.check not in failed)


async def _nothing(_before: int, _after: int) -> Sequence[Op]:
    return ()


class SharedNumber:
    """An integer stored at one key and shared by processes. Thread-safe.

    Args:
        store: The store of the key.
        key: The key.
        what: Name of the number, for messages.
    """

    def __init__(self, store: Store, key: str, what: str) -> None:
        self._store = store
        self._key = key
        self._what = what
        self._home = ForkGuard(what)
        self._written: Reading | None = None  # by our last change
        self._is_alone = False  # no other client changed it between our last two changes

    async def read(self) -> Reading:
        """Read the number. The read is linearizable."""
        self._home.check()
        return Reading.from_entry(self._key, await ask(self._store.get, self._key))

    async def change(
        self,
        fn: Callable[[int], int | None],
        *,
        checks: Sequence[Check] = (),
        ops: Writes = _nothing,
        timeout_s: float | None,
    ) -> int | None:
        """Replace the number by the result of ``fn``. Other writes can be part of the transaction.

        If no other client seems to change the number, the first try does not read it first.

        Args:
            fn: Called with the number. Returns the new number, or None to change nothing. May be called several times.
            checks: Further preconditions, such as a fence.
            ops: Called with the old and the new number. Returns operations to write in the same transaction.
            timeout_s: Seconds for retries while other clients change the number or the server cannot be reached.
        Returns:
            The new number, or None if ``fn`` returned None.
        Raises:
            Conflict: One of the caller's checks or writes failed, or other clients changed the number until the
                timeout.
            Unavailable: Not changed.
            OutcomeUnknown: It may have been changed.
        """
        self._home.check()
        change = _NumberChange(self, fn, checks, ops, self._written if self._is_alone else None)
        deadline = Deadline(self._store.clock, timeout_s)
        backoff = Backoff(0.01, 0.5, jitter=1.0)
        while True:
            last_error: LatchworkError | None = None
            try:
                if await change.try_once():
                    return change.result
            except Unavailable as error:
                last_error = error
            if deadline.has_passed:
                raise change.build_timeout_error(last_error) from last_error
            await Pause(self._store.clock, Signal(), deadline.left_s(backoff.next_s()))

    async def compare_and_set(
        self, current: Reading, new: int, nonce: str, checks: Sequence[Check], ops: Sequence[Op]
    ) -> None:
        """Write a new number in a transaction, if the number is unchanged since it was read.

        Args:
            current: The number as it was read.
            new: The new number.
            nonce: A unique text by which a later reading shows that this change was applied.
            checks: Further preconditions of the transaction.
            ops: Further operations of the transaction.
        """
        before, self._written, self._is_alone = self._written, None, False
        put = Put(self._key, current.encode_change(new, nonce))
        done = await ask(self._store.commit, [*checks, current.check], [put, *ops])
        self._is_alone = before is not None and before.version == current.version
        entry, recent = done.entries[0], (*current.recent, nonce)[-KEPT:]
        self._written = Reading(new, current.writes + 1, recent, At(entry), entry.version)

    def __str__(self) -> str:
        return self._what


class _NumberChange:
    """One change of a number in progress, with its attempts and their outcome. For one thread."""

    def __init__(
        self,
        cell: SharedNumber,
        fn: Callable[[int], int | None],
        checks: Sequence[Check],
        ops: Writes,
        guess: Reading | None,
    ) -> None:
        self.result: int | None = None
        self._cell = cell
        self._fn = fn
        self._checks = checks
        self._ops = ops
        self._guess = guess
        self._nonce = uuid.uuid4().hex[:12]
        self._unknown: UnconfirmedChange | None = None
        self._refused: tuple[Hashable, Conflict] | None = None

    async def try_once(self) -> bool:
        """Try once to make the change. Return True when it is complete, False to try again."""
        guess, self._guess = self._guess, None
        current = guess or await self._cell.read()
        if self._was_applied(current):
            return True
        self._raise_if_caller_check_failed(current)
        after = self._fn(current.value)
        if after is None and guess is not None:
            current = await self._cell.read()
            after = self._fn(current.value)
        if after is None:
            self.result = None
            return True
        try:
            await self._cell.compare_and_set(
                current, after, self._nonce, self._checks, await self._ops(current.value, after)
            )
        except Conflict as error:
            if self._unknown is None and _is_caused_by_caller(error, current):
                raise
            self._refused = (current.version, error)
            return False
        except OutcomeUnknown as error:
            self._unknown = UnconfirmedChange(current, after, error)
            return False
        self.result = after
        return True

    def build_timeout_error(self, last_error: LatchworkError | None) -> LatchworkError:
        """Return the error to raise after the timeout.

        Args:
            last_error: The error of the last attempt. None if that failed because of other changes.
        """
        if self._unknown is not None:
            return OutcomeUnknown(f"{self._cell}: whether it was changed could not be found out: {self._unknown.error}")
        if last_error is not None:
            return last_error
        failed = self._refused[1].failed if self._refused is not None else ()
        return Conflict(f"{self._cell} was not changed: others kept changing it; try again with more time", failed)

    def _was_applied(self, current: Reading) -> bool:
        attempt = self._unknown
        if attempt is None:
            return False
        landed = was_applied(attempt, current, self._nonce)
        if landed is None:
            raise OutcomeUnknown(
                f"{self._cell}: it is unknown whether it was changed, because others have changed it too often since"
            ) from attempt.error
        if landed:
            self.result = attempt.value
        elif current.version != attempt.reading.version:
            self._unknown = None  # it checks the version it read, so it lands no more
        return landed

    def _raise_if_caller_check_failed(self, current: Reading) -> None:
        """Raise the conflict of the last attempt if the number is still unchanged.

        In that case other changes were not the reason, so one of the caller's own checks failed.
        """
        if self._refused is not None and self._refused[0] == current.version:
            raise self._refused[1]
        self._refused = None
