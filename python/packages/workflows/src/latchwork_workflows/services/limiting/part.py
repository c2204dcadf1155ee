"""What programs ask of task groups and limits of projects; a part of ``WorkflowClient``."""

from __future__ import annotations

from latchwork_workflows.db.policies.limits import Limit
from latchwork_workflows.looking import Looks, told
from latchwork_workflows.services.limiting import groups, limits
from latchwork_workflows.services.limiting.groups import GroupSeen
from latchwork_workflows.services.limiting.holding import Held
from latchwork_workflows.services.limiting.limits import LimitSeen


class Limiting(Looks):
    """How many tasks of a group, or of a project, run at a time. Safe to share between threads."""

    def groups(self) -> list[GroupSeen]:
        """All task groups, by name, with the workflows that name them."""
        with told():
            return groups.listed(self._parts, self._who)

    def group(self, name: str, *, most: int = 100) -> tuple[GroupSeen, Held]:
        """A task group, who holds its slots, and the first ``most`` of those who wait for one.

        Raises:
            UnknownWorkflow: there is none.
        """
        with told():
            return groups.find(self._parts, self._who, name, most=most)

    def set_group(self, name: str, size: int) -> None:
        """Make a task group, or change how many of its tasks run at a time.

        Raises:
            BadRequest: the name or the size is none.
        """
        with told():
            groups.put(self._parts, self._who, name, size)

    def remove_group(self, name: str) -> None:
        """Remove a task group that no workflow names.

        Raises:
            UnknownWorkflow: there is none.
            WrongState: workflows name it.
        """
        with told():
            groups.remove(self._parts, self._who, name)

    def limits(self, project: str = "") -> list[LimitSeen]:
        """How many tasks of projects run at a time, by project; of one alone if it is given."""
        with told():
            return limits.listed(self._parts, self._who, project)

    def limit(self, project: str, *, most: int = 100) -> tuple[LimitSeen, Held]:
        """The limit of a project, who holds its slots, and the first ``most`` of those who wait for one.

        Raises:
            UnknownWorkflow: it has no limit.
        """
        with told():
            return limits.find(self._parts, self._who, project, most=most)

    def set_limit(self, project: str, max_running_tasks: int, admission: str = "suspend") -> None:
        """Limit how many tasks of a project run at a time. It holds for tasks that are queued from now on.

        Args:
            project: which.
            max_running_tasks: so many.
            admission: what a start does while it has as many: ``suspend`` (its tasks wait), ``fail``, or ``precompute``
                (it waits until they fit).
        Raises:
            BadRequest: a value is none.
        """
        with told():
            limits.put(self._parts, self._who, Limit(project, max_running_tasks, admission))

    def remove_limit(self, project: str) -> None:
        """Limit a project no more.

        Raises:
            UnknownWorkflow: it has no limit.
        """
        with told():
            limits.remove(self._parts, self._who, project)
