"""Finds the stored settings that a definition uses: connections, environments and parameters. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from latchwork_workflows.errors import Problem
from latchwork_workflows.model.definition import Definition, TaskSpec
from latchwork_workflows.model.templates import CONNECTION, iter_names


@dataclass(frozen=True)
class StoredSettings:
    """The names of settings available to a project: its own and the shared ones.

    Attributes:
        connections: The names of connections.
        environments: The names of variables, by environment.
        parameters: The names of parameters.
    """

    connections: frozenset[str] = frozenset()
    environments: Mapping[str, frozenset[str]] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()

    def list_names_for(self, definition: Definition, task: TaskSpec | None) -> frozenset[str]:
        """Return the names of stored settings that ``${name}`` may refer to.

        Args:
            definition: The definition.
            task: The task with the reference. None: a parameter of the workflow has it.
        """
        name = (task.environment if task is not None else None) or definition.environment
        return self.parameters | self.environments.get(name or "", frozenset())


def list_environments(definition: Definition) -> frozenset[str]:
    """Return the names of the environments that a definition uses."""
    named = (definition.environment, *(each.environment for each in definition.tasks))
    return frozenset(each for each in named if each is not None)


def list_connections(definition: Definition) -> frozenset[str] | None:
    """Return the names of the stored connections that a definition uses, or None if any connection may be used.

    Any connection may be used if a name is computed at run time.
    """
    found = set()
    for task in definition.tasks:
        for name in _iter_connections(task):
            if "${" in name:
                return None
            found.add(name)
    return frozenset(found)


def find_missing_settings(definition: Definition, settings: StoredSettings) -> Iterator[Problem]:
    """Yield a problem with its path for each connection or environment that a definition uses but that does not
    exist.
    """
    for path, kind, name in _iter_uses(definition):
        there = settings.connections if kind == "connection" else settings.environments
        if name not in there:
            yield Problem(path, f"there is no {kind} {name!r:.110} {_owner_text(definition, there)}")


def report_used_settings(definition: Definition) -> Iterator[Problem]:
    """Yield a problem for each connection or environment that a definition uses, as if none of them existed.

    Callers that do not know which settings exist show this list.
    """
    for path, kind, name in _iter_uses(definition):
        yield Problem(path, f"{kind} {name!r:.110}")


def _iter_uses(definition: Definition) -> Iterator[tuple[str, str, str]]:
    """Yield each use of a setting in a definition: its path, and the kind and name of the setting."""
    if definition.environment is not None:
        yield "environment", "environment", definition.environment
    for index, task in enumerate(definition.tasks):
        path = f"tasks[{index}]"
        if task.environment is not None:
            yield f"{path}.environment", "environment", task.environment
        for name in _iter_connections(task):
            if "${" not in name:
                yield f"{path}.params.connection" if _connection_name(task) == name else path, "connection", name


def _owner_text(definition: Definition, there: Mapping[str, object] | frozenset[str]) -> str:
    known = sorted(there)[:20]
    what = f"only {', '.join(known)}" if known else "nor any other"
    return f"of project {definition.project} or of all, {what}; set it first"


def _iter_connections(task: TaskSpec) -> Iterator[str]:
    """Yield the connection names that a task uses. A name that is computed at run time is returned as written."""
    name = _connection_name(task)
    if name is not None:
        yield name
    for each in iter_names([task.params, task.env]):
        if each.startswith(CONNECTION):
            yield each[len(CONNECTION) :]


def _connection_name(task: TaskSpec) -> str | None:
    given = task.params.get("connection")
    return given if isinstance(given, str) and "://" not in given else None
