"""``PlanWorker``: a node that runs tasks of plans, as many at a time as it has slots.

docs/design/0024-plans.md has the steps and the races.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from latchwork.plans.keys import NAME
from latchwork.plans.place import Place
from latchwork.plans.running.shift import Shift, Way
from latchwork.store import Session, Store
from latchwork.store import session_ttl_s as ttl_s
from latchwork.tasks import DEFAULT, Failure, Functions, Payloads, Slots
from latchwork.tasks.node import Node, default_node_id
from latchwork.words import counted

if TYPE_CHECKING:
    from latchwork.tasks import RunIn

_log = logging.getLogger(__name__)

#: The TTL of a worker's session unless it or the URL gives one.
SESSION_TTL_S = 10.0


class PlanWorker(Node[Shift]):
    """Takes tasks of plans whose dependencies are done, and runs them: ``with PlanWorker(store, slots=4): ...``.

    After a lost session its tasks are asked to stop, other workers run them, and it joins again. Construction does no
    I/O. Thread-safe.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the name of the plans.
        slots: so many tasks at a time.
        functions: what may be run; those of ``@task`` by default.
        run_in: ``thread``, or ``process``: a child for each slot, which can be stopped by force.
        context: given to tasks that have a parameter annotated ``TaskContext``, as ``context.context``.
        allow_pickle: whether pickled arguments are read: whoever can write to the store can then run code here.
        session_ttl_s: seconds after which the tasks of a worker that died are free; None for that of the URL, else 10.
        label: what others see of it; the host's name with six characters more by default.
        on_failure: called with plan, task and failure of each try that raised.
    """

    def __init__(
        self,
        store: Store,
        name: str = NAME,
        *,
        slots: int = 1,
        functions: Functions = DEFAULT,
        run_in: RunIn = "thread",
        context: object = None,
        allow_pickle: bool = False,
        session_ttl_s: float | None = None,
        label: str = "",
        on_failure: Callable[[str, str, Failure], object] | None = None,
    ) -> None:
        self._task_store = store
        self._place = Place(store, name)
        payloads = Payloads(allow_pickle=allow_pickle)
        Slots(slots, functions, payloads, run_in=run_in)  # refuses what cannot be
        named = label or default_node_id()
        self._way = Way(slots, functions, run_in, payloads, named, context, self._failed)
        self._on_failure = on_failure
        super().__init__(
            self._place.store,
            named,
            what=f"worker {named!r} of plans {name!r}",
            slots=slots,
            session_ttl_s=ttl_s(store, session_ttl_s, SESSION_TTL_S),
        )

    def __repr__(self) -> str:
        return f"<PlanWorker {self._place.keys.name!r}, {counted(self._way.slots, 'slot')}>"

    def close(self, timeout_s: float | None = None) -> list[str]:
        """See ``Node``."""
        left = super().close(timeout_s)
        self._place.backlog.close()
        return left

    def _worker_session(self, session: Session) -> Shift:
        return Shift(self._task_store, self._place, self._way, session=session)

    def _failed(self, plan: str, task: str, failure: Failure) -> None:
        _log.info("task %s of plan %s raised %s", task, plan, failure.summary)
        if self._on_failure is not None:
            try:
                self._on_failure(plan, task, failure)
            except Exception:
                _log.exception("on_failure of a worker of plans raised")
