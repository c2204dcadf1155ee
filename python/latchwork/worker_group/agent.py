"""The workers of one host: each is a process of any program, which this process starts and supervises.

The decisions are pure: what a process learns about its group, and what its end means.
"""

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

from latchwork.checks import check_store, is_number
from latchwork.errors import LatchworkError, OutcomeUnknown, SessionLost, Unavailable
from latchwork.interrupts import mutex
from latchwork.primitives.waiting import Patience, check_member, check_whole
from latchwork.store.backoff import Backoff
from latchwork.store.connect import session_ttl_s
from latchwork.store.forks import ForkGuard
from latchwork.store.session import Session
from latchwork.store.store import Store
from latchwork.tasks.children import DEVNULL, STDOUT, Child, ChildEnd, DeadlineExtender
from latchwork.worker_group.errors import GroupAlreadyRunning, WrongRun
from latchwork.worker_group.records import WorkerInfo
from latchwork.worker_group.submission import NAMESPACE, GroupHandle, GroupStatus, check_worker_count, find, submit
from latchwork.worker_group.worker import GroupWorker, ProcessLost

if TYPE_CHECKING:
    from typing import Self

#: The port by which worker 0 is found.
MASTER_PORT = "master"
#: What the end of a process means: its part is done; it has to be started again; it was ended from here.
ExitKind = Literal["done", "failed", "ended"]

#: A process is told to stop when this part of the TTL is left.
_MARGIN_PART = 0.25
#: The TTL of a worker's session unless its spec or the URL gives one.
SESSION_TTL_S = 10.0
#: How often it is looked whether worker 0, that came back just now, has told its port.
_POLL_S = 0.1
#: The store was out of reach, or for too long.
_AWAY = (SessionLost, Unavailable, OutcomeUnknown)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The program that a ``LocalAgent`` runs, and how.

    Attributes:
        argv: the program and its arguments; no shell.
        workers: how many the group has, on all hosts.
        per_host: how many of them run on this host; None for all.
        host: by what this host is known after a restart.
        address: where others reach worker 0 if it is one of ours.
        max_restarts: how often the process of one worker is started again before the group fails.
        grace_s: seconds between SIGTERM and SIGKILL.
        ttl_s: of each worker's session, in seconds; None for that of the URL, else 10.
        join_s: seconds to wait for the end of a namesake, and for a turn, when a worker joins.
        logs: the folder in which each worker's output goes to a file; None for the output of this process.
        run: refuse any other run of the group.
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
            raise ValueError("an agent was given nothing to run; give a program and its arguments")
        check_worker_count(self.workers)
        check_member(self.host, "host")
        if self.per_host is not None and not 1 <= check_whole(self.per_host, "per_host") <= self.workers:
            raise ValueError(f"per_host must be from 1 to the {self.workers} workers of the group, not {self.per_host}")
        if check_whole(self.max_restarts, "max_restarts") < 0:
            raise ValueError(f"max_restarts must be at least 0, not {self.max_restarts}")
        for name in ("grace_s", "join_s"):
            if not is_number(getattr(self, name), 0.0):
                raise ValueError(f"{name} must be a number of seconds from 0, not {getattr(self, name)!r}")

    @property
    def local_workers(self) -> int:
        """How many workers run on this host."""
        return self.workers if self.per_host is None else self.per_host

    @property
    def is_single_host(self) -> bool:
        """Whether it holds all workers of the group."""
        return self.local_workers == self.workers

    @property
    def max_executions(self) -> int:
        """How often a worker may be run again: once for each time that the process of any of them is."""
        return max(1, self.max_restarts * self.workers)

    def worker_key(self, slot: int) -> str:
        """Who a worker is, the same after a restart."""
        return f"{self.host}:{slot}"

    def log_path(self, number: int) -> Path | None:
        """Where the output of a worker goes."""
        return None if self.logs is None else self.logs / f"{number}.log"


