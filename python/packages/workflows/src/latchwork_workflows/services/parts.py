"""What the desk stands on: the database, and as far as they are there, the logs and the store."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from fastapi import Request
from pydantic import BaseModel, ValidationError

from latchwork.errors import LatchworkError
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.lineage import Known
from latchwork_workflows.db.views import catalog
from latchwork_workflows.logs import LogStore
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import Identity, Problem, Role

_log = logging.getLogger(__name__)
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class WorkerSeen(NamedTuple):
    """A worker that lives.

    Attributes:
        name: of it.
        host: where it runs.
        groups: whose tasks it takes.
        slots: how many at a time.
        busy: how many it has now.
        types: the task types that it knows.
        version: of latchwork.
        state: such as ``running`` or ``draining``.
        attempts: that it has now, as ``<task>.<n>``, sorted.
        tenants: users that tasks may name there; ``-``: tasks may name none. Empty: not known.
    """

    name: str
    host: str = ""
    groups: tuple[str, ...] = ()
    slots: int = 0
    busy: int = 0
    types: tuple[str, ...] = ()
    version: str = ""
    state: str = "running"
    attempts: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()


class Line(NamedTuple):
    """The head of a lane of the queue.

    Attributes:
        free: the items that nobody has taken, in order, as ``<shelf>/<id>``.
        is_whole: whether these are all.
    """

    free: tuple[str, ...]
    is_whole: bool


class Cluster(Protocol):
    """What is asked of the store. Safe to share; its methods block, and may raise ``LatchworkError``."""

    def poke(self, shard: int) -> None:
        """Tell the owner of a shard to look now; a hint that may be lost."""
        ...

    def workers(self) -> Sequence[WorkerSeen]:
        """Those that live, by name."""
        ...

    def slots(self) -> Mapping[str, Sequence[str]]:
        """Return the attempts that hold slots, as ``<task>.<n>``, by the names that these have in keys."""
        ...

    def line(self, lane: str, most: int) -> Line | None:
        """The first so many that nobody has taken; None: too many are taken to say."""
        ...

    def cancelled(self, attempts: Sequence[str]) -> Mapping[str, float]:
        """Of these attempts, as ``<task>.<n>``, those whose cancel was sent, with when; 0: not known when."""
        ...


@dataclass(eq=False)
class Parts:
    """All that routes need. Safe to share.

    Attributes:
        database: of the workflows.
        accounts: who may come in.
        types: the task types that may be applied.
        logs: where attempts write; None: they cannot be read here.
        cluster: the store; None: masters find commands within some seconds, workers are not seen.
        lineage: what workflows name, read once for each version.
    """

    database: Database
    accounts: DatabaseAccounts
    types: TaskTypes = field(default_factory=TaskTypes)
    logs: LogStore | None = None
    cluster: Cluster | None = None
    lineage: Known = field(default_factory=Known)

    def poke(self, shard: int) -> None:
        """As that of the cluster, but whatever happens the command is written: it is found a little later."""
        if self.cluster is None:
            return
        try:
            self.cluster.poke(shard)
        except LatchworkError:
            _log.debug("shard %s was not poked", shard, exc_info=True)

    def slots(self) -> Mapping[str, Sequence[str]] | None:
        """Return the attempts that hold slots. None: the store cannot be reached."""
        return self._asked("slots", lambda cluster: cluster.slots())

    def workers(self) -> Sequence[WorkerSeen] | None:
        """The workers that live; None: the store cannot be asked."""
        return self._asked("workers", lambda cluster: cluster.workers())

    def line(self, lane: str, most: int) -> Line | None:
        """The first so many of a lane that nobody has taken; None: that is not known."""
        return self._asked("queue", lambda cluster: cluster.line(lane, most))

    def cancelled(self, attempts: Sequence[str]) -> Mapping[str, float]:
        """Of these attempts those whose cancel was sent, as far as the store can be asked, with when."""
        return (self._asked("cancels", lambda cluster: cluster.cancelled(attempts)) if attempts else None) or {}

    def _asked(self, what: str, ask: Callable[[Cluster], T]) -> T | None:
        if self.cluster is None:
            return None
        try:
            return ask(self.cluster)
        except LatchworkError:
            _log.debug("the %s were not read", what, exc_info=True)
            return None


def parts_of(request: Request) -> Parts:
    """The parts of an app."""
    parts: Parts = request.app.state.parts
    return parts


def need(who: Identity, role: Role, project: str = "") -> None:
    """Refuse somebody without this role.

    Raises:
        Problem: 403, which names the role and where it is missing.
    """
    if not who.may(role, project):
        where = f"in project {project!r}" if project else "in all projects"
        raise Problem(403, f"{who.name} is no {role.word} {where}; ask an administrator for that role", needs=role.word)


def valid(kind: type[M], **values: Any) -> M:
    """Return a document with these values.

    Raises:
        Problem: 422 with the invalid fields.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
        raise Problem(422, f"{errors[0][0]}: {errors[0][1]}", errors=errors) from None


def check_name(field_name: str, name: str) -> None:
    """Refuse an invalid name of a project.

    Raises:
        Problem: 422.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        why = f"{name!r:.60} is no name; use up to 100 letters, digits, '_', '-' and '.'"
        raise Problem(422, f"{field_name}: {why}", errors=[(field_name, why)])


def need_any(who: Identity) -> None:
    """Refuse an account that has no role in any project.

    Raises:
        Problem: 403.
    """
    if not who.may_somewhere(Role.VIEWER):
        raise Problem(403, f"{who.name} has no role in any project; ask an administrator for one", needs="viewer")


def seen_codes(connection: sa.Connection, who: Identity, project: str = "") -> list[int] | None:
    """The workflows that somebody may see, of one project if one is given; None: all."""
    among = who.projects()
    return None if among is None and not project else list(catalog.codes(connection, among, project))


def seen(who: Identity, row: sa.Row[Any] | None, what: str) -> sa.Row[Any]:
    """The row, if there is one and they may see its project: what they may not see is not there for them.

    Raises:
        Problem: 404.
    """
    if row is None or not who.may(Role.VIEWER, row.project):
        raise Problem(404, f"there is no {what}")
    return row
