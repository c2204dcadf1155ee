"""A store with faults that a test chooses: calls fail, answers are lost, sessions expire, watches break.

    store = FaultyStore(latchwork.connect("memory://trial"), [Fault("cut_after", op="create", key="leader/*")])

The first ``create`` below ``leader/`` is applied, and its caller gets ``OutcomeUnknown``. All faults are allowed by the
contract of the store, and raise the errors that it names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from latchwork.store.connection import StoreConnection
from latchwork.store.session import Session
from latchwork.store.store import Store
from latchwork.testing._faulty.backend import FaultyBackend
from latchwork.testing._faulty.plan import (
    OPERATIONS,
    Fault,
    FaultKind,
    FaultList,
    FaultPlan,
    Operation,
    RandomFaults,
    RecordedCall,
)

__all__ = [
    "OPERATIONS",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "FaultyStore",
    "Operation",
    "RandomFaults",
    "RecordedCall",
]


class FaultyStore(Store):
    """A store that behaves like the one it wraps, except for its faults. Thread-safe.

    It has sessions, watches and mirrors of its own: ``expire_sessions`` and ``cut_off`` affect no other store. It owns
    the wrapped store and closes it.

    Args:
        store: Any store, on ``memory://`` or on a real server.
        plan: A list of faults, or an object that chooses the fault of each call, such as ``RandomFaults``.
        lag_s: Reads with ``stale_ok`` return the state of this many seconds ago, as on a lagging server. None: no lag.
    """

    def __init__(self, store: Store, plan: FaultPlan | Iterable[Fault] = (), *, lag_s: float | None = None) -> None:
        self._listed = FaultList(plan) if isinstance(plan, Iterable) else FaultList(())
        self._plan = None if isinstance(plan, Iterable) else plan
        self._deciding = threading.Lock()
        self._calls_made: list[RecordedCall] = []
        core = store._core  # noqa: SLF001 - a store is built on another one's parts
        self._faulty = FaultyBackend(
            core.backend,
            core.clock,
            self._next_fault,
            call_timeout_s=core.call_timeout_s,
            close_inner=store.take_over(),
            lag_s=lag_s,
        )
        own = StoreConnection(
            self._faulty,
            core.clock,
            core.url,
            session_ttl_s=core.session_ttl_s,
            given_session_ttl_s=core.given_session_ttl_s,
            call_timeout_s=core.call_timeout_s,
        )
        super().__init__(own, store._scope)  # noqa: SLF001

    def add(self, fault: Fault) -> None:
        """Add a fault. It counts calls from now on."""
        with self._deciding:
            self._listed.add(fault)

    @property
    def calls(self) -> list[RecordedCall]:
        """All calls so far, in order, with their faults."""
        with self._deciding:
            return list(self._calls_made)

    @property
    def faults(self) -> list[RecordedCall]:
        """The calls so far that had a fault, in order, so that a test can check that the fault was applied."""
        return [call for call in self.calls if call.fault is not None]

    def cut_off(self) -> None:
        """Make the server unreachable: calls and renewals raise ``Unavailable``, and watches are silent."""
        self._faulty.cut_off()

    def reconnect(self) -> None:
        """Make the server reachable again. All watches start again."""
        self._faulty.reconnect()

    def expire_sessions(self) -> None:
        """End all sessions of this store on the server. The store notices that at its next renewal or use of a
        session.
        """
        self._timeouts.wait_for_write(self._faulty.expire(None), "expiring the sessions")

    def expire_session(self, session: Session) -> None:
        """End a session of this store on the server. The store notices that at its next renewal or use of the
        session.
        """
        self._timeouts.wait_for_write(self._faulty.expire(session.id), f"expiring session {session.id}")

    def cut_watches(self, *, silent_s: float = 0.0) -> None:
        """Break all watches and mirrors. They then start again with the current state.

        Args:
            silent_s: Seconds until they start again.
        """
        self._faulty.cut_watches(silent_s)

    def _next_fault(self, op: str, keys: tuple[str, ...]) -> Fault | None:
        with self._deciding:
            fault = self._listed.next_fault(op, keys)
            if fault is None and self._plan is not None:
                fault = self._plan.next_fault(op, keys)
            self._calls_made.append(RecordedCall(len(self._calls_made), op, keys, fault))
            return fault
