"""Which workflows wait for runs of which: those whose `dependent` tasks name them, in the newest versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa
from pydantic import ValidationError

from latchwork_workflows.db.tables import definition, definition_version
from latchwork_workflows.model.logical import full_name
from latchwork_workflows.model.model import Definition
from latchwork_workflows.state.conditions import Other, leaves
from latchwork_workflows.types.logical import DependentParams


class Behind(NamedTuple):
    """A workflow that waits for another.

    Attributes:
        code: of it.
        version: its newest.
        definition: what that says.
    """

    code: int
    version: int
    definition: Definition


def behind(connection: sa.Connection, key: str, *, is_all: bool) -> list[Behind]:
    """The online workflows that wait for runs of one; the nearest first, each once, and never itself.

    Args:
        connection: a transaction.
        key: ``project.name`` of the one that they wait for.
        is_all: also those that wait for these, and so on.
    """
    waiting = [(each, frozenset(_waits_for(each.definition))) for each in _online(connection)]
    found: dict[str, Behind] = {}
    level = [key]
    while level:
        nearest = [each for each, names in waiting if names & set(level) and each.definition.key not in {key, *found}]
        found.update((each.definition.key, each) for each in nearest)
        level = [each.definition.key for each in nearest] if is_all else []
    return list(found.values())


def _online(connection: sa.Connection) -> Iterator[Behind]:
    newest = sa.and_(
        definition_version.c.code == definition.c.code, definition_version.c.version == definition.c.version
    )
    chosen = sa.select(definition.c.code, definition.c.version, definition_version.c.body)
    chosen = chosen.join(definition_version, newest).where(definition.c.online)
    chosen = chosen.where(definition_version.c.body.contains('"dependent"', autoescape=True))
    for row in connection.execute(chosen.order_by(definition.c.project, definition.c.name)):
        try:
            yield Behind(row.code, row.version, Definition.model_validate_json(row.body))
        except ValueError:
            continue  # of a later version


def _waits_for(body: Definition) -> Iterator[str]:
    for task in body.tasks:
        if task.type != "dependent" or not task.enabled:
            continue
        try:
            condition = DependentParams.model_validate(task.params).on.condition()
        except ValidationError:
            continue
        for leaf in leaves(condition):
            if isinstance(leaf, Other):
                yield from {leaf.workflow, full_name(leaf.workflow)}
