"""Workflows and schedules, for clients."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TypeAlias

from pydantic import ValidationError

from latchwork_workflows.bundles import pack_bundle
from latchwork_workflows.client.transport import Transport, build_resource_path, split_workflow_name
from latchwork_workflows.deployment import find_code_path, list_workflows, set_bundle
from latchwork_workflows.errors import DefinitionInvalid, NotFound
from latchwork_workflows.errors import Problem as DefinitionProblem
from latchwork_workflows.model.builder import Workflow as BuiltWorkflow
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.schemas.schedules import FireTimes, Schedule, ScheduleChange
from latchwork_workflows.schemas.workflows import (
    AppliedVersion,
    ApplyRequest,
    OnlineChange,
    StoredBundle,
    Validation,
    Workflow,
    WorkflowDetail,
    WorkflowVersion,
)

#: A definition: what ``@workflow`` made, YAML or JSON text, or plain values.
Given: TypeAlias = BuiltWorkflow | Definition | str | Mapping[str, Any]
_PAGE = 500


class WorkflowsClient:
    """Workflows and their versions. ``name`` is ``project.name``, or a name in the project ``default``."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self, contains: str = "") -> builtins.list[Workflow]:
        """Return all workflows whose project or name contains a text, sorted by project and name."""
        return [*self._all(contains)]

    def _all(self, contains: str) -> Iterator[Workflow]:
        after = ""
        while True:
            found = self._api.get("/workflows", list[Workflow], contains=contains, after=after, limit=_PAGE)
            yield from found
            if len(found) < _PAGE:
                return
            after = found[-1].key

    def get(self, name: str, version: int | None = None) -> WorkflowDetail:
        """Return a workflow with the definition of one version.

        Args:
            name: The workflow.
            version: The version. None: the newest one.
        Raises:
            NotFound: There is no such workflow or version.
        """
        return self._api.get(
            build_resource_path("workflows", *split_workflow_name(name)), WorkflowDetail, version=version
        )

    def versions(self, name: str, *, before: int | None = None, limit: int = 50) -> builtins.list[WorkflowVersion]:
        """Return the versions of a workflow, newest first.

        Args:
            name: The workflow.
            before: Return only lower version numbers, for the next page.
            limit: The maximum number of results.
        Raises:
            NotFound: There is no such workflow.
        """
        where = build_resource_path("workflows", *split_workflow_name(name), "versions")
        return self._api.get(where, list[WorkflowVersion], before=before, limit=limit)

    def validate(self, definition: Given) -> builtins.list[DefinitionProblem]:
        """Return all problems of a definition. An empty list means that the definition is valid."""
        try:
            found = self._api.post("/workflows:validate", _request(definition), Validation)
        except DefinitionInvalid as error:  # no JSON can have its values
            return error.problems
        return [DefinitionProblem(each.path, each.message) for each in found.errors]

    def apply(self, definition: Given, *, online: bool | None = None, base: int | None = None) -> AppliedVersion:
        """Store a definition of a workflow. It becomes a new version if it differs from the newest version.

        Args:
            definition: A ``Workflow``, YAML or JSON text, or plain values.
            online: Whether the workflow can be started. None: a new workflow can be started, and an existing one stays
                as it is.
            base: The version on which the definition is based. The change is refused if there is a newer version. None:
                no check.
        Raises:
            DefinitionInvalid: The definition has problems, which are listed in ``problems``.
            WrongState: The newest version is not ``base``.
        """
        return self._api.post("/workflows", _request(definition, online=online, base=base), AppliedVersion)

    def deploy(
        self, module: ModuleType, *, bundle: bool = True, online: bool | None = None
    ) -> builtins.list[tuple[BuiltWorkflow, AppliedVersion]]:
        """Store all workflows of a module with the code of the module. Stores none of them if one is invalid.

        Args:
            module: A module with functions decorated by ``@workflow``.
            bundle: Whether to pack the file or the package of the module for the workers. False: the workers have the
                code installed.
            online: Whether the workflows can be started. None: new workflows can be started, and existing ones stay as
                they are.
        Raises:
            NotFound: The module has no workflows.
            DefinitionInvalid: A workflow is invalid. Contains the problems of the first one.
            BadBundle: The code cannot be packed.
        """
        found = list_workflows(module)
        if not found:
            raise NotFound(f"module {module.__name__} has no workflows; put @workflow before a function")
        definitions = [each.definition for each in found]
        if bundle:
            data = pack_bundle(find_code_path(module)).data
            sha256 = self._api.upload("/bundles", data, StoredBundle).sha256
            definitions = [set_bundle(each, module, sha256) for each in definitions]
        for each in definitions:
            if problems := self.validate(each):
                raise DefinitionInvalid(problems)
        applied = [self.apply(each, online=online) for each in definitions]
        return list(zip(found, applied, strict=True))

    def set_online(self, name: str, *, online: bool) -> None:
        """Set a workflow online, so that it may be started, or offline. Active runs continue."""
        where = build_resource_path("workflows", *split_workflow_name(name), "online")
        self._api.put(where, OnlineChange(online=online), type(None))


class SchedulesClient:
    """Schedules of workflows."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def list(self, *, count: int = 1) -> builtins.list[Schedule]:
        """Return all schedules with their next ``count`` fire times, sorted by project and name."""
        return self._api.get("/schedules", list[Schedule], count=count)

    def find(self, name: str, *, count: int = 1) -> Schedule | None:
        """Return the schedule of a workflow, or None if it has no schedule.

        Raises:
            NotFound: There is no such workflow.
        """
        project, workflow = split_workflow_name(name)
        found = self._api.get("/schedules", list[Schedule], project=project, workflow=workflow, count=count)
        return found[0] if found else None

    def set_enabled(self, name: str, *, enabled: bool) -> None:
        """Enable or disable the schedule of a workflow.

        Fire times that pass while the schedule is disabled are not caught up.
        """
        where = build_resource_path("workflows", *split_workflow_name(name), "schedule")
        self._api.put(where, ScheduleChange(enabled=enabled), type(None))

    def preview(self, cron: str, tz: str = "UTC", count: int = 5) -> builtins.list[float]:
        """Return the next times at which a cron expression fires, in seconds since the epoch.

        Raises:
            BadRequest: The expression or the time zone is wrong.
        """
        return self._api.get("/schedules:preview", FireTimes, cron=cron, tz=tz, count=count).fires


def _request(definition: Given, **more: Any) -> ApplyRequest:
    if isinstance(definition, BuiltWorkflow):
        definition = definition.definition
    if isinstance(definition, Definition):
        definition = definition.model_dump(mode="json", exclude_defaults=True)
    more["yaml" if isinstance(definition, str) else "definition"] = definition
    try:
        return ApplyRequest(**more)
    except ValidationError as error:
        found = [DefinitionProblem("", each["msg"].removeprefix("Value error, ")) for each in error.errors()]
        raise DefinitionInvalid(found) from None
