"""A store whose trouble a test decides: calls fail, answers get lost, sessions expire, watches break off.

    store = FaultyStore(latchwork.connect("memory://trial"), [Fault("cut_after", op="create", key="leader/*")])

The first ``create`` below ``leader/`` is applied, and its caller gets ``OutcomeUnknown``. Every trouble here is one
that the store contract allows a real server to make, and is told by the error that the contract names.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from latchwork.store.core import Core
from latchwork.store.store import Store
from latchwork.testing._faulty_backend import FaultyBackend

if TYPE_CHECKING:
    from latchwork.store.session import Session

__all__ = ["Call", "Fault", "FaultKind", "FaultPlan", "FaultyStore", "RandomFaults"]

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
_FOR_CALLS: tuple[FaultKind, ...] = (
    "fail",
    "cut_before",
    "cut_after",
    "land_late",
    "drop",
    "slow_request",
    "slow_answer",
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call on its way to the server, or one event of a watch on its way back.

    Attributes:
        number: how many calls of the store came before it.
        op: what it is, one of ``OPERATIONS``.
        keys: the keys it names, checks included; of a watch's event, the watched prefix; of a session, its id. Keys
            are relative to the root of the URL, also in a namespace.
        fault: what happened to it; None for nothing.
    """

    number: int
    op: str
    keys: tuple[str, ...]
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and with which calls.

    Attributes:
        kind: ``fail``: not applied, ``Unavailable``. ``cut_before``: the connection breaks before the server has the
            call: not applied. ``cut_after``: applied, but the answer is lost. ``land_late``: the connection breaks, and
            the write is applied ``delay_s`` later all the same. ``drop``: not applied and never answered, until the
            call timeout. ``slow_request``, ``slow_answer``: applied, and answered, ``delay_s`` late; the first is also
            applied late. ``expire_session``: the server ends every session of this store, then serves the call.
            ``cut_watch``: the watch is silent for ``delay_s`` and then begins anew. A write that was cut off raises
            ``OutcomeUnknown``, a read ``Unavailable``.
        op: which operation, with ``*`` for any; see ``OPERATIONS``. Watches have the operation ``event``.
        key: a pattern that one of the call's keys must match: ``leader/*``.
        nth: the first so-manieth matching call that it hits, from 1 on.
        times: how many matching calls it hits from there on; None for all.
        delay_s: seconds on the store's clock, where the kind has a delay.
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
        """Whether a call is one of those that this fault counts."""
        if op == "event":
            meant = self.kind == "cut_watch" or self.op == "event"
        else:
            meant = self.kind != "cut_watch" and fnmatchcase(op, self.op)
        return meant and (self.key == "*" or any(fnmatchcase(key, self.key) for key in keys))


class FaultPlan(Protocol):
    """Decides about each call. Asked by one thread at a time."""

    def decide(self, op: str, keys: Sequence[str]) -> Fault | None:
        """What happens to this call; None for nothing."""
        ...


class _Listed:
    """The faults of a list, each counting its own matches; the first that is due wins."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._counts = [(fault, [0]) for fault in faults]

    def add(self, fault: Fault) -> None:
        self._counts.append((fault, [0]))

    def decide(self, op: str, keys: Sequence[str]) -> Fault | None:
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
    """A plan that hits calls at random; the same seed and the same calls give the same faults.

    Args:
        seed: decides which.
        rate: how likely each call is hit, 0 to 1.
        kinds: what may happen to calls.
        delay_s: the longest delay.
        watch_rate: how likely a watch breaks off at each event.
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

    def decide(self, op: str, keys: Sequence[str]) -> Fault | None:  # noqa: ARG002 - chance does not look
        """What happens to this call; None for nothing."""
        kinds: tuple[FaultKind, ...] = ("cut_watch",) if op == "event" else self._kinds
        if self._random.random() >= (self._watch_rate if op == "event" else self._rate) or not kinds:
            return None
        return Fault(self._random.choice(kinds), delay_s=self._random.uniform(0.0, self._delay_s))


class FaultyStore(Store):
    """A store that behaves as the one it wraps, except for the faults of its plan. Safe to share between threads.

    Sessions, watches and mirrors opened through it are its own: ``expire_sessions`` and ``cut_off`` concern no other
    store. It takes the wrapped store over: closing it closes both.

    Args:
        store: any store: on ``memory://``, or on a real server.
        plan: faults, or what decides about each call (``RandomFaults``).
        lag_s: have reads with ``stale_ok`` show the state of so long ago, as a server does that lags behind.
    """

    def __init__(self, store: Store, plan: FaultPlan | Iterable[Fault] = (), *, lag_s: float | None = None) -> None:
        self._listed = _Listed(plan) if isinstance(plan, Iterable) else _Listed(())
        self._plan = None if isinstance(plan, Iterable) else plan
        self._deciding = threading.Lock()
        self._calls_made: list[Call] = []
        core = store._core  # noqa: SLF001 - a store is built on another one's parts
        self._faulty = FaultyBackend(
            core.backend,
            core.clock,
            self._decide,
            call_timeout_s=core.call_timeout_s,
            close_inner=store.close,
            lag_s=lag_s,
        )
        own = Core(
            self._faulty,
            core.clock,
            core.url,
            session_ttl_s=core.session_ttl_s,
            call_timeout_s=core.call_timeout_s,
        )
        super().__init__(own, store._scope)  # noqa: SLF001

    def add(self, fault: Fault) -> None:
        """One more fault, which counts calls from now on."""
        with self._deciding:
            self._listed.add(fault)

    @property
    def calls(self) -> list[Call]:
        """Every call so far, in order, and what happened to it."""
        with self._deciding:
            return list(self._calls_made)

    @property
    def faults(self) -> list[Call]:
        """The calls that something happened to, in order: a test can see that its fault has really hit."""
        return [call for call in self.calls if call.fault is not None]

    def cut_off(self) -> None:
        """From now on the server cannot be reached: calls and renewals are ``Unavailable``, watches are silent."""
        self._faulty.cut_off()

    def reconnect(self) -> None:
        """The server can be reached again, and every watch begins anew."""
        self._faulty.reconnect()

    def expire_sessions(self) -> None:
        """The server ends every session of this store; it learns of it at its next renewal or use."""
        self._answers.write(self._faulty.expire(None), "expiring the sessions")

    def expire_session(self, session: Session) -> None:
        """The server ends this session of this store; it learns of it at its next renewal or use."""
        self._answers.write(self._faulty.expire(session.id), f"expiring session {session.id}")

    def cut_watches(self, *, silent_s: float = 0.0) -> None:
        """Every watch and mirror breaks off, is silent for so long, and begins anew with the state as it is then."""
        self._faulty.cut_watches(silent_s)

    def _decide(self, op: str, keys: tuple[str, ...]) -> Fault | None:
        with self._deciding:
            fault = self._listed.decide(op, keys)
            if fault is None and self._plan is not None:
                fault = self._plan.decide(op, keys)
            self._calls_made.append(Call(len(self._calls_made), op, keys, fault))
            return fault
