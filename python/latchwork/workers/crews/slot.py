"""One process of a crew, and the worker that is held for it. Nobody outside the crew imports this."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from latchwork.errors import LatchworkError, OutcomeUnknown, SessionLost, Unavailable
from latchwork.interrupts import mutex
from latchwork.store.backoff import Backoff
from latchwork.store.connect import session_ttl_s
from latchwork.store.session import Session
from latchwork.store.store import Store
from latchwork.tasks.children import DEVNULL, STDOUT, Child, ChildEnd, Leash
from latchwork.workers.crews.decisions import PORT, Order, SlotState, variables, verdict
from latchwork.workers.records import WorkerInfo
from latchwork.workers.running import ComesBack
from latchwork.workers.worker import Worker

#: A process is told to stop when this part of the TTL is left.
_MARGIN_PART = 0.25
#: The TTL of a worker's session unless its order or the URL gives one.
SESSION_TTL_S = 10.0
#: How often it is looked whether worker 0, that came back just now, has told its port.
_LOOK_S = 0.1
#: The store was out of reach, or for too long.
_AWAY = (SessionLost, Unavailable, OutcomeUnknown)


class Slot:
    """Holds one worker for a process: joins, runs it in each epoch, comes back when it dies, completes.

    ``run`` is for one thread; the rest is safe to share.

    Args:
        store: the store.
        job: the job's name.
        namespace: groups jobs: those of different namespaces may have the same name.
        run: of the job.
        order: what the crew runs.
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
            with Leash(self._session.remaining_s) as leash:
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
