"""A started plan, for whoever wants to know how it is, or to change what it does."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from latchwork.drawing import Edge, Graph, Node
from latchwork.errors import BadRecord, Conflict, InvalidKey, OutcomeUnknown, WaitTimeout
from latchwork.plans.builder import Ref, check_call, check_task, unused_name
from latchwork.plans.errors import DuplicateTask, NoResult, NoSuchPlan, NoSuchTask, WrongState
from latchwork.plans.keys import PARTITION, split_id
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.records import INLINE_ARGS, PlanRecord, PlanState, Task, TaskState
from latchwork.plans.removal import remove_damaged
from latchwork.plans.states import MAX_LINKED, TxnPart
from latchwork.store import Backoff, Mirror
from latchwork.store.steps import Pause, Signal, ask, driven, steps_of
from latchwork.tasks import Functions, Outcome, Payloads, Retry
from latchwork.types import Entry


@dataclass(frozen=True)
class RunningTask:
    """A task that a worker has.

    Attributes:
        task: its name.
        worker: the label of the worker.
        host, pid: where that is.
    """

    task: str
    worker: str
    host: str
    pid: int


@dataclass(frozen=True)
class PlanStatus:
    """How a plan is, at one moment; parts of it may be of neighbouring moments.

    Attributes:
        id: of the plan.
        name: what it was called, for people.
        state: what it is doing.
        tasks: how many tasks there are, by state.
        failed: the first tasks that failed, with reasons.
        running: the tasks that workers have.
        started_ms, ended_ms: since the epoch, by the clock of whoever did it; 0 when it did not happen.
    """

    id: str
    name: str
    state: PlanState
    tasks: Mapping[TaskState, int]
    failed: tuple[tuple[str, str], ...]
    running: tuple[RunningTask, ...]
    started_ms: int
    ended_ms: int

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.state.has_ended


class PlanHandle:
    """A plan that was started. Safe to share between threads; makes no connection of its own.

    Attributes:
        id: of the plan.
    """

    def __init__(self, plan_store: PlanStore, plan_id: str, functions: Functions, payloads: Payloads) -> None:
        self.id = plan_id
        self._plan_store = plan_store
        self._functions = functions
        self._payloads = payloads

    def __repr__(self) -> str:
        return f"<PlanHandle {self.id!r}>"

    # Looking

    @driven
    async def status(self) -> PlanStatus:
        """How it is. Reads all its tasks.

        Raises:
            NoSuchPlan: it was removed.
        """
        _, plan = await self._plan_store.read_plan(self.id)
        tasks = await self._plan_store.read_all_tasks(self.id)
        claims = await steps_of(self._plan_store.queue.claims)(PARTITION)
        running = []
        for path, ticket in claims.items():
            plan_id, task = split_id(path.rpartition("/")[2])
            if plan_id == self.id and not task.startswith("@"):
                running.append(RunningTask(task, ticket.label, ticket.host, ticket.pid))
        return PlanStatus(
            self.id,
            plan.title,
            plan.state,
            Counter(each.record.state for each in tasks),
            plan.failed,
            tuple(running),
            plan.started_ms,
            plan.ended_ms,
        )

    @driven
    async def state(self) -> PlanState:
        """What it is doing. One read.

        Raises:
            NoSuchPlan: it was removed.
        """
        return (await self._plan_store.read_plan(self.id))[1].state

    @driven
    async def is_completed(self) -> bool:
        """Whether all its tasks are done; False for a draft, and for a plan that failed."""
        return (await self._plan_store.read_plan(self.id))[1].state is PlanState.COMPLETED

    @driven
    async def pending_deps(self, task: Ref | str) -> list[str]:
        """What a waiting task waits for: names of tasks that are not done. Empty when it waits for nothing."""
        return await self._plan_store.pending_deps(self.id, _task_name(task))

    def wait(self, timeout_s: float | None = None) -> PlanStatus:
        """Wait until it has ended, however it did.

        Args:
            timeout_s: seconds to wait; None waits for ever.
        Raises:
            WaitTimeout: it has not.
            NoSuchPlan: it was removed.
        """
        key = self._plan_store.keys.plan(self.id)
        with self._plan_store.store.mirror(key) as mirror:
            last = _wait_while(mirror, key, mirror.get(key), lambda plan: not _state_of(plan).has_ended, timeout_s)
        if last is None:
            raise NoSuchPlan(f"plan {self.id!r} was removed; list plans with plans.list()")
        return self.status()

    def result(self, task: Ref | str, timeout_s: float | None = None) -> Any:
        """The result of a task; what it raised is raised here.

        Args:
            task: the task, or its name.
            timeout_s: seconds to wait for its end; None waits for ever, 0 looks once.
        Raises:
            WaitTimeout: it has not ended.
            NoSuchTask, NoSuchPlan: it is not there.
            NoResult: it was skipped or cancelled.
            Exception: the task's own, or ``RemoteError``.
        """
        name, clock, first = _task_name(task), self._plan_store.store.clock, None
        until = None if timeout_s is None else clock.now() + timeout_s
        while True:
            left_s = None if until is None else max(0.0, until - clock.now())
            try:
                first, state = self._await_end(name, first, left_s)
                waits_again = state.is_unsuccessful and self._await_recovery(left_s)
            except WaitTimeout:
                raise WaitTimeout(
                    f"task {name!r} of plan {self.id!r} has not ended after {timeout_s} s; raise timeout_s"
                ) from None
            if not waits_again:
                ended, outcome = self._read_task(name, first.created)
                if outcome is not None or not ended.record.state.is_live:
                    return self._result_of(ended, outcome)

    def _await_end(self, name: str, first: Entry | None, timeout_s: float | None) -> tuple[Entry, TaskState]:
        """Wait until a task has ended; return its first entry, the given one if there is one, and its last state."""
        key = self._plan_store.keys.task(self.id, name)
        with self._plan_store.store.mirror(key) as mirror:
            first = first or mirror.get(key)
            if first is None:
                raise NoSuchTask(f"plan {self.id!r} has no task {name!r}")
            last = _wait_while(mirror, key, first, lambda task: Task.of(task).record.state.is_live, timeout_s)
        return first, TaskState.DONE if last is None else Task.of(last).record.state

    def _await_recovery(self, timeout_s: float | None) -> bool:
        """Whether the plan was being recovered; what was lost waits again then."""
        key = self._plan_store.keys.plan(self.id)
        with self._plan_store.store.mirror(key) as mirror:
            if key not in mirror or _state_of(mirror[key]) is not PlanState.RECOVERING:
                return False
            mirror.wait_until(lambda now: key not in now or _state_of(now[key]) is not PlanState.RECOVERING, timeout_s)
            return key in mirror

    @driven
    async def _read_task(self, name: str, created: int) -> tuple[Task, bytes | None]:
        """A task, which may wait again: a recovery may have begun and ended since it was seen to be lost."""
        found = await self._plan_store.read_tasks(self.id, [name])
        if not found or found[0].entry.created != created:
            raise NoSuchTask(f"plan {self.id!r} has no task {name!r} any more")
        return found[0], (await self._plan_store.read_outcomes(self.id, [name])).get(name)

    def _result_of(self, task: Task, outcome: bytes | None) -> Any:
        fn, state = task.record.fn, task.record.state
        if outcome is None:
            why = "its result is kept no longer" if state is TaskState.DONE else f"it was {state.value}"
            raise NoResult(f"task {task.name!r} of plan {self.id!r} has no result: {why}")
        registered = self._functions.get(fn) if fn in self._functions else None
        hint = registered.hints.get("return", Any) if registered is not None else Any
        return Outcome.of(outcome).result(self._payloads, hint, f"the result of task {task.name!r}")

    @driven
    async def graph(self) -> Graph:
        """Its tasks and what depends on what, to be drawn: ``to_svg(handle.graph())`` of ``latchwork.drawing``."""
        _, plan = await self._plan_store.read_plan(self.id)
        tasks = sorted(await self._plan_store.read_all_tasks(self.id), key=lambda each: each.record.number)
        names = {each.name for each in tasks}
        nodes = [Node(each.name, each.name, each.record.state.value, _title(each)) for each in tasks]
        edges = [Edge(dep, each.name) for each in tasks for dep in each.record.deps if dep in names]
        return Graph(nodes, edges, plan.title or self.id)

    # Changing

    @driven
    async def cancel(self) -> None:
        """Completion it: what runs is told to stop, nothing more begins. Returns once that is decided; ``wait`` for its end.

        Raises:
            WrongState: it has ended, or is about to be removed.
        """
        await self._change(PlanState.CANCELLING, (PlanState.READY,), self._cancelling)

    def _cancelling(self, entry: Entry, plan: PlanRecord) -> TxnPart:
        return self._plan_store.transitions.begin_cancel(self.id, entry, plan, PlanState.CANCELLED)

    @driven
    async def recover(self) -> None:
        """Run again what failed, was skipped or cancelled; results that are there are kept.

        Raises:
            WrongState: it is not failed, nor cancelled.
        """
        await self._change(PlanState.RECOVERING, (PlanState.FAILED, PlanState.CANCELLED), self._recovering)

    def _recovering(self, entry: Entry, plan: PlanRecord) -> TxnPart:
        return self._plan_store.transitions.begin_recovery(self.id, entry, plan)

    @driven
    async def remove(self) -> None:
        """Delete it with all its results, whatever it does. Its id is free when it is ended_deps.

        A worker deletes it. This call itself deletes a plan plan_key record is damaged, and needs no worker for that.
        """
        states = tuple(each for each in PlanState if each not in (PlanState.REMOVING, PlanState.DRAFT))
        try:
            await self._change(PlanState.REMOVING, states, self._removing)
        except NoSuchPlan:
            return
        except BadRecord:
            await remove_damaged(self._plan_store, self.id)

    def _removing(self, entry: Entry, plan: PlanRecord) -> TxnPart:
        return self._plan_store.transitions.begin_removal(self.id, entry, plan)

    async def _change(
        self, wanted: PlanState, of: tuple[PlanState, ...], edge: Callable[[Entry, PlanRecord], TxnPart]
    ) -> None:
        """Decided once: a second call while the first is on its way does nothing."""
        backoff, never, sent = Backoff(), Signal(), -1
        while True:
            entry, plan = await self._plan_store.read_plan(self.id)
            if (
                plan.state is wanted or plan.generation == sent
            ):  # the answer was lost, and it has come to its end since then
                return
            if plan.state not in of:
                states = " or ".join(each.value for each in of)
                raise WrongState(f"plan {self.id!r} is {plan.state.value}; this needs one that is {states}")
            edit = edge(entry, plan)
            try:
                await ask(self._plan_store.store.commit, edit.checks, edit.ops)
            except OutcomeUnknown:
                sent = plan.generation + 1
            except Conflict:
                await Pause(self._plan_store.store.clock, never, backoff.next_s())
            else:
                return

    @driven
    async def add(
        self,
        fn: Callable[..., Any] | str,
        /,
        *args: Any,
        name: str | None = None,
        after: Iterable[Ref] = (),
        retry: Retry | None = None,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Ref:
        """Add a task while the plan runs, for instance by a task of it. As ``PlanBuilder.add``.

        Behind a task that was lost it is skipped.

        Raises:
            WrongState: the plan does not run any more.
            ValueError: more than 30 of the tasks that it depends on have not ended.
        """
        call = check_call(
            self._functions,
            self._payloads,
            fn,
            args,
            kwargs,
            known=lambda ref: "" if ref.plan == self.id else f"task {ref.name!r} is of plan {ref.plan!r}",
            after=after,
            retry=retry,
            timeout_s=timeout_s,
        )
        given = None if name is None else check_task(name)
        template = call.template
        at = await steps_of(self._plan_store.blobs.write)(self.id, template) if len(template) > INLINE_ARGS else None
        nonce, sent, skipped = uuid.uuid4().hex, "", 0
        while True:
            entry, plan = await self._plan_store.read_plan(self.id)
            if sent and await self._is_ours(sent, nonce):
                return Ref(sent, self.id)
            if plan.state is not PlanState.READY:
                raise WrongState(f"plan {self.id!r} is {plan.state.value}; tasks are added to one that is ready")
            deps = await self._deps(call.deps)
            adds = await ask(self._plan_store.store.get, self._plan_store.keys.adds(self.id))
            count = _count(adds) + 1
            number = plan.tasks + count - 1 + skipped
            chosen = given or sent or unused_name(number, lambda _: False)
            record = replace(call.record(number), args=b"" if at is not None else template, args_at=at, nonce=nonce)
            edit = self._plan_store.transitions.add_task(
                self.id, entry, plan, name=chosen, task=record, deps=deps, adds=count
            )
            try:
                await ask(self._plan_store.store.commit, edit.checks, edit.ops)
            except Conflict:
                if await self._is_ours(chosen, nonce):
                    return Ref(chosen, self.id)
                if given is not None and await self._plan_store.read_tasks(self.id, [given]):
                    raise DuplicateTask(f"plan {self.id!r} has a task {given!r} already") from None
                skipped += given is None and bool(await self._plan_store.read_tasks(self.id, [chosen]))
                sent = ""
            except OutcomeUnknown:
                sent = chosen  # under the same name once more: one of the two lands
            else:
                return Ref(chosen, self.id)

    async def _is_ours(self, name: str, nonce: str) -> bool:
        """Whether this task was added by the call of this number."""
        return any(each.record.nonce == nonce for each in await self._plan_store.read_tasks(self.id, [name]))

    async def _deps(self, names: tuple[str, ...]) -> list[Task]:
        found = await self._plan_store.read_tasks(self.id, names)
        missing = sorted({*names} - {each.name for each in found})
        if missing:
            raise NoSuchTask(f"plan {self.id!r} has no task {', '.join(map(repr, missing))}")
        waiting = sum(each.record.state is not TaskState.DONE for each in found)
        if waiting > MAX_LINKED:
            raise ValueError(f"{waiting} dependencies have not ended, and at most {MAX_LINKED} can be added to")
        return found


def _task_name(task: Ref | str) -> str:
    given: object = task
    name = task.name if isinstance(task, Ref) else task
    if not isinstance(given, (Ref, str)):
        raise InvalidKey(f"a task is a Ref or a name, not {given!r}")
    return check_task(name)


def _wait_while(
    mirror: Mirror, key: str, first: Entry | None, is_true: Callable[[Entry], bool], timeout_s: float | None
) -> Entry | None:
    """Wait while something is true of what was created with the first entry of a key; return its last entry.

    None says that it was deleted. A mirror merges states: a key that is deleted and created again may never be reported
    as deleted.
    """

    def current() -> Entry | None:
        entry = mirror.get(key)
        return entry if first is not None and entry is not None and entry.created == first.created else None

    mirror.wait_until(lambda _: (entry := current()) is None or not is_true(entry), timeout_s)
    return current()


def _state_of(entry: Entry) -> PlanState:
    return PlanRecord.of(entry.value).state


def _count(adds: Entry | None) -> int:
    return int(adds.value) if adds is not None and adds.value.isdigit() else 0


def _title(task: Task) -> str:
    why = f": {task.record.why}" if task.record.why else ""
    return f"{task.name}: {task.record.fn} is {task.record.state.value}{why}"
