"""Handles of started plans: read the status and the results, cancel, recover, remove, and add tasks."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from latchwork._base.event import Signal
from latchwork.drawing import Edge, Graph, GraphNode
from latchwork.errors import BadRecord, Conflict, InvalidKey, OutcomeUnknown, WaitTimeout
from latchwork.plans.builder import Ref, build_call, check_task_name, generate_task_name
from latchwork.plans.errors import DuplicateTask, NoResult, NoSuchPlan, NoSuchTask, WrongState
from latchwork.plans.keys import PARTITION, split_item_id
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.records import INLINE_ARGS, PlanRecord, PlanState, Task, TaskState
from latchwork.plans.removal import finish_removal, remove_damaged_plan
from latchwork.plans.transitions import MAX_LINKED, TxnPart
from latchwork.store import Backoff, Mirror
from latchwork.store.steps import Pause, ask, blocking, coroutine_of
from latchwork.tasks import Functions, Outcome, Payloads, Retry
from latchwork.types import Entry


@dataclass(frozen=True)
class RunningTask:
    """A task that a worker is running.

    Attributes:
        task: Name of the task.
        worker: Label of the worker.
        host, pid: Host and process ID of the worker.
    """

    task: str
    worker: str
    host: str
    pid: int


@dataclass(frozen=True)
class PlanStatus:
    """The status of a plan. Its fields may have been read at slightly different times.

    Attributes:
        id: ID of the plan.
        name: Display name.
        state: State of the plan.
        tasks: Number of tasks by state.
        failed: The first failed tasks, with reasons.
        running: Tasks that workers are running.
        started_ms, ended_ms: Start and end in milliseconds since the epoch, by the clock of the writer; 0 if not yet.
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
        """Whether the plan has completed, failed or been canceled."""
        return self.state.has_ended


