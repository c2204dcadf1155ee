"""A master: a node that owns a share of the shards and advances their runs.

Shards are the items of a job. The job manager provides ownership, failover, drain and rolling restarts. A node that
loses its database releases its shards, so that other nodes can take them.
"""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Iterable
from functools import partial
from typing import Self

from latchwork.clock import Signal
from latchwork.errors import Closed, LatchworkError, OwnershipLost
from latchwork.jobs import FixedDelay, Job, JobContext, JobManager, Observer, Threads
from latchwork.schedules import WallClock
from latchwork.spi import NodeHealth, TroubleLog, mutex
from latchwork.store import Store
from latchwork_workflows.alerts.sender import POLL_S, AlertSender
from latchwork_workflows.db import Database
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.errors import NotOwner, StoreMismatch
from latchwork_workflows.installation import join_store
from latchwork_workflows.keys import Keys, Order, format_shard_name, get_workflows_store
from latchwork_workflows.logs import LogStore
from latchwork_workflows.master import cleanup
from latchwork_workflows.master.shard import POLL_S as SHARD_POLL_S
from latchwork_workflows.master.shard import ShardLoop, ShardTools
from latchwork_workflows.secrets import Secrets

_log = logging.getLogger(__name__)

#: Job of all masters.
SHARDS_JOB = "workflow-shards"
#: Job of one master, which deletes old data.
CHORES_JOB = "workflow-chores"
#: Job of one master, which sends alerts.
ALERTS_JOB = "workflow-alerts"
#: Seconds between two cleanup passes, and before the first one.
CHORES_EVERY_S, CHORES_FIRST_S = 600.0, 60.0
#: Seconds without the database after which a node releases its shards.
WITHOUT_S = 10.0
_LOOK_S = 2.0
#: A transaction of this many seconds is stuck, since the server ends each statement after five seconds.
STUCK_S = 120.0
_MISMATCH_S = 10.0
#: Seconds between two transactions of cleanup, so that others can write.
_CHORES_PAUSE_S = 0.02


