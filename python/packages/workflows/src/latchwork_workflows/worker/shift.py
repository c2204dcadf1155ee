"""One shift of a worker: from the beginning of a session to its end. The worker begins another one then.

Session, membership, claims and marks of running tasks have one life, and children a shorter one.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from latchwork.errors import Unavailable
from latchwork.primitives import Group, WorkQueue
from latchwork.store import Session, Store
from latchwork.tasks import GroupCommit, Slots, WorkerLoop
from latchwork.tasks.children import DeadlineExtender, end_left
from latchwork.types import Change
from latchwork_workflows.bundles import BundleCache
from latchwork_workflows.keys import Keys
from latchwork_workflows.logs import Health, LogStore
from latchwork_workflows.secrets import Secrets
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.worker.lanes import Lanes
from latchwork_workflows.worker.options import WorkerOptions
from latchwork_workflows.worker.performing import Performing
from latchwork_workflows.worker.pools import PoolSlots
from latchwork_workflows.worker.preparing import ATTEMPTS, BUNDLES, Preparing, work_folder
from latchwork_workflows.worker.tenants import own_user, tenants_label

_log = logging.getLogger(__name__)

#: The backlog's own limit of attempts is never met: who takes a task once too often ends it with a result.
_ANY_NUMBER = 1_000_000
#: Seconds after which a log store that takes nothing is tried again.
_PROBE_S = 2.0
#: Seconds more than a child has to end, until its slot is given up for stuck.
_STUCK_S = 20.0
#: Seconds for the first look at what is cancelled.
_MIRROR_S = 30.0
#: Of lists among the labels.
_LABEL_CHARS = 1_500


class Shift:
    """Runs tasks as long as one session lasts. Safe to share between threads.

    Args:
        store: the store.
        keys: the keys.
        name: of the worker.
        host: the machine's.
        options: of the worker.
        work_dir: folder in which tasks run, made by ``work_folder``.
        logs: where logs go.
        types: the task types of this process.
        secrets: of this machine.
        session: what we live by; closed at the end.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        name: str,
        host: str,
        options: WorkerOptions,
        *,
        work_dir: Path,
        logs: LogStore,
        types: TaskTypes,
        secrets: Secrets,
        session: Session,
    ) -> None:
        self._store = store
        self._keys = keys
        self._name = name
        self._options = options
        self._logs = logs
        self.session = session
        self._folder = work_dir / ATTEMPTS / name
        self.health = Health(self._log_store_changed)
        told_s, force_s = options.margins_s(session.ttl_s)
        self._leash = DeadlineExtender(session.remaining_s, margin_s=force_s)
        preparing = Preparing(options, types, secrets, BundleCache(work_dir / BUNDLES), logs)
        performing = Performing(
            store,
            keys,
            logs,
            self.health,
            preparing=preparing,
            options=options,
            leash=self._leash,
            folder=self._folder,
            worker=name,
            host=host,
        )
        self._cancels = store.mirror(keys.cancels, wait=False, values=False)
        self._pools = PoolSlots(store, keys, options.groups, self._poke, session)
        names = frozenset(types.names)
        self.lanes = Lanes(
            keys,
            session,
            options,
            types=types,
            health=self.health,
            performing=performing,
            cancels=self._cancels,
            pools=self._pools,
        )
        self.group = Group(store, keys.workers, member_id=name, labels=_labels(options, names, logs), session=session)
        self.slots = Slots(
            options.slots,
            self.lanes.functions,
            self.lanes.payloads,
            stop_grace_s=options.stop_grace_s + _STUCK_S,
            label=name,
            clock=store.clock,
        )
        self._commits = GroupCommit(store, label=name)
        backlog = WorkQueue(store, keys.backlog, max_attempts=_ANY_NUMBER, session=session, label=name)
        self.feeder = WorkerLoop(
            backlog, self.slots, self._commits, self.lanes, store=store, node_id=name, margin_s=told_s
        )
        self._ended = threading.Event()
        self._troubled = threading.Event()
        self._suspect = threading.Event()
        self._threads: list[threading.Thread] = []
        self._forgets: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Join, and begin to take tasks.

        Raises:
            NodeIdInUse, MemberEvicted: another worker has our name, or we are not wanted.
            LogStoreMismatch: the log store is that of other workflows.
            LatchworkError: not now.
        """
        found = self._store.get(self._keys.id)
        if found is None:
            raise Unavailable("no workflows were begun in this store yet; run 'latchwork workflows init', or a master")
        self._logs.check(found.value.decode("ascii", "replace"))
        self.group.start()
        self.group.wait_joined(None)
        if (left := end_left()) > 0:
            _log.warning(
                "worker %s: ended %d processes of tasks whose worker and supervisor were killed", self._name, left
            )
        _empty(self._folder)  # of one of our name that died: its children have ended with its session
        self._cancels.ready(_MIRROR_S)
        self._forgets.append(self._cancels.on_change(self._see_cancels))
        self._pools.begin(_MIRROR_S)
        if self._options.on_disconnect == "stop":
            self._forgets.append(self.session.on_state(self._see_state))
            self._start(self._end_when_cut_off, "cut-off")
        self._start(self._probe, "logs")
        self.feeder.start()

    def _start(self, target: Callable[[], None], what: str) -> None:
        thread = threading.Thread(target=target, name=f"latchwork-flows-{what}-{self._name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def drain(self, timeout_s: float | None) -> bool:
        """Take nothing more, and wait for what runs; False when the time is over."""
        return self.feeder.drain(timeout_s)

    def end(self, timeout_s: float) -> list[str]:
        """Stop all tasks, give them back, and leave; see ``WorkerSession``. Each step is idempotent."""
        self._ended.set()
        for event in (self._troubled, self._suspect):
            event.set()
        left = self.feeder.close(timeout_s)
        self._commits.close(timeout_s if self.session.remaining_s() > 0.0 else 0.0)
        self.slots.close(timeout_s)
        for forget in self._forgets:
            forget()
        self._cancels.close()
        self._pools.close()
        for thread in self._threads:
            thread.join()
        self._leash.close()
        self.group.close()
        self.session.close()
        return left

    def trouble(self) -> str | None:
        """Return why it takes no tasks: its logs cannot be written."""
        return None if self.health.is_ok else f"its logs cannot be written: {self.health.error}"

    # What others do

    def _see_cancels(self, batch: Iterable[Change]) -> None:
        for change in batch:
            path = None if change.entry is None else self.lanes.cancelled(change.key.rpartition("/")[2])
            if path is not None:
                self.feeder.stop_task(path)

    def _see_state(self, state: str) -> None:
        if state == "suspect":
            self._suspect.set()

    def _end_when_cut_off(self) -> None:
        clock = self._store.clock
        while not self._ended.is_set():
            self._suspect.wait()
            self._suspect.clear()
            clock.wait(self._ended, self._options.disconnect_grace_s)
            if not self._ended.is_set() and self.session.state in ("suspect", "lost"):
                _log.warning("worker %s: the store is out of reach; its tasks are ended", self._name)
                self.lanes.cut_off(self.feeder.stop_task)

    def _poke(self) -> None:
        self.feeder.poke()

    def _log_store_changed(self) -> None:
        if self.health.is_ok:
            self._poke()
        else:
            self._troubled.set()

    def _probe(self) -> None:
        """While logs cannot be written, find out when they can."""
        while not self._ended.is_set():
            self._troubled.wait()
            self._troubled.clear()
            while not self._ended.is_set() and not self.health.is_ok:
                self._store.clock.wait(self._ended, _PROBE_S)
                try:
                    self._logs.probe()
                except OSError as error:
                    self.health.note(error)
                else:
                    self.health.note(None)


def _labels(options: WorkerOptions, types: frozenset[str], logs: LogStore) -> dict[str, str]:
    """What others see of us."""
    tenants = tenants_label(options.tenants)
    return {
        "groups": ",".join(options.groups)[:_LABEL_CHARS],
        "slots": str(options.slots),
        "types": ",".join(sorted(types))[:_LABEL_CHARS],
        "user": own_user(),
        **({"tenants": tenants} if len(tenants) <= _LABEL_CHARS else {}),
        "logs": logs.url[:500],
        "version": _version(),
    }


def _version() -> str:
    try:
        return version("latchwork")
    except PackageNotFoundError:  # run from its source
        return "unknown"


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    work_folder(folder)
