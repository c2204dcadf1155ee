"""An agent that starts and supervises the workers of one host, as processes of any program."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.validation import check_store, is_number
from latchwork.errors import LatchworkError
from latchwork.primitives.waiting import Deadline, check_integer, check_member
from latchwork.store.backoff import Backoff
from latchwork.store.connect import session_ttl_s
from latchwork.store.forks import ForkGuard
from latchwork.store.session import Session
from latchwork.store.store import Store
from latchwork.tasks.children import DEVNULL, STDOUT, Child, ChildEnd, DeadlineExtender
from latchwork.worker_group.errors import GroupAlreadyRunning, WrongRun
from latchwork.worker_group.records import WorkerInfo
from latchwork.worker_group.submission import NAMESPACE, GroupHandle, GroupStatus, check_worker_count, find, submit
from latchwork.worker_group.worker import TRANSIENT_ERRORS, GroupWorker, ProcessLost

if TYPE_CHECKING:
    from typing import Self

#: Name of the port at which worker 0 is reached.
MASTER_PORT = "master"
#: How a process ended: its part is done, it failed and is restarted, or this agent or its deadline stopped it.
ExitKind = Literal["done", "failed", "stopped"]

#: A process is stopped when this fraction of the session's TTL is left.
_MARGIN_PART = 0.25
#: TTL of a worker's session in seconds, unless the spec or the URL sets one.
SESSION_TTL_S = 10.0
#: Seconds between checks whether a restarted worker 0 has published its port.
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The workers that a ``LocalAgent`` runs.

    Attributes:
        argv: Program and arguments; no shell.
        workers: Number of workers of the group, on all hosts.
        host: Name that identifies this host over restarts.
        address: Address at which others reach worker 0 if it runs here.
        per_host: Number of workers that run on this host; None runs all.
        max_restarts: Restarts of one worker's process before the group fails.
        grace_s: Seconds between SIGTERM and SIGKILL.
        ttl_s: TTL of each worker's session in seconds; None uses that of the URL, or 10.
        join_s: Seconds a worker waits to join, and for the end of an earlier process with the same key.
        logs: Directory for one output file per worker; None inherits the output of this process.
        run: Required run of the group; any other is refused.
    """

    argv: tuple[str, ...]
    workers: int
    host: str
    address: str
    per_host: int | None = None
    max_restarts: int = 5
    grace_s: float = 5.0
    ttl_s: float | None = None
    join_s: float = 60.0
    logs: Path | None = None
    run: str | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("an agent needs a program to run; pass the program and its arguments as argv")
        check_worker_count(self.workers)
        check_member(self.host, "host")
        if self.per_host is not None and not 1 <= check_integer(self.per_host, "per_host") <= self.workers:
            raise ValueError(f"per_host must be from 1 to the {self.workers} workers of the group, not {self.per_host}")
        if check_integer(self.max_restarts, "max_restarts") < 0:
            raise ValueError(f"max_restarts must be at least 0, not {self.max_restarts}")
        for name in ("grace_s", "join_s"):
            if not is_number(getattr(self, name), 0.0):
                raise ValueError(f"{name} must be a number of seconds from 0, not {getattr(self, name)!r}")

    @property
    def local_workers(self) -> int:
        """The number of workers on this host."""
        return self.workers if self.per_host is None else self.per_host

    @property
    def is_single_host(self) -> bool:
        """Whether all workers of the group run on this host."""
        return self.local_workers == self.workers

    @property
    def max_executions(self) -> int:
        """The maximum number of times that a worker's function is run again: once for each allowed restart of any
        worker.
        """
        return max(1, self.max_restarts * self.workers)

    def worker_key(self, slot: int) -> str:
        """Return the key that identifies a worker of this host in the group: the host and the number of the slot.

        Args:
            slot: Number of the worker's slot on this host, from 0.
        """
        return f"{self.host}:{slot}"

    def log_path(self, rank: int) -> Path | None:
        """Return the output file of the worker with this rank. None if workers write to the output of this process."""
        return None if self.logs is None else self.logs / f"{rank}.log"