class Master:
    """A node that advances the runs of workflows: ``with Master(database, store) as master: ...``. Thread-safe.

    Args:
        database: Database with the tables of this version.
        store: The store that belongs to it: its root, or a namespace that all nodes use.
        node_id: Unique among the running masters. Default: the host name and six random characters.
        order: Order in which workers claim tasks: ``run`` or ``submitted``. Must be the same on all nodes.
        lock_ttl_s: Seconds until the shards of a dead node are reassigned.
        poll_s: Seconds between two polls for commands without a notification.
        name: Key below which all data is stored.
        observers: Observers of the job manager.
        logs: Log store of the workers. Without it, old runs are not deleted.
        keep: Retention times.
        chores_every_s: Seconds between two cleanup passes.
        secrets: Secrets of this machine, for alert channels. Default: those of the environment.
        alerts_every_s: Seconds between two checks for alerts to send.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        *,
        node_id: str | None = None,
        order: Order = "run",
        lock_ttl_s: float = 10.0,
        poll_s: float = SHARD_POLL_S,
        name: str = "default",
        observers: Iterable[Observer] = (),
        logs: LogStore | None = None,
        keep: cleanup.Retention | None = None,
        chores_every_s: float = CHORES_EVERY_S,
        secrets: Secrets | None = None,
        alerts_every_s: float = POLL_S,
    ) -> None:
        self.node_id = node_id or f"{socket.gethostname()[:80]}-{uuid.uuid4().hex[:6]}"
        self._store = store = get_workflows_store(store)
        self._lock_ttl_s = lock_ttl_s
        self._observers = tuple(observers)
        self._logs = logs
        self._keep = keep
        self._chores_every_s = chores_every_s
        self._secrets = secrets or Secrets()
        self._alerts_every_s = alerts_every_s
        self._tools = ShardTools(
            database,
            store,
            Keys(name),
            self.node_id,
            order,
            poll_s=poll_s,
            on_database_answer=self._record_answer,
            now=WallClock().now,
        )
        self._cleanup_trouble = TroubleLog(_log)
        self._alerts_trouble = TroubleLog(_log)
        self._return_trouble = TroubleLog(_log)
        self._mutex = mutex()
        self._closing = Signal()
        self._answered_at = 0.0
        self._asker: threading.Thread | None = None
        self._manager: JobManager | None = None
        self._thread: threading.Thread | None = None
        self._shards = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Master {self.node_id!r}>"

    def start(self) -> Self:
        """Join the other masters and begin to advance the runs of the shards that are assigned to this node.

        Raises:
            StoreMismatch: Store and database do not belong together.
            SchemaTooNew, LatchworkError: The database has another version, or was never initialized.
            Unavailable: Store or database cannot be reached.
            Closed: It was started before.
        """
        with self._mutex:
            if self._thread is not None or self._closing.is_set():
                raise Closed(f"master {self.node_id} was started before; create a new one")
            self._thread = threading.Thread(
                target=self._watch_database, name=f"latchwork-master-{self.node_id}", daemon=True
            )
        self._shards = join_store(self._tools.database, self._store, self._tools.keys).shards
        self._record_answer(True)
        self._manager = self._create_node()
        self._thread.start()
        return self

    def close(self, timeout_s: float | None = None) -> None:
        """Finish the current work and release the shards to other masters. Idempotent.

        Calling it again with a shorter timeout shortens the wait.

        Args:
            timeout_s: Seconds to wait for the current work. None: the ``close_timeout_s`` of job nodes.
        """
        self._closing.set()
        self._leave(timeout_s)
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        self._leave(timeout_s)  # the thread may have joined the cluster again

    def health(self) -> NodeHealth:
        """Return the health of this node. Does no I/O.

        It is unhealthy while it is not connected to the other masters or cannot reach the database.
        """
        manager = self._manager
        if manager is None:
            without = "it has no database, so other masters have its shards"
            reason = without if self._thread is not None and not self._closing.is_set() else "it does not run"
            return NodeHealth(False, (reason,), 0.0, False)
        found = manager.health()
        return NodeHealth(found.ok, found.reasons, found.session_remaining_s, False)

    def _create_node(self) -> JobManager:
        """Create and start the job node that runs the shards, the cleanup and the alerts of this master."""
        shards = Job(
            SHARDS_JOB,
            work_pool=[format_shard_name(each) for each in range(self._shards)],
            run=self._run_shard,
            schedule=FixedDelay(0.5),
            initial_delay_s=0.0,
            threads=Threads.per_item(),
        )
        tidies = Job(
            CHORES_JOB,
            work_pool=["chores"],
            run=self._run_cleanup,
            schedule=FixedDelay(self._chores_every_s),
            initial_delay_s=min(CHORES_FIRST_S, self._chores_every_s),
        )
        sends = Job(
            ALERTS_JOB,
            work_pool=["alerts"],
            run=self._send_alerts,
            schedule=FixedDelay(1.0),
            initial_delay_s=0.0,
            threads=Threads.per_item(),
        )
        return JobManager(
            self._store,
            self.node_id,
            [shards, tidies, sends],
            namespace=self._tools.keys.cluster,
            lock_ttl_s=self._lock_ttl_s,
            observers=self._observers,
        ).start()

    def _leave(self, timeout_s: float | None = None) -> None:
        manager = self._manager
        if manager is not None:
            manager.close(timeout_s)
            self._manager = None

    # In threads of the job manager

    def _run_shard(self, context: JobContext) -> None:
        """Run the loop of a shard until the run of the job is asked to stop, or another master owns the shard."""
        for item in context.items:
            run = ShardLoop(self._tools, int(item), context.fence(item), context.remaining_s)
            forget = context.on_stop(run.stop)
            try:
                run.run()
            except (NotOwner, OwnershipLost) as error:
                _log.info("shard %s is released to other masters: %s", item, error)
            except StoreMismatch as error:
                _log.error("%s", error)
                context.wait_for_stop(_MISMATCH_S)
                raise
            finally:
                forget()

    def _run_cleanup(self, context: JobContext) -> None:
        """Run one cleanup pass. Temporary errors are logged, and the next pass tries again."""
        pause = partial(context.wait_for_stop, _CHORES_PAUSE_S)
        trouble = self._cleanup_trouble
        try:
            cleanup.Cleanup(
                self._tools.database, self._logs, self._keep, pause=pause, now=self._tools.now, trouble=trouble
            ).run()
        except cleanup.PASSING as error:
            trouble.record_failure(error, "old data is deleted later")
        else:
            trouble.record_success("old data is deleted again")

    def _send_alerts(self, context: JobContext) -> None:
        """Send alerts until the run of the job is asked to stop, or another master sends them."""
        for item in context.items:
            sender = AlertSender(
                self._tools.database,
                self._secrets,
                token=context.fence(item).token,
                logs=self._logs,
                remaining_s=context.remaining_s,
                poll_s=self._alerts_every_s,
                on_poll=partial(self._alerts_trouble.record_success, "alerts are sent again"),
            )
            forget = context.on_stop(sender.stop)
            try:
                sender.run()
            except NotOwner as error:
                _log.info("%s", error)
            except cleanup.PASSING as error:
                self._alerts_trouble.record_failure(error, "alerts are sent later")
            finally:
                forget()

    def _record_answer(self, answers: bool) -> None:
        if answers:
            self._answered_at = self._store.clock.now()

    # The thread

    def _watch_database(self) -> None:
        """Give up the shards while the database is unreachable, and take part again once it answers."""
        clock = self._store.clock
        while not clock.wait(self._closing, _LOOK_S):
            self._tools.database.break_connections(STUCK_S)
            without_s = clock.now() - self._answered_at
            if without_s > 2 * _LOOK_S and self._is_database_reachable():
                without_s = 0.0
            try:
                if without_s >= WITHOUT_S and self._manager is not None:
                    _log.warning(
                        "master %s has had no database for %.0f s; other masters take its shards", self, without_s
                    )
                    self._tools.database.break_connections()
                    self._leave()
                elif without_s < WITHOUT_S and self._manager is None:
                    self._manager = self._create_node()
                    self._return_trouble.forget(None)
                    _log.info("master %s has its database again", self.node_id)
            except LatchworkError as error:
                self._return_trouble.record_failure(error, "master %s is not back yet", self.node_id)

    def _is_database_reachable(self) -> bool:
        """Return whether the database answers a query in time.

        The query runs in another thread, because it may block forever.
        """
        if self._asker is None or not self._asker.is_alive():
            name = f"latchwork-master-asks-{self.node_id}"
            self._asker = threading.Thread(target=self._ping_database, name=name, daemon=True)
            self._asker.start()
        self._asker.join(_LOOK_S)
        return self._store.clock.now() - self._answered_at <= 2 * _LOOK_S

    def _ping_database(self) -> None:
        try:
            self._tools.database.ping()
        except DatabaseUnavailable:
            return
        self._record_answer(True)