@dataclass(frozen=True, slots=True)
class SlotState:
    """One of the processes of an agent.

    Attributes:
        slot: from 0, on this host.
        state: in a word or two.
        id: of the worker; -1 before it has joined.
        pid: of the process; None while there is none.
        epoch: how often all workers have begun again.
        restarts: how often this worker was started again.
        why: how its last process ended, or what went wrong.
    """

    slot: int
    state: str = "joins"
    rank: int = -1
    pid: int | None = None
    epoch: int = 0
    restarts: int = 0
    why: str = ""


def process_environment(
    info: WorkerInfo, slot: int, spec: AgentSpec, *, workers: int, run: str, epoch: int, first: WorkerInfo
) -> Mapping[str, str]:
    """Return the process_environment that tell a process about its group, besides the environment of its agent.

    Args:
        info: its worker.
        slot: its number on this host.
        spec: of the agent.
        workers: how many the group has now.
        run: of the group.
        epoch: how often all workers have begun again.
        first: worker 0, in this epoch.
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
    """What the end of a process means.

    A process that was told to stop has not done its part, whatever its exit code says.
    """
    if was_stopped or end.why in {"deadline", "told"}:
        return "ended"
    return "done" if end.is_success else "failed"


class AgentSlot:
    """Holds one worker for a process: joins, runs it in each epoch, comes back when it dies, completes.

    ``run`` is for one thread; the rest is safe to local_workers.

    Args:
        store: the store.
        group: the group's name.
        namespace: groups groups: those of different namespaces may have the same name.
        run: of the group.
        spec: what the agent runs.
        number: the slot's number on this host.
        failure_lock: held by the slot whose process has failed, until all are told: what fails because of it does not count.
        on_change: called with each state, in the thread that brought it about; quick.
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
        self._stopping = threading.Event()
        self._state = SlotState(number)
        self._session: Session | None = None
        self._worker: GroupWorker | None = None
        self._child: Child | None = None
        self._port: socket.socket | None = None
        self.error: LatchworkError | OSError | None = None

    @property
    def state(self) -> SlotState:
        """How it is now. Does no I/O."""
        return self._state

    def join(self) -> None:
        """Join the group, or come back to it."""
        self._join(replace_live=False)

    def run(self) -> None:
        """Run the process until the worker's part is done, or it is out of the group; ``error`` has why."""
        try:
            self._run_until_complete()
        except (LatchworkError, OSError) as error:
            if not self._stopping.is_set():
                self.error = error
                self._update_state(state="out", why=str(error))
        finally:
            self._end()

    def stop(self) -> None:
        """End the process, if there is one, and leave the group then. Does not wait."""
        self._stopping.set()
        with self._mutex:
            child, worker = self._child, self._worker
        if child is not None:
            child.stop(self._spec.grace_s)
        elif worker is not None:
            worker.close()  # calls off what waits for the others

    # The worker

    def _join(self, *, replace_live: bool) -> None:
        """Join with our key; a session that is over is replaced by another one."""
        if self._session is None or self._session.remaining_s() <= 0.0:
            if self._session is not None:
                self._session.close()
            ttl_s = session_ttl_s(self._store, self._spec.ttl_s, SESSION_TTL_S)
            self._session, replace_live = self._store.open_session(ttl_s), False
        worker = GroupWorker(
            self._store,
            self._group,
            run=self._run_id,
            key=self._spec.worker_key(self._number),
            info=self._info(),
            namespace=self._namespace,
            session=self._session,
            replace=replace_live,
        )
        with self._mutex:
            old, self._worker = self._worker, worker
        if self._stopping.is_set():
            worker.close()
        try:
            info = worker.join(self._spec.join_s)
        finally:
            if old is not None:
                old.close()  # it has lost its lease to us, and is closed without a word to the others
        self._update_state(rank=info.rank, restarts=info.restarts, epoch=worker.epoch)

    def _info(self, **ports: int) -> WorkerInfo:
        return WorkerInfo(ip=self._spec.address, node=self._spec.host, ports=ports)

    def _run_until_complete(self) -> None:
        backoff, is_in = Backoff(), True
        worker = self._worker
        while not self._stopping.is_set():
            try:
                if not is_in:
                    self._join(replace_live=True)
                worker = self._worker
                assert worker is not None
                worker.run(self._run_attempt, prepare=self._prepare)
            except ProcessLost:
                is_in = (
                    self._worker is not worker
                )  # else its process was ended because its session would have been over
            except _AWAY as error:
                is_in = False
                self._update_state(state="comes back", why=str(error))
                self._store.clock.wait(self._stopping, backoff.next_s())
            else:
                self._update_state(state="completed", pid=None)
                return

    def _prepare(self, worker: GroupWorker) -> None:
        """Before the start line: worker 0 tells where it will be found in this epoch."""
        self._update_state(state="waits for all", epoch=worker.epoch)
        if worker.rank != 0:
            return
        self._release_port()
        self._port = socket.socket()
        self._port.bind(("", 0))
        worker.update_info(self._info(**{MASTER_PORT: self._port.getsockname()[1]}))

    def _release_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    # The process

    def _run_attempt(self, worker: GroupWorker) -> None:
        """Run the process once, in one epoch. Returns when its part is done."""
        try:
            self._run_once(worker)
        except _AWAY as error:  # no reason to fail the group
            self._update_state(state="comes back", why=str(error))
            raise ProcessLost from error

    def _run_once(self, worker: GroupWorker) -> None:
        assert self._session is not None
        with worker.guard_work(self._session.ttl_s * _MARGIN_PART) as work:
            env = self._environment(worker)
            with DeadlineExtender(self._session.remaining_s) as extender:
                child = self._start(env, extender.until)
                take_back = work.stopped.call_when_set(partial(child.stop, self._spec.grace_s))
                try:
                    extender.add(child)
                    end = child.wait()
                finally:
                    take_back()
                    child.close()
                    with self._mutex:
                        self._child = None
            was_stopped = work.is_stopped or self._stopping.is_set()
        self._update_state(state="ended", pid=None, why=str(end))
        self._handle_exit(worker, end, was_stopped=was_stopped)

    def _environment(self, worker: GroupWorker) -> dict[str, str]:
        """What the process is told; of worker 0 what it has told in this epoch."""
        while (first := worker.peer(0)) is None or MASTER_PORT not in first.ports:
            worker.check()
            self._store.clock.wait(self._stopping, _POLL_S)
            self._raise_if_stopping()
        told = process_environment(
            worker.info,
            self._number,
            self._spec,
            workers=worker.size(),
            run=self._run_id,
            epoch=worker.epoch,
            first=first,
        )
        return {**os.environ, **told}

    def _start(self, env: dict[str, str], until: float) -> Child:
        log = self._spec.log_path(self._state.rank)
        self._release_port()  # for the process to take
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
        self._update_state(state="runs", pid=child.pid)
        return child

    def _handle_exit(self, worker: GroupWorker, end: ChildEnd, *, was_stopped: bool) -> None:
        self._raise_if_stopping()
        means = classify_exit(end, was_stopped=was_stopped)
        if means == "done":
            return
        if means == "ended":
            _ = worker.fence  # raises if the epoch is over, or we are out of the group
            raise ProcessLost
        with self._failure_lock:  # of all that fail at once the first one comes back, the others begin again with it
            worker.check()
            self._update_state(state="comes back")
            self._join(replace_live=True)
        raise ProcessLost

    def _raise_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise ProcessLost

    # The end

    def _end(self) -> None:
        """Leave the group and close what is ours."""
        self._release_port()
        with suppress(LatchworkError):
            if self._worker is not None:
                self._worker.close()
        with suppress(LatchworkError):
            if self._session is not None:
                self._session.close()
        if self._state.state not in {"completed", "out"}:
            self._update_state(state="left", pid=None)

    def _update_state(self, **news: object) -> None:
        before, self._state = self._state, replace(self._state, **news)  # type: ignore[arg-type]
        if self._state != before:
            self._on_change(self._state)


