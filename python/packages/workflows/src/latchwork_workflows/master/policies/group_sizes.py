"""Sizes of task groups and limits of projects, told to the store by the first shard's master: one writer, fenced.

Workers have no database. What the store has is read once for each hold of the shard; from then on it is what we wrote.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from latchwork_workflows.db.policies import groups, limits
from latchwork_workflows.keys import project_group
from latchwork_workflows.master.sending import Sending

#: Whose master it is.
FIRST_SHARD = 0


class GroupSizes:
    """For one thread.

    Args:
        shard: which; only the first does anything.
        sending: the store, under its fence.
    """

    def __init__(self, shard: int, sending: Sending) -> None:
        self._is_ours = shard == FIRST_SHARD
        self._sending = sending
        self._wanted: Mapping[str, int] | None = None
        self._told: Mapping[str, int] | None = None

    def forget(self) -> None:
        """What the store has is not known."""
        self._told = None

    def look(self, connection: sa.Connection) -> None:
        """Read what it should have."""
        if self._is_ours:
            of_projects = {project_group(each.project): each.max_running_tasks for each in limits.every(connection)}
            self._wanted = {**groups.sizes(connection), **of_projects}

    def tell(self) -> None:
        """Write what differs."""
        if self._wanted is not None and self._wanted != self._told:
            self._sending.set_sizes(self._wanted)
            self._told = self._wanted
