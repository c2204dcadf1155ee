"""A store whose trouble a test decides: calls fail, answers get lost, sessions expire, watches break off.

    store = FaultyStore(latchwork.connect("memory://trial"), [Fault("cut_after", op="create", key="leader/*")])

The first ``create`` below ``leader/`` is applied, and its caller gets ``OutcomeUnknown``. Every trouble here is one
that the store contract allows a real server to make, and is told by the error that the contract names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from latchwork.store.core import Core
from latchwork.store.session import Session
from latchwork.store.store import Store
from latchwork.testing._faulty.backend import FaultyBackend
from latchwork.testing._faulty.plan import (
    OPERATIONS,
    Call,
    Fault,
    FaultKind,
    FaultPlan,
    Listed,
    Operation,
    RandomFaults,
)

__all__ = [
    "OPERATIONS",
    "Call",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "FaultyStore",
    "Operation",
    "RandomFaults",
]


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
        self._listed = Listed(plan) if isinstance(plan, Iterable) else Listed(())
        self._plan = None if isinstance(plan, Iterable) else plan
        self._deciding = threading.Lock()
        self._calls_made: list[Call] = []
        core = store._core  # noqa: SLF001 - a store is built on another one's parts
        self._faulty = FaultyBackend(
            core.backend,
            core.clock,
            self._decide,
            call_timeout_s=core.call_timeout_s,
            close_inner=store.take_over(),
            lag_s=lag_s,
        )
        own = Core(
            self._faulty,
            core.clock,
            core.url,
            session_ttl_s=core.session_ttl_s,
            given_session_ttl_s=core.given_session_ttl_s,
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
