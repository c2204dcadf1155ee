"""``ExecutorWorker``: a node that runs the tasks of an executor, in threads or in processes of its own.

docs/design/0022-executor.md has the steps and the races.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from latchwork.checks import is_number
from latchwork.executor.keys import NAME, Keys, check_member_id, executor_store
from latchwork.executor.running.lanes import WorkerProfile
from latchwork.executor.running.shift import Plan, Shift
from latchwork.store import Session, Store
from latchwork.store import session_ttl_s as ttl_s
from latchwork.store.keys import validate_name
from latchwork.tasks import DEFAULT, Functions, Payloads, RunIn, TaskLoop
from latchwork.tasks.node import Node, default_node_id

#: The TTL of a worker's session unless it or the URL gives one.
SESSION_TTL_S = 10.0


class ExecutorWorker(Node[Shift]):
    """Runs tasks of an executor: ``with ExecutorWorker(store, slots=8) as worker: worker.run_forever()``.

    After its session is lost, its tasks are told to stop, others run them, and it begins anew. It runs what is
    registered, and nothing else: what the store says is never imported, evaluated or unpickled, unless it says
    ``allow_pickle``. Not promised: that a thread which ignores ``should_stop`` ends; its slot is taken until it does.
    Construction does no I/O. Safe to share between threads.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the executor's name.
        node_id: who we are, one live member has it; default the host's name with six characters more.
        slots: tasks at a time; default one for each processor.
        run_in: ``thread``, or ``process`` for functions that do not say themselves: a child for each slot, ended by
            force when a task is told to stop and does not.
        functions: what may be run; those registered by ``task`` by default.
        allow_pickle: run pickled functions too: who can write to the store can run any code here then.
        weight: how much we can bear, for pickers that ask.
        labels: what we say of ourselves, for targets.
        accept: called with a function's name: whether to take a task of it now. It must be quick.
        steal_after_s: seconds without work after which tasks of others' lanes are taken; None for never.
        session_ttl_s: seconds after which others have our tasks when we are dead; None for that of the URL, else 10.
        max_attempts: a task that was taken so often, and never ended, becomes a dead letter.
        unknown_after_s: seconds after which a task that no member has the function of ends with ``UnknownFunction``.
        stop_grace_s: seconds from being told to stop to an end by force.
        context: what tasks get as ``TaskContext.context``: connections, models, caches.
    """

    def __init__(
        self,
        store: Store,
        name: str = NAME,
        *,
        node_id: str | None = None,
        slots: int | None = None,
        run_in: RunIn = "thread",
        functions: Functions = DEFAULT,
        allow_pickle: bool = False,
        weight: float = 1.0,
        labels: Mapping[str, str] | None = None,
        accept: Callable[[str], bool] | None = None,
        steal_after_s: float | None = 1.0,
        session_ttl_s: float | None = None,
        max_attempts: int = 5,
        unknown_after_s: float = 60.0,
        stop_grace_s: float = 5.0,
        context: object = None,
    ) -> None:
        system = executor_store(store, "a worker")
        self.name = validate_name(name)
        self.node_id = check_member_id(node_id if node_id is not None else default_node_id())
        count = (os.cpu_count() or 1) if slots is None else slots
        if type(count) is not int or count < 1:
            raise ValueError(f"slots must be a whole number from 1, not {slots!r}")
        for option, value in (
            ("steal_after_s", 1.0 if steal_after_s is None else steal_after_s),
            ("unknown_after_s", unknown_after_s),
        ):
            if not is_number(value) or value <= 0:
                raise ValueError(f"{option} must be a number of seconds above 0, not {value!r}")
        self._task_store = store
        self._keys = Keys(name)
        self._payloads = Payloads(allow_pickle=allow_pickle)
        self._profile = WorkerProfile(
            self.node_id, functions, allow_pickle=allow_pickle, labels=labels or {}, accept=accept
        )
        self._tasks_loop = TaskLoop(self.node_id)
        self._plan = Plan(
            count,
            run_in,
            weight,
            dict(labels or {}),
            steal_after_s,
            max_attempts,
            unknown_after_s,
            stop_grace_s,
            context,
            self._tasks_loop.run,
        )
        super().__init__(
            system,
            self.node_id,
            what=f"worker {self.node_id!r} of executor {self.name!r}",
            slots=count,
            session_ttl_s=ttl_s(store, session_ttl_s, SESSION_TTL_S),
        )

    def __repr__(self) -> str:
        return f"<ExecutorWorker {self.node_id!r} of executor {self.name!r}>"

    def close(self, timeout_s: float | None = None) -> list[str]:
        """See ``Node``. The loop of ``async def`` tasks ends too."""
        left = super().close(timeout_s)
        self._tasks_loop.close(0.5)
        return left

    def _worker_session(self, session: Session) -> Shift:
        return Shift(
            self._store,
            self._keys,
            self._profile,
            self._plan,
            payloads=self._payloads,
            session=session,
            task_store=self._task_store,
        )

    def update(self, *, weight: float | None = None, labels: Mapping[str, str] | None = None) -> None:
        """Change what we say of ourselves, without rejoining. None leaves one as it is.

        Raises:
            SessionLost, Unavailable, OutcomeUnknown, ValueError: see ``Group.update``.
        """
        self._home.check()
        with self._changed:
            work = self._work
        if work is not None:
            work.group.update(weight=weight, labels=labels)
        if labels is not None:
            self._profile.labels = dict(labels)
        self._plan = replace(
            self._plan,
            weight=self._plan.weight if weight is None else weight,
            labels=self._plan.labels if labels is None else dict(labels),
        )
