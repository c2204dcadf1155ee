"""Workflows: what somebody may see of them, and how they change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from latchwork.schedules import Cron
from latchwork_workflows.db import definitions, families, settings
from latchwork_workflows.db.definitions import Version
from latchwork_workflows.db.history import told
from latchwork_workflows.db.policies import grants
from latchwork_workflows.db.tables import schedule, shard
from latchwork_workflows.db.views import catalog
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.model.forms import read
from latchwork_workflows.model.model import Definition
from latchwork_workflows.model.settings import naming
from latchwork_workflows.model.validate import Checked, checked
from latchwork_workflows.services.parts import Parts, need, seen
from latchwork_workflows.web import Identity, Problem, Role

Row: TypeAlias = Any


class Shown(NamedTuple):
    """A version of a workflow.

    Attributes:
        row: of the workflow: ``code``, ``project``, ``name``, ``version``, ``online``, ``created_at``, ``changed_at``.
        number: of the version that is shown.
        definition: what it says.
        schedule: its row, if it has one.
    """

    row: Row
    number: int
    definition: Definition
    schedule: Row | None


def find(parts: Parts, who: Identity, project: str, name: str) -> Row:
    """A workflow that somebody may see.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        return seen(who, catalog.find(connection, project, name), f"workflow {project}.{name}")


def show(parts: Parts, who: Identity, project: str, name: str, version: int | None = None) -> Shown:
    """A version of a workflow; None: the newest.

    Raises:
        Problem: 404.
    """
    with parts.database.read() as connection:
        row = seen(who, catalog.find(connection, project, name), f"workflow {project}.{name}")
        number = version or row.version
        body = catalog.body(connection, row.code, number)
        if body is None:
            raise Problem(404, f"workflow {project}.{name} has no version {number}; its newest is {row.version}")
        return Shown(row, number, body, catalog.find_schedule(connection, row.code))


def check(parts: Parts, who: Identity, given: str | Mapping[str, Any]) -> Checked:
    """A definition as text or as plain values; who may see its project is told what it names and is not stored there.

    Raises:
        DefinitionInvalid: with every problem.
    """
    plain = read(given) if isinstance(given, str) else given
    project = plain.get("project", "default")
    if not isinstance(project, str) or not who.may(Role.VIEWER, project):
        return checked(plain, parts.types)
    with parts.database.read() as connection:
        found = checked(plain, parts.types, settings.of_project(connection, project))
        wrong = list(grants.problems(connection, found.definition))
    if wrong:
        raise DefinitionInvalid(wrong)
    return found


def apply(
    parts: Parts, who: Identity, given: str | Mapping[str, Any], *, online: bool | None = None, base: int | None = None
) -> tuple[Version, Definition]:
    """Write a definition, as a new version if it differs.

    Args:
        parts: of the desk.
        who: does it; needs to be an editor of its project.
        given: the definition.
        online: whether it may be started. None: a new workflow may, and one that is there stays as it is.
        base: the version that was edited; None: whatever there is. 0: there is none.
    Raises:
        DefinitionInvalid: with every problem.
        Problem: 403; 409 if somebody else has written a newer version than ``base``.
    """
    found = check(parts, who, given)
    wanted = found.definition
    need(who, Role.EDITOR, wanted.project)
    with parts.database.write() as connection:
        there = catalog.find(connection, wanted.project, wanted.name)
        newest = there.version if there is not None else 0
        if base is not None and base != newest:
            raise Problem(
                409,
                f"{wanted.key} has version {newest} now, and version {base} was edited; compare them, then apply again",
                version=newest,
            )
        wrong = [*families.rings(connection, [wanted], may_see=partial(who.may, Role.VIEWER))[0]]
        wrong += grants.problems(connection, wanted)
        wrong += naming.problems(wanted, settings.of_project(connection, wanted.project))
        if wrong:
            raise DefinitionInvalid(wrong)
        shards = connection.execute(sa.select(sa.func.count()).select_from(shard)).scalar_one()
        version = definitions.apply(connection, found, shards=max(1, shards), author=who.name, online=online)
        if version.is_new or (there is not None and there.online != version.is_online):
            details = {"workflow": wanted.name, "version": version.number, "online": version.is_online}
            told(connection, "workflow apply", by=who.name, project=wanted.project, details=details)
    if any(each.pool is not None for each in wanted.tasks):
        parts.poke(0)  # its master copies the size of a new pool to the store
    return version, wanted


def set_online(parts: Parts, who: Identity, project: str, name: str, *, online: bool) -> None:
    """Whether a workflow may be started; runs that are there go on.

    Raises:
        Problem: 403, 404.
    """
    row = find(parts, who, project, name)
    need(who, Role.EDITOR, project)
    with parts.database.write() as connection:
        definitions.set_online(connection, row.code, online=online)
        kind = "workflow online" if online else "workflow offline"
        told(connection, kind, by=who.name, project=project, details={"workflow": name})


def set_schedule(parts: Parts, who: Identity, project: str, name: str, *, enabled: bool) -> None:
    """Whether its schedule starts it. Switched on again, it owes nothing of the time in between.

    Raises:
        Problem: 403, 404.
    """
    row = find(parts, who, project, name)
    need(who, Role.OPERATOR, project)
    now = time.time()
    with parts.database.write() as connection:
        there = sa.and_(schedule.c.code == row.code, schedule.c.enabled != enabled)
        values = {"enabled": enabled, "cursor": sa.case((schedule.c.cursor < now, now), else_=schedule.c.cursor)}
        connection.execute(sa.update(schedule).where(there).values(values if enabled else {"enabled": False}))
        if catalog.find_schedule(connection, row.code) is None:
            raise Problem(404, f"workflow {project}.{name} has no schedule")
        kind = "schedule on" if enabled else "schedule off"
        told(connection, kind, by=who.name, project=project, details={"workflow": name})


def fires(cron: str, tz: str = "UTC", count: int = 5, after: float | None = None) -> list[float]:
    """The next moments at which a schedule fires.

    Raises:
        Problem: 422, the expression or the time zone is wrong, or it never fires.
    """
    try:
        return list(islice(_moments(Cron(cron, tz=tz), time.time() if after is None else after), count))
    except (ValueError, OverflowError) as error:
        path = "tz" if "time zone" in str(error) else "cron"
        raise Problem(422, f"{path}: {error}", errors=[(path, str(error))]) from None


def next_fires(row: Row, now: float, count: int) -> list[float]:
    """The next moments at which a schedule starts its workflow: within its window, so there may be fewer, or none.

    Args:
        row: with ``cron``, ``tz``, ``starts_at`` and ``ends_at``.
        now: seconds since the epoch.
        count: so many.
    """
    at = now if row.starts_at is None else max(now, row.starts_at - 0.001)
    found: list[float] = []
    try:
        for each in islice(_moments(Cron(row.cron, tz=row.tz), at), count):
            if row.ends_at is not None and each > row.ends_at:
                break
            found.append(each)
    except (ValueError, OverflowError):
        pass  # it never fires again, or nobody can say
    return found


def _moments(cron: Cron, at: float) -> Iterator[float]:
    while True:
        at = cron.fire_after(at)
        yield at


def next_fire(row: Row, now: float) -> float | None:
    """When a schedule fires next; None: never, or nobody can say. Arguments as for ``next_fires``."""
    return next(iter(next_fires(row, now, 1)), None)
