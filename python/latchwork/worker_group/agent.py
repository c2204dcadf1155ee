"""The workers of one host: each is a process of any program, which this process starts and supervises.

The decisions are pure: what a process learns about its job, and what its end means.
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
from latchwork.worker_group.errors import JobAlreadyRunning, WrongRun
from latchwork.worker_group.records import WorkerInfo
from latchwork.worker_group.submission import NAMESPACE, JobHandle, JobStatus, check_count, find, submit
from latchwork.worker_group.worker import ComesBack, Worker

if TYPE_CHECKING:
    from typing import Self

#: The port by which worker 0 is found.
PORT = "master"
#: What the end of a process means: its part is done; it has to be started again; it was ended from here.
Verdict = Literal["done", "failed", "ended"]

#: A process is told to stop when this part of the TTL is left.
_MARGIN_PART = 0.25
#: The TTL of a worker's session unless its order or the URL gives one.
SESSION_TTL_S = 10.0
#: How often it is looked whether worker 0, that came back just now, has told its port.
_LOOK_S = 0.1
#: The store was out of reach, or for too long.
_AWAY = (SessionLost, Unavailable, OutcomeUnknown)


@dataclass(frozen=True, slots=True)
class Order:
    """The program that a ``LocalAgent`` runs, and how.

    Attributes:
        argv: the program and its arguments; no shell.
        workers: how many the job has, on all hosts.
        per_host: how many of them run on this host; None for all.
        host: by what this host is known after a restart.
        address: where others reach worker 0 if it is one of ours.
        max_restarts: how often the process of one worker is started again before the job fails.
        grace_s: seconds between SIGTERM and SIGKILL.
        ttl_s: of each worker's session, in seconds; None for that of the URL, else 10.
        join_s: seconds to wait for the end of a namesake, and for a turn, when a worker joins.
        logs: the folder in which each worker's output goes to a file; None for the output of this process.
        run: refuse any other run of the job.
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
        check_count(self.workers)
        check_member(self.host, "host")
        if self.per_host is not None and not 1 <= check_whole(self.per_host, "per_host") <= self.workers:
            raise ValueError(f"per_host must be from 1 to the {self.workers} workers of the job, not {self.per_host}")
        if check_whole(self.max_restarts, "max_restarts") < 0:
            raise ValueError(f"max_restarts must be at least 0, not {self.max_restarts}")
        for name in ("grace_s", "join_s"):
            if not is_number(getattr(self, name), 0.0):
                raise ValueError(f"{name} must be a number of seconds from 0, not {getattr(self, name)!r}")

    @property
    def share(self) -> int:
        """How many workers run on this host."""
        return self.workers if self.per_host is None else self.per_host

    @property
    def is_whole(self) -> bool:
        """Whether it holds all workers of the job."""
        return self.share == self.workers

    @property
    def max_executions(self) -> int:
        """How often a worker may be run again: once for each time that the process of any of them is."""
        return max(1, self.max_restarts * self.workers)

    def key_of(self, slot: int) -> str:
        """Who a worker is, the same after a restart."""
        return f"{self.host}:{slot}"

    def log_of(self, number: int) -> Path | None:
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
    id: int = -1
    pid: int | None = None
    epoch: int = 0
    restarts: int = 0
    why: str = ""


def variables(
    info: WorkerInfo, slot: int, order: Order, *, workers: int, run: str, epoch: int, first: WorkerInfo
) -> Mapping[str, str]:
    """Return the variables that tell a process about its job, besides the environment of its agent.

    Args:
        info: its worker.
        slot: its number on this host.
        order: of the agent.
        workers: how many the job has now.
        run: of the job.
        epoch: how often all workers have begun again.
        first: worker 0, in this epoch.
    """
    return {
        "LATCHWORK_WORKER_ID": str(info.id),
        "LATCHWORK_WORKERS": str(workers),
        "LATCHWORK_RUN": run,
        "LATCHWORK_EPOCH": str(epoch),
        "RANK": str(info.id),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": str(slot),
        "LOCAL_WORLD_SIZE": str(order.share),
        "MASTER_ADDR": first.ip,
        "MASTER_PORT": str(first.ports[PORT]),
    }