class LocalAgent:
    """The workers of one host, as processes: ``with LocalAgent(store, "train", spec) as agent: agent.wait()``.

    ``with`` joins and starts them, and ends what still runs. A thread of its own holds each. Safe to local_workers between
    threads.

    Not promised: that a failure_lock process is told from those that fail because of it on other hosts. Those that fail on
    one host at the same time count as one restart; on another host the connection that breaks may count as a second.

    Args:
        store: the store. It stays the caller's.
        group: the group's name. It is created if there is none that runs; one that has ended, and that nobody is in any
            more, is replaced.
        spec: what to run.
        namespace: groups groups: those of different namespaces may have the same name.
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
        """The group."""
        if self._handle is None:
            raise LatchworkError(f"agent of group {self._group!r} was not started; use it in a with")
        return self._handle

    @property
    def slots(self) -> list[SlotState]:
        """The processes, by slot. Does no I/O."""
        return [slot.state for slot in self._slots]

    def take_changes(self) -> list[SlotState]:
        """What the processes went through since the last call, in spec; each is given once."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._changes.get_nowait())
        return found

    @property
    def errors(self) -> list[LatchworkError | OSError]:
        """Why workers of ours are out of the group, by slot."""
        return [slot.error for slot in self._slots if slot.error is not None]

    def start(self) -> None:
        """Join the group with all workers of this host, and start them once all of the group are there.

        Raises:
            GroupAlreadyRunning: a run of the group has ended, and has live workers.
            WrongRun: the group is in another run.
            GroupFull, NodeIdInUse, RestartsExceeded, WaitTimeout: as for ``GroupWorker.join``.
            LatchworkError: the group has another number of workers.
        """
        self._handle = self._find_or_submit()
        if self._spec.logs is not None:
            self._spec.logs.mkdir(parents=True, exist_ok=True)
        for number in range(self._spec.local_workers):  # one after the other: ids are as the slots on the first host
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
        """Wait until no process of ours runs, or will; False when the time is over."""
        patience = Patience(self._store.clock, timeout_s)
        for thread in self._threads:
            thread.join(patience.left_s())
        return not any(thread.is_alive() for thread in self._threads)

    def wait_for_group(self, timeout_s: float | None = None) -> GroupStatus:
        """Wait until the group has ended, on all hosts.

        Raises:
            WaitTimeout: it still runs.
            WrongRun: nothing is known about this run any more.
        """
        return self.handle.wait(timeout_s)

    def close(self) -> None:
        """End what runs: SIGTERM, SIGKILL after the grace; then leave the group. Twice is fine."""
        if self._home.is_foreign:
            return
        for slot in self._slots:
            with suppress(LatchworkError):
                slot.stop()
        for thread in self._threads:
            thread.join()
        if not self._threads:  # it was not started whole: nobody holds what has joined
            for slot in self._slots:
                slot.run()

    def _find_or_submit(self) -> GroupHandle:
        patience, backoff = Patience(self._store.clock, self._spec.join_s), Backoff()
        while True:
            handle = find(self._store, self._group, namespace=self._namespace)
            if handle is not None and self._is_usable(handle):
                return handle
            if self._spec.run is not None:
                raise WrongRun(f"group {self._group!r} is not in run {self._spec.run} any more; do not start it again")
            try:
                return self._submit()
            except GroupAlreadyRunning:  # another host was faster; or its last run is about to leave
                if patience.is_over:
                    raise
            self._store.clock.wait(threading.Event(), backoff.next_s())

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
            raise WrongRun(
                f"group {self._group!r} is in run {handle.run}, not in {self._spec.run}; do not start it again"
            )
        if status.workers != self._spec.workers:
            raise LatchworkError(
                f"group {self._group!r} runs with {status.workers} workers, not {self._spec.workers}; scale it, terminate it, "
                "or use another name"
            )
        return True