class PlanHandle:
    """A handle to inspect and control a started plan. Thread-safe. Opens no connection.

    Attributes:
        id: ID of the plan.
    """

    def __init__(self, plan_store: PlanStore, plan_id: str, functions: Functions, payloads: Payloads) -> None:
        self.id = plan_id
        self._plan_store = plan_store
        self._functions = functions
        self._payloads = payloads

    def __repr__(self) -> str:
        return f"<PlanHandle {self.id!r}>"

    # Reading

    @blocking
    async def status(self) -> PlanStatus:
        """Read all tasks and return the status of the plan.

        Raises:
            NoSuchPlan: The plan was removed.
        """
        _, plan = await self._plan_store.read_plan(self.id)
        tasks = await self._plan_store.read_all_tasks(self.id)
        claims = await coroutine_of(self._plan_store.queue.claims)(PARTITION)
        running = []
        for path, ticket in claims.items():
            plan_id, task = split_item_id(path.rpartition("/")[2])
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

    @blocking
    async def state(self) -> PlanState:
        """Return the state of the plan. Costs one read.

        Raises:
            NoSuchPlan: The plan was removed.
        """
        return (await self._plan_store.read_plan(self.id))[1].state

    @blocking
    async def is_completed(self) -> bool:
        """Return whether all tasks of the plan are done. False for a draft and for a failed plan."""
        return (await self._plan_store.read_plan(self.id))[1].state is PlanState.COMPLETED

    @blocking
    async def pending_deps(self, task: Ref | str) -> list[str]:
        """Return the names of the dependencies of a task that are not done, sorted.

        Args:
            task: The task or its name.
        """
        return await self._plan_store.pending_deps(self.id, _task_name(task))

    def wait(self, timeout_s: float | None = None) -> PlanStatus:
        """Wait until the plan has completed, failed or been canceled, and return its status.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            WaitTimeout: The plan has not ended.
            NoSuchPlan: The plan was removed.
        """
        key = self._plan_store.keys.plan_key(self.id)
        with self._plan_store.store.mirror(key) as mirror:
            last = _wait_while(mirror, key, mirror.get(key), lambda plan: not _state_of(plan).has_ended, timeout_s)
        if last is None:
            raise NoSuchPlan(f"plan {self.id!r} was removed; list plans with plans.list()")
        return self.status()

    def result(self, task: Ref | str, timeout_s: float | None = None) -> Any:
        """Wait for a task and return its result, or raise the exception that it raised.

        Args:
            task: The task or its name.
            timeout_s: Seconds to wait for its end; None waits forever, 0 checks once.
        Raises:
            WaitTimeout: The task has not ended.
            NoSuchTask, NoSuchPlan: The task or the plan does not exist.
            NoResult: The task was skipped or canceled, or its result was deleted.
            Exception: The exception of the task, or ``RemoteError``.
        """
        name, clock, first = _task_name(task), self._plan_store.store.clock, None
        until = None if timeout_s is None else clock.now() + timeout_s
        while True:
            left_s = None if until is None else max(0.0, until - clock.now())
            try:
                first, state = self._wait_for_end(name, first, left_s)
                waits_again = state.is_unsuccessful and self._wait_for_recovery(left_s)
            except WaitTimeout:
                raise WaitTimeout(
                    f"task {name!r} of plan {self.id!r} has not ended after {timeout_s} s; raise timeout_s"
                ) from None
            if not waits_again:
                ended, outcome = self._read_task(name, first.created)
                if outcome is not None or not ended.record.state.is_live:
                    return self._decode_result(ended, outcome)

    def _wait_for_end(self, name: str, first: Entry | None, timeout_s: float | None) -> tuple[Entry, TaskState]:
        """Wait until a task has ended.

        Args:
            name: Name of the task.
            first: Entry of the task from an earlier call; None reads it.
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            The first entry of the task, which identifies it, and its state.
        Raises:
            NoSuchTask: The plan has no such task.
            WaitTimeout: The task has not ended.
        """
        key = self._plan_store.keys.task_key(self.id, name)
        with self._plan_store.store.mirror(key) as mirror:
            first = first or mirror.get(key)
            if first is None:
                raise NoSuchTask(f"plan {self.id!r} has no task {name!r}")
            last = _wait_while(mirror, key, first, lambda task: Task.from_entry(task).record.state.is_live, timeout_s)
        return first, TaskState.DONE if last is None else Task.from_entry(last).record.state

    def _wait_for_recovery(self, timeout_s: float | None) -> bool:
        """Wait until a recovery of the plan has finished.

        Returns:
            Whether the plan was being recovered. If so, its unsuccessful tasks may be waiting again.
        Raises:
            WaitTimeout: The recovery has not finished.
        """
        key = self._plan_store.keys.plan_key(self.id)
        with self._plan_store.store.mirror(key) as mirror:
            if key not in mirror or _state_of(mirror[key]) is not PlanState.RECOVERING:
                return False
            mirror.wait_until(lambda now: key not in now or _state_of(now[key]) is not PlanState.RECOVERING, timeout_s)
            return key in mirror

    @blocking
    async def _read_task(self, name: str, created: int) -> tuple[Task, bytes | None]:
        """Read a task and its encoded outcome.

        The task may be waiting again, because a recovery may have begun and finished in the meantime.

        Args:
            name: Name of the task.
            created: Creation token of its key; a task that was created later does not count.
        Raises:
            NoSuchTask: The task no longer exists.
        """
        found = await self._plan_store.read_tasks(self.id, [name])
        if not found or found[0].entry.created != created:
            raise NoSuchTask(f"plan {self.id!r} no longer has a task {name!r}")
        return found[0], (await self._plan_store.read_outcomes(self.id, [name])).get(name)

    def _decode_result(self, task: Task, outcome: bytes | None) -> Any:
        fn, state = task.record.fn, task.record.state
        if outcome is None:
            why = "its result was deleted" if state is TaskState.DONE else f"it was {state.value}"
            raise NoResult(f"task {task.name!r} of plan {self.id!r} has no result: {why}")
        registered = self._functions.get(fn) if fn in self._functions else None
        hint = registered.hints.get("return", Any) if registered is not None else Any
        return Outcome.from_bytes(outcome).result(self._payloads, hint, f"the result of task {task.name!r}")

    @blocking
    async def graph(self) -> Graph:
        """Return the tasks and their dependencies as a graph, which ``latchwork.drawing.to_svg`` can draw, for
        example.
        """
        _, plan = await self._plan_store.read_plan(self.id)
        tasks = sorted(await self._plan_store.read_all_tasks(self.id), key=lambda each: each.record.number)
        names = {each.name for each in tasks}
        nodes = [GraphNode(each.name, each.name, each.record.state.value, _title(each)) for each in tasks]
        edges = [Edge(dep, each.name) for each in tasks for dep in each.record.deps if dep in names]
        return Graph(nodes, edges, plan.title or self.id)

    # Changing

    @blocking
    async def cancel(self) -> None:
        """Cancel the plan: running tasks are asked to stop, and no more tasks start.

        Returns when the cancellation is recorded. Call ``wait`` to wait until it has finished.

        Raises:
            WrongState: The plan has ended or is being removed.
        """
        await self._change_state(PlanState.CANCELLING, (PlanState.READY,), self._cancel_ops)

    def _cancel_ops(self, entry: Entry, plan: PlanRecord) -> TxnPart:
        return self._plan_store.transitions.build_cancel_start(self.id, entry, plan, PlanState.CANCELLED)

    @blocking
    async def recover(self) -> None:
        """Run the failed, skipped and canceled tasks again. Existing results are kept.

        Raises:
            WrongState: The plan has not failed and was not canceled.
        """
        await self._change_state(PlanState.RECOVERING, (PlanState.FAILED, PlanState.CANCELLED), self._recovery_ops)

    def _recovery_ops(self, entry: Entry, plan: PlanRecord) -> TxnPart:
        return self._plan_store.transitions.build_recovery_start(self.id, entry, plan)

    @blocking
    async def remove(self) -> None:
        """Delete the plan, its child plans and all their results, in any state. Its ID can be reused afterwards.

        Needs no worker. If the call fails, repeat it; a worker or a sweep also finishes the removal.

        Raises:
            WrongState: The plan was not started.
            Unavailable, OutcomeUnknown: The store could not be reached.
        """
        states = tuple(each for each in PlanState if each not in (PlanState.REMOVING, PlanState.DRAFT))
        try:
            await self._change_state(PlanState.REMOVING, states, self._removal_ops)
            await finish_removal(self._plan_store, self.id)
        except NoSuchPlan:
            return
        except BadRecord:
            await remove_damaged_plan(self._plan_store, self.id)

    def _removal_ops(self, entry: Entry, plan: PlanRecord) -> TxnPart:
        return self._plan_store.transitions.build_removal_start(self.id, entry, plan)

    async def _change_state(
        self, target: PlanState, allowed: tuple[PlanState, ...], build_change: Callable[[Entry, PlanRecord], TxnPart]
    ) -> None:
        """Commit a change of the plan's state. Does nothing if the change was already made.

        Args:
            target: The new state.
            allowed: The states from which the change is possible.
            build_change: Returns the checks and writes of the change, given the entry and the record of the plan.
        Raises:
            WrongState: The plan is in none of the allowed states.
        """
        backoff, never, sent = Backoff(), Signal(), -1
        while True:
            entry, plan = await self._plan_store.read_plan(self.id)
            if plan.state is target or plan.generation == sent:  # committed before, but the answer was lost
                return
            if plan.state not in allowed:
                states = " or ".join(each.value for each in allowed)
                raise WrongState(f"plan {self.id!r} is {plan.state.value}; this operation needs state {states}")
            part = build_change(entry, plan)
            try:
                await ask(self._plan_store.store.commit, part.checks, part.ops)
            except OutcomeUnknown:
                sent = plan.generation + 1
            except Conflict:
                await Pause(self._plan_store.store.clock, never, backoff.next_s())
            else:
                return

    @blocking
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
        """Add a task to a running plan, for instance from one of its tasks.

        Arguments and other errors are those of ``PlanBuilder.add``. A task that depends on an unsuccessful task is
        skipped.

        Returns:
            A reference to the task.
        Raises:
            WrongState: The plan is not running.
            ValueError: More than 30 of its dependencies are not done.
        """
        call = build_call(
            self._functions,
            self._payloads,
            fn,
            args,
            kwargs,
            explain_invalid=lambda ref: "" if ref.plan == self.id else f"task {ref.name!r} is of plan {ref.plan!r}",
            after=after,
            retry=retry,
            timeout_s=timeout_s,
        )
        given = None if name is None else check_task_name(name)
        template = call.template
        at = (
            await coroutine_of(self._plan_store.blobs.write)(self.id, template) if len(template) > INLINE_ARGS else None
        )
        nonce, sent, skipped = uuid.uuid4().hex, "", 0
        while True:
            entry, plan = await self._plan_store.read_plan(self.id)
            if sent and await self._was_added_by(sent, nonce):
                return Ref(sent, self.id)
            if plan.state is not PlanState.READY:
                raise WrongState(f"plan {self.id!r} is {plan.state.value}; tasks can be added only in state ready")
            deps = await self._read_deps(call.deps)
            adds = await ask(self._plan_store.store.get, self._plan_store.keys.additions_key(self.id))
            count = int(adds.value) + 1 if adds is not None and adds.value.isdigit() else 1
            number = plan.tasks + count - 1 + skipped
            chosen = given or sent or generate_task_name(number, lambda _: False)
            record = replace(call.to_record(number), args=b"" if at is not None else template, args_at=at, nonce=nonce)
            part = self._plan_store.transitions.build_addition(
                self.id, entry, plan, name=chosen, task=record, deps=deps, addition_count=count
            )
            try:
                await ask(self._plan_store.store.commit, part.checks, part.ops)
            except Conflict:
                if await self._was_added_by(chosen, nonce):
                    return Ref(chosen, self.id)
                if given is not None and await self._plan_store.read_tasks(self.id, [given]):
                    raise DuplicateTask(f"plan {self.id!r} already has a task {given!r}") from None
                skipped += given is None and bool(await self._plan_store.read_tasks(self.id, [chosen]))
                sent = ""
            except OutcomeUnknown:
                sent = chosen  # retry with the same name: only one of the two can commit
            else:
                return Ref(chosen, self.id)

    async def _was_added_by(self, task: str, nonce: str) -> bool:
        """Return whether a task was added by the call with this nonce."""
        return any(each.record.nonce == nonce for each in await self._plan_store.read_tasks(self.id, [task]))

    async def _read_deps(self, names: tuple[str, ...]) -> list[Task]:
        found = await self._plan_store.read_tasks(self.id, names)
        missing = sorted({*names} - {each.name for each in found})
        if missing:
            raise NoSuchTask(f"plan {self.id!r} has no task {', '.join(map(repr, missing))}")
        waiting = sum(each.record.state is not TaskState.DONE for each in found)
        if waiting > MAX_LINKED:
            raise ValueError(f"{waiting} dependencies are not done; at most {MAX_LINKED} are allowed")
        return found


