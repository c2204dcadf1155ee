"""Grants: a project lets another use its workflows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from latchwork_workflows.model.definition import NAME_PATTERN, Name
from latchwork_workflows.schemas.base import Document

GrantRole = Literal["viewer", "operator"]
#: A project, or empty: all projects.
Grantee = Annotated[str, StringConstraints(pattern=rf"^$|{NAME_PATTERN}", max_length=100)]


class Grant(Document):
    """The role of a project in another.

    Attributes:
        project: The project whose workflows are used.
        grantee: The project whose tasks use them. Empty: all projects.
        role: ``viewer``: its tasks may wait for runs there and read their outputs. ``operator``: they may also start
            workflows there.
    """

    project: Name
    grantee: Grantee
    role: GrantRole


class GrantChange(Document):
    """The role that a project gets in another. None removes its role."""

    grantee: Grantee
    role: GrantRole | None
