"""Faults of a ``FaultyStore``, and the plans that decide which call has which fault."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Protocol, get_args

FaultKind = Literal[
    "fail",
    "cut_before",
    "cut_after",
    "land_late",
    "drop",
    "slow_request",
    "slow_answer",
    "expire_session",
    "cut_watch",
]
#: What a call may be: the store's operations as its backend sees them. ``put``, ``create``, ``delete`` and ``transact``
#: all are commits; the first three are named for themselves when they are alone in their commit.
Operation = Literal[
    "get",
    "get_many",
    "list",
    "children",
    "put",
    "create",
    "delete",
    "commit",
    "delete_tree",
    "open_session",
    "renew",
    "close_session",
    "event",
]
OPERATIONS: tuple[str, ...] = get_args(Operation)
_KINDS: tuple[str, ...] = get_args(FaultKind)
_FOR_CALLS: tuple[FaultKind, ...] = get_args(FaultKind)[:-2]  # without expire_session and cut_watch


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call on its way to the server, or an event of a watch on its way back.

    Attributes:
        number: The number of calls of the store before it.
        op: The operation, one of ``OPERATIONS``.
        keys: Its keys, including those of checks, relative to the root of the URL. For an event: the watched prefix.
            For a session: its ID.
        fault: The fault that hit it, or None.
    """

    number: int
    op: str
    keys: tuple[str, ...]
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the calls that it hits.

    Attributes:
        kind: ``fail``: not applied, ``Unavailable``. ``cut_before``: the connection breaks before the server has the
            call, which is not applied. ``cut_after``: applied, and the answer is lost. ``land_late``: the connection
            breaks, and the write is applied ``delay_s`` later. ``drop``: not applied and not answered until the call
            timeout. ``slow_request``: applied and answered ``delay_s`` late. ``slow_answer``: applied at once and
            answered late. ``expire_session``: the server ends all sessions of this store, then serves the call.
            ``cut_watch``: the watch is silent for ``delay_s`` and then starts again. A broken connection raises
            ``OutcomeUnknown`` for a write and ``Unavailable`` for a read.
        op: The operation, with ``*`` as a wildcard; see ``OPERATIONS``. Watches have the operation ``event``.
        key: A pattern that one of the keys must match, such as ``leader/*``.
        nth: The number of the first matching call that is hit, from 1.
        times: The number of matching calls that are hit from there on. None: all.
        delay_s: Seconds on the store's clock, for kinds with a delay.
    """

    kind: FaultKind
    op: str = "*"
    key: str = "*"
    nth: int = 1
    times: int | None = 1
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"fault kind {self.kind!r} is unknown; known are {', '.join(_KINDS)}")
        if "*" not in self.op and self.op not in OPERATIONS:
            raise ValueError(f"operation {self.op!r} is unknown; known are {', '.join(OPERATIONS)}, or * for any")
        if self.op == "event" and self.kind not in {"cut_watch", "slow_answer"}:
            raise ValueError(f"a watch's event can be late (slow_answer) or cut off (cut_watch), not {self.kind}")
        if self.nth < 1 or (self.times is not None and self.times < 1) or not self.delay_s >= 0:
            raise ValueError(f"{self!r} can never happen; nth and times count from 1, delay_s is not negative")

    def matches(self, op: str, keys: Sequence[str]) -> bool:
        """Return whether the operation and the keys of a call match this fault, whatever ``nth`` and ``times`` say.

        Args:
            op: The operation.
            keys: Keys of the call.
        """
        if op == "event":
            meant = self.kind == "cut_watch" or self.op == "event"
        else:
            meant = self.kind != "cut_watch" and fnmatchcase(op, self.op)
        return meant and (self.key == "*" or any(fnmatchcase(key, self.key) for key in keys))


class FaultPlan(Protocol):
    """Decides which call has which fault. Used by one thread at a time."""

    def next_fault(self, op: str, keys: Sequence[str]) -> Fault | None:
        """Return the fault that hits the next call, or None. Called once for each call.

        Args:
            op: The operation.
            keys: Keys of the call.
        """
        ...


class FaultList:
    """A plan made of a list of faults. Each fault counts the calls that match it, and the first fault that is due is
    used.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._counts = [(fault, [0]) for fault in faults]

    def add(self, fault: Fault) -> None:
        """Add a fault. It counts calls from now on."""
        self._counts.append((fault, [0]))

    def next_fault(self, op: str, keys: Sequence[str]) -> Fault | None:
        """Count a call for each fault that matches it. Return the first of these faults that is due, or None.

        Args:
            op: The operation.
            keys: Keys of the call.
        """
        found: Fault | None = None
        for fault, count in self._counts:
            if not fault.matches(op, keys):
                continue
            count[0] += 1
            last = None if fault.times is None else fault.nth + fault.times
            if found is None and count[0] >= fault.nth and (last is None or count[0] < last):
                found = fault
        return found


class RandomFaults:
    """A plan that gives faults to random calls. The same seed and the same calls give the same faults.

    Args:
        seed: The seed of the random choices.
        rate: The probability that a call gets a fault, 0 to 1.
        kinds: The kinds of faults for calls.
        delay_s: The longest delay in seconds.
        watch_rate: The probability that a watch breaks at an event, 0 to 1.
    """

    def __init__(
        self,
        seed: int,
        *,
        rate: float = 0.05,
        kinds: Sequence[FaultKind] = _FOR_CALLS,
        delay_s: float = 1.0,
        watch_rate: float = 0.0,
    ) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self._kinds = tuple(kind for kind in kinds if kind != "cut_watch")
        self._delay_s = delay_s
        self._watch_rate = watch_rate

    def next_fault(self, op: str, keys: Sequence[str]) -> Fault | None:  # noqa: ARG002 - chance does not look
        """Return a random fault for the next call, or None.

        Args:
            op: The operation.
            keys: Keys of the call.
        """
        kinds: tuple[FaultKind, ...] = ("cut_watch",) if op == "event" else self._kinds
        if self._random.random() >= (self._watch_rate if op == "event" else self._rate) or not kinds:
            return None
        return Fault(self._random.choice(kinds), delay_s=self._random.uniform(0.0, self._delay_s))