@dataclass(frozen=True, slots=True)
class SlotState:
    """The state of one slot of an agent. Each slot runs one worker.

    Attributes:
        slot: Number of the slot on this host, from 0.
        state: Short description of the state.
        rank: Rank of the worker; -1 before it has joined.
        pid: Process ID; None if no process is running.
        epoch: Current epoch: the number of times that all workers of the group have restarted.
        restarts: Number of restarts of this worker.
        why: How the last process ended, or the last error.
    """

    slot: int
    state: str = "joining"
    rank: int = -1
    pid: int | None = None
    epoch: int = 0
    restarts: int = 0
    why: str = ""


def build_process_environment(
    info: WorkerInfo, slot: int, spec: AgentSpec, *, workers: int, run: str, epoch: int, first: WorkerInfo
) -> Mapping[str, str]:
    """Return the environment variables that describe the group to a worker's process.

    Args:
        info: Record of the worker.
        slot: Number of its slot on this host.
        spec: Specification of the agent.
        workers: Current number of workers of the group.
        run: ID of the run.
        epoch: Number of the epoch.
        first: Record of worker 0 in this epoch.
    """
    return {
        "LATCHWORK_WORKER_ID": str(info.rank),
        "LATCHWORK_WORKERS": str(workers),
        "LATCHWORK_RUN": run,
        "LATCHWORK_EPOCH": str(epoch),
        "RANK": str(info.rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": str(slot),
        "LOCAL_WORLD_SIZE": str(spec.local_workers),
        "MASTER_ADDR": first.ip,
        "MASTER_PORT": str(first.ports[MASTER_PORT]),
    }


def classify_exit(end: ChildEnd, *, was_stopped: bool) -> ExitKind:
    """Classify the end of a worker's process.

    Args:
        end: How the process ended.
        was_stopped: Whether this agent asked it to stop. Such a process counts as ``stopped``, whatever its exit code.
    Returns:
        ``done`` if the process has finished its work; ``stopped`` if this agent or the loss of its session stopped it;
            otherwise ``failed``.
    """
    if was_stopped or end.why in {"deadline", "requested"}:
        return "stopped"
    return "done" if end.is_success else "failed"


class AgentSlot:
    """Runs one worker of a group as a process. Joins the group, starts the process, and rejoins when the process dies.

    ``run`` may be called by one thread only; the rest is thread-safe.

    Args:
        store: Store of the group.
        group: Name of the group.
        namespace: Namespace of the group.
        run: ID of the run.
        spec: Specification of the agent.
        number: Number of the slot on this host.
        failure_lock: Held while a failed process is reported, so that failures caused by it do not count.
        on_change: Called with each new state, in the thread that caused it. It must be fast.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        *,
        namespace: str,
        run: str,
        spec: AgentSpec,
        number: int,
        failure_lock: threading.Lock,
        on_change: Callable[[SlotState], object] = bool,
    ) -> None:
        self._store = store
        self._group = group
        self._namespace = namespace
        self._run_id = run
        self._spec = spec
        self._number = number
        self._failure_lock = failure_lock
        self._on_change = on_change
        self._mutex = mutex()
        self._stopping = Signal()
        self._state = SlotState(number)
        self._session: Session | None = None
        self._worker: GroupWorker | None = None
        self._child: Child | None = None
        self._port: socket.socket | None = None
        self.error: LatchworkError | OSError | None = None

    @property
    def state(self) -> SlotState:
        """The current state of the slot. No I/O."""
        return self._state

    def join(self) -> None:
        """Join the group for the first time, with this slot's key."""
        self._join(replace_running=False)

    def run(self) -> None:
        """Run the worker's process, again after each loss, until the worker has completed or is no longer in the group.

        If the worker leaves the group because of an error, the error is stored in ``error``.
        """
        try:
            self._run_until_complete()
        except (LatchworkError, OSError) as error:
            if not self._stopping.is_set():
                self.error = error
                self._update_state(state="out", why=str(error))
        finally:
            self._leave_group()

    def stop(self) -> None:
        """Ask the worker's process to end. Does not wait. The worker leaves the group when the process has ended."""
        self._stopping.set()
        with self._mutex:
            child, worker = self._child, self._worker
        if child is not None:
            child.stop(self._spec.grace_s)
        elif worker is not None:
            worker.close()  # cancels its waits for other workers

    # The worker

    def _join(self, *, replace_running: bool) -> None:
        """Join the group with this slot's key, for the first time or again. If the session has ended, open a new one.

        Args:
            replace_running: Whether to replace a running worker with this key instead of waiting for its end.
        """
        if self._session is None or self._session.remaining_s() <= 0.0:
            if self._session is not None:
                self._session.close()
            ttl_s = session_ttl_s(self._store, self._spec.ttl_s, SESSION_TTL_S)
            self._session, replace_running = self._store.open_session(ttl_s), False
        worker = GroupWorker(
            self._store,
            self._group,
            run=self._run_id,
            key=self._spec.worker_key(self._number),
            info=self._build_info(),
            namespace=self._namespace,
            session=self._session,
            replace=replace_running,
        )
        with self._mutex:
            old, self._worker = self._worker, worker
        if self._stopping.is_set():
            worker.close()
        try:
            info = worker.join(self._spec.join_s)
        finally:
            if old is not None:
                old.close()  # the new worker has its lease, so closing it does not leave the group
        self._update_state(rank=info.rank, restarts=info.restarts, epoch=worker.epoch)

    def _build_info(self, **ports: int) -> WorkerInfo:
        return WorkerInfo(ip=self._spec.address, node=self._spec.host, ports=ports)

    def _run_until_complete(self) -> None:
        backoff, is_member = Backoff(), True
        worker = self._worker
        while not self._stopping.is_set():
            try:
                if not is_member:
                    self._join(replace_running=True)
                worker = self._worker
                assert worker is not None
                worker.run(self._run_process, prepare=self._publish_port)
            except ProcessLost:
                # otherwise the process was stopped because its session was about to expire
                is_member = self._worker is not worker
            except TRANSIENT_ERRORS as error:
                is_member = False
                self._update_state(state="rejoining", why=str(error))
                self._store.clock.wait(self._stopping, backoff.next_s())
            else:
                self._update_state(state="completed", pid=None)
                return

    def _publish_port(self, worker: GroupWorker) -> None:
        """Publish this worker's port if it is worker 0. Called before all workers meet at the first barrier."""
        self._update_state(state="waiting for all", epoch=worker.epoch)
        if worker.rank != 0:
            return
        self._release_port()
        self._port = socket.socket()
        self._port.bind(("", 0))
        worker.update_info(self._build_info(**{MASTER_PORT: self._port.getsockname()[1]}))

    def _release_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    # The process

    def _run_process(self, worker: GroupWorker) -> None:
        """Run the worker's process once, and return when it has finished its work.

        Raises:
            ProcessLost: The process has died or was stopped, and may be run again.
        """
        try:
            self._supervise_process(worker)
        except TRANSIENT_ERRORS as error:  # must not fail the group
            self._update_state(state="rejoining", why=str(error))
            raise ProcessLost from error

    def _supervise_process(self, worker: GroupWorker) -> None:
        """Start the worker's process, and extend its deadline while the session lasts. Return when it is done."""
        assert self._session is not None
        with worker.guard_work(self._session.ttl_s * _MARGIN_PART) as work:
            env = self._build_environment(worker)
            with DeadlineExtender(self._session.remaining_s) as extender:
                child = self._start(env, extender.until)
                remove_callback = work.stopped.call_when_set(partial(child.stop, self._spec.grace_s))
                try:
                    extender.add(child)
                    end = child.wait()
                finally:
                    remove_callback()
                    child.close()
                    with self._mutex:
                        self._child = None
            was_stopped = work.is_stopped or self._stopping.is_set()
        self._update_state(state="exited", pid=None, why=str(end))
        self._handle_exit(worker, end, was_stopped=was_stopped)

    def _build_environment(self, worker: GroupWorker) -> dict[str, str]:
        """Wait until worker 0 has published its port, and return the environment variables of the process."""
        while (first := worker.peer(0)) is None or MASTER_PORT not in first.ports:
            worker.check()
            self._store.clock.wait(self._stopping, _POLL_S)
            self._raise_if_stopping()
        variables = build_process_environment(
            worker.info,
            self._number,
            self._spec,
            workers=worker.size(),
            run=self._run_id,
            epoch=worker.epoch,
            first=first,
        )
        return {**os.environ, **variables}

    def _start(self, env: dict[str, str], until: float) -> Child:
        """Start the worker's process.

        Args:
            env: Environment variables of the process.
            until: Deadline, by the monotonic clock, at which its supervisor stops it.
        """
        log = self._spec.log_path(self._state.rank)
        self._release_port()  # the process binds it
        with self._mutex:
            self._raise_if_stopping()
            self._child = child = Child(
                self._spec.argv,
                env=env,
                stdin=DEVNULL,
                stdout=log,
                stderr=None if log is None else STDOUT,
                until=until,
                label=f"worker {self._state.rank} of {self._group}",
            )
        self._update_state(state="running", pid=child.pid)
        return child

    def _handle_exit(self, worker: GroupWorker, end: ChildEnd, *, was_stopped: bool) -> None:
        """Return if the process has finished its work. After a failure, join again under the same key.

        Args:
            worker: The worker.
            end: How the process ended.
            was_stopped: Whether this agent asked it to stop.
        Raises:
            ProcessLost: The process may be run again.
            OwnershipLost: The epoch has ended, or the worker is no longer in the group.
        """
        self._raise_if_stopping()
        kind = classify_exit(end, was_stopped=was_stopped)
        if kind == "done":
            return
        if kind == "stopped":
            _ = worker.fence  # raises if the epoch has ended or the worker is out of the group
            raise ProcessLost
        with self._failure_lock:  # of simultaneous failures only the first counts as a restart
            worker.check()
            self._update_state(state="rejoining")
            self._join(replace_running=True)
        raise ProcessLost

    def _raise_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise ProcessLost

    # The end

    def _leave_group(self) -> None:
        """Leave the group and close the session."""
        self._release_port()
        with suppress(LatchworkError):
            if self._worker is not None:
                self._worker.close()
        with suppress(LatchworkError):
            if self._session is not None:
                self._session.close()
        if self._state.state not in {"completed", "out"}:
            self._update_state(state="left", pid=None)

    def _update_state(self, **changes: object) -> None:
        before, self._state = self._state, replace(self._state, **changes)  # type: ignore[arg-type]
        if self._state != before:
            self._on_change(self._state)


class LocalAgent:
    """Runs the workers of one host as processes: ``with LocalAgent(store, "train", spec) as agent: agent.wait()``.

    ``with`` joins the group and starts the processes; its end stops the remaining ones. This process has one thread for
    each worker. Thread-safe.

    Failures on one host at the same time count as one restart. If a process on another host fails because of them, for
    example by a broken connection, that may count as a second restart.

    Args:
        store: The store. It is not closed.
        group: Name of the group. It is created if it does not exist or has ended without running workers.
        spec: The workers to run.
        namespace: Namespace of the group; groups of different namespaces may have the same name.
    """

    def __init__(self, store: Store, group: str, spec: AgentSpec, *, namespace: str = NAMESPACE) -> None:
        check_store(store, "an agent")
        self._store = store
        self._group = group
        self._spec = spec
        self._namespace = namespace
        self._home = ForkGuard(f"agent of group {group!r}", made="started")
        self._failure_lock = threading.Lock()
        self._mutex = mutex()
        self._slots: list[AgentSlot] = []
        self._changes: SimpleQueue[SlotState] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._handle: GroupHandle | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def handle(self) -> GroupHandle:
        """The handle of the group."""
        if self._handle is None:
            raise LatchworkError(f"agent of group {self._group!r} was not started; use it in a with statement")
        return self._handle

    @property
    def slots(self) -> list[SlotState]:
        """The states of all slots. No I/O."""
        return [slot.state for slot in self._slots]

    def take_changes(self) -> list[SlotState]:
        """Return the changes of slot states since the last call, in order."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._changes.get_nowait())
        return found

    @property
    def errors(self) -> list[LatchworkError | OSError]:
        """The errors because of which workers are no longer in the group, sorted by slot."""
        return [slot.error for slot in self._slots if slot.error is not None]

    def start(self) -> None:
        """Join the group with all workers of this host, and start the processes once the whole group has joined.

        Raises:
            GroupAlreadyRunning: A run of the group has ended but still has running workers.
            WrongRun: The group is in another run.
            GroupFull, NodeIdInUse, RestartsExceeded, WaitTimeout: As for ``GroupWorker.join``.
            LatchworkError: The group has another number of workers.
        """
        self._handle = self._find_or_submit()
        if self._spec.logs is not None:
            self._spec.logs.mkdir(parents=True, exist_ok=True)
        for number in range(self._spec.local_workers):  # sequentially, so that ranks equal slots on the first host
            slot = AgentSlot(
                self._store,
                self._group,
                namespace=self._namespace,
                run=self._handle.run,
                spec=self._spec,
                number=number,
                failure_lock=self._failure_lock,
                on_change=self._changes.put,
            )
            self._slots.append(slot)
            slot.join()
        for slot in self._slots:
            thread = threading.Thread(target=slot.run, name=f"latchwork-agent-{self._group}-{slot.state.slot}")
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all processes of this host have ended and none will be restarted.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            Whether they have ended; False after the timeout.
        """
        deadline = Deadline(self._store.clock, timeout_s)
        for thread in self._threads:
            thread.join(deadline.left_s())
        return not any(thread.is_alive() for thread in self._threads)

    def wait_for_group(self, timeout_s: float | None = None) -> GroupStatus:
        """Wait until the group has ended on all hosts, and return its status.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            WaitTimeout: The group is still running.
            WrongRun: Nothing is stored about this run anymore.
        """
        return self.handle.wait(timeout_s)

    def close(self) -> None:
        """Stop the processes (SIGTERM, and SIGKILL after the grace period), and leave the group. Idempotent."""
        if self._home.is_foreign:
            return
        for slot in self._slots:
            with suppress(LatchworkError):
                slot.stop()
        for thread in self._threads:
            thread.join()
        if not self._threads:  # start failed: no thread leaves the group for the joined slots
            for slot in self._slots:
                slot.run()

    def _find_or_submit(self) -> GroupHandle:
        deadline, backoff = Deadline(self._store.clock, self._spec.join_s), Backoff()
        while True:
            handle = find(self._store, self._group, namespace=self._namespace)
            if handle is not None and self._is_usable(handle):
                return handle
            if self._spec.run is not None:
                raise WrongRun(f"group {self._group!r} is no longer in run {self._spec.run}; do not restart it")
            try:
                return self._submit()
            except GroupAlreadyRunning:  # another host was faster, or the last run is still leaving
                if deadline.has_passed:
                    raise
            self._store.clock.wait(Signal(), backoff.next_s())

    def _submit(self) -> GroupHandle:
        spec = self._spec
        return submit(
            self._store,
            self._group,
            spec.workers,
            namespace=self._namespace,
            max_restarts=spec.max_restarts,
            max_executions=spec.max_executions,
        )

    def _is_usable(self, handle: GroupHandle) -> bool:
        try:
            status = handle.status()
        except WrongRun:
            return False
        if status.ended is not None:
            return False
        if self._spec.run not in {None, handle.run}:
            raise WrongRun(f"group {self._group!r} is in run {handle.run}, not in {self._spec.run}; do not restart it")
        if status.workers != self._spec.workers:
            raise LatchworkError(
                f"group {self._group!r} runs with {status.workers} workers, not {self._spec.workers}; "
                "scale it, terminate it, or use another name"
            )
        return True
