"""Items made of attempts that are submitted, and the choices of switches: what follows from values of a run."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import sqlalchemy as sa

from latchwork_workflows.db import Database, settings
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.master.blame import is_of_run, why_of
from latchwork_workflows.master.book import Attempt, Book
from latchwork_workflows.master.plans import Plans, Version
from latchwork_workflows.master.sending import Parcel, Place
from latchwork_workflows.model.logical import chosen
from latchwork_workflows.model.specs import spec_of
from latchwork_workflows.model.templates import CONNECTION, names_in
from latchwork_workflows.model.values import Run, values_of
from latchwork_workflows.state import Task, TaskState, base_of, index_of

#: So many switches are decided in one turn,
MOST_CHOICES = 200
#: and after so many seconds no further one.
_CHOICES_S = 0.2


class Choice(NamedTuple):
    """What a switch has chosen.

    Attributes:
        heads: The tasks that go on.
        why: Why it cannot be decided; empty if it was.
    """

    heads: tuple[str, ...] = ()
    why: str = ""


class Parcels:
    """What the workers of one shard are given. For one thread.

    Args:
        database: where runs, and what is stored for their projects, are read.
        plans: the versions that are known.
        shard: which.
    """

    def __init__(self, database: Database, plans: Plans, shard: int) -> None:
        self._database = database
        self._plans = plans
        self._shard = shard
        self._runs: dict[int, tuple[Version, Run]] = {}

    def read(self, connection: sa.Connection, written: Iterable[Stored]) -> None:
        """Read what items of these will be made of, in the transaction that wrote them: ``make`` needs none then.

        What cannot be read here is left to ``make``.
        """
        self._runs = {}
        parameters: dict[str, Mapping[str, Any]] = {}
        for stored in written:
            if any(map(_is_queued, stored.known.tasks.values())):
                with suppress(ValueError):
                    self._read(connection, stored, parameters)

    def _read(self, connection: sa.Connection, stored: Stored, parameters: dict[str, Mapping[str, Any]]) -> None:
        version = self._plans.get(connection, stored.code, stored.version)
        project = version.definition.project
        if project not in parameters:
            parameters[project] = settings.parameters(connection, project)
        self._runs[stored.id] = version, run_of(connection, version, stored, parameters[project])

    def make(self, book: Book, attempts: Collection[Attempt]) -> tuple[list[Parcel], list[tuple[Attempt, str]]]:
        """What to put, and which attempts nobody can be given, with the reasons."""
        unread = self._read_rest(book, {each.instance for each in attempts})
        made: list[Parcel] = []
        failed = [(each, unread[each.instance]) for each in attempts if each.instance in unread]
        for attempt in (each for each in attempts if each.instance not in unread):
            try:
                made.append(self._parcel(book.instances[attempt.instance], attempt))
            except Exception as error:
                if not is_of_run(error):
                    raise
                failed.append((attempt, why_of(error)))
        self._runs = {}
        return made, failed

    def choose(self, book: Book, held: Collection[Attempt]) -> dict[Attempt, Choice | None]:
        """Decide switches; no transaction is open while their expressions are evaluated.

        Args:
            book: What is known.
            held: Tasks that the master holds.
        Returns:
            The choices of those that are switches, and None for the others. The rest may be missing if it takes long.
        """
        switches = self._switches(book, held)
        made: dict[Attempt, Choice | None] = dict.fromkeys(set(held) - set(switches))
        switches = switches[:MOST_CHOICES]
        unread = self._read_rest(book, {each.instance for each in switches})
        until = time.monotonic() + _CHOICES_S
        for attempt in switches:
            why = unread.get(attempt.instance, "")
            made[attempt] = Choice(why=why) if why else self._choice(book.instances[attempt.instance], attempt)
            if time.monotonic() > until:
                break
        self._runs = {}
        return made

    def _switches(self, book: Book, held: Iterable[Attempt]) -> list[Attempt]:
        """Those that are switches, or of a version that cannot be read."""
        found: list[Attempt] = []
        with self._database.read() as connection:
            for attempt in held:
                stored = book.instances[attempt.instance]
                try:
                    plan = self._plans.get(connection, stored.code, stored.version).plan
                except Exception as error:
                    if not is_of_run(error):
                        raise
                    found.append(attempt)
                else:
                    found += [attempt] if plan.kind(attempt.name) == "switch" else []
        return found

    def _choice(self, stored: Stored, attempt: Attempt) -> Choice:
        version, run = self._runs[stored.id]
        task = version.tasks[attempt.name]
        try:
            return Choice(tuple(chosen(task, values_of(run, task, attempt.n, stored.outputs), stored.outputs)))
        except Exception as error:
            if not is_of_run(error):
                raise
            return Choice(why=why_of(error))

    def _read_rest(self, book: Book, instances: set[int]) -> dict[int, str]:
        rest = [book.instances[each] for each in sorted(instances - self._runs.keys())]
        if not rest:
            return {}
        failed: dict[int, str] = {}
        parameters: dict[str, Mapping[str, Any]] = {}
        with self._database.read() as connection:
            for stored in rest:
                try:
                    with connection.begin_nested():  # PostgreSQL takes nothing more after an error
                        self._read(connection, stored, parameters)
                except Exception as error:
                    if not is_of_run(error):
                        raise
                    failed[stored.id] = why_of(error)
        return failed

    def _parcel(self, stored: Stored, attempt: Attempt) -> Parcel:
        version, run = self._runs[stored.id]
        task, index = version.tasks[base_of(attempt.name)], index_of(attempt.name)
        key = self._plans.cache_key(run, task, attempt.n, stored.outputs, index=index)
        place = (self._shard, stored.code, stored.version)
        spec = spec_of(run, task, attempt.task, attempt.n, stored.outputs, place=place, index=index, cache_key=key)
        value, body = spec.to_bytes()
        return Parcel(Place.of(stored.queue_keys[attempt.name], attempt.task, attempt.n, self._shard), value, body)


def _is_queued(task: Task) -> bool:
    return task.state is TaskState.SUBMITTED


def run_of(
    connection: sa.Connection, version: Version, stored: Stored, parameters: Mapping[str, Any] | None = None
) -> Run:
    """An instance, as values follow from it: with what is stored for its project now; its parameters may be given."""
    project = version.definition.project
    environments = settings.variables(connection, project, version.environments) if version.environments else {}
    return Run(
        version.definition,
        stored.id,
        stored.schedule_time,
        stored.params,
        settings.parameters(connection, project) if parameters is None else parameters,
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
