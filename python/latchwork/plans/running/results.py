"""Results that a worker has read: each stands, so that it is read once and not for each task that needs it.

Only small ones are kept, as many as a limit of bytes allows, the last used ones. Nothing here does I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from latchwork.interrupts import mutex
from latchwork.plans.records import PlanRecord

#: So large a result is kept, and so many bytes of them.
_MOST_EACH, _MOST_BYTES = 4_000, 8_000_000
#: What one takes besides its bytes.
_COST = 200

#: A plan from its start to its removal: another one of its id has another number of its builder's.
_Whose = tuple[str, int, str]


class Results:
    """What is remembered of the results of done tasks. Safe to share between threads.

    Only what a ready task depends on may be told: results of other tasks may be failures, which a recover undoes.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._mutex = mutex()
        self._kept: OrderedDict[tuple[_Whose, str], bytes] = OrderedDict()
        self._bytes = 0

    def known(self, plan_id: str, plan: PlanRecord, names: Iterable[str]) -> dict[str, bytes]:
        """The payloads of those of these tasks that are remembered."""
        whose, found = _whose(plan_id, plan), {}
        with self._mutex:
            for name in names:
                payload = self._kept.get((whose, name))
                if payload is not None:
                    self._kept.move_to_end((whose, name))
                    found[name] = payload
        return found

    def keep(self, plan_id: str, plan: PlanRecord, payloads: Mapping[str, bytes]) -> None:
        """Remember these, where they are small."""
        whose = _whose(plan_id, plan)
        with self._mutex:
            for name, payload in payloads.items():
                if len(payload) <= _MOST_EACH and (whose, name) not in self._kept:
                    self._kept[whose, name] = payload
                    self._bytes += len(payload) + _COST
            while self._bytes > self._most_bytes:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= len(gone) + _COST


def _whose(plan_id: str, plan: PlanRecord) -> _Whose:
    return plan_id, plan.started_ms, plan.nonce