def _task_name(task: Ref | str) -> str:
    given: object = task
    name = task.name if isinstance(task, Ref) else task
    if not isinstance(given, (Ref, str)):
        raise InvalidKey(f"a task must be a Ref or a name, not {given!r}")
    return check_task_name(name)


def _wait_while(
    mirror: Mirror, key: str, created_entry: Entry | None, condition: Callable[[Entry], bool], timeout_s: float | None
) -> Entry | None:
    """Wait while a condition holds for a key, until the key is deleted.

    The mirror (a local copy that follows the store) may miss a deletion that is followed by a new creation. A key that
    was created again is therefore treated as deleted.

    Args:
        mirror: Mirror that contains the key.
        key: The key.
        created_entry: An earlier entry of the key; None if there was none.
        condition: Returns whether to wait on, given the current entry.
        timeout_s: Seconds to wait; None waits forever.
    Returns:
        The last entry; None if the key was deleted, or deleted and created again.
    Raises:
        WaitTimeout: The condition still holds.
    """

    def current() -> Entry | None:
        entry = mirror.get(key)
        return (
            entry
            if created_entry is not None and entry is not None and entry.created == created_entry.created
            else None
        )

    mirror.wait_until(lambda _: (entry := current()) is None or not condition(entry), timeout_s)
    return current()


def _state_of(entry: Entry) -> PlanState:
    return PlanRecord.from_bytes(entry.value).state


def _title(task: Task) -> str:
    why = f": {task.record.why}" if task.record.why else ""
    return f"{task.name}: {task.record.fn} is {task.record.state.value}{why}"
