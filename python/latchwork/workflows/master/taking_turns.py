"""Workflows of which one run goes at a time: what a start does, and whose turn it is, in the shard's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from latchwork.workflows.database.commands import CommandType, ask
from latchwork.workflows.database.history import told
from latchwork.workflows.database.policies import serials
from latchwork.workflows.database.runs import Stored
from latchwork.workflows.errors import WrongState
from latchwork.workflows.master.plans import Version
from latchwork.workflows.state.records import OVER, InstanceState
from latchwork.workflows.state.serial import GOING, Turn, verdict

#: Commands by which a run that is over goes on.
_AGAIN = frozenset({"recover", "rerun"})


class Turns:
    """Who may go, in one transaction. For one thread.

    Attributes:
        pokes: shards that have something to do because of us.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.pokes: set[int] = set()

    def has_to_wait(self, version: Version, *, dry: bool, is_wanted: bool = False) -> bool:
        """Whether a run that is to start waits for its turn; others are asked to stop for it if the policy says so.

        Raises:
            WrongState: it is discarded.
        """
        policy = version.definition.serial
        if policy == "parallel" or dry:
            return False
        serials.lock(self._connection, version.code)
        found = verdict(policy, serials.others(self._connection, version.code), is_wanted=is_wanted)
        if found.turn is Turn.DISCARD and found.because is not None:
            key, other = version.definition.key, found.because
            told(self._connection, "discarded", by="", instance=other.id, project=version.definition.project)
            raise WrongState(f"run {other.id} of {key} is {other.state.value}, and {key} discards starts meanwhile")
        for other in found.stop:
            ask(self._connection, CommandType.STOP, shard_id=other.shard, instance=other.id, by="serial")
            told(self._connection, "superseded", by="", instance=other.id, project=version.definition.project)
            self.pokes.add(other.shard)
        return found.turn is Turn.WAIT

    def check_again(self, stored: Stored, version: Version, command: str) -> None:
        """Refuse that a run goes on again while another has its place.

        Raises:
            WrongState: with the other run.
        """
        is_serial = version.definition.serial != "parallel" and stored.parent is None and not stored.known.dry
        if command not in _AGAIN or not is_serial:
            return
        serials.lock(self._connection, stored.code)
        for other in serials.others(self._connection, stored.code, but=stored.id):
            if other.state in GOING:
                key = version.definition.key
                raise WrongState(
                    f"run {other.id} of {key} is {other.state.value}, and only one goes at a time; "
                    f"{command} run {stored.id} when that one is over, or stop it"
                )

    def is_next(self, instance: int, code: int) -> bool:
        """Whether it is its turn: then it has to begin in this transaction."""
        serials.lock(self._connection, code)
        return serials.next_of(self._connection, code) == instance

    def left(self, written: Iterable[Stored], before: Mapping[int, Stored]) -> set[int]:
        """The shards whose runs wait for one that is over now."""
        codes = {
            each.code
            for each in written
            if each.known.state in OVER - {InstanceState.PAUSED}
            and (each.id not in before or before[each.id].known.state is not each.known.state)
        }
        return self.pokes | serials.shards_waiting(self._connection, codes)