def verdict(end: ChildEnd, *, was_stopped: bool) -> Verdict:
    """What the end of a process means.

    A process that was told to stop has not done its part, whatever its exit code says.
    """
    if was_stopped or end.why in {"deadline", "told"}:
        return "ended"
    return "done" if end.is_success else "failed"


class AgentSlot:
    """Holds one worker for a process: joins, runs it in each epoch, comes back when it dies, completes.

    ``run`` is for one thread; the rest is safe to share.

    Args:
        store: the store.
        job: the job's name.
        namespace: groups jobs: those of different namespaces may have the same name.
        run: of the job.
        order: what the agent runs.
        number: the slot's number on this host.
        failing: held by the slot whose process has failed, until all are told: what fails because of it does not count.
        on_change: called with each state, in the thread that brought it about; quick.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        *,
        namespace: str,
        run: str,
        order: Order,
        number: int,
        failing: threading.Lock,
        on_change: Callable[[SlotState], object] = bool,
    ) -> None:
        self._store = store
        self._job = job
        self._namespace = namespace
        self._run_id = run
        self._order = order
        self._number = number
        self._failing = failing
        self._on_change = on_change
        self._mutex = mutex()
        self._stopping = threading.Event()
        self._state = SlotState(number)
        self._session: Session | None = None
        self._worker: Worker | None = None
        self._child: Child | None = None
        self._port: socket.socket | None = None
        self.error: LatchworkError | OSError | None = None

    @property
    def state(self) -> SlotState:
        """How it is now. Does no I/O."""
        return self._state

    def join(self) -> None:
        """Join the job, or come back to it."""
        self._join(replaces=False)

    def run(self) -> None:
        """Run the process until the worker's part is done, or it is out of the job; ``error`` has why."""
        try:
            self._serve()
        except (LatchworkError, OSError) as error:
            if not self._stopping.is_set():
                self.error = error
                self._tell(state="out", why=str(error))
        finally:
            self._end()

    def stop(self) -> None:
        """End the process, if there is one, and leave the job then. Does not wait."""
        self._stopping.set()
        with self._mutex:
            child, worker = self._child, self._worker
        if child is not None:
            child.stop(self._order.grace_s)
        elif worker is not None:
            worker.close()  # calls off what waits for the others

    # The worker

    def _join(self, *, replaces: bool) -> None:
        """Join with our key; a session that is over is replaced by another one."""
        if self._session is None or self._session.remaining_s() <= 0.0:
            if self._session is not None:
                self._session.close()
            ttl_s = session_ttl_s(self._store, self._order.ttl_s, SESSION_TTL_S)
            self._session, replaces = self._store.open_session(ttl_s), False
        worker = Worker(
            self._store,
            self._job,
            run=self._run_id,
            key=self._order.key_of(self._number),
            info=self._info(),
            namespace=self._namespace,
            session=self._session,
            replace=replaces,
        )
        with self._mutex:
            old, self._worker = self._worker, worker
        if self._stopping.is_set():
            worker.close()
        try:
            info = worker.join(self._order.join_s)
        finally:
            if old is not None:
                old.close()  # it has lost its lease to us, and is closed without a word to the others
        self._tell(id=info.id, restarts=info.restarts, epoch=worker.epoch)

    def _info(self, **ports: int) -> WorkerInfo:
        return WorkerInfo(ip=self._order.address, node=self._order.host, ports=ports)

    def _serve(self) -> None:
        backoff, is_in = Backoff(), True
        worker = self._worker
        while not self._stopping.is_set():
            try:
                if not is_in:
                    self._join(replaces=True)
                worker = self._worker
                assert worker is not None
                worker.run(self._attempt, prepare=self._prepare)
            except ComesBack:
                is_in = (
                    self._worker is not worker
                )  # else its process was ended because its session would have been over
            except _AWAY as error:
                is_in = False
                self._tell(state="comes back", why=str(error))
                self._store.clock.wait(self._stopping, backoff.next_s())
            else:
                self._tell(state="completed", pid=None)
                return

    def _prepare(self, worker: Worker) -> None:
        """Before the start line: worker 0 tells where it will be found in this epoch."""
        self._tell(state="waits for all", epoch=worker.epoch)
        if worker.id != 0:
            return
        self._release_port()
        self._port = socket.socket()
        self._port.bind(("", 0))
        worker.tell(self._info(**{PORT: self._port.getsockname()[1]}))

    def _release_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    # The process

    def _attempt(self, worker: Worker) -> None:
        """Run the process once, in one epoch. Returns when its part is done."""
        try:
            self._run_once(worker)
        except _AWAY as error:  # no reason to fail the job
            self._tell(state="comes back", why=str(error))
            raise ComesBack from error

    def _run_once(self, worker: Worker) -> None:
        assert self._session is not None
        with worker.guard_work(self._session.ttl_s * _MARGIN_PART) as work:
            env = self._environment(worker)
            with DeadlineExtender(self._session.remaining_s) as leash:
                child = self._start(env, leash.until)
                take_back = work.stopped.call_when_set(partial(child.stop, self._order.grace_s))
                try:
                    leash.add(child)
                    end = child.wait()
                finally:
                    take_back()
                    child.close()
                    with self._mutex:
                        self._child = None
            was_stopped = work.is_stopped or self._stopping.is_set()
        self._tell(state="ended", pid=None, why=str(end))
        self._judge(worker, end, was_stopped=was_stopped)

    def _environment(self, worker: Worker) -> dict[str, str]:
        """What the process is told; of worker 0 what it has told in this epoch."""
        while (first := worker.peer(0)) is None or PORT not in first.ports:
            worker.check()
            self._store.clock.wait(self._stopping, _LOOK_S)
            self._refuse_stopping()
        told = variables(
            worker.info,
            self._number,
            self._order,
            workers=worker.count(),
            run=self._run_id,
            epoch=worker.epoch,
            first=first,
        )
        return {**os.environ, **told}

    def _start(self, env: dict[str, str], until: float) -> Child:
        log = self._order.log_of(self._state.id)
        self._release_port()  # for the process to take
        with self._mutex:
            self._refuse_stopping()
            self._child = child = Child(
                self._order.argv,
                env=env,
                stdin=DEVNULL,
                stdout=log,
                stderr=None if log is None else STDOUT,
                until=until,
                label=f"worker {self._state.id} of {self._job}",
            )
        self._tell(state="runs", pid=child.pid)
        return child

    def _judge(self, worker: Worker, end: ChildEnd, *, was_stopped: bool) -> None:
        self._refuse_stopping()
        means = verdict(end, was_stopped=was_stopped)
        if means == "done":
            return
        if means == "ended":
            _ = worker.fence  # raises if the epoch is over, or we are out of the job
            raise ComesBack
        with self._failing:  # of all that fail at once the first one comes back, the others begin again with it
            worker.check()
            self._tell(state="comes back")
            self._join(replaces=True)
        raise ComesBack

    def _refuse_stopping(self) -> None:
        if self._stopping.is_set():
            raise ComesBack

    # The end

    def _end(self) -> None:
        """Leave the job and close what is ours."""
        self._release_port()
        with suppress(LatchworkError):
            if self._worker is not None:
                self._worker.close()
        with suppress(LatchworkError):
            if self._session is not None:
                self._session.close()
        if self._state.state not in {"completed", "out"}:
            self._tell(state="left", pid=None)

    def _tell(self, **news: object) -> None:
        before, self._state = self._state, replace(self._state, **news)  # type: ignore[arg-type]
        if self._state != before:
            self._on_change(self._state)


