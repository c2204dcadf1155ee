"""Grants: which projects may use the workflows of a project.

``viewer``: its tasks may wait for runs there and read their outputs. ``operator``: they may also start workflows there,
with parameters of their choice. Both are checked when a definition is applied and when such a task runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from latchwork_workflows.db import definitions
from latchwork_workflows.db.definitions import FoundWorkflow
from latchwork_workflows.db.tables import project_grant
from latchwork_workflows.errors import NotAllowed, NotFound, Problem
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.model.lineage import WorkflowReference, list_references_of_task
from latchwork_workflows.schemas.grants import Grant
from latchwork_workflows.web import Role

#: The grantee that means all projects.
ALL = ""
_NEEDED = {"sub_process": Role.OPERATOR, "dependent": Role.VIEWER}
_DOES = {Role.OPERATOR: "start its workflows", Role.VIEWER: "wait for its workflows"}


def list_grants(connection: sa.Connection) -> list[Grant]:
    """Return all grants, sorted by project and grantee."""
    table = project_grant
    rows = connection.execute(sa.select(table).order_by(table.c.project, table.c.grantee))
    return [Grant.model_validate(row) for row in rows]


def save_grant(connection: sa.Connection, grant: Grant) -> None:
    """Store a grant. It replaces an earlier grant between the same projects."""
    remove_grant(connection, grant.project, grant.grantee)
    connection.execute(sa.insert(project_grant).values(**grant.model_dump()))


def remove_grant(connection: sa.Connection, project: str, grantee: str) -> bool:
    """Remove a grant, and return whether it existed."""
    there = sa.and_(project_grant.c.project == project, project_grant.c.grantee == grantee)
    return bool(connection.execute(sa.delete(project_grant).where(there)).rowcount)


def check_grant(connection: sa.Connection, grantee: str, project: str, role: Role) -> None:
    """Check that one project has been granted a role in another project.

    Args:
        connection: A transaction.
        grantee: The project that needs the role.
        project: The project whose workflows it uses.
        role: The role that it needs.
    Raises:
        NotAllowed: The role was not granted. The message says how to grant it.
    """
    if grantee == project:
        return
    named = sa.and_(project_grant.c.project == project, project_grant.c.grantee.in_((grantee, ALL)))
    roles = connection.execute(sa.select(project_grant.c.role).where(named)).scalars()
    if not any(Role.from_label(each) >= role for each in roles):
        raise NotAllowed(
            f"project {project!r} does not let project {grantee!r} {_DOES[role]}; an administrator of it allows that "
            f"with `latchwork workflows grants set {project} {grantee} {role.label}`"
        )


def find_granted_workflow(connection: sa.Connection, grantee: str, name: str, kind: str) -> FoundWorkflow:
    """Find the workflow to which a task refers, and check that the project of the task may use it.

    Args:
        connection: A transaction.
        grantee: The project of the task.
        name: The name as given in the task.
        kind: The type of the task: ``sub_process`` or ``dependent``.
    Raises:
        NotAllowed: The project of the task lacks the required role, whether or not the workflow exists.
        NotFound: There is no such workflow.
    """
    role = _NEEDED[kind]
    try:
        found = definitions.find_workflow(connection, name)
    except NotFound:
        check_grant(connection, grantee, definitions.list_possible_targets(name)[0][0], role)
        raise
    check_grant(connection, grantee, found.project, role)
    return found


def find_missing_grants(connection: sa.Connection, definition: Definition) -> Iterator[Problem]:
    """Yield a problem for each workflow of another project that a definition uses without a grant."""
    for index, task in enumerate(definition.tasks):
        for each in dict.fromkeys(_used_project(task_named) for task_named in list_references_of_task(task)):
            try:
                find_granted_workflow(connection, definition.project, *each)
            except NotAllowed as error:
                yield Problem(f"tasks[{index}].params.{'workflow' if each[1] == 'sub_process' else 'on'}", str(error))
            except NotFound:
                continue  # it may be created later


def _used_project(named: WorkflowReference) -> tuple[str, str]:
    return named.workflow, named.kind
