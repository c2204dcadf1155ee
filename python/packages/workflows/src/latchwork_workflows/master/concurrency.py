"""Decides which runs may start: concurrency limits of workflows, and the pools of projects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import sqlalchemy as sa

from latchwork_workflows.db import concurrency, pools
from latchwork_workflows.db.commands import CommandType, send_command
from latchwork_workflows.db.history import record_event
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.errors import WrongState
from latchwork_workflows.master.commands import may_concern_one_run
from latchwork_workflows.master.state_cache import LoadedVersion, VersionCache
from latchwork_workflows.schemas.pools import get_pool_of_project
from latchwork_workflows.state.concurrency import GOING, ActiveRun, StartDecision, decide_start, get_max_active_runs
from latchwork_workflows.state.records import OVER, RunState

#: Commands that continue an ended run.
_AGAIN = frozenset({"recover", "rerun"})


class ConcurrencyControl:
    """Decides in one transaction which runs may start. Not thread-safe.

    Attributes:
        shards_to_notify: Shards for which this transaction has written a command.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._limited: dict[str, bool] = {}
        self.shards_to_notify: set[int] = set()

    def has_project_pool(self, project: str) -> bool:
        """Return whether a project has a pool that limits its tasks. Each task then needs a slot of that pool."""
        if project not in self._limited:
            self._limited[project] = pools.find_pool(self._connection, get_pool_of_project(project)) is not None
        return self._limited[project]

    def apply_limits(
        self,
        version: LoadedVersion,
        *,
        dry: bool,
        must_run: bool = False,
        ancestors: Collection[int] = (),
        exclude: int = 0,
    ) -> bool:
        """Apply the concurrency policy of a workflow, and the size of its project's pool, to a new run.

        Stops other runs if the policy requires this.

        Args:
            version: The workflow version of the run.
            dry: Whether this is a dry run, which never waits.
            must_run: Whether the run must not be refused and must not stop other runs. Set for the runs of a backfill.
            ancestors: IDs of the ancestors of the run.
            exclude: ID of the run itself, if it exists already.
        Returns:
            Whether the new run has to wait.
        Raises:
            WrongState: The policy or the pool refuses the run, or the run would wait for itself.
        """
        if dry:
            return False
        has_room = self._has_pool_room(version, must_run=must_run)  # first: a refused run must not stop others
        return self._is_limit_reached(version, must_run=must_run, ancestors=ancestors, exclude=exclude) or not has_room

    def _is_limit_reached(
        self, version: LoadedVersion, *, must_run: bool, ancestors: Collection[int], exclude: int
    ) -> bool:
        given = version.definition
        if get_max_active_runs(given.serial, given.max_runs) is None:
            return False
        concurrency.lock_workflow(self._connection, version.code)
        others = concurrency.list_active_and_waiting_runs(self._connection, version.code, exclude=exclude)
        found = decide_start(given.serial, others, max_runs=given.max_runs, must_run=must_run, ancestors=ancestors)
        if found.cause is not None:
            self._refuse(version, found.decision, found.cause)
        for other in found.stop:
            send_command(self._connection, CommandType.STOP, shard_id=other.shard, run_id=other.id, by="serial")
            record_event(self._connection, "superseded", by="", run_id=other.id, project=given.project)
            self.shards_to_notify.add(other.shard)
        return found.decision is StartDecision.WAIT

    def _refuse(self, version: LoadedVersion, turn: StartDecision, other: ActiveRun) -> None:
        key = version.definition.key
        if turn is StartDecision.NEVER:
            raise WrongState(
                f"run {other.id} of {key} has the slot that this one would wait for, and would include it, so it "
                f"would wait forever; let {key} not start itself, or give it a larger max_runs"
            )
        if turn is StartDecision.DISCARD:
            record_event(self._connection, "discarded", by="", run_id=other.id, project=version.definition.project)
            raise WrongState(f"run {other.id} of {key} is {other.state.value}, and {key} discards further starts")

    def _has_pool_room(self, version: LoadedVersion, *, must_run: bool) -> bool:
        """Return whether the pool of the workflow's project has room for another run.

        Args:
            version: The workflow version of the run.
            must_run: Whether the run must not be refused.
        Raises:
            WrongState: The pool is full and refuses runs instead of letting them wait.
        """
        project = version.definition.project
        name = get_pool_of_project(project)
        pool = pools.find_pool(self._connection, name)
        if pool is None or pool.admission == "suspend":
            return True
        pools.find_pool(self._connection, name, lock=True)
        count = pools.count_active_tasks(self._connection, project)
        if pool.admission == "precompute" or must_run:
            return count == 0 or count + version.parallelism <= pool.size
        if count < pool.size:
            return True
        record_event(self._connection, "refused", by="", project=project, details={"workflow": version.definition.name})
        raise WrongState(
            f"project {project} has {count} tasks queued or running, and its pool {name} has a size of {pool.size}: "
            f"so starts are refused; see `latchwork workflows pools show {name}`"
        )

    def check_restart(self, stored: StoredRun, version: LoadedVersion, command: str) -> None:
        """Check that a completed run may run again without exceeding the concurrency limit of its workflow.

        Raises:
            WrongState: Other runs use up the limit. The message names one of them.
        """
        given = version.definition
        limit = get_max_active_runs(given.serial, given.max_runs)
        if command not in _AGAIN or limit is None or stored.parent is not None or stored.known.dry:
            return
        concurrency.lock_workflow(self._connection, stored.code)
        going = [
            each
            for each in concurrency.list_active_and_waiting_runs(self._connection, stored.code, exclude=stored.id)
            if each.state in GOING
        ]
        if len(going) >= limit:
            other, at_once = going[0], "one goes" if limit == 1 else f"{limit} go"
            raise WrongState(
                f"run {other.id} of {given.key} is {other.state.value}, and only {at_once} at a time; "
                f"{command} run {stored.id} when it has ended, or stop it"
            )

    def may_start_now(self, stored: StoredRun, version: LoadedVersion) -> bool:
        """Return whether a waiting run may start now. The caller must then start it in the same transaction."""
        if not self._has_pool_room(version, must_run=True):
            return False
        concurrency.lock_workflow(self._connection, stored.code)
        limit = get_max_active_runs(version.definition.serial, version.definition.max_runs)
        return stored.id in concurrency.list_runs_to_start(self._connection, stored.code, limit)

    def find_shards_to_notify(self, written: Iterable[StoredRun], before: Mapping[int, StoredRun]) -> set[int]:
        """Return the shards with runs that waited for a run that has ended in this transaction.

        Args:
            written: The runs that were written in this transaction.
            before: The same runs before it, by ID.
        """
        codes = {
            each.code
            for each in written
            if each.known.state in OVER - {RunState.PAUSED}
            and (each.id not in before or before[each.id].known.state is not each.known.state)
        }
        return self.shards_to_notify | concurrency.find_shards_with_waiting_runs(self._connection, codes)


def select_runs_to_check(connection: sa.Connection, plans: VersionCache, waiting: Iterable[StoredRun]) -> list[int]:
    """Return the IDs of the waiting runs that can probably start now.

    ``may_start_now`` makes the final decision under a lock.

    Args:
        connection: A transaction.
        plans: Cache of workflow versions.
        waiting: The waiting runs.
    """
    found: list[int] = []
    first: dict[tuple[int, int | None], set[int]] = {}
    for stored in waiting:
        try:
            given = plans.get(connection, stored.code, stored.version).definition
            limit = get_max_active_runs(given.serial, given.max_runs)
        except Exception as error:
            if not may_concern_one_run(error):
                raise
            limit = None  # it fails when it begins
        of = (stored.code, limit)
        if of not in first:
            first[of] = set(concurrency.list_runs_to_start(connection, *of))
        if stored.id in first[of]:
            found.append(stored.id)
    return found