class LocalAgent:
    """The workers of one host, as processes: ``with LocalAgent(store, "train", order) as agent: agent.wait()``.

    ``with`` joins and starts them, and ends what still runs. A thread of its own holds each. Safe to share between
    threads.

    Not promised: that a failing process is told from those that fail because of it on other hosts. Those that fail on
    one host at the same time count as one restart; on another host the connection that breaks may count as a second.

    Args:
        store: the store. It stays the caller's.
        job: the job's name. It is created if there is none that runs; one that has ended, and that nobody is in any
            more, is replaced.
        order: what to run.
        namespace: groups jobs: those of different namespaces may have the same name.
    """

    def __init__(self, store: Store, job: str, order: Order, *, namespace: str = NAMESPACE) -> None:
        check_store(store, "an agent")
        self._store = store
        self._job = job
        self._order = order
        self._namespace = namespace
        self._home = ForkGuard(f"agent of job {job!r}", made="started")
        self._failing = threading.Lock()
        self._mutex = mutex()
        self._slots: list[AgentSlot] = []
        self._changes: SimpleQueue[SlotState] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._handle: JobHandle | None = None

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
    def handle(self) -> JobHandle:
        """The job."""
        if self._handle is None:
            raise LatchworkError(f"agent of job {self._job!r} was not started; use it in a with")
        return self._handle

    @property
    def slots(self) -> list[SlotState]:
        """The processes, by slot. Does no I/O."""
        return [slot.state for slot in self._slots]

    def changes(self) -> list[SlotState]:
        """What the processes went through since the last call, in order; each is given once."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._changes.get_nowait())
        return found

    @property
    def errors(self) -> list[LatchworkError | OSError]:
        """Why workers of ours are out of the job, by slot."""
        return [slot.error for slot in self._slots if slot.error is not None]

    def start(self) -> None:
        """Join the job with all workers of this host, and start them once all of the job are there.

        Raises:
            JobAlreadyRunning: a run of the job has ended, and has live workers.
            WrongRun: the job is in another run.
            JobFull, NodeIdInUse, RestartsExceeded, WaitTimeout: as for ``Worker.join``.
            LatchworkError: the job has another number of workers.
        """
        self._handle = self._found_or_submitted()
        if self._order.logs is not None:
            self._order.logs.mkdir(parents=True, exist_ok=True)
        for number in range(self._order.share):  # one after the other: ids are as the slots on the first host
            slot = AgentSlot(
                self._store,
                self._job,
                namespace=self._namespace,
                run=self._handle.run,
                order=self._order,
                number=number,
                failing=self._failing,
                on_change=self._changes.put,
            )
            self._slots.append(slot)
            slot.join()
        for slot in self._slots:
            thread = threading.Thread(target=slot.run, name=f"latchwork-agent-{self._job}-{slot.state.slot}")
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no process of ours runs, or will; False when the time is over."""
        patience = Patience(self._store.clock, timeout_s)
        for thread in self._threads:
            thread.join(patience.left_s())
        return not any(thread.is_alive() for thread in self._threads)

    def outcome(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until the job has ended, on all hosts.

        Raises:
            WaitTimeout: it still runs.
            WrongRun: nothing is known about this run any more.
        """
        return self.handle.wait(timeout_s)

    def close(self) -> None:
        """End what runs: SIGTERM, SIGKILL after the grace; then leave the job. Twice is fine."""
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

    def _found_or_submitted(self) -> JobHandle:
        patience, backoff = Patience(self._store.clock, self._order.join_s), Backoff()
        while True:
            handle = find(self._store, self._job, namespace=self._namespace)
            if handle is not None and self._is_on(handle):
                return handle
            if self._order.run is not None:
                raise WrongRun(f"job {self._job!r} is not in run {self._order.run} any more; do not start it again")
            try:
                return self._submitted()
            except JobAlreadyRunning:  # another host was faster; or its last run is about to leave
                if patience.is_over:
                    raise
            self._store.clock.wait(threading.Event(), backoff.next_s())

    def _submitted(self) -> JobHandle:
        order = self._order
        return submit(
            self._store,
            self._job,
            order.workers,
            namespace=self._namespace,
            max_restarts=order.max_restarts,
            max_executions=order.max_executions,
        )

    def _is_on(self, handle: JobHandle) -> bool:
        try:
            status = handle.status()
        except WrongRun:
            return False
        if status.ended is not None:
            return False
        if self._order.run not in {None, handle.run}:
            raise WrongRun(f"job {self._job!r} is in run {handle.run}, not in {self._order.run}; do not start it again")
        if status.n != self._order.workers:
            raise LatchworkError(
                f"job {self._job!r} runs with {status.n} workers, not {self._order.workers}; scale it, terminate it, "
                "or use another name"
            )
        return True
