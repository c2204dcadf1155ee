"""Tasks that wait for a workflow of which something has ended look: in rounds, so many in one transaction.

What is left of a round is a command of the transaction that did the part before it. What ends meanwhile begins no round
of its own: its command waits until the round is over, and then one round is for all that ended.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from latchwork_workflows.db import commands, families
from latchwork_workflows.db.commands import CommandRow, CommandType, ask
from latchwork_workflows.master import orders

#: So many runs look in one transaction, of those that wait for one workflow: all shards of a node may do so at once.
MOST_WOKEN = 50


class Waking:
    """The rounds of one transaction. For one thread.

    Args:
        connection: a transaction that the guard has begun.
        shard: whose runs look.
        now: seconds since the epoch.
        wake: has a run look.
    """

    def __init__(self, connection: sa.Connection, shard: int, now: float, wake: Callable[[int], None]) -> None:
        self._connection = connection
        self._shard = shard
        self._now = now
        self._wake = wake
        self._done: set[int] = set()
        #: There is more to do, for which a command was written.
        self.goes_on = False

    def is_done(self, row: CommandRow) -> bool:
        """Whether another command of this transaction was for this one, too."""
        return row.id in self._done

    def command(self, row: CommandRow) -> None:
        """Of a workflow of which something has ended: begin a round, or go on with one.

        Raises:
            Malformed: it names no workflow.
        """
        code, after = row.args.get("code"), row.args.get("after", 0)
        if not isinstance(code, int) or not isinstance(after, int):
            raise orders.Malformed(f"command {row.id} wakes nobody")
        if not after and self._is_on_its_way(code, row.id):
            self._go_on(code, 0)  # behind the rest of that round
            return
        found = families.waiting_for(self._connection, self._shard, code, after=after, most=MOST_WOKEN)
        for instance in found:
            self._wake(instance)
        if len(found) == MOST_WOKEN:
            self._go_on(code, found[-1])

    def _is_on_its_way(self, code: int, number: int) -> bool:
        """Whether a round of this workflow is not over; the other commands that ask for one are done."""
        others = commands.open_wakes(self._connection, self._shard, code, but=number)
        for other, after in others.items():
            if not after:
                self._done.add(other)
                commands.done(self._connection, other, self._now, instance=None, error=None)
        return any(others.values())

    def _go_on(self, code: int, after: int) -> None:
        ask(self._connection, CommandType.WAKE, shard_id=self._shard, args={"code": code, "after": after})
        self.goes_on = True
