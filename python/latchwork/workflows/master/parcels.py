"""Items made of attempts that are submitted: what workers are given."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from latchwork.errors import ValueTooLarge
from latchwork.workflows.database.runs import Stored
from latchwork.workflows.database.tables import environment, parameter
from latchwork.workflows.definitions.model import Definition
from latchwork.workflows.definitions.specs import spec_of
from latchwork.workflows.definitions.values import Run
from latchwork.workflows.master.book import Attempt, Book
from latchwork.workflows.master.plans import Plans, Version
from latchwork.workflows.master.sending import Parcel, Place
from latchwork.workflows.state import base_of, index_of


def parcels_of(
    connection: sa.Connection, plans: Plans, shard: int, book: Book, attempts: Iterable[Attempt]
) -> tuple[list[Parcel], list[tuple[Attempt, str]]]:
    """What to put, and which attempts nobody can be given, with the reasons."""
    made: list[Parcel] = []
    failed: list[tuple[Attempt, str]] = []
    known: dict[int, tuple[Version, Run]] = {}
    for attempt in attempts:
        stored = book.instances[attempt.instance]
        try:
            if stored.id not in known:
                version = plans.get(connection, stored.code, stored.version)
                known[stored.id] = version, run_of(connection, version.definition, stored)
            made.append(_parcel(plans, shard, stored, attempt, *known[stored.id]))
        except KeyError as error:
            failed.append((attempt, f"nothing has the name {error.args[0]!r}, which a parameter refers to"))
        except (ValueError, ValueTooLarge) as error:
            failed.append((attempt, str(error)))
    return made, failed


def _parcel(  # noqa: PLR0917 - one caller
    plans: Plans, shard: int, stored: Stored, attempt: Attempt, version: Version, run: Run
) -> Parcel:
    task, index = version.tasks[base_of(attempt.name)], index_of(attempt.name)
    key = plans.cache_key(run, task, attempt.n, stored.outputs, index=index)
    place = (shard, stored.code, stored.version)
    spec = spec_of(run, task, attempt.task, attempt.n, stored.outputs, place=place, index=index, cache_key=key)
    value, body = spec.to_bytes()
    return Parcel(Place.of(stored.queue_keys[attempt.name], attempt.task, attempt.n, shard), value, body)


def run_of(connection: sa.Connection, definition: Definition, stored: Stored) -> Run:
    """An instance, as values follow from it.

    Raises:
        ValueError: there is no environment of that name.
    """
    chosen = sa.select(parameter.c.name, parameter.c.value).where(parameter.c.project.in_(["", definition.project]))
    shared = {row.name: row.value for row in connection.execute(chosen.order_by(parameter.c.project))}
    variables: dict[str, str] = {}
    if definition.environment is not None:
        found = sa.select(environment.c.variables).where(environment.c.name == definition.environment)
        there = connection.execute(found).scalar_one_or_none()
        if there is None:
            raise ValueError(f"there is no environment {definition.environment!r}; make it, or name another")
        variables = dict(there)
    return Run(definition, stored.id, stored.schedule_time, stored.params, shared, variables)
