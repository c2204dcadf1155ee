"""Decides which runs may start: concurrency limits of workflows, and the pools of projects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import sqlalchemy as sa

from latchwork_workflows.db import concurrency, pools
from latchwork_workflows.db.commands import CommandType, ask
from latchwork_workflows.db.history import told
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.errors import WrongState
from latchwork_workflows.master.commands import is_of_run
from latchwork_workflows.master.state_cache import Plans, Version
from latchwork_workflows.schemas.pools import project_pool
from latchwork_workflows.state.concurrency import GOING, Other, Turn, places, verdict
from latchwork_workflows.state.records import OVER, InstanceState

#: Commands that continue an ended run.
_AGAIN = frozenset({"recover", "rerun"})


class Concurrency:
    """Concurrency decisions of one transaction. Not thread-safe.

    Attributes:
        pokes: Shards that got a command from this transaction.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._limited: dict[str, bool] = {}
        self.pokes: set[int] = set()

    def is_limited(self, project: str) -> bool:
        """Return whether the tasks of a project need a slot of its pool."""
        if project not in self._limited:
            self._limited[project] = pools.find(self._connection, project_pool(project)) is not None
        return self._limited[project]

    def has_to_wait(
        self, version: Version, *, dry: bool, is_wanted: bool = False, above: Collection[int] = (), but: int = 0
    ) -> bool:
        """Return whether a new run has to wait. Other runs are asked to stop if the policy says so.

        Args:
            version: Version of the run.
            dry: The run is dry, so it never waits.
            is_wanted: The run is neither discarded nor refused, nor stops others: a date of a backfill.
            above: IDs of the ancestors of the run.
            but: ID of the run itself, if it exists.
        Raises:
            WrongState: The run is discarded, refused, or would wait for itself.
        """
        if dry:
            return False
        has_room = self._has_room(version, is_wanted=is_wanted)  # first: a refused run must not stop others
        return self._has_no_place(version, is_wanted=is_wanted, above=above, but=but) or not has_room

    def _has_no_place(self, version: Version, *, is_wanted: bool, above: Collection[int], but: int) -> bool:
        given = version.definition
        if places(given.serial, given.max_runs) is None:
            return False
        concurrency.lock(self._connection, version.code)
        others = concurrency.others(self._connection, version.code, but=but)
        found = verdict(given.serial, others, max_runs=given.max_runs, is_wanted=is_wanted, above=above)
        if found.because is not None:
            self._refuse(version, found.turn, found.because)
        for other in found.stop:
            ask(self._connection, CommandType.STOP, shard_id=other.shard, instance=other.id, by="serial")
            told(self._connection, "superseded", by="", instance=other.id, project=given.project)
            self.pokes.add(other.shard)
        return found.turn is Turn.WAIT

    def _refuse(self, version: Version, turn: Turn, other: Other) -> None:
        key = version.definition.key
        if turn is Turn.NEVER:
            raise WrongState(
                f"run {other.id} of {key} has the place that this one would wait for, and this one would be a part of "
                f"it: that never ends; let {key} not start itself, or give it a larger max_runs"
            )
        if turn is Turn.DISCARD:
            told(self._connection, "discarded", by="", instance=other.id, project=version.definition.project)
            raise WrongState(f"run {other.id} of {key} is {other.state.value}, and {key} discards starts meanwhile")

    def _has_room(self, version: Version, *, is_wanted: bool) -> bool:
        """Return whether the pool of its project admits another run.

        Raises:
            WrongState: The pool is full and refuses starts.
        """
        project = version.definition.project
        name = project_pool(project)
        pool = pools.find(self._connection, name)
        if pool is None or pool.admission == "suspend":
            return True
        pools.find(self._connection, name, lock=True)
        count = pools.active_count(self._connection, project)
        if pool.admission == "precompute" or is_wanted:
            return count == 0 or count + version.width <= pool.size
        if count < pool.size:
            return True
        told(self._connection, "refused", by="", project=project, details={"workflow": version.definition.name})
        raise WrongState(
            f"project {project} has {count} tasks queued or running, and its pool {name} has a size of {pool.size}: "
            f"starts are refused meanwhile; see `latchwork workflows pools show {name}`"
        )

    def check_again(self, stored: Stored, version: Version, command: str) -> None:
        """Refuse to continue an ended run while other runs use up the limit.

        Raises:
            WrongState: Names one of the other runs.
        """
        given = version.definition
        most = places(given.serial, given.max_runs)
        if command not in _AGAIN or most is None or stored.parent is not None or stored.known.dry:
            return
        concurrency.lock(self._connection, stored.code)
        going = [
            each for each in concurrency.others(self._connection, stored.code, but=stored.id) if each.state in GOING
        ]
        if len(going) >= most:
            other, at_once = going[0], "one goes" if most == 1 else f"{most} go"
            raise WrongState(
                f"run {other.id} of {given.key} is {other.state.value}, and only {at_once} at a time; "
                f"{command} run {stored.id} when that one is over, or stop it"
            )

    def is_next(self, stored: Stored, version: Version) -> bool:
        """Return whether a waiting run may start. If so, it must start in this transaction."""
        if not self._has_room(version, is_wanted=True):
            return False
        concurrency.lock(self._connection, stored.code)
        most = places(version.definition.serial, version.definition.max_runs)
        return stored.id in concurrency.next_of(self._connection, stored.code, most)

    def left(self, written: Iterable[Stored], before: Mapping[int, Stored]) -> set[int]:
        """Return the shards with runs that wait for a run that has now ended."""
        codes = {
            each.code
            for each in written
            if each.known.state in OVER - {InstanceState.PAUSED}
            and (each.id not in before or before[each.id].known.state is not each.known.state)
        }
        return self.pokes | concurrency.shards_waiting(self._connection, codes)


def next_turns(connection: sa.Connection, plans: Plans, waiting: Iterable[Stored]) -> list[int]:
    """Return the waiting runs that may be next. ``is_next`` checks again under the lock."""
    found: list[int] = []
    first: dict[tuple[int, int | None], set[int]] = {}
    for stored in waiting:
        try:
            given = plans.get(connection, stored.code, stored.version).definition
            most = places(given.serial, given.max_runs)
        except Exception as error:
            if not is_of_run(error):
                raise
            most = None  # it fails when it begins
        of = (stored.code, most)
        if of not in first:
            first[of] = set(concurrency.next_of(connection, *of))
        if stored.id in first[of]:
            found.append(stored.id)
    return found
