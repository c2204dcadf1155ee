"""Items made of attempts that are submitted: what workers are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from latchwork.errors import ValueTooLarge
from latchwork.workflows.database import settings
from latchwork.workflows.database.runs import Stored
from latchwork.workflows.definitions.specs import spec_of
from latchwork.workflows.definitions.templates import CONNECTION, names_in
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
                known[stored.id] = version, run_of(connection, version, stored)
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


def run_of(connection: sa.Connection, version: Version, stored: Stored) -> Run:
    """An instance, as values follow from it: with what is stored for its project now."""
    project = version.definition.project
    environments = settings.variables(connection, project, version.environments) if version.environments else {}
    return Run(
        version.definition,
        stored.id,
        stored.schedule_time,
        stored.params,
        settings.parameters(connection, project),
        environments,
        _connections(connection, project, version, environments),
    )


def _connections(
    connection: sa.Connection, project: str, version: Version, environments: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    if version.connections is None:
        return settings.urls(connection, project)
    named = {each[len(CONNECTION) :] for each in names_in(environments) if each.startswith(CONNECTION)}
    names = version.connections | named
    return settings.urls(connection, project, names) if names else {}
