"""What a worker takes, and how it ends: the decisions of its feeder. None of it asks the store.

One transaction takes an item, says that it runs and checks that nobody has cancelled it; one ends it, and says how.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from latchwork.errors import BadRecord, InvalidKey
from latchwork.primitives import QueueClaim, QueueItem
from latchwork.spi import mutex
from latchwork.store import Session
from latchwork.tasks import (
    Bury,
    Done,
    Ending,
    Functions,
    Outcome,
    Payloads,
    Registered,
    Release,
    Run,
    StoredCall,
    TaskContext,
    TaskStopped,
    WorkerHooks,
)
from latchwork.types import Absent, Check, Create, Delete, Op
from latchwork_workflows.exchange import Head, Result, Running
from latchwork_workflows.keys import Item, Keys
from latchwork_workflows.logs import Health
from latchwork_workflows.state import Outcome as Word
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.worker.attempt import Attempt, result_of
from latchwork_workflows.worker.attempt import Ending as RunEnding
from latchwork_workflows.worker.options import MOST_CLAIMS, WorkerOptions
from latchwork_workflows.worker.performing import Performing
from latchwork_workflows.worker.pools import PoolSlots
from latchwork_workflows.worker.tenants import may_become

_log = logging.getLogger(__name__)

_FUNCTION = "latchwork_workflows:attempt"


class Lanes(WorkerHooks):
    """The hooks of a worker's feeder, for one session.

    Args:
        keys: the keys.
        session: what the marks of running tasks live by.
        options: of the worker.
        types: the task types that can be run here.
        health: of the log store: while it takes nothing, neither do we.
        performing: runs attempts.
        cancels: which attempts are cancelled, as far as is known here.
        pools: The slots of pools.
    """

    def __init__(
        self,
        keys: Keys,
        session: Session,
        options: WorkerOptions,
        *,
        types: TaskTypes,
        health: Health,
        performing: Performing,
        cancels: Mapping[str, object],
        pools: PoolSlots,
    ) -> None:
        self._keys = keys
        self._session = session
        self._options = options
        self._types = frozenset(types.names)
        self._instant = frozenset(name for name in types.loaded if getattr(types.get(name), "is_instant", False))
        self._health = health
        self._performing = performing
        self._cancels = cancels
        self._pools = pools
        self._lock = mutex()
        self._attempts: dict[str, Attempt] = {}
        self.payloads = Payloads()
        self.functions = Functions()
        self._registered = Registered(_FUNCTION, self.run)
        self.functions.add(self._registered)

    # Which

    def lanes(self) -> Sequence[str]:
        """Those of our groups; none while no log can be written."""
        return self._pools.lanes() if self._health.is_ok else ()

    def waits(self) -> Sequence[str]:
        """Those of our groups."""
        return self._options.groups

    def accept(self, item: QueueItem) -> bool:
        """Whether it can run here; what is no task is ours too, so that it gets out of the way."""
        try:
            head = Head.of(item.value)
        except BadRecord:
            return True
        return head.type in self._types and may_become(head.tenant, self._options.tenants)

    def extra(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """That it is not cancelled; and who runs it."""
        try:
            named = Item.of(item.id)
        except InvalidKey:
            return (), ()
        slot = self._pools.take(item.partition, named.x)
        if slot is None:
            return [Absent(item.key)], ()  # it is there: so it is left, until a slot is free
        who = self._performing
        said = Running(who.worker, who.host, time.time(), item.why[:200]).to_bytes()
        running = Create(self._keys.running(named.shard, named.x), said, self._session)
        return [Absent(self._keys.cancel(named.x)), *slot[0]], [running, *slot[1]]

    def refused(self, item: QueueItem) -> bool:
        """It was cancelled, or another has its slot: look for that again, unless we know of the cancel."""
        try:
            x = Item.of(item.id).x
        except InvalidKey:
            return False
        return self._pools.given_up(x) and self._keys.cancel(x) not in self._cancels

    # From the claim to the run

    def begin(self, claim: QueueClaim) -> Run | Ending:
        """What to run; or its end, if it cannot be run, or must not."""
        try:
            named = Item.of(claim.item.id)
        except InvalidKey as error:
            return Bury(f"it is no task of workflows: {error}"[:500])
        self._pools.taken(named.x)
        try:
            head = _head_of(claim.value, named)
        except BadRecord as error:
            head = Head(named.shard, named.task, named.n, 1, 1, 1, "?", "?", "?", has_body=True)
            why = RunEnding(Word.FATAL, f"what the master wrote for this attempt cannot be read: {error}")
            return self._ended(Attempt(claim, head, claim.fence.token), why)
        attempt = Attempt(claim, head, claim.fence.token)
        if claim.attempts > MOST_CLAIMS:
            last = f"; the last one said: {claim.item.why}" if claim.item.why else ""
            why = RunEnding(Word.FATAL, f"it has killed its worker {MOST_CLAIMS} times{last}")
            return self._ended(attempt, why)
        if head.type in self._instant:
            return self._ended(attempt, RunEnding(Word.SUCCESS))
        with self._lock:
            self._attempts[head.x] = attempt  # from here on we hear of its cancel
        if self._keys.cancel(head.x) in self._cancels:
            return self._ended(attempt, RunEnding(Word.KILLED, "it was stopped by a command before it began"))
        payload = self.payloads.encode_call(self._registered, (head.x,), {})
        return Run(StoredCall(_FUNCTION, payload), head.x, head.timeout_s, head.n)

    def run(self, x: str, context: TaskContext) -> None:
        """In a slot: run it to its end, which is noted with it."""
        with self._lock:
            attempt = self._attempts.get(x)
        if attempt is None:  # its claim was lost before it began
            raise TaskStopped(f"attempt {x} is not ours any more")
        attempt.result = self._performing.perform(attempt, context)

    # Its end

    def finish(self, claim: QueueClaim, outcome: Outcome) -> Ending:
        """With its result; or given back, if it has none."""
        with self._lock:
            attempt = self._attempts.get(Item.of(claim.item.id).x)
        if attempt is None:
            return Release("it was lost", count=False)
        if outcome.failure is None and attempt.result is not None:
            return self._done(attempt, attempt.result)
        if attempt.is_cancelled:
            return self._ended(attempt, RunEnding(Word.KILLED, "it was stopped by a command"))
        failure = outcome.failure
        kind = None if failure is None else failure.loaded_class
        why = "" if failure is None else failure.summary
        if kind is not None and issubclass(kind, TaskStopped):
            return Release(why[:200], count=False)
        _log.error("worker %s gives attempt %s back: %s", self._performing.worker, attempt.x, why)
        return Release(why[:200], after_s=1.0)

    def _ended(self, attempt: Attempt, ending: RunEnding) -> Done:
        """The end of one that did not run, or whose run is not to be waited for."""
        result = result_of(attempt, ending, self._performing.worker, self._performing.host, has_log=False)
        return self._done(attempt, result)

    def _done(self, attempt: Attempt, result: Result) -> Done:
        head = attempt.head
        ops: list[Op] = [Create(self._keys.result(head.shard, head.x), result.to_bytes())]
        if head.has_body:
            ops.append(Delete(self._keys.data(head.x)))
        return Done(ops=tuple(ops))

    def at_end(self, claim: QueueClaim) -> Sequence[Op]:
        """It runs no more."""
        try:
            named = Item.of(claim.item.id)
        except InvalidKey:
            return ()
        return [Delete(self._keys.running(named.shard, named.x)), *self._pools.release(named.x)]

    def claim_over(self, claim: QueueClaim) -> bool:
        """Forget it. Look for what may have its slot: the mirror may never report one that came and went."""
        try:
            x = Item.of(claim.item.id).x
        except InvalidKey:
            return False
        with self._lock:
            found = self._attempts.get(x)
            if found is not None and found.claim is claim:
                del self._attempts[x]
        return self._pools.given_up(x)

    # Ended from outside

    def cancelled(self, x: str) -> str | None:
        """An attempt is cancelled: the path of its item if it is here."""
        with self._lock:
            attempt = self._attempts.get(x)
        if attempt is None:
            return None
        attempt.is_cancelled = True
        return attempt.claim.item.path

    def cut_off(self, stop: Callable[[str], Any]) -> None:
        """The store is out of reach, and we do not wait: none of ours goes on."""
        with self._lock:
            attempts = list(self._attempts.values())
        for each in attempts:
            each.is_cut_off = True
            stop(each.claim.item.path)

    @property
    def attempts(self) -> list[Attempt]:
        """Those that are here, in no order."""
        with self._lock:
            return list(self._attempts.values())


def _head_of(value: bytes, named: Item) -> Head:
    head = Head.of(value)
    if head.x != named.x or head.shard != named.shard:
        raise BadRecord(f"it is that of attempt {head.x} of shard {head.shard}")
    return head
