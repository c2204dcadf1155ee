"""Limits of projects: how many of their tasks run at a time, and what a start does meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from latchwork_workflows.db.history import told
from latchwork_workflows.db.policies import limits
from latchwork_workflows.db.policies.limits import Limit
from latchwork_workflows.db.views import slots
from latchwork_workflows.keys import project_group
from latchwork_workflows.services.limiting.holding import Held, check_name, held
from latchwork_workflows.services.parts import Parts, need
from latchwork_workflows.web import Identity, Problem, Role

#: Whose master tells the store.
_TELLS = 0


class LimitSeen(NamedTuple):
    """The limit of a project.

    Attributes:
        project: which.
        max_running_tasks: so many of its tasks run at a time.
        admission: what a start does while it has as many: ``suspend``, ``fail`` or ``precompute``.
        running: how many run now with a slot; None: the store cannot be asked.
        in_hands: how many are queued or run.
        waiting: how many are queued for a slot.
    """

    project: str
    max_running_tasks: int
    admission: str
    running: int | None
    in_hands: int
    waiting: int


def listed(parts: Parts, who: Identity, project: str = "") -> list[LimitSeen]:
    """The limits that somebody may see, by project; of one alone if it is given."""
    with parts.database.read() as connection:
        found = [each for each in limits.every(connection) if project in {"", each.project}]
        found = [each for each in found if who.may(Role.VIEWER, each.project)]
        count = {each.project: limits.in_hands(connection, each.project) for each in found}
        waiting = slots.waiting_counts(connection) if found else {}
    used = parts.slots()
    shown = []
    for each in found:
        group = project_group(each.project)
        running = None if used is None else len(used.get(group, ()))
        shown.append(LimitSeen(*each, running, count[each.project], waiting.get(group, 0)))
    return shown


def find(parts: Parts, who: Identity, project: str, *, most: int = 100) -> tuple[LimitSeen, Held]:
    """The limit of a project, who holds its slots and who waits for one.

    Raises:
        Problem: 404, it has none, or may not be seen.
    """
    with parts.database.read() as connection:
        limit = limits.find(connection, project) if who.may(Role.VIEWER, project) else None
        if limit is None:
            raise Problem(404, f"project {project[:100]!r} has no limit")
        count = limits.in_hands(connection, project)
    taken = parts.slots()
    with parts.database.read() as connection:
        found = held(connection, who, project_group(project), taken, most=most)
    running = None if found.holders is None else len(found.holders)
    return LimitSeen(*limit, running, count, found.waiting_count), found


def put(parts: Parts, who: Identity, limit: Limit) -> None:
    """Limit a project. It holds for tasks that are queued from now on; what is queued already is not counted.

    Raises:
        Problem: 403; 422, naming the field.
    """
    need(who, Role.EDITOR)
    check_name("project", limit.project)
    problems = []
    if not 1 <= limit.max_running_tasks <= limits.MOST_TASKS:
        problems.append(("max_running_tasks", f"{limit.max_running_tasks} is not from 1 to {limits.MOST_TASKS:,}"))
    if limit.admission not in limits.ADMISSIONS:
        problems.append(("admission", f"{limit.admission[:40]!r} is none of {', '.join(limits.ADMISSIONS)}"))
    if problems:
        path, message = problems[0]
        raise Problem(422, f"{path}: {message}", errors=problems)
    with parts.database.write() as connection:
        limits.put(connection, limit)
        told(connection, "limit set", by=who.name, project=limit.project, details=limit._asdict())
    parts.poke(_TELLS)


def remove(parts: Parts, who: Identity, project: str) -> None:
    """Limit a project no more.

    Raises:
        Problem: 403; 404, it has no limit.
    """
    need(who, Role.EDITOR)
    with parts.database.write() as connection:
        if not limits.remove(connection, project):
            raise Problem(404, f"project {project[:100]!r} has no limit")
        told(connection, "limit remove", by=who.name, project=project, details={"project": project})
    parts.poke(_TELLS)
