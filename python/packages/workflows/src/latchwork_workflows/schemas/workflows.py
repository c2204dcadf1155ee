"""Workflows and their versions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from latchwork_workflows.model.definition import Definition
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.problems import FieldProblem
from latchwork_workflows.schemas.values import Plain


class Workflow(Document):
    """A workflow.

    Attributes:
        code: The ID of the workflow, which never changes.
        project: The project that it belongs to.
        name: Its name, unique in the project.
        version: The newest version.
        online: Whether it can be started.
        created_at: When its first version was applied.
        changed_at: When its newest version was applied.
        cron: The cron expression of its schedule. None: it has no schedule.
        tz: The time zone of the schedule.
        scheduled: Whether the schedule is enabled.
        next_at: When the schedule starts it next. None: never.
    """

    code: int
    project: str
    name: str
    version: int
    online: bool
    created_at: float
    changed_at: float
    cron: str | None = None
    tz: str | None = None
    scheduled: bool = False
    next_at: float | None = None

    @property
    def key(self) -> str:
        """The full name of the workflow, ``project.name``."""
        return f"{self.project}.{self.name}"


class WorkflowDetail(Workflow):
    """A workflow with the definition of one of its versions.

    Attributes:
        shown_version: The version of the definition.
        definition: The definition.
    """

    shown_version: int
    definition: Definition


class WorkflowVersion(Document):
    """A version of a workflow.

    Attributes:
        version: Its number, from 1.
        created_at: When it was applied.
        author: The account that applied it.
    """

    version: int
    created_at: float
    author: str


class ApplyRequest(Document):
    """A definition to apply: one of ``definition`` and ``yaml``.

    Attributes:
        definition: The definition as values.
        yaml: The definition as YAML or JSON.
        online: Whether the workflow can be started. None: a new workflow can be, and an existing one stays as it is.
        base: Refuse the change unless this is the newest version. 0: there is no version yet.
    """

    definition: Plain | None = None
    yaml: Annotated[str | None, StringConstraints(max_length=4_000_000)] = None
    online: bool | None = None
    base: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None


class AppliedVersion(Document):
    """The version that an applied definition became.


    Attributes:
        project: The project of the workflow.
        name: The name of the workflow.
        code: The ID of the workflow.
        version: The number of the version, from 1.
        is_new: False: the newest version had the same definition.
        online: Whether the workflow can be started.
    """

    project: str
    name: str
    code: int
    version: int
    is_new: bool
    online: bool


class Validation(Document):
    """The problems of a definition. Empty: it can be applied."""

    ok: bool
    errors: list[FieldProblem]


class OnlineChange(Document):
    """Whether a workflow can be started."""

    online: bool


class StoredBundle(Document):
    """Code that has been stored for workers, named by the SHA-256 of its bytes."""

    sha256: str
